"""A task that is done before its producer is answered: its result travels with the answer, unless
its end has to be written first."""

from __future__ import annotations

import pytest

from maitred.matching.records import Terms
from tests.matching.driver import DONE, FAILED, STOPPED, TERMS, Asked, Driver


def add(driver: Driver, tasks: int, terms: Terms = TERMS) -> tuple[Asked, list[bytes | None]]:
    asked = driver.ask("add")
    results: list[bytes | None] = []
    driver.partition.intake.add(
        [b"%d" % number for number in range(tasks)],
        token=asked,
        now=driver.now,
        priority=2,
        terms=terms,
        results=results,
    )
    driver.turn()
    return asked, results


def test_results_are_gathered_until_the_producer_is_answered() -> None:
    driver = Driver(hold_seconds=60.0)
    driver.offer(slots=3)
    added, results = add(driver, 3)
    first, second, third = driver.given[-3:]
    driver.finish(third, body=b"3")
    assert not added.answered
    assert driver.partition.intake.revoke(second.sequence, driver.now) == "cancelling"
    driver.finish(second, how=STOPPED)
    driver.finish(first, body=b"1")
    assert added.safe
    assert results == [b"1", None, b"3"], "a caller asks how a task ended that is not done"
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
def test_a_result_that_is_written_or_not_kept_is_not_among_them(terms: Terms, how: int) -> None:
    driver = Driver(hold_seconds=60.0)
    driver.offer()
    added, results = add(driver, 1, terms)
    driver.finish(driver.given[-1], how=how)
    driver.pass_time(1.0)
    assert added.safe
    assert results == []


def test_a_task_that_a_commit_has_is_told_when_its_end_is_on_disk() -> None:
    driver = Driver(hold_seconds=0.01)
    driver.auto_commit = False
    driver.offer()
    added, results = add(driver, 1)
    driver.now += 1.0
    driver.begin_commit()
    driver.finish(driver.given[-1])
    assert added.safe, "it is over, and need not be written"
    assert results == [], "the commit may write the task, and a crash then runs it again"
    told = driver.wait_for(driver.given[-1].sequence)
    assert not told.answered
