from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidName, InvalidPartition
from maitred.routing import (
    QueueId,
    own_key,
    partition_name,
    routing_key,
)
from maitred.routing.keys import PARTITIONS_MAX
from maitred.routing.names import NAME_MAX_BYTES, QUEUE_TYPE_MAX
from tests.routing.strategies import queues

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


@given(queues, queues, st.integers(0, 200), st.integers(0, 200), st.integers(0, 9))
def test_no_two_partitions_share_a_place(
    queue: QueueId, other: QueueId, partition: int, other_partition: int, batch_size: int
) -> None:
    if (queue, partition) != (other, other_partition):
        assert routing_key(queue, partition, batch_size) != routing_key(
            other, other_partition, batch_size
        )
        assert own_key(queue, partition) != own_key(other, other_partition)


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
