"""Offers, leases, heartbeats and ends."""

from __future__ import annotations

import pytest

from maitred.errors import TaskForgotten
from maitred.matching.presence import RETURN_SECONDS
from maitred.matching.records import Terms
from maitred.matching.task_ends import Ended
from tests.matching.driver import (
    DONE,
    FAILED,
    RETURNED,
    STOPPED,
    TIMED_OUT,
    Driver,
    session_of,
)

SOON = Terms(retries=5, backoff_first=1.0, backoff_longest=1.0)


def test_a_task_that_finds_an_offer_is_given_at_once() -> None:
    driver = Driver()
    waiting = driver.offer()
    driver.add([b"payload"])
    (run,) = waiting.value
    assert (run.payload, run.attempt, run.at) == (b"payload", 1, driver.now)
    assert driver.partition.intake.matched_at_once == 1


def test_an_offer_that_finds_a_task_gets_it_at_once() -> None:
    driver = Driver()
    driver.add(3)
    assert len(driver.offer(slots=5).value) == 3


def test_an_offer_hears_when_its_time_is_up() -> None:
    driver = Driver()
    waiting = driver.offer(seconds=30.0)
    driver.pass_time(29.99)
    assert not waiting.answered
    driver.pass_time(0.02)
    assert waiting.value == []
    assert driver.partition.offers.slots == 0


def test_an_offer_gets_no_more_than_its_slots() -> None:
    driver = Driver()
    first, second = driver.offer(1, slots=2), driver.offer(2, slots=3)
    driver.add(10)
    assert (len(first.value), len(second.value)) == (2, 3)
    assert driver.partition.waiting == 5


def test_tasks_that_come_together_are_spread_over_the_offers() -> None:
    driver = Driver()
    offers = [driver.offer(worker, slots=10) for worker in range(4)]
    driver.add(4)
    assert [len(one.value) for one in offers] == [1, 1, 1, 1]


def test_urgent_ones_first_and_first_in_first_out_within_a_priority() -> None:
    driver = Driver()
    numbers = [driver.add(priority=priority).sequences[0] for priority in (4, 2, 0, 4, 2, 0)]
    order = [driver.take_one().sequence for _ in range(6)]
    assert order == [numbers[place] for place in (2, 5, 1, 4, 0, 3)]


def test_an_expired_task_is_not_begun() -> None:
    driver = Driver()
    (sequence,) = driver.add(expires=5.0).sequences
    kept = driver.add()
    waiting = driver.wait_for(sequence)
    driver.auto_commit = False
    driver.pass_time(5.0)
    assert driver.take_one().sequence == kept.sequences[0]
    assert not waiting.answered  # before it is on disk
    driver.auto_commit = True
    driver.turn()
    assert waiting.value.status == "expired"
    assert driver.store.unfinished() == set(kept.sequences)


def test_a_task_that_has_begun_does_not_expire() -> None:
    driver = Driver()
    driver.add(expires=5.0)
    run = driver.take_one()
    driver.beat(1, [run])
    driver.pass_time(6.0)
    driver.finish(run)
    assert driver.outcome(run.sequence) == Ended("done", 1, b"", driver.now + 60.0)


def test_a_lease_that_ends_gives_the_task_to_another_with_the_next_attempt() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(terms=SOON)
    run = driver.take_one(1)
    driver.pass_time(9.9)
    assert run.sequence in driver.partition.own_tasks.leases
    driver.pass_time(0.2)
    assert driver.partition.attempts.lost == 1
    driver.pass_time(1.0)
    again = driver.take_one(2)
    assert (again.sequence, again.attempt) == (run.sequence, 2)
    assert driver.beat(1, [run]).value == ([run.sequence], [])


def test_what_a_worker_offered_before_it_fell_silent_gets_nothing_more() -> None:
    driver = Driver(lease_seconds=10.0, offer_seconds=60.0)
    early = driver.offer("cut off", slots=1)
    late = driver.offer("cut off", slots=3)
    (sequence,) = driver.add(1).sequences
    assert (early.answered, late.answered) == (True, False)
    driver.pass_time(10.0)
    assert late.answered, "it is told to ask again, if it lives"
    assert driver.partition.offers.slots == 0
    driver.pass_time(5.0)
    (again,) = driver.take("another")
    assert (again.sequence, again.attempt) == (sequence, 2)


def test_a_heartbeat_renews_the_lease() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add()
    run = driver.take_one()
    for _ in range(10):
        driver.pass_time(8.0)
        driver.beat(1, [run])
    assert driver.partition.attempts.lost == 0
    driver.pass_time(11.0)
    assert driver.partition.attempts.lost == 1


