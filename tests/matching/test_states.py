"""The table of what can happen to a task, and the states of a partition."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

from maitred.errors import InternalError
from maitred.matching import partition
from maitred.matching.task import ON_END, OVER, TABLE, State, TaskTransitions
from maitred.routing.counts import PartitionCounts
from maitred.settings import Forwarding
from tests.matching.driver import Driver

ALONE = Forwarding(offers=0, tasks=0)


@pytest.mark.parametrize(("change", "state"), list(product(TABLE, State)))
def test_a_change_that_the_table_does_not_list_raises(
    change: TaskTransitions, state: State
) -> None:
    if state in change.keys():  # noqa: SIM118 - `change[state]` is what is tested
        assert isinstance(change[state], State)
    else:
        with pytest.raises(InternalError, match=f"{state.name} got the event {change.event.name}"):
            change[state]


def test_over_is_over() -> None:
    assert not [change.event for change in TABLE if OVER in change]


def test_every_state_can_come_to_an_end() -> None:
    assert set(ON_END) == set(State) - {OVER}


def test_code_changes_a_state_through_the_table_alone() -> None:
    found = 0
    for file in Path(partition.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if ast.unparse(target).endswith("task.state"):
                    assert isinstance(node, ast.Assign)
                    assert ast.unparse(node.value).startswith("ON_"), f"{file}:{node.lineno}"
                    found += 1
    assert found > len(TABLE)


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
