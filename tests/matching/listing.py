"""Lists the tasks of a driven partition page by page, as the node does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.matching.records import PRIORITIES
from maitred.matching.sighted_task import FIRST

if TYPE_CHECKING:
    from maitred.matching.sighted_task import Place, SightedTask
    from tests.matching.driver import Driver

ANY_SIZE = 10**12


def running(driver: Driver, most: int) -> list[SightedTask]:
    found: list[SightedTask] = []
    after = FIRST
    while page := driver.partition.lists.running(after, most):
        found += page
        after = page[-1].at
    return found


def ended(driver: Driver, most: int) -> list[SightedTask]:
    found: list[SightedTask] = []
    after = FIRST
    while page := driver.partition.lists.ended(None, after, most, driver.now):
        found += page
        after = page[-1].at
    return found


def waiting(driver: Driver, most: int) -> list[SightedTask]:
    found = []
    for priority in range(PRIORITIES):
        after: int | None = 0
        while after is not None:
            around = driver.store.around(after + 1) if after else []
            rows = [one for one in around if one.segment.priority == priority]
            behind = rows[-1].segment.last if rows else after
            following = driver.store.read(priority, behind, most, ANY_SIZE)
            page, horizon = driver.partition.lists.waiting(
                priority,
                after,
                [*rows, *following],
                driver.now,
                is_all=sum(segment.tasks for segment, _ in following) < most,
            )
            assert all(one.at > (priority, after) for one in page)
            if len(page) > most:  # the answer is full: the next one begins behind its last task
                page, horizon = page[:most], page[most - 1].at[1]
            found += page
            after = horizon
    return found


def delayed(driver: Driver, most: int) -> list[SightedTask]:
    found: list[SightedTask] = []
    after: Place | None = FIRST
    while after is not None:
        with driver.partition.purge.reading():
            rows = [row for row in driver.store.read_later() if (row.due, row.sequence) > after][
                :most
            ]
            page, after = driver.partition.lists.delayed(
                after, rows, driver.now, is_all=len(rows) < most
            )
        found += page
    return found