def test_a_heartbeat_is_answered_when_its_time_is_up_or_with_the_next_one() -> None:
    driver = Driver()
    driver.add()
    run = driver.take_one(1)
    first = driver.beat(1, [run], seconds=5.0)
    second = driver.beat(1, [run], seconds=5.0)
    assert first.value == ([], [])
    assert not second.answered
    driver.pass_time(5.0)
    assert second.value == ([], [])


def test_leases_last_longer_by_the_time_for_which_the_shard_stood_still() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(2)
    runs = [driver.take_one(1), driver.take_one(2)]
    driver.now += 30.0  # without a turn
    driver.partition.attempts.stood_still(29.0)
    driver.pass_time(0.0)
    assert driver.partition.attempts.lost == 0
    driver.pass_time(5.0)
    driver.beat(1, [runs[0]])
    driver.pass_time(4.1)
    assert driver.partition.attempts.lost == 1, "the other worker is gone"
    driver.finish(runs[0])


def test_another_session_cannot_renew_a_lease() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add()
    run = driver.take_one(1)
    driver.pass_time(5.0)
    assert driver.beat(2, [run]).value == ([run.sequence], [])
    driver.pass_time(5.1)
    assert driver.partition.attempts.lost == 1


@pytest.mark.parametrize("how", ["one message", "many messages", "withdrawn"])
def test_tasks_that_come_back_stand_where_they_stood(how: str) -> None:
    driver = Driver()
    numbers = driver.add(6).sequences
    if how == "withdrawn":
        driver.withdraw(driver.offer(1, slots=4, turn=False))
    else:
        runs = driver.take(slots=4)
        if how == "one message":
            driver.finish(*runs, how=RETURNED)
        else:
            for run in (runs[2], runs[0], runs[3], runs[1]):
                driver.finish(run, how=RETURNED)
    again = [driver.take_one() for _ in range(6)]
    assert [run.sequence for run in again] == numbers
    assert {run.attempt for run in again} == {1}


@pytest.mark.parametrize("how", [FAILED, TIMED_OUT, STOPPED])
def test_an_attempt_that_came_to_nothing_is_followed_by_another(how: int) -> None:
    driver = Driver()
    driver.add(terms=SOON)
    driver.finish(driver.take_one(), how=how)
    assert driver.take() == []
    driver.pass_time(1.0)
    assert driver.take_one().attempt == 2


def test_done_counts_though_the_lease_has_ended() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(terms=SOON)
    run = driver.take_one()
    driver.pass_time(10.1)
    finished = driver.finish(run, body=b"late but done")
    assert finished.late == []
    ended = driver.outcome(run.sequence)
    assert ended is not None
    assert (ended.status, ended.body) == ("done", b"late but done")
    driver.pass_time(2.0)
    assert driver.take() == []
    assert driver.store.empty


@pytest.mark.parametrize("how", range(5))
def test_an_end_comes_too_late_when_another_has_the_task(how: int) -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(terms=SOON)
    run = driver.take_one(1)
    driver.pass_time(11.1)
    again = driver.take_one(2)
    assert driver.finish(run, how=how).late == [run.sequence]
    assert driver.finish(again, how=DONE).late == []


def test_done_counts_though_the_same_worker_was_given_the_next_attempt() -> None:
    """The worker was stopped, or a handler held the GIL; the offer that the next attempt came by
    was its own."""
    driver = Driver(lease_seconds=10.0)
    driver.add(terms=SOON)
    run = driver.take_one(1)
    driver.pass_time(11.1)
    again = driver.take_one(1)
    assert (again.sequence, again.attempt) == (run.sequence, 2)
    assert driver.finish(run, body=b"late but done").late == []
    ended = driver.outcome(run.sequence)
    assert ended is not None
    assert (ended.status, ended.body) == ("done", b"late but done")
    assert driver.finish(again, how=RETURNED).late == [run.sequence]
    driver.pass_time(2.0)
    assert driver.take() == []
    assert driver.store.empty


@pytest.mark.parametrize("how", [FAILED, RETURNED, TIMED_OUT, STOPPED])
def test_what_failed_is_late_though_the_same_worker_has_the_next_attempt(how: int) -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(terms=SOON)
    run = driver.take_one(1)
    driver.pass_time(11.1)
    again = driver.take_one(1)
    assert driver.finish(run, how=how).late == [run.sequence]
    assert driver.finish(again, how=DONE).late == []


