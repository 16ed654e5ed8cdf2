"""Decides which pool of connections serves which member of the cluster. Pure.

The address of a client names a node in the client's way: a host name, a translated port. The
cluster announces its members in its own way. A pool that is connected to a member's node therefore
serves that member whatever its address is called, and that address is used again for as long as the
member announces the same one. All other members are dialled where they announce to be.

A name may lead to several nodes: a balancer, a name with several addresses. A pool that found
another node at its address than before is used only if that is the address that a member announces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from maitred.client.address import HostPort

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maitred.membership.view import ClusterMember, ClusterView


class KnownPool(Protocol):
    """The part of a node's pool of connections that decides which member it serves."""

    @property
    def node(self) -> HostPort:
        """The address that it dials."""

    @property
    def identity(self) -> str | None:
        """The node that last answered there; None before the first answer."""

    @property
    def connected(self) -> bool:
        """Whether it has a connection."""

    @property
    def wavers(self) -> bool:
        """Whether its address has led to different nodes."""


PoolT = TypeVar("PoolT", bound=KnownPool)


class PoolPlan(NamedTuple, Generic[PoolT]):
    """The pools of a view's members."""

    serving: dict[str, PoolT]
    """The pools that stay, by the id of the member that they serve."""
    wanted: dict[str, HostPort]
    """Where to dial the members that have no pool, by their ids."""
    left: list[PoolT]
    """Pools that serve no member."""


class MemberAddresses:
    """Remembers under which address of its own a client reached a member."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], HostPort] = {}
        """By the identity of the node and the address that it announced."""

    def plan(self, view: ClusterView, pools: Iterable[PoolT]) -> PoolPlan[PoolT]:
        """Match the pools with the members of the view."""
        left = dict.fromkeys(pools)
        serving: dict[str, PoolT] = {}
        wanted: dict[str, HostPort] = {}
        members = by_name(view.members)
        for member in members:
            pool = self._connected_to(member, left)
            if pool is not None:
                serving[member.id] = pool
                del left[pool]
        for member in members:
            if member.id in serving:
                continue
            address = self._address_of(member, left)
            pool = next((one for one in left if one.node == address), None)
            if pool is None:
                wanted[member.id] = address
            else:
                serving[member.id] = pool
                del left[pool]
        return PoolPlan(serving, wanted, list(left))

    def _connected_to(self, member: ClusterMember, pools: Mapping[PoolT, None]) -> PoolT | None:
        announced = announced_by(member)
        found = [
            pool
            for pool in pools
            if pool.connected
            and pool.identity == member.node
            and (pool.node == announced or not pool.wavers)
        ]
        if not found:
            return None
        best = next((pool for pool in found if pool.node == announced), found[0])
        if best.node != announced:
            self._known[member.node, member.name] = best.node
        return best

    def _address_of(self, member: ClusterMember, pools: Mapping[PoolT, None]) -> HostPort:
        announced = announced_by(member)
        known = self._known.get((member.node, member.name))
        if known is None:
            return announced
        for pool in pools:
            if pool.node == known and (pool.wavers or pool.identity not in (None, member.node)):
                del self._known[member.node, member.name]
                return announced
        return known


def announced_by(member: ClusterMember) -> HostPort:
    """Return the address that the member announces."""
    return HostPort(member.host, member.port)


def by_name(members: Iterable[ClusterMember]) -> list[ClusterMember]:
    """Return the members in the order of their names."""
    return sorted(members, key=lambda member: member.name)
