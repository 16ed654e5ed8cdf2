"""A task that is over before its producer is answered: its end travels with the answer, unless the
end has to be written first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maitred.matching.records import Terms
from tests.matching.driver import DONE, FAILED, STOPPED, TERMS, Asked, Driver

if TYPE_CHECKING:
    from maitred.matching.effects import Ended


def add(driver: Driver, tasks: int, terms: Terms = TERMS) -> tuple[Asked, list[tuple[int, Ended]]]:
    asked = driver.ask("add")
    ends: list[tuple[int, Ended]] = []
    driver.partition.intake.add(
        [b"%d" % number for number in range(tasks)],
        token=asked,
        now=driver.now,
        priority=2,
        terms=terms,
        ends=ends,
    )
    driver.turn()
    return asked, ends


def test_ends_are_gathered_until_the_producer_is_answered() -> None:
    driver = Driver(hold_seconds=60.0)
    driver.offer(slots=2)
    added, ends = add(driver, 2)
    first, second = driver.given[-2:]
    driver.finish(second, body=b"2")
    assert not added.answered
    driver.finish(first, body=b"1")
    assert added.safe
    assert [(sequence, ended.status, ended.attempts, ended.body) for sequence, ended in ends] == [
        (second.sequence, "done", 1, b"2"),
        (first.sequence, "done", 1, b"1"),
    ]
    assert driver.store.rows_written == 0


@pytest.mark.parametrize(
    ("terms", "how"),
    [
        (Terms(retention=3_600.0), DONE),  # its result outlives the process
        (Terms(retries=0), FAILED),  # a dead letter
        (Terms(retention=0.0), DONE),  # the caller said that it never asks
    ],
    ids=["stored result", "dead letter", "no result wanted"],
)
def test_an_end_that_is_written_or_not_kept_is_not_among_them(terms: Terms, how: int) -> None:
    driver = Driver(hold_seconds=60.0)
    driver.offer()
    added, ends = add(driver, 1, terms)
    driver.finish(driver.given[-1], how=how)
    driver.pass_time(1.0)
    assert added.safe
    assert ends == []


def test_a_task_that_a_commit_has_is_told_when_its_end_is_on_disk() -> None:
    driver = Driver(hold_seconds=0.01)
    driver.auto_commit = False
    driver.offer()
    added, ends = add(driver, 1)
    driver.now += 1.0
    driver.begin_commit()
    driver.finish(driver.given[-1])
    assert added.safe, "it is over, and need not be written"
    assert ends == [], "the commit may write the task: until its end is on disk, it may run again"
    told = driver.wait_for(driver.given[-1].sequence)
    assert not told.answered


def test_a_cancelled_task_tells_its_producer() -> None:
    driver = Driver(hold_seconds=60.0)
    driver.offer()
    added, ends = add(driver, 1)
    run = driver.given[-1]
    assert driver.partition.intake.revoke(run.sequence, driver.now) == "cancelling"
    driver.finish(run, how=STOPPED)
    assert added.safe
    assert [ended.status for _, ended in ends] == ["cancelled"]
