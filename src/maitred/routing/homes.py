"""Look up the shard of a partition, with a cache, because every request needs it.

The routing key follows from the queue, the partition and the batch size of spread routing; the
key's token gives the shard. A batch size that changes gradually flips one key after another, so an
entry is valid until its key's flip. Names are checked when an entry is first computed, so all names
in the cache have been checked.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.routing.gradual import GradualChange
from maitred.routing.keys import check_batch_size, own_key, routing_key
from maitred.routing.names import QueueId
from maitred.routing.tokens import IGNORE_MSB, sharding

if TYPE_CHECKING:
    from collections.abc import Callable

REMEMBERED_MAX: Final = 65_536
"""The most entries of the cache, some 300 bytes each. A full cache is cleared: partitions in use
are computed again, at two microseconds each."""


class PartitionAddress(NamedTuple):
    """Names one partition; the names may be unchecked."""

    namespace: str
    queue: str
    queue_type: int
    partition: int


class Home(NamedTuple):
    """The routing key of a partition, and its shard on the node that the key leads to."""

    queue: QueueId
    batch_size: int
    key: str
    shard: int
    until: float
    """The wall-clock time, in unix seconds, from which this has to be computed again."""


class Homes:
    """Computes and caches the homes of partitions, for one number of shards."""

    def __init__(
        self,
        shards: int,
        ignore_msb: int = IGNORE_MSB,
        spread_batch: GradualChange[int] | None = None,
    ) -> None:
        change = spread_batch or GradualChange.constant(0)
        check_batch_size(change.old)
        check_batch_size(change.new)
        self.shards = shards
        self._change = change
        self._shard_of: Callable[[bytes], int] = sharding(shards, ignore_msb)
        self._remembered: dict[PartitionAddress | tuple[str, str, int, int], Home] = {}
        self.settled: dict[PartitionAddress | tuple[str, str, int, int], int] = {}
        """Maps partitions that will never flip to their shards, as a fast path: a caller that finds
        no entry here calls `home`."""

    def home(self, address: PartitionAddress | tuple[str, str, int, int], now: float) -> Home:
        """Return the partition's home at the wall-clock time `now`; raise for invalid names."""
        home = self._remembered.get(address)
        if home is not None and now < home.until:
            return home
        return self._compute(address, now)

    def _compute(self, address: PartitionAddress | tuple[str, str, int, int], now: float) -> Home:
        namespace, name, queue_type, partition = address
        queue = QueueId(namespace, name, queue_type)
        flips_by = own_key(queue, partition)
        batch_size = self._change.value(flips_by, now)
        flip = self._change.when(flips_by)
        key = routing_key(queue, partition, batch_size).key
        shard = self._shard_of(key.encode())
        until = inf if flip is None or now >= flip else flip
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
            self.settled.clear()
        home = self._remembered[address] = Home(queue, batch_size, key, shard, until)
        if until == inf:
            self.settled[address] = shard
        return home
