"""Ends of attempts at tasks that are not in memory: when the store is asked, and what counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maitred.errors import StoreUnavailable, Unavailable
from maitred.matching.stored_ends import READING_SECONDS
from tests.matching.driver import DONE, FAILED, Driver, Run

if TYPE_CHECKING:
    from maitred.matching import effects


class SlowDriver(Driver):
    """A partition that was loaded after a crash, and whose first reads are not answered yet. The
    searches of its shell are on record, and are not carried out."""

    searches: list[effects.FindEnds]

    def __init__(self, tasks: int = 1) -> None:
        super().__init__()
        self.searches = []
        self.add(tasks)
        self.runs = self.take(slots=tasks)
        self.pass_time(1.0)
        self.slow_reads = True
        self.crash()
        self.turn()

    def _find_ends(self, effect: effects.FindEnds) -> None:
        self.searches.append(effect)

    def look(self) -> None:
        """Carry out what is on record."""
        searches, self.searches = self.searches, []
        for effect in searches:
            super()._find_ends(effect)
        self.turn()

    def reads_arrive(self) -> None:
        self.slow_reads = False
        while self.reads:
            self.answer_read()
        self.turn()


def the_run(driver: SlowDriver) -> Run:
    (run,) = driver.runs
    return run


def test_a_search_waits_for_what_is_being_read_and_need_not_ask_then() -> None:
    driver = SlowDriver()
    asked = driver.finish(the_run(driver))
    driver.pass_time(READING_SECONDS / 2)
    assert not driver.searches
    driver.reads_arrive()
    ((search,),) = driver.searches
    assert [told.counts for told in search.told] == [True]
    assert not driver.partition.stored_ends.is_missing(search.told[0], driver.now)
    driver.look()
    driver.commit()
    assert asked.safe
    assert asked.late == []
    assert driver.store.unfinished() == set()


def test_a_search_does_not_wait_for_a_read_that_takes_long() -> None:
    driver = SlowDriver()
    asked = driver.finish(the_run(driver))
    driver.pass_time(READING_SECONDS)
    ((search,),) = driver.searches
    assert driver.partition.stored_ends.is_missing(search.told[0], driver.now)
    driver.look()
    driver.commit()
    assert asked.safe
    assert driver.store.unfinished() == set()


def test_an_end_of_a_task_that_the_store_does_not_have_is_late() -> None:
    driver = SlowDriver()
    run = the_run(driver)
    driver.finish(run)
    driver.reads_arrive()
    driver.look()
    driver.commit()
    again = driver.finish(run)
    driver.look()
    assert again.late == [run.sequence]


def test_a_failure_of_a_task_that_is_still_to_be_read_is_said_again() -> None:
    """Its next attempt needs the task; until it is read, the worker that had it keeps it."""
    driver = SlowDriver()
    run = the_run(driver)
    driver.finish(run, how=FAILED)
    driver.pass_time(READING_SECONDS)
    ((search,),) = driver.searches
    with pytest.raises(Unavailable):
        driver.partition.stored_ends.found(
            search.told[0], *driver._look_for(run.sequence), driver.now
        )
    assert run.sequence in driver.partition.attempts.claims


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_an_end_that_could_not_be_looked_for_is_refused_and_its_task_kept(how: int) -> None:
    driver = SlowDriver()
    run = the_run(driver)
    asked = driver.finish(run, how=how)
    driver.pass_time(READING_SECONDS)
    ((search,),) = driver.searches
    problem = StoreUnavailable("The disk is away.")
    driver.partition.stored_ends.over(search, problem, driver.now)
    driver.turn()
    assert asked.value is problem
    driver.reads_arrive()
    driver.pass_time(4.0)
    assert driver.partition.own_tasks.leases[run.sequence].holder == run.session


def test_whoever_waits_for_a_search_that_has_not_begun_is_told_when_the_partition_is_let_go() -> (
    None
):
    driver = SlowDriver()
    asked = driver.finish(the_run(driver))
    _, tickets = driver.partition.leave()
    assert [ticket.token for ticket in tickets] == [asked]
