"""The complete routes of a queue's partitions: key, node, shard and parent of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

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


class RouteOptions(TypedDict, total=False):
    """The rules by which routes are computed, besides the batch size."""

    placement: str
    """`wrap` by default."""
    shards: int
    """Shards of each node; 1 by default."""
    ignore_msb: int
    degree: int
    """The most children of a partition in the tree."""


def routes(
    ring: HashRing,
    queue: QueueId,
    partitions: int,
    *,
    batch_size: int = 0,
    **options: Unpack[RouteOptions],
) -> list[Route]:
    """Return the route of every partition of the queue."""
    check_partitions(partitions)
    check_batch_size(batch_size)
    shard_of_key = sharding(options.get("shards", 1), options.get("ignore_msb", IGNORE_MSB))
    places = place_all(ring, queue, partitions, batch_size, options.get("placement", "wrap"))
    return [
        Route(
            partition,
            partition_name(queue.queue, partition),
            placed.key,
            placed.index,
            placed.node,
            shard_of_key(placed.key.encode()),
            parent(partition, options.get("degree", DEGREE)),
        )
        for partition, placed in enumerate(places)
    ]


def flips(
    ring: HashRing,
    queue: QueueId,
    partitions: int,
    batch_size: GradualChange[int],
    **options: Unpack[RouteOptions],
) -> list[Flip]:
    """Return the routes before and after a gradual change of the batch size, and the flips."""
    before, after = (
        routes(ring, queue, partitions, batch_size=size, **options)
        for size in (batch_size.old, batch_size.new)
    )
    return [
        Flip(old, new, batch_size.when(own_key(queue, old.partition)))
        for old, new in zip(before, after, strict=True)
    ]
