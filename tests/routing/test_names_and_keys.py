from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidName, InvalidPartition
from maitred.routing import (
    QueueId,
    own_key,
    parse_partition_name,
    partition_name,
    routing_key,
    sticky_key,
)
from maitred.routing.keys import PARTITIONS_MAX
from maitred.routing.names import NAME_MAX_BYTES, QUEUE_TYPE_MAX
from tests.routing.strategies import names, queues

QUEUE = QueueId("ns", "queue", 2)


@pytest.mark.parametrize(
    ("partition", "batch_size", "key", "index"),
    [
        (0, 0, "ns:queue:2", 0),
        (3, 0, "ns:/_sys/queue/3:2", 0),
        (0, 8, "ns:queue:2", 0),
        (7, 8, "ns:queue:2", 7),
        (8, 8, "ns:queue:1:2", 0),
        (25, 8, "ns:queue:3:2", 1),  # the seed's own example
        (5, 1, "ns:queue:5:2", 0),
    ],
)
def test_routing_keys(partition: int, batch_size: int, key: str, index: int) -> None:
    assert routing_key(QUEUE, partition, batch_size) == (key, index)


def test_sticky() -> None:
    assert sticky_key("ns", "worker-7") == ("ns:worker-7:1", 0)


@given(queues, queues, st.integers(0, 200), st.integers(0, 200), st.integers(0, 9))
def test_no_two_partitions_share_a_place(
    queue: QueueId, other: QueueId, partition: int, other_partition: int, batch_size: int
) -> None:
    if (queue, partition) != (other, other_partition):
        assert routing_key(queue, partition, batch_size) != routing_key(
            other, other_partition, batch_size
        )
        assert own_key(queue, partition) != own_key(other, other_partition)


@given(names, st.integers(0, PARTITIONS_MAX - 1))
def test_partition_names_parse_back(queue: str, partition: int) -> None:
    assert parse_partition_name(partition_name(queue, partition)) == (queue, partition)


@given(st.text(max_size=30).map(lambda text: "/_sys/" + text) | st.text(max_size=30))
def test_whatever_parses_is_the_name_of_what_it_parsed_to(name: str) -> None:
    try:
        queue, partition = parse_partition_name(name)
    except (InvalidName, InvalidPartition):
        return
    assert partition_name(queue, partition) == name
    QueueId("ns", queue, 0)


@pytest.mark.parametrize(
    "name",
    [
        *("/_sys/q", "/_sys/q/", "/_sys/q/0", "/_sys/q/01", "/_sys/q/-1", "/_sys/q/+1"),
        *("/_sys/q/x", "/_sys/q/\u0661", "/_sys/q/1 ", "/_sys//1", "/_sys//_sys/q/1/1"),
        *("", "q:1"),
    ],
)
def test_names_that_are_no_partitions(name: str) -> None:
    with pytest.raises(InvalidName):
        parse_partition_name(name)


def test_partition_names_past_the_limit() -> None:
    assert parse_partition_name(f"/_sys/q/{PARTITIONS_MAX - 1}") == ("q", PARTITIONS_MAX - 1)
    for digits in (str(PARTITIONS_MAX), "9" * 5_000):
        with pytest.raises(InvalidName):
            parse_partition_name(f"/_sys/q/{digits}")


@pytest.mark.parametrize("partition", [-1, PARTITIONS_MAX, 1.0, True, None])
def test_no_name_for_what_is_no_partition(partition: int) -> None:
    with pytest.raises(InvalidPartition):
        partition_name("q", partition)
    with pytest.raises(InvalidPartition):
        own_key(QUEUE, partition)


@pytest.mark.parametrize(
    ("namespace", "queue", "queue_type", "sentence"),
    [
        ("", "q", 1, "namespace is empty"),
        ("ns", "", 1, "queue is empty"),
        ("n:s", "q", 1, "has a colon"),
        ("ns", "q:1", 1, "has a colon"),
        ("ns", "/_sys/q/1", 1, "which names partitions"),
        ("ns", "q\n", 1, "control characters"),
        ("ns", "q\x00", 1, "control characters"),
        ("ns", " q", 1, "spaces at its ends"),
        ("ns", "\ud800", 1, "not valid Unicode"),
        ("ns", "é" * 128, 1, "256 bytes long; at most 255"),
        ("ns", None, 1, "queue has to be text, not None"),
        (b"ns", "q", 1, "namespace has to be text"),
        ("ns", "q", "1", "queue type '1'"),
        ("ns", "q", True, "queue type True"),
        ("ns", "q", -1, "queue type -1"),
        ("ns", "q", QUEUE_TYPE_MAX + 1, "queue type"),
    ],
)
def test_names_that_are_refused(namespace: str, queue: str, queue_type: int, sentence: str) -> None:
    with pytest.raises(InvalidName, match=sentence) as caught:
        QueueId(namespace, queue, queue_type)
    assert caught.value.code == "invalid-name"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "name", ["q", "a/b", "a b", "naïve-Größe", "q.1_x@host", "_sys", "x" * NAME_MAX_BYTES]
)
def test_names_that_are_fine(name: str) -> None:
    assert QueueId(name, name, 0) == (name, name, 0)


def test_sticky_names_are_checked_too() -> None:
    for name in ("host:1", "/_sys/q/1", ""):
        with pytest.raises(InvalidName):
            sticky_key("ns", name)
    with pytest.raises(InvalidName):
        sticky_key("", "host")


@pytest.mark.parametrize(
    ("partition", "batch_size", "sentence"),
    [
        (-1, 0, "there is no -1"),
        (PARTITIONS_MAX, 0, "numbered from 0"),
        (1, -1, "batch size -1 is negative"),
        # Each of these would spell a key that nobody else computes.
        (1.0, 0, "there is no 1.0"),
        (True, 0, "there is no True"),
        ("1", 0, "there is no '1'"),
        (5, 2.0, "2.0 is not a whole number"),
        (5, None, "None is not a whole number"),
    ],
)
def test_bad_partitions(partition: int, batch_size: int, sentence: str) -> None:
    with pytest.raises(InvalidPartition, match=sentence):
        routing_key(QUEUE, partition, batch_size)
