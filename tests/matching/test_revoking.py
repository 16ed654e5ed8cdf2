"""Cancelling a task, wherever it is."""

from __future__ import annotations

import pytest

from maitred.matching.records import Terms
from maitred.matching.task import AWAY, GIVEN, PARKED, READY, WAITING
from tests.matching.driver import DONE, FAILED, RETURNED, STOPPED, Driver


def ended(driver: Driver, sequence: int) -> str:
    found = driver.outcome(sequence)
    assert found is not None
    return found.status


def test_ready() -> None:
    driver = Driver()
    first, second = driver.add(2).sequences
    assert driver.partition.own_tasks.tasks[first].state is READY
    assert driver.revoke(first) == "cancelled"
    assert driver.revoke(first) == "cancelled"
    assert [run.sequence for run in driver.take(slots=2)] == [second]


def test_parked() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(10)
    driver.auto_commit = False
    (sequence,) = driver.add().sequences
    assert driver.partition.own_tasks.tasks[sequence].state is PARKED
    assert driver.revoke(sequence) == "cancelled"
    assert driver.partition.own_tasks.open_tasks == 10


def test_in_the_store_alone() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(10)
    (sequence,) = driver.add().sequences
    assert sequence not in driver.partition.own_tasks.tasks
    assert driver.revoke(sequence) == "cancelled"
    assert driver.revoke(sequence) == "cancelled"
    driver.pass_time(1.0)
    assert driver.store.backlog == 10


def test_waiting_for_its_time() -> None:
    driver = Driver()
    (sequence,) = driver.add(delay=5.0).sequences
    assert driver.partition.own_tasks.tasks[sequence].state is WAITING
    assert driver.revoke(sequence) == "cancelled"
    driver.pass_time(6.0)
    assert driver.take() == []
    assert driver.store.empty


@pytest.mark.parametrize(
    ("how", "status"), [(DONE, "done"), (FAILED, "cancelled"), (RETURNED, "cancelled")]
)
def test_with_a_worker(how: int, status: str) -> None:
    driver = Driver()
    driver.add()
    run = driver.take_one()
    assert driver.partition.own_tasks.tasks[run.sequence].state is GIVEN
    beat = driver.beat(1, [run])
    assert driver.revoke(run.sequence) == "cancelling"
    assert beat.value == ([], [run.sequence])
    driver.finish(run, how=how)
    assert ended(driver, run.sequence) == status


def test_with_a_worker_that_says_so_later() -> None:
    driver = Driver()
    driver.add()
    run = driver.take_one()
    assert driver.revoke(run.sequence) == "cancelling"
    assert driver.beat(1, [run]).value == ([], [run.sequence])
    driver.finish(run, how=STOPPED)
    assert ended(driver, run.sequence) == "cancelled"


def test_with_a_worker_that_is_lost() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add()
    run = driver.take_one()
    driver.revoke(run.sequence)
    driver.pass_time(11.0)
    assert ended(driver, run.sequence) == "cancelled"
    assert driver.store.empty


@pytest.mark.parametrize("wanted", [True, False])
def test_away_at_the_parent(*, wanted: bool) -> None:
    driver = Driver(partition=1)
    offer = driver.offer(1)
    driver.add()
    (other,) = offer.value
    (sequence,) = driver.add(terms=Terms()).sequences
    driver.pass_time(0.1)
    assert driver.partition.own_tasks.tasks[sequence].state is AWAY
    assert driver.revoke(sequence) == "cancelling"
    beat = driver.beat(1, [other])
    driver.answer_task(1 if wanted else None)
    if wanted:
        assert beat.value == ([], [sequence])
        driver.finish(driver.given[-1], how=STOPPED)
    assert ended(driver, sequence) == "cancelled"


def test_what_nobody_knows() -> None:
    assert Driver().revoke(17) is None


def test_asked_again_while_the_store_is_away() -> None:
    """Whoever heard nothing, because nothing could be written, asks again."""
    driver = Driver()
    (sequence,) = driver.add().sequences
    driver.auto_commit = False
    assert driver.revoke(sequence) == "cancelled"
    problem = driver.fail_commit()
    assert driver.cancel(sequence).value is problem
    driver.commit()
    assert driver.revoke(sequence) == "cancelled"
    assert driver.store.empty


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_what_has_ended_otherwise_is_over(how: int) -> None:
    driver = Driver()
    driver.add(terms=Terms(retries=0))
    run = driver.take_one()
    driver.finish(run, how=how)
    assert driver.revoke(run.sequence) == "over"


def test_what_has_expired_is_over() -> None:
    driver = Driver()
    (sequence,) = driver.add(expires=1.0).sequences
    driver.pass_time(1.0)
    assert driver.take() == []
    assert driver.revoke(sequence) == "over"


@pytest.mark.parametrize("written", [True, False])
def test_a_cancellation_is_told_to_those_who_wait_when_it_is_on_disk(*, written: bool) -> None:
    """If the process dies before that, the task goes on."""
    driver = Driver()
    (sequence,) = driver.add().sequences
    waiting = driver.wait_for(sequence)
    driver.auto_commit = False
    driver.revoke(sequence)
    later = driver.wait_for(sequence)
    problem = driver.fail_commit()
    assert waiting.value is later.value is problem
    if written:
        driver.commit()
        assert driver.wait_for(sequence).value.status == "cancelled"
    else:
        driver.crash()
        driver.auto_commit = True
        driver.pass_time(5.0)
        assert driver.take_one().sequence == sequence
