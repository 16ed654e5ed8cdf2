"""All of it together: where every partition of a queue lives, down to the core."""

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
    """One partition: its name, what places it, where it lives, and to whom it forwards."""

    partition: int
    name: str
    key: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    node: str
    shard: int
    parent: int | None


class Flip(NamedTuple):
    """A partition before and after a gradual change, and the moment between (unix seconds)."""

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
    """The route of every partition of the queue."""
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
    """The routes before and after a gradual change of the batch size, and when each one flips."""
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
