"""The members of a cluster at one version of the membership table.

Nodes that share a database, and a cluster name, are a cluster. A member is one start of one node:
a node that is started again is another member, and a member that was declared dead never returns.
Every change of a member's state raises the version of the table, so that views have an order: nodes
and clients take over a view only if its version is higher than that of the view they have.

The hash ring holds the active members, by their addresses. A draining member is in the view but not
in the ring: it owns nothing, and forwards what clients still send to it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from maitred.states import StateTable


class MemberState(Enum):
    """The state of a member, as the membership table has it."""

    JOINING = "joining"
    """The node is up, and the members do not know yet whether they can reach it."""
    ACTIVE = "active"
    """The member is in the ring."""
    DRAINING = "draining"
    """The member hands over its partitions, and forwards late requests."""
    DEAD = "dead"
    """The member left, was declared dead, or was replaced by a later start at its address."""


class MemberEvent(Enum):
    """What changes the state of a member."""

    ADMIT = "admit"
    """Every active member reached the joining one, and was reached by it."""
    DRAIN = "drain"
    UNDRAIN = "undrain"
    END = "end"
    """It left, was voted dead, or a later start announced its address."""


MEMBER_TABLE: Final = StateTable(
    "member of a cluster",
    {MemberState.JOINING: ""},
    {
        MemberState.JOINING: {
            MemberEvent.ADMIT: MemberState.ACTIVE,
            MemberEvent.END: MemberState.DEAD,
        },
        MemberState.ACTIVE: {
            MemberEvent.DRAIN: MemberState.DRAINING,
            MemberEvent.END: MemberState.DEAD,
        },
        MemberState.DRAINING: {
            MemberEvent.UNDRAIN: MemberState.ACTIVE,
            MemberEvent.END: MemberState.DEAD,
        },
        MemberState.DEAD: {},
    },
)
"""The states of a member. The membership table in the database changes them, each change with the
next version."""


class ClusterMember(Struct, frozen=True, array_like=True, kw_only=True):
    """One start of one node."""

    id: str
    """Sixteen hexadecimal digits, random at each start of a node: the member's incarnation."""
    node: str
    """The identity of the node, which it keeps when it is started again."""
    host: str
    """The host at which clients and other nodes reach the node."""
    port: int
    """The port that all shards of the node share."""
    member_port: int
    """The port of the node's supervisor, at which other supervisors probe it."""
    shards: int
    shard_ports: tuple[int, ...]
    """Each shard's own port, by its number."""
    state: MemberState
    release: str = ""
    """The version of the program."""
    versions: tuple[int, ...] = ()
    """The versions of the protocol that the node speaks."""
    since: float = 0.0
    """When the member entered its state, in unix seconds by the database's clock."""

    @property
    def name(self) -> str:
        """The member's name in the ring: its address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClusterView(Struct, frozen=True, array_like=True, kw_only=True):
    """The members of a cluster that are not dead, at one version of the membership table."""

    cluster: str
    version: int
    members: tuple[ClusterMember, ...]
    """Ordered by id."""
    spread_batch: str = "0"
    """The batch size of spread routing, or a gradual change of it, as JSON."""
    placement: str = "wrap"
    """How the partitions of a batch are placed: `wrap` or `steady`."""

    @property
    def active(self) -> tuple[ClusterMember, ...]:
        """The members in the ring."""
        return tuple(one for one in self.members if one.state is MemberState.ACTIVE)

    def member(self, id_: str) -> ClusterMember | None:
        """Return the member with this id; None if it is dead or was never there."""
        return next((one for one in self.members if one.id == id_), None)

    def understands(self, version: int) -> bool:
        """Return whether every member knows what this version of the protocol brought. A node uses
        it only then, so that the members of a release before this one keep working."""
        return version <= self.protocol

    def places_like(self, other: ClusterView) -> bool:
        """Return whether every partition has the same owner in both views: the same members are
        active, and the terms of placement are the same."""
        return (
            self.spread_batch == other.spread_batch
            and self.placement == other.placement
            and [one.id for one in self.active] == [one.id for one in other.active]
        )

    @property
    def protocol(self) -> int:
        """The newest version of the protocol that every member speaks; 0 if there is none."""
        spoken = [set(one.versions) for one in self.members if one.versions]
        return max(set.intersection(*spoken), default=0) if spoken else 0
