"""Which shard of a node a partition lives on, remembered: it is asked for every request.

The routing key follows from the queue, the partition and the batch size of spread routing; the
key's token names the shard. A batch size that changes gradually flips one key after another, so an
answer is good until its key's flip. Names are checked when an answer is first computed, and
everything found in the table has been checked.
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
"""Answers kept; some 300 bytes each. When they are full, all are forgotten: partitions in use come
back at once, at two microseconds each."""


class PartitionAddress(NamedTuple):
    """One partition, by names that may or may not have been checked."""

    namespace: str
    queue: str
    queue_type: int
    partition: int


class Home(NamedTuple):
    """What places the partition, and the shard it has on whatever node that leads to."""

    queue: QueueId
    batch_size: int
    key: str
    shard: int
    until: float
    """The wall-clock time from which on this is to be computed anew."""


class Homes:
    """The homes of partitions, for one number of shards."""

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
        """The shards of homes that will never flip, for those in a hurry: who finds nothing here
        asks `home`."""

    def home(self, address: PartitionAddress | tuple[str, str, int, int], now: float) -> Home:
        """Where the partition lives at that wall-clock time; typed errors for impossible names."""
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
