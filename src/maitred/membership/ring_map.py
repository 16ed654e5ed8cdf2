"""What the hash ring gives to each member, and what moves if one of them leaves. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from maitred.errors import UnknownNode
from maitred.membership.homes import ClusterHomes
from maitred.routing.ring import CIRCLE, HashRing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.membership.view import ClusterMember, ClusterView


class RingArc(NamedTuple):
    """A part of the circle that belongs to one member: from the end of the arc before to `end`."""

    end: float
    """As a share of the circle, from 0 to 1."""
    member: str
    """Name of the member, which is its address."""


class MemberShare(NamedTuple):
    """The share of the circle that one member has."""

    share: float
    heirs: dict[str, float]
    """The shares of the circle that others get if it leaves, by their names."""


class PartitionMove(NamedTuple):
    """Where a partition is, and where it is after a member has left."""

    partition: int
    member: ClusterMember
    shard: int
    heir: ClusterMember | None
    """None: no member is left, or none leaves."""
    heir_shard: int


def arcs_of(view: ClusterView) -> list[RingArc]:
    """Return the arcs of the active members around the circle; neighbours of one member are one
    arc. The last arc ends where the circle does, and belongs to the owner of the first."""
    places = HashRing(one.name for one in view.active).places()
    arcs: list[RingArc] = []
    for place, owner in places:
        if arcs and arcs[-1].member == owner:
            arcs.pop()
        arcs.append(RingArc(place / CIRCLE, owner))
    if arcs:
        # Keys behind the last place belong to the first one.
        first = arcs[0].member
        if arcs[-1].member == first:
            arcs.pop()
        arcs.append(RingArc(1.0, first))
    return arcs


def shares_of(arcs: list[RingArc]) -> dict[str, MemberShare]:
    """Return the share of each member, by its name. An arc of a member that leaves goes to the
    member of the next arc."""
    shares: dict[str, float] = {}
    heirs: dict[str, dict[str, float]] = {}
    start = 0.0
    for number, arc in enumerate(arcs):
        size, start = arc.end - start, arc.end
        shares[arc.member] = shares.get(arc.member, 0.0) + size
        # The last arc and the first are one, across the beginning of the circle.
        following = (one.member for one in (*arcs[number + 1 :][:2], *arcs[:2]))
        heir = next((one for one in following if one != arc.member), None)
        if heir is not None:
            gains = heirs.setdefault(arc.member, {})
            gains[heir] = gains.get(heir, 0.0) + size
    return {name: MemberShare(share, heirs.get(name, {})) for name, share in shares.items()}


class RingMap:
    """The places of partitions in a view, and in the same view without one of its members."""

    def __init__(self, view: ClusterView, leaving: str = "") -> None:
        """`leaving` is the id or the name of an active member; empty: none leaves. Raise
        `UnknownNode` if there is no such member."""
        self._homes = ClusterHomes(view) if view.active else None
        self._after: ClusterHomes | None = None
        if leaving:
            gone = next((one for one in view.active if leaving in (one.id, one.name)), None)
            if gone is None:
                raise UnknownNode(
                    f"No active member of the cluster is {leaving[:100]!r}.",
                    remedy="GET /v1/nodes lists the members.",
                )
            others = tuple(one for one in view.members if one.id != gone.id)
            after = replace(view, members=others)
            self._after = ClusterHomes(after) if after.active else None

    def moves(
        self, namespace: str, queue: str, queue_type: int, partitions: int, now: float
    ) -> Iterator[PartitionMove]:
        """Yield the place of each partition of a queue at the wall-clock time `now`."""
        homes, after = self._homes, self._after
        if homes is None:
            return
        for partition in range(partitions):
            address = (namespace, queue, queue_type, partition)
            home = homes.home(address, now)
            heir = None if after is None else after.home(address, now)
            yield PartitionMove(
                partition,
                home.member,
                home.shard,
                None if heir is None else heir.member,
                0 if heir is None else heir.shard,
            )
