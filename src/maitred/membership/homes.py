"""Computes which member and which shard own a partition, from a view of the cluster.

Nodes and clients compute this alone, each from the view that it has, so two of them may disagree
until both have the newer view. A request that goes to a wrong owner is forwarded.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import json

from maitred.routing.gradual import GradualChange
from maitred.routing.keys import check_batch_size, own_key
from maitred.routing.names import QueueId
from maitred.routing.placement import place
from maitred.routing.ring import HashRing
from maitred.routing.tokens import sharding

if TYPE_CHECKING:
    from maitred.membership.view import ClusterMember, ClusterView

REMEMBERED_MAX: Final = 65_536
"""The most entries of the cache, some 300 bytes each. A full cache is cleared."""


class ClusterHome(NamedTuple):
    """The owner of a partition."""

    member: ClusterMember
    shard: int
    until: float
    """The wall-clock time, in unix seconds, from which this has to be computed again."""


class ClusterHomes:
    """Computes and caches the owners of partitions, for one view with at least one active
    member."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._change = GradualChange.parse(json.decode(view.spread_batch), check_batch_size)
        self._members = {member.name: member for member in view.active}
        self._ring = HashRing(self._members)
        self._shard_of = {member.shards: sharding(member.shards) for member in view.active}
        self._remembered: dict[tuple[str, str, int, int], ClusterHome] = {}

    def home(self, address: tuple[str, str, int, int], now: float) -> ClusterHome:
        """Return the partition's owner at the wall-clock time `now`; raise for invalid names."""
        home = self._remembered.get(address)
        if home is not None and now < home.until:
            return home
        namespace, name, queue_type, partition = address
        queue = QueueId(namespace, name, queue_type)
        flips_by = own_key(queue, partition)
        flip = self._change.when(flips_by)
        batch_size = self._change.value(flips_by, now)
        placed = place(self._ring, queue, partition, batch_size, self.view.placement)
        member = self._members[placed.node]
        shard = self._shard_of[member.shards](placed.key.encode())
        until = inf if flip is None or now >= flip else flip
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        home = self._remembered[address] = ClusterHome(member, shard, until)
        return home

    def keeper(self, name: str) -> tuple[ClusterMember, int]:
        """Return the member and the shard that keep something that has a name and is no partition,
        such as the count of a user's queries."""
        member = self._members[self._ring.lookup(name)]
        return member, self._shard_of[member.shards](name.encode())


class FormerHomes:
    """Computes which shards of a member can have owned a partition, for one view: the member need
    not be active any more."""

    def __init__(self, view: ClusterView) -> None:
        self._placement = view.placement
        change = GradualChange.parse(json.decode(view.spread_batch), check_batch_size)
        self._batch_sizes = dict.fromkeys((change.new, change.old))
        self._rings: dict[str, HashRing] = {}

    def shards(self, member: ClusterMember, address: tuple[str, str, int, int]) -> tuple[int, ...]:
        """Return the shards of the member that can have owned the partition: one, or two if the
        batch size of spread routing changes or has changed."""
        ring = self._rings.get(member.name)
        if ring is None:
            ring = self._rings[member.name] = HashRing([member.name])
        namespace, name, queue_type, partition = address
        queue = QueueId(namespace, name, queue_type)
        shard_of = sharding(member.shards)
        # The key by which a partition is placed on a member does not depend on other members.
        placed = (
            place(ring, queue, partition, size, self._placement) for size in self._batch_sizes
        )
        return tuple(dict.fromkeys(shard_of(one.key.encode()) for one in placed))
