"""Forced partitions, and the rule of what is balanced at all."""

from __future__ import annotations

import random

import pytest

from maitred.balancing import (
    FewestPolls,
    Forced,
    RoundRobin,
    Target,
    read_partition,
    write_partition,
)
from maitred.errors import InvalidPartition
from maitred.routing.names import QueueId

QUEUE = QueueId("kitchen", "orders", 1)
ELSEWHERE = QueueId("bar", "orders", 1)


def test_a_namespace_is_forced_and_others_are_not() -> None:
    forced = Forced(RoundRobin(random.Random(1)), reads={"kitchen": 3}, writes={"kitchen": 2})
    assert [forced.read(QUEUE, 4, 0.0).partition for _ in range(3)] == [3, 3, 3]
    assert [forced.write(QUEUE, 4, 0.0) for _ in range(3)] == [2, 2, 2]
    assert [forced.read(ELSEWHERE, 4, 0.0).partition for _ in range(3)] == [0, 1, 2]
    assert [forced.write(ELSEWHERE, 4, 0.0) for _ in range(3)] == [0, 1, 2]
    assert forced.entries == 2
    assert "kitchen" in repr(forced)


def test_reads_and_writes_are_forced_apart() -> None:
    forced = Forced(RoundRobin(random.Random(1)), writes={"kitchen": 2})
    assert [forced.read(QUEUE, 4, 0.0).partition for _ in range(3)] == [0, 1, 2]
    assert forced.write(QUEUE, 4, 0.0) == 2


def test_a_forced_partition_may_be_one_that_is_no_more() -> None:
    forced = Forced(RoundRobin(random.Random(1)), reads={"kitchen": 9}, writes={"kitchen": 8})
    assert forced.read(QUEUE, 4, 0.0).partition == 9
    assert forced.write(QUEUE, 4, 0.0) == 8


@pytest.mark.parametrize("partition", [-1, True, 0.5, "1", None])
def test_no_partition_cannot_be_forced_or_named(partition: int) -> None:
    with pytest.raises(InvalidPartition):
        Forced(RoundRobin(random.Random(1)), reads={"kitchen": partition})
    with pytest.raises(InvalidPartition):
        Target(QUEUE, partition)


def test_a_forced_read_still_refuses_a_queue_without_partitions() -> None:
    forced = Forced(RoundRobin(random.Random(1)), reads={"kitchen": 9}, writes={"kitchen": 9})
    with pytest.raises(InvalidPartition):
        forced.read(QUEUE, 0, 0.0)
    with pytest.raises(InvalidPartition):
        forced.write(QUEUE, 0, 0.0)


def test_a_normal_name_is_balanced() -> None:
    robin = RoundRobin(random.Random(1))
    target = Target(QUEUE)
    assert [write_partition(robin, target, 4, 0.0) for _ in range(3)] == [0, 1, 2]
    assert [read_partition(robin, target, 4, 0.0).partition for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    "target",
    [
        Target(QUEUE, 3),
        Target(QUEUE, sticky=True),
        Target(QUEUE, forwarded=True),
        Target(QUEUE, 2, forwarded=True),
    ],
)
def test_anything_else_goes_where_it_says(target: Target) -> None:
    polls = FewestPolls(random.Random(1))
    for _ in range(5):
        assert write_partition(polls, target, 4, 0.0) == target.partition
        assert read_partition(polls, target, 4, 0.0).partition == target.partition
    assert polls.entries == 0
