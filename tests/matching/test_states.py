"""The table of what can happen to a task, and the states of a partition."""

from __future__ import annotations

from itertools import product

import pytest

from maitred.matching.task import AFTER, OVER, Event, State, Task
from maitred.routing.counts import PartitionCounts
from maitred.settings import Forwarding
from tests.matching.driver import TERMS, Driver

ALONE = Forwarding(offers=0, tasks=0)


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_what_is_in_the_table_happens_and_nothing_else(state: State, event: Event) -> None:
    task = Task(1, 2, TERMS, b"", 0.0, state)
    assert task.moves(event) == ((state, event) in AFTER)
    assert task.state is AFTER.get((state, event), state)


def test_over_is_over() -> None:
    assert not [pair for pair in AFTER if pair[0] is OVER]


def test_every_state_can_come_to_an_end() -> None:
    assert {state for state, event in AFTER if event is Event.END} == set(State) - {OVER}


def state_of(driver: Driver) -> str:
    return driver.partition.state_name


def drained(driver: Driver) -> bool:
    return driver.partition.drained


def test_a_partition_is_writable_then_read_only_then_drained() -> None:
    driver = Driver(partition=1, counts=PartitionCounts(2, 2, 1), forwarding=ALONE)
    partition = driver.partition
    driver.add(2)
    driver.add(1, delay=100.0)
    assert state_of(driver) == "writable"
    partition.set_counts(PartitionCounts(2, 1, 2), driver.now)
    for _ in range(2):
        assert state_of(driver) == "read-only"
        assert partition.ack_level < partition.read_level
        driver.finish(driver.take_one())
    assert state_of(driver) == "read-only"
    driver.pass_time(100.0)
    run = driver.take_one()
    assert state_of(driver) == "read-only"
    driver.finish(run)
    assert state_of(driver) == "drained"
    assert partition.drained
    assert partition.ack_level == partition.read_level


def test_an_empty_partition_that_is_writable_is_not_drained() -> None:
    assert not Driver().partition.drained


def test_a_read_only_partition_with_tasks_in_the_store_alone_is_not_drained() -> None:
    counts = PartitionCounts(2, 1, 1)
    driver = Driver(partition=1, counts=counts, forwarding=ALONE)
    assert driver.add(3, turn=False).sequences
    driver.pass_time(1.0)
    driver.crash()
    assert (state_of(driver), drained(driver)) == ("read-only", False)
    driver.pass_time(4.0)
    driver.finish(*driver.take(slots=3))
    assert (state_of(driver), drained(driver)) == ("drained", True)
