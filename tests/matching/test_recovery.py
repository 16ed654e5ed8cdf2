"""After a crash: who works on what is found out before anything is given."""

from __future__ import annotations

import pytest

from maitred.matching.records import Terms
from maitred.matching.worker_sightings import WORKERS_KEPT
from tests.matching.driver import DONE, FAILED, RETURNED, Driver, Run, session_of

SOON = Terms(retries=5, backoff_first=1.0, backoff_longest=1.0)


def test_nothing_is_given_until_workers_had_time_to_speak() -> None:
    driver = Driver(recovery_seconds=3.0)
    driver.add(2)
    driver.crash()
    waiting = driver.offer(slots=2)
    driver.pass_time(2.9)
    assert not waiting.answered
    driver.pass_time(0.2)
    assert len(waiting.value) == 2


def test_a_partition_that_was_left_in_order_gives_at_once() -> None:
    driver = Driver()
    driver.add(2)
    driver.leave()
    driver.turn()
    assert len(driver.take(slots=2)) == 2


def test_an_empty_partition_gives_at_once() -> None:
    driver = Driver()
    driver.crash()
    waiting = driver.offer()
    driver.add()
    assert waiting.answered


def test_a_heartbeat_claims_what_is_running() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(2)
    run = driver.take_one()
    driver.pass_time(1.0)
    driver.crash()
    driver.turn()
    assert not driver.beat(1, [run]).answered
    driver.pass_time(4.0)
    (other,) = driver.take(2, slots=2)
    assert other.sequence == run.sequence + 1
    assert driver.finish(run).late == []


def test_a_heartbeat_claims_what_is_in_the_store_alone() -> None:
    driver = Driver(lease_seconds=10.0)
    numbers = driver.add(2, delay=1.0).sequences + driver.add(2).sequences
    driver.pass_time(1.0)
    runs = driver.take(slots=4)
    driver.pass_time(1.0)
    driver.slow_reads = True
    driver.crash(0.0)
    driver.turn()
    assert not driver.beat(1, runs).answered
    driver.slow_reads = False
    while driver.reads:
        driver.answer_read()
    driver.pass_time(5.0)
    assert driver.take(2) == []
    assert sorted(driver.partition.own_tasks.leases) == numbers


def test_an_older_attempt_does_not_take_the_claim_of_a_newer_one() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(terms=SOON)
    stale = driver.take_one(1)
    driver.pass_time(11.1)
    run = driver.take_one(2)
    assert run.attempt == 2
    driver.pass_time(1.0)
    driver.slow_reads = True
    driver.crash()
    driver.turn()
    driver.beat(2, [run])
    assert driver.beat(1, [stale]).value == ([stale.sequence], [])
    driver.slow_reads = False
    while driver.reads:
        driver.answer_read()
    driver.turn()
    assert driver.partition.own_tasks.leases[run.sequence].holder == run.session


def test_two_sessions_cannot_claim_one_task() -> None:
    driver = Driver()
    driver.add()
    run = driver.take_one(1)
    driver.pass_time(1.0)
    driver.slow_reads = True
    driver.crash()
    driver.turn()
    driver.beat(1, [run])
    assert driver.beat(2, [run]).value == ([run.sequence], [])


def test_ends_count_before_anything_is_read() -> None:
    driver = Driver()
    driver.add(3, terms=SOON)
    done, failed, returned = driver.take(slots=3)
    driver.pass_time(1.0)
    driver.slow_reads = True
    driver.crash()
    driver.turn()
    assert driver.finish(done).late == []
    driver.slow_reads = False
    while driver.reads:
        driver.answer_read()
    driver.turn()
    assert driver.finish(failed, how=FAILED).late == []
    assert driver.finish(returned, how=RETURNED).late == []
    driver.pass_time(5.0)
    again = {run.sequence: run.attempt for run in driver.take(slots=3)}
    assert again == {failed.sequence: 2, returned.sequence: 1}


def test_what_was_not_acknowledged_may_be_gone_and_what_was_is_there() -> None:
    driver = Driver()
    kept = driver.add(3)
    driver.auto_commit = False
    lost = driver.add(3)
    assert kept.safe
    assert not lost.answered
    driver.crash()
    driver.pass_time(4.0)
    assert [run.sequence for run in driver.take(slots=10)] == kept.sequences


def test_numbers_are_never_used_again() -> None:
    driver = Driver()
    driver.auto_commit = False
    lost = driver.add(3)
    driver.crash()
    assert driver.add().sequences[0] > lost.sequences[-1]


def test_new_tasks_stand_behind_old_ones() -> None:
    driver = Driver(buffer_tasks=10)
    numbers = driver.add(25).sequences
    driver.crash()
    numbers += driver.add(3).sequences
    driver.pass_time(4.0)
    given = []
    for _ in range(28):
        run = driver.take_one()
        driver.finish(run)
        given.append(run.sequence)
    assert given == numbers


def test_more_claims_than_there_are_tasks_are_made_up() -> None:
    """A look goes through none but those whose time is over, and memory has an end."""
    driver = Driver(buffer_tasks=10)
    driver.add(20)
    driver.add(30)
    driver.crash()
    driver.slow_reads = True
    driver.turn()
    made_up = [Run(number, 1, session_of(1)) for number in range(1_000)]
    lost, _ = driver.beat(1, made_up).value
    assert len(lost) == 1_000 - 50
    assert len(driver.partition.attempts.claims) == 50
    driver.pass_time(11.0)
    assert not driver.partition.attempts.claims


