"""Tasks whose retries are used up, and what people do with them."""

from __future__ import annotations

import pytest

from maitred.matching.records import Terms, decode_record
from tests.matching.driver import FAILED, TIMED_OUT, Driver

ONCE = Terms(retries=0)
TWICE = Terms(retries=1, backoff_first=1.0)


@pytest.mark.parametrize(("how", "reason"), [(FAILED, "failed"), (TIMED_OUT, "timed-out")])
def test_a_task_without_retries_left_is_a_dead_letter(how: int, reason: str) -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=TWICE).sequences
    driver.finish(driver.take_one(), how=how, body=b"first")
    driver.pass_time(1.0)
    run = driver.take_one()
    assert run.attempt == 2
    driver.finish(run, how=how, body=b"second")
    driver.pass_time(1.0)
    letter = driver.store.dead[sequence]
    assert letter.reason == reason
    assert decode_record(letter.body, letter.sequence).attempt == 2
    assert decode_record(letter.body, letter.sequence).failure == b"second"
    ended = driver.outcome(sequence)
    assert ended is not None
    assert (ended.status, ended.attempts, ended.body) == ("failed", 2, b"second")
    assert driver.store.empty
    assert driver.partition.own_tasks.open_tasks == 0


def test_a_lost_worker_uses_up_attempts_too() -> None:
    driver = Driver(lease_seconds=10.0)
    (sequence,) = driver.add(terms=ONCE).sequences
    driver.take_one()
    driver.pass_time(11.0)
    assert driver.store.dead[sequence].reason == "lost"


def test_nobody_is_told_that_it_is_safe_before_the_dead_letter_is_written() -> None:
    driver = Driver()
    driver.auto_commit = False
    driver.offer()
    added = driver.add(terms=ONCE)
    finished = driver.finish(driver.given[0], how=FAILED)
    assert not added.answered
    assert not finished.answered
    driver.commit()
    assert added.safe
    assert finished.safe
    assert list(driver.store.dead) == added.sequences


def test_a_result_that_is_to_last_is_written_before_anybody_is_told_that_it_is_safe() -> None:
    driver = Driver(memory_seconds=60.0)
    driver.auto_commit = False
    driver.offer()
    added = driver.add(terms=Terms(retention=1000.0))
    finished = driver.finish(driver.given[0], body=b"result")
    assert not added.answered
    assert not finished.answered
    driver.commit()
    assert added.safe
    assert finished.safe
    assert list(driver.store.results) == added.sequences


def test_a_dead_letter_is_a_task_again() -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=TWICE, expires=2.0).sequences
    for _ in range(2):
        driver.finish(driver.take_one(), how=FAILED)
        driver.pass_time(1.0)
    driver.pass_time(10.0)
    assert driver.retry_dead(sequence).safe
    assert driver.store.dead == {}
    assert driver.outcome(sequence) is None
    run = driver.take_one()
    assert (run.sequence, run.attempt) == (sequence, 1)
    driver.finish(run)
    driver.pass_time(1.0)
    assert driver.store.empty


def test_a_dead_letter_that_is_retried_survives_a_crash() -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=ONCE).sequences
    driver.finish(driver.take_one(), how=FAILED)
    driver.pass_time(1.0)
    driver.retry_dead(sequence)
    driver.crash()
    driver.pass_time(5.0)
    assert driver.take_one().sequence == sequence


def test_retrying_twice_makes_one_task() -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=ONCE).sequences
    driver.finish(driver.take_one(), how=FAILED)
    driver.pass_time(1.0)
    driver.auto_commit = False
    driver.retry_dead(sequence)
    again = driver.retry_dead(sequence)
    assert driver.partition.own_tasks.open_tasks == 1
    driver.commit()
    assert again.safe
    assert len(driver.take(slots=2)) == 1


def test_retrying_after_dropping_does_nothing() -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=ONCE).sequences
    driver.finish(driver.take_one(), how=FAILED)
    driver.pass_time(1.0)
    driver.auto_commit = False
    driver.drop_dead(sequence)
    driver.retry_dead(sequence)
    driver.commit()
    assert driver.store.dead == {}
    assert driver.partition.own_tasks.open_tasks == 0


def test_a_dead_letter_can_be_dropped() -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=ONCE).sequences
    driver.finish(driver.take_one(), how=FAILED)
    driver.pass_time(1.0)
    assert driver.drop_dead(sequence).safe
    assert driver.store.dead == {}


def test_a_task_can_die_twice() -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=ONCE).sequences
    for _ in range(2):
        driver.finish(driver.take_one(), how=FAILED)
        driver.pass_time(1.0)
        assert list(driver.store.dead) == [sequence]
        driver.retry_dead(sequence)
    assert len(driver.take()) == 1


def test_the_store_forgets_how_a_task_ended_that_is_tried_again() -> None:
    driver = Driver()
    driver.add(terms=Terms(retries=0, retention=3_600.0))
    run = driver.take_one()
    driver.finish(run, how=FAILED)
    driver.pass_time(1.0)
    assert driver.store.results[run.sequence].expires_at > driver.now + driver.wall
    driver.retry_dead(run.sequence)
    assert driver.store.results[run.sequence].expires_at < driver.now + driver.wall
    driver.finish(driver.take_one())
    driver.pass_time(1.0)
    assert driver.store.results[run.sequence].expires_at > driver.now + driver.wall


def test_a_task_that_is_tried_again_and_done_at_once_has_one_result() -> None:
    driver = Driver()
    driver.add(terms=Terms(retries=0, retention=3_600.0))
    run = driver.take_one()
    driver.finish(run, how=FAILED)
    driver.pass_time(1.0)
    driver.auto_commit = False
    driver.retry_dead(run.sequence)
    driver.finish(driver.take_one())
    driver.begin_commit(anything=True)
    batch = driver.partition.ledger.under_way
    assert batch is not None
    (result,) = batch.changes.results
    assert result.expires_at > driver.now + driver.wall
