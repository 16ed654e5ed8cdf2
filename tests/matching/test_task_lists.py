"""Lists of a partition's tasks: complete and without repetition, wherever the tasks are."""

from __future__ import annotations

import pytest

from maitred.matching.records import PRIORITIES, Terms
from maitred.matching.task_history import ATTEMPTS_MAX, past_attempts
from maitred.settings import History
from tests.matching import listing
from tests.matching.driver import DONE, FAILED, RETURNED, TERMS, Driver


@pytest.mark.parametrize("most", [1, 3, 7, 1_000])
def test_a_backlog_is_listed_whole_from_memory_and_from_the_store(most: int) -> None:
    driver = Driver(buffer_tasks=10)
    for _ in range(9):
        for priority in range(PRIORITIES):
            driver.add(7, priority=priority)
    driver.add(5, delay=100.0)
    assert len(driver.partition.own_tasks.tasks) < 9 * 7 * PRIORITIES
    found = listing.waiting(driver, most)
    places = [one.at for one in found]
    assert places == sorted(set(places))
    assert len(found) == 9 * 7 * PRIORITIES
    assert {one.task.payload for one in found} == {b"%d" % number for number in range(7)}


@pytest.mark.parametrize("most", [1, 4, 1_000])
def test_delayed_tasks_come_as_they_are_due(most: int) -> None:
    driver = Driver(buffer_tasks=10)
    dues = [500.0, 20.0, 20.0, 9_000.0, 70.0] * 9
    for due in dues:
        driver.add(1, delay=due)
    driver.crash()
    driver.turn()
    driver.add(1, delay=1.0)  # in memory alone
    found = listing.delayed(driver, most)
    places = [one.at for one in found]
    assert places == sorted(set(places))
    assert len(found) == len(dues) + 1
    assert [one.task.due + driver.wall for one in found] == [due for due, _ in places]


def test_a_task_is_found_in_every_state() -> None:
    driver = Driver(buffer_tasks=10, hold_seconds=0.0)
    driver.add(1)
    (run,) = driver.take("w", 1)
    (given,) = listing.running(driver, 10)
    assert (given.state, given.task.sequence, given.task.worker) == (
        "running",
        run.sequence,
        "worker w",
    )
    driver.finish(run, how=FAILED)
    (retry,) = listing.delayed(driver, 10)
    assert retry.task.sequence == run.sequence
    driver.pass_time(5.0)
    (ready,) = listing.waiting(driver, 10)
    assert ready.task.sequence == run.sequence
    (run,) = driver.take("w", 1)
    driver.finish(run, how=DONE)
    (over,) = listing.ended(driver, 10)
    assert (over.state, over.task.ended) == ("done", driver.now)
    assert not listing.waiting(driver, 10) + listing.running(driver, 10)


def test_ended_tasks_are_bounded_in_number_and_time() -> None:
    driver = Driver(history=History(tasks=5, seconds=60.0))
    for _ in range(9):
        driver.add(1)
        for run in driver.take("w", 1):
            driver.finish(run, how=DONE)
        driver.pass_time(1.0)
    found = listing.ended(driver, 2)
    assert len(found) == 5
    assert [one.at for one in found] == sorted((one.at for one in found), reverse=True)
    driver.pass_time(57.0)
    assert len(listing.ended(driver, 2)) == 2
    driver.pass_time(10.0)
    assert not listing.ended(driver, 2)
    assert driver.partition.lists.one(found[0].task.sequence, driver.now) is None


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_tasks_that_end_together_are_listed_in_order_whatever_ended_first(most: int) -> None:
    """A worker reports in one message what has ended, in any order: it ends in one moment."""
    driver = Driver()
    for _ in range(3):
        driver.add(6)
        runs = driver.take("w", 6)
        driver.finish(*(runs[at] for at in (3, 0, 5, 1, 4, 2)), how=DONE)
        driver.pass_time(1.0)
    found = listing.ended(driver, most)
    assert len(found) == 18, "none is missed"
    assert [one.at for one in found] == sorted({one.at for one in found}, reverse=True)


