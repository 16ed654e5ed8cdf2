"""The name of a partition, and the routing key that places it.

A key and an index together name a place: the index-th host that the ring gives for the key. Without
spread routing every partition has a key of its own and index 0. With it, `batch_size` partitions
share a key and differ by their index, so that they live on different hosts. The root's key is the
same either way: turning spread routing on never moves a root.
"""

from __future__ import annotations

from typing import NamedTuple

from maitred.errors import InvalidPartition
from maitred.routing.names import SYSTEM_PREFIX, QueueId

PARTITIONS_MAX = 100_000
"""The most partitions of one queue. One partition handles thousands of tasks a second."""


class RoutingKey(NamedTuple):
    """A key of the ring, and which of the key's hosts is meant, from 0."""

    key: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here


def routing_key(queue: QueueId, partition: int, batch_size: int = 0) -> RoutingKey:
    """Return a partition's key and index; batch size 0 means basic routing, others spread."""
    check_batch_size(batch_size)
    if batch_size == 0 or partition == 0:
        return RoutingKey(own_key(queue, partition), 0)
    batch, index = divmod(check_partition(partition), batch_size)
    if batch == 0:
        return RoutingKey(own_key(queue, 0), index)
    return RoutingKey(f"{queue.namespace}:{queue.queue}:{batch}:{queue.type}", index)


def own_key(queue: QueueId, partition: int) -> str:
    """Return the key that no other partition shares: `namespace:<partition name>:type`."""
    return f"{queue.namespace}:{partition_name(queue.queue, partition)}:{queue.type}"


def partition_name(queue: str, partition: int) -> str:
    """Return a partition's name: the queue's own for the root, else `/_sys/<queue>/<n>`."""
    check_partition(partition)
    return queue if partition == 0 else f"{SYSTEM_PREFIX}{queue}/{partition}"


def check_partition(partition: int) -> int:
    """Return the number if it can be a partition's, else raise `InvalidPartition`."""
    # A float or a bool would format as another key, and silently lead to a wrong place.
    if type(partition) is not int or not 0 <= partition < PARTITIONS_MAX:
        raise InvalidPartition(
            f"Partitions are numbered from 0 to {PARTITIONS_MAX - 1}; there is no {partition!r}."
        )
    return partition


def check_partitions(partitions: int) -> int:
    """Return the count if a queue can have that many partitions, else raise `InvalidPartition`."""
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidPartition(
            f"A queue has from 1 to {PARTITIONS_MAX} partitions, not {partitions!r}."
        )
    return partitions


def check_batch_size(batch_size: int) -> int:
    """Return the batch size; raise `InvalidPartition` if no queue can have so many partitions.

    The batch size holds for all queues, so most queues have fewer partitions than a batch.
    """
    if type(batch_size) is not int:
        raise InvalidPartition(f"The batch size {batch_size!r} is not a whole number.")
    if batch_size < 0:
        raise InvalidPartition(
            f"The batch size {batch_size} is negative.", remedy="0 turns spread routing off."
        )
    if batch_size > PARTITIONS_MAX:
        raise InvalidPartition(
            f"The batch size {batch_size:,} is more than the {PARTITIONS_MAX:,} partitions that a "
            "queue can have.",
            remedy=f"Use at most {PARTITIONS_MAX}; 0 turns spread routing off.",
        )
    return batch_size