def test_workers_that_change_their_name_each_time_are_forgotten() -> None:
    driver = Driver()
    for worker in range(WORKERS_KEPT + 100):
        driver.partition.worker_sightings.heard(session_of(worker), "worker", driver.now)
    assert len(driver.partition.worker_sightings.workers) == WORKERS_KEPT
    driver.now += 301.0
    driver.partition.worker_sightings.heard(session_of("new"), "worker", driver.now)
    driver.partition.forget(driver.now)
    assert list(driver.partition.worker_sightings.workers) == [session_of("new")]


def test_a_second_attempt_that_failed_counts_though_its_row_was_not_read_yet() -> None:
    driver = Driver()
    (number,) = driver.add(terms=Terms(retries=1, backoff_first=0.1)).sequences
    driver.finish(driver.take_one(), how=FAILED)
    driver.pass_time(1.0)
    run = driver.take_one()
    driver.slow_reads = True
    driver.crash()
    told = driver.finish(run, how=FAILED)
    assert not told.late
    while driver.reads:
        driver.answer_read()
    driver.pass_time(5.0)
    assert list(driver.store.dead) == [number]
    assert driver.take() == []


def crashed_with_slow_reads(driver: Driver) -> None:
    driver.slow_reads = True
    driver.crash(0.0)
    driver.turn()


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_an_end_counts_as_soon_as_its_task_is_read_however_slow_the_look_for_it_is(
    delay: float,
) -> None:
    """In a segment or in a row of its own."""
    driver = Driver()
    driver.add(delay=delay)
    driver.pass_time(1.0)
    run = driver.take_one()
    driver.pass_time(1.0)
    crashed_with_slow_reads(driver)
    asked = driver.ask("finish")
    end = (run.sequence, run.attempt, DONE, b"")
    shown = (*end, run.proof)
    ticket, unknown, _ = driver.partition.attempts.finish([shown], asked, driver.now, run.session)
    assert unknown == [end]
    told = driver.partition.attempts.tell_when_read(end, ticket, run.session)
    assert not driver.partition.unattended
    driver.reads_arrive()
    assert told.counts
    driver.pass_time(5.0)
    assert driver.take() == []
    driver.partition.attempts.told_no_more(told)
    driver.partition.tickets.release(ticket)
    driver.commit()
    assert asked.safe
    assert driver.store.unfinished() == set()


def test_an_end_that_is_told_twice_while_its_task_is_looked_for_counts_once() -> None:
    """And the second answer is not given before the first one is on disk."""
    driver = Driver()
    driver.add()
    run = driver.take_one()
    driver.pass_time(1.0)
    crashed_with_slow_reads(driver)
    driver.auto_commit = False
    end = (run.sequence, run.attempt, DONE, b"")
    asked = [driver.ask("finish") for _ in range(2)]
    shown = (*end, run.proof)
    tickets = [
        driver.partition.attempts.finish([shown], one, driver.now, run.session)[0] for one in asked
    ]
    told = [driver.partition.attempts.tell_when_read(end, one, run.session) for one in tickets]
    driver.reads_arrive()
    assert [one.counts for one in told] == [True, False]
    for one in tickets:
        driver.partition.tickets.release(one)
    driver.turn()
    assert not any(one.answered for one in asked)
    driver.commit()
    assert all(one.safe for one in asked)


def a_second_attempt_of_which_the_store_knows_nothing(driver: Driver) -> tuple[Run, Run]:
    """The first one has failed, and the word of that was lost with the owner."""
    driver.add(terms=SOON)
    first = driver.take_one(1)
    driver.pass_time(0.5)
    driver.auto_commit = False
    driver.finish(first, how=FAILED)
    driver.pass_time(1.1)
    second = driver.take_one(2)
    assert second.attempt == 2
    driver.crash()
    driver.auto_commit = True
    driver.turn()
    return first, second


def test_a_later_attempt_that_is_done_is_done_whoever_is_said_to_have_an_earlier_one() -> None:
    driver = Driver()
    first, second = a_second_attempt_of_which_the_store_knows_nothing(driver)
    driver.beat(1, [first])
    assert driver.partition.own_tasks.leases[first.sequence].holder == first.session
    assert driver.finish(second).late == []
    assert driver.finish(first, how=FAILED).late == [first.sequence]
    driver.pass_time(5.0)
    assert driver.take() == []
    assert driver.store.unfinished() == set()


@pytest.mark.parametrize("told_first", [True, False])
def test_a_worker_keeps_a_later_attempt_than_the_store_knows_of(*, told_first: bool) -> None:
    driver = Driver(lease_seconds=10.0)
    first, second = a_second_attempt_of_which_the_store_knows_nothing(driver)
    if told_first:
        assert driver.finish(first, how=FAILED).late == []
    assert not driver.beat(2, [second]).answered
    if not told_first:
        assert driver.finish(first, how=FAILED).late == [first.sequence]
    driver.pass_time(5.0)
    assert driver.take(1) == []
    assert driver.finish(second, how=FAILED).late == []
    driver.pass_time(1.1)
    assert driver.take_one().attempt == 3