def test_a_busy_partition_keeps_a_sample_of_what_ended() -> None:
    driver = Driver(history=History(tasks=50, seconds=3600.0))

    def ends(tasks: int) -> None:
        for _ in range(tasks // 20):
            driver.add(20)
            driver.finish(*driver.take("w", 20))

    ends(100)
    begun = driver.now
    assert len(listing.ended(driver, 1_000)) == 50, "a burst is kept"
    for _ in range(6):
        driver.pass_time(1.0)
        ends(100)
    later = [one for one in listing.ended(driver, 1_000) if one.task.ended > begun + 0.5]
    assert len(later) == 6 * 5, "then a tenth a second"
    driver.pass_time(30.0)
    ends(100)
    assert all(one.task.ended == driver.now for one in listing.ended(driver, 1_000)), (
        "a burst again"
    )


def test_without_history_nothing_is_kept() -> None:
    driver = Driver(history=History(tasks=0))
    driver.add(1)
    for run in driver.take("w", 1):
        driver.finish(run, how=DONE)
    assert not listing.ended(driver, 2)


def test_notes_about_attempts_survive_a_crash_and_are_bounded() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.add(1, terms=Terms(retries=40, backoff_first=0.1, backoff_longest=0.1))
    for attempt in range(1, 14):
        (run,) = driver.take("w", 1)
        if attempt == 5:
            driver.finish(run, how=RETURNED)
            (run,) = driver.take("v", 1)
        driver.finish(run, how=FAILED)
        driver.pass_time(1.0)
        if attempt in (3, 12):
            driver.commit()
            driver.crash()
            driver.pass_time(10.0)
    (found,) = listing.waiting(driver, 10)
    omitted, attempts = past_attempts(found.task.past)
    assert len(attempts) == ATTEMPTS_MAX
    assert omitted == 14 - ATTEMPTS_MAX
    assert [one.attempt for one in attempts if one.how == "failed"] == [*range(5, 14)]
    assert [one.worker for one in attempts][:2] == ["worker w", "worker v"]
    assert all(one.started_at <= one.ended_at for one in attempts)


def test_a_dead_letter_has_its_attempts() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.add(1, terms=Terms(retries=1, backoff_first=0.1, backoff_longest=0.1))
    for _ in range(2):
        (run,) = driver.take("w", 1)
        driver.finish(run, how=FAILED)
        driver.pass_time(1.0)
    driver.commit()
    (found,) = driver.partition.lists.dead(driver.store.dead.values(), driver.now)
    assert [one.how for one in past_attempts(found.task.past).attempts] == ["failed", "failed"]
    assert found.state == "dead"
    assert not listing.ended(driver, 10)


class FullQuota:
    bytes = 0

    def has_room(self, _size: int, _now: float) -> bool:
        return False


def test_without_room_in_a_quota_the_notes_are_dropped() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.add(1, terms=TERMS)
    driver.partition.results.quotas = (FullQuota(),)  # type: ignore[assignment]
    (run,) = driver.take("w", 1)
    driver.finish(run, how=FAILED)
    (found,) = listing.delayed(driver, 10)
    assert not found.task.past
    assert found.task.attempt == 1


def test_the_next_owner_knows_since_when_a_task_runs() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.add(1)
    (run,) = driver.take("w", 1)
    (before,) = listing.running(driver, 10)
    driver.pass_time(4.0)
    driver.hand_over(seconds=0.1)
    driver.beat("w", [run])
    driver.pass_time(0.5)
    (after,) = listing.running(driver, 10)
    assert after.task.sequence == run.sequence
    # Later by the way of the last owner's answer, not by the four seconds.
    assert before.at[0] <= after.at[0] <= before.at[0] + 0.3