def test_results_are_kept_as_long_as_was_asked() -> None:
    driver = Driver()
    driver.add(terms=Terms(retention=30.0))
    run = driver.take_one()
    driver.finish(run, body=b"42")
    driver.pass_time(29.9)
    assert driver.wait_for(run.sequence).value.body == b"42"
    driver.pass_time(0.2)
    assert isinstance(driver.wait_for(run.sequence).value, TaskForgotten)


def test_no_more_results_are_kept_than_fit() -> None:
    driver = Driver(results_kept=3, results_bytes=100)
    for size, kept in ((1, 1), (1, 2), (1, 3), (1, 3), (98, 2), (100, 0)):
        driver.add()
        run = driver.take_one()
        driver.finish(run, body=b"x" * size)
        assert len(driver.partition.results.outcomes) == kept
        if kept:  # the oldest are dropped first, and a 64th of the bytes, which is one, stays free
            assert driver.wait_for(run.sequence).value.body == b"x" * size


def test_the_last_results_are_kept_however_many_there_were() -> None:
    driver = Driver(results_kept=640)
    runs = []
    for _ in range(3_000):
        driver.add()
        runs.append(driver.take_one())
        driver.finish(runs[-1])
        assert len(driver.partition.results.outcomes) <= 640
    for run in runs[-630:]:
        assert driver.wait_for(run.sequence).value.status == "done"
    assert isinstance(driver.wait_for(runs[-641].sequence).value, TaskForgotten)


def test_a_result_that_is_to_last_is_in_the_store() -> None:
    driver = Driver(memory_seconds=60.0)
    driver.add(2, terms=Terms(retention=61.0))
    driver.add(terms=Terms(retention=60.0))
    runs = driver.take(slots=3)
    driver.finish(*runs)
    driver.pass_time(1.0)
    assert list(driver.store.results) == [run.sequence for run in runs[:2]]


def test_all_who_wait_for_a_task_hear_of_it() -> None:
    driver = Driver()
    (sequence,) = driver.add().sequences
    waiting = [driver.wait_for(sequence) for _ in range(3)]
    driver.partition.results.wait_no_more(sequence, waiting[1])
    driver.finish(driver.take_one(), body=b"result")
    assert [one.answered for one in waiting] == [True, False, True]


def test_a_worker_that_comes_and_goes_is_forgotten_in_time() -> None:
    driver = Driver()
    for worker in range(3_000):
        driver.partition.worker_sightings.heard(session_of(worker), "worker", driver.now)
        driver.now += 60.0
    assert len(driver.partition.worker_sightings.workers) <= 1_100
    assert session_of(2_999) in driver.partition.worker_sightings.workers


def test_leases_end_in_the_order_in_which_they_were_renewed() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(2, terms=SOON)
    first, second = driver.take_one(1), driver.take_one(2)
    driver.pass_time(5.0)
    driver.beat(1, [first])
    driver.pass_time(5.1)
    assert list(driver.partition.own_tasks.leases) == [first.sequence]
    assert driver.partition.own_tasks.tasks[second.sequence].attempt == 1


def test_only_workers_that_are_there_are_described() -> None:
    driver = Driver(lease_seconds=10.0)
    partition = driver.partition

    def here() -> set[bytes]:
        return set(partition.workers_here())

    driver.add()
    run = driver.take_one(1)  # its task is running
    offer = driver.offer(2)
    attending = driver.attend(3)
    assert here() == {session_of(1), session_of(2), session_of(3)}
    driver.finish(run)
    driver.withdraw(offer)
    assert here() == {session_of(3)}
    driver.attend_no_more(attending)
    driver.pass_time(RETURN_SECONDS + 0.1)
    assert here() == set()
    assert session_of(1) in partition.worker_sightings.workers, (
        "it is remembered, and may come back"
    )


def test_a_worker_that_gave_a_task_back_cannot_renew_the_lease_of_the_next() -> None:
    """A task that is given back counts no attempt, so both workers have a proof of the same one."""
    driver = Driver()
    driver.add()
    driver.offer(1)
    old = driver.given[-1]
    driver.finish(old, how=RETURNED)
    driver.offer(2)
    new = driver.given[-1]
    assert (new.sequence, new.attempt) == (old.sequence, old.attempt)
    task = driver.partition.own_tasks.leases[new.sequence]
    holder, until = task.holder, task.lease_until
    driver.now += 1.0
    heard = driver.beat(1, [old], seconds=0.1)
    driver.pass_time(0.2)
    assert heard.value == ([old.sequence], [])
    assert (task.holder, task.lease_until) == (holder, until)
    finished = driver.finish(new)
    driver.pass_time(1.0)
    assert finished.safe
