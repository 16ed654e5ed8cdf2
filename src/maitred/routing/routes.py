"""The complete routes of a queue's partitions: key, node, shard and parent of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from maitred.routing.keys import (
    check_batch_size,
    check_partitions,
    own_key,
    partition_name,
)
from maitred.routing.placement import place_all
from maitred.routing.tokens import IGNORE_MSB, sharding
from maitred.routing.tree import DEGREE, parent

if TYPE_CHECKING:
    from maitred.routing.gradual import GradualChange
    from maitred.routing.names import QueueId
    from maitred.routing.ring import HashRing


class Route(NamedTuple):
    """The route of one partition: its name, key and index, node, shard, and its parent, to which it
    forwards; None for the root."""

    partition: int
    name: str
    key: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    node: str
    shard: int
    parent: int | None


class Flip(NamedTuple):
    """A partition's routes before and after a gradual change, and when it flips, in unix seconds;
    None if nothing changes."""

    before: Route
    after: Route
    flips_at: float | None


def routes(
    ring: HashRing,
    queue: QueueId,
    partitions: int,
    *,
    batch_size: int = 0,
    placement: str = "wrap",
    shards: int = 1,
    ignore_msb: int = IGNORE_MSB,
    degree: int = DEGREE,
) -> list[Route]:
    """Return the route of every partition of the queue."""
    check_partitions(partitions)
    check_batch_size(batch_size)
    shard_of_key = sharding(shards, ignore_msb)
    return [
        Route(
            partition,
            partition_name(queue.queue, partition),
            placed.key,
            placed.index,
            placed.node,
            shard_of_key(placed.key.encode()),
            parent(partition, degree),
        )
        for partition, placed in enumerate(
            place_all(ring, queue, partitions, batch_size, placement)
        )
    ]


def flips(
    ring: HashRing,
    queue: QueueId,
    partitions: int,
    batch_size: GradualChange[int],
    *,
    placement: str = "wrap",
    shards: int = 1,
    ignore_msb: int = IGNORE_MSB,
    degree: int = DEGREE,
) -> list[Flip]:
    """Return the routes before and after a gradual change of the batch size, and the flips."""
    before, after = (
        routes(
            ring,
            queue,
            partitions,
            batch_size=size,
            placement=placement,
            shards=shards,
            ignore_msb=ignore_msb,
            degree=degree,
        )
        for size in (batch_size.old, batch_size.new)
    )
    return [
        Flip(old, new, batch_size.when(own_key(queue, old.partition)))
        for old, new in zip(before, after, strict=True)
    ]
