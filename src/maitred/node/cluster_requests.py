"""Operators' requests about the cluster: its members, and taking one of them out of the ring.

Any shard answers them from the membership table in the database, which is newer than the shard's
view. While the database is away, the members are those of the view, and nothing can be changed.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from maitred.errors import NoCluster, StoreUnavailable, UnknownNode, UnsafeMemberChange
from maitred.membership.view import MEMBER_TABLE, MemberEvent, MemberState
from maitred.node.partition_tally import PartitionTally
from maitred.node.request_table import RequestTable
from maitred.protocol.cluster import (
    ClusterDescription,
    DescribeCluster,
    DrainNode,
    MemberRow,
    NodeDrained,
)
from maitred.protocol.frames import Opcode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from maitred.logs import Logger
    from maitred.membership.table import TableState
    from maitred.membership.view import ClusterMember, ClusterView
    from maitred.node.partition_tally import MemberPartitions
    from maitred.settings import ClusterSettings
    from maitred.store.interface import Store

TABLE_SECONDS: Final = 2.0
"""How long a request waits for the membership table. After that the members of the view are shown,
while the caller, who waits for 5 s by default, still does."""

COUNT_SECONDS: Final = 1.5
"""How long a request waits for the number of partitions of each member."""

NAME_LETTERS_MAX: Final = 300
"""Letters of a name that are compared: more than an address or an identity has."""

NAMED_MAX: Final = 5
"""Most members that an error names."""


class DescribedMember(Protocol):
    """One member, as the membership table has it."""

    @property
    def id(self) -> str:
        """The id of the member."""

    @property
    def node(self) -> str:
        """The identity of the node."""

    @property
    def address(self) -> str:
        """Host and port of the node: the member's name in the ring."""

    @property
    def state(self) -> MemberState | str:
        """The member's state."""

    @property
    def release(self) -> str:
        """The version of the program."""

    @property
    def versions(self) -> Sequence[int]:
        """The versions of the protocol that the node speaks."""

    @property
    def shards(self) -> int:
        """The number of its shards."""

    @property
    def since(self) -> float:
        """When the member entered its state, in unix seconds."""

    @property
    def load(self) -> float | None:
        """The load of the node at its last heartbeat."""

    @property
    def silent_seconds(self) -> float | None:
        """How long ago its last heartbeat was, by the database's clock."""

    @property
    def clock_ahead_seconds(self) -> float | None:
        """How far the node's clock was ahead of the database's at its last heartbeat."""


class KnownMember(NamedTuple):
    """One member, as a view has it."""

    id: str
    node: str
    address: str
    state: MemberState | str
    release: str
    versions: Sequence[int]
    shards: int
    since: float
    load: float | None = None
    silent_seconds: float | None = None
    clock_ahead_seconds: float | None = None

    @classmethod
    def of(cls, member: ClusterMember) -> DescribedMember:
        """Return what the view tells of the member."""
        return cls(
            member.id,
            member.node,
            member.name,
            member.state,
            member.release,
            member.versions,
            member.shards,
            member.since,
        )


class OperatorsTable(Protocol):
    """The membership table as operators use it, over a connection of its own."""

    async def describe(self) -> Sequence[DescribedMember]:
        """Return the members, and those that died not long ago."""

    async def change(self, id_: str, before: MemberState, after: MemberState) -> TableState:
        """Change the member's state if it is still `before`; return the table as it is then."""

    async def close(self) -> None:
        """Close the connection to the database."""


class ClusteredShard(Protocol):
    """The shard as these requests use it."""

    @property
    def view(self) -> ClusterView | None:
        """The newest view that the shard knows; None without a cluster, or before the first."""


class ClusterRequests:
    """Serves DescribeCluster and DrainNode in one shard."""

    def __init__(
        self,
        shard: ClusteredShard,
        store: Store,
        settings: ClusterSettings,
        log: Logger,
        *,
        wall_clock: Callable[[], float],
        open_members: Callable[[], Awaitable[OperatorsTable]] | None,
    ) -> None:
        """`open_members` connects to the membership table; None for a node without a cluster."""
        self._shard = shard
        self._settings = settings
        self._log = log
        self._open_members = open_members
        self._tally = PartitionTally(store, wall_clock)
        self._turn = asyncio.Lock()
        self.requests = RequestTable(
            handlers={
                Opcode.CLUSTER: self._describe,
                Opcode.DRAIN_NODE: self._drain,
            }
        )

    def close(self) -> None:
        """Stop what runs in the background."""
        self._tally.close()

    @asynccontextmanager
    async def _table(self) -> AsyncIterator[OperatorsTable]:
        """Connect to the membership table, one request at a time, so that operators cost each shard
        one connection to the database at most."""
        if self._open_members is None:
            raise NoCluster(
                "This node belongs to no cluster.",
                remedy="Nodes that share a database are a cluster: start each with "
                "--store postgresql://..., and without cluster.enabled = false.",
            )
        async with self._turn:
            table = await self._open_members()
            try:
                yield table
            finally:
                await table.close()

    # Describing

    async def _describe(self, _message: DescribeCluster) -> ClusterDescription:
        problem = ""
        view = self._shard.view
        try:
            found = await self._read()
        except StoreUnavailable as failure:
            if view is None:
                raise
            found, problem = [KnownMember.of(one) for one in view.members], failure.sentence
        counts = None if view is None else await self._tally.counts(view, COUNT_SECONDS)
        return ClusterDescription(
            cluster=self._settings.name,
            version=0 if view is None else view.version,
            protocol=_common_protocol(found),
            members=sorted((_row(one, counts) for one in found), key=lambda row: row.address),
            lease_seconds=self._settings.lease_seconds,
            problem=problem,
        )

    async def _read(self) -> list[DescribedMember]:
        try:
            async with asyncio.timeout(TABLE_SECONDS), self._table() as table:
                return _shown(await table.describe())
        except TimeoutError:
            raise StoreUnavailable(
                f"The database did not answer within {TABLE_SECONDS:g} s.",
                remedy="Look whether PostgreSQL is up and can be reached from this node.",
            ) from None

    # Draining

    async def _drain(self, message: DrainNode) -> NodeDrained:
        wanted = MemberState.DRAINING if message.drain else MemberState.ACTIVE
        async with self._table() as table:
            alive = _alive(await table.describe())
            member = member_named(message.name, alive)
            before = _state(member)
            if before is wanted:
                view = self._shard.view
                return NodeDrained(
                    member.address, wanted.value, 0 if view is None else view.version
                )
            event = MemberEvent.DRAIN if message.drain else MemberEvent.UNDRAIN
            if event not in MEMBER_TABLE.transitions[before]:
                raise UnsafeMemberChange(
                    f"The node {member.address} is {before.value}, and only a node that is "
                    f"{'active' if message.drain else 'draining'} can be "
                    f"{'drained' if message.drain else 'put back'}.",
                    remedy="Wait until it is active; `maitred admin cluster` shows when.",
                )
            active = [one for one in alive if _state(one) is MemberState.ACTIVE]
            if message.drain and len(active) == 1:
                raise _last(member.address)
            state = await table.change(member.id, before, wanted)
            await self._check_change(table, state, member, wanted)
        self._log.info(
            "an operator changed the state of a node",
            address=member.address,
            member=member.id,
            state=wanted.value,
            version=state.view.version,
        )
        return NodeDrained(member.address, wanted.value, state.view.version)

    async def _check_change(
        self,
        table: OperatorsTable,
        state: TableState,
        member: DescribedMember,
        wanted: MemberState,
    ) -> None:
        """Raise unless the member has the state now. If another operator drained the other active
        nodes meanwhile, put the member back: a cluster without an active node serves nothing."""
        now = state.view.member(member.id)
        if now is None or now.state is not wanted:
            is_now = "no longer in the cluster" if now is None else now.state.value
            raise UnsafeMemberChange(
                f"The state of the node {member.address} changed meanwhile: it is {is_now}.",
                remedy="Look at it with `maitred admin cluster`.",
            )
        if not state.view.active and wanted is MemberState.DRAINING:
            await table.change(member.id, wanted, MemberState.ACTIVE)
            raise _last(member.address)


def _last(address: str) -> UnsafeMemberChange:
    return UnsafeMemberChange(
        f"The node {address} is the only active one: without it the cluster would serve nothing.",
        remedy="Start another node, or put one back with `maitred admin node undrain`. To stop the "
        "whole cluster, stop its nodes.",
    )


def member_named(name: str, members: Iterable[DescribedMember]) -> DescribedMember:
    """Return the member with this address, node identity or member id, or the only one of which it
    is the beginning; raise `UnknownNode` if there is none, or more than one."""
    known = list(members)
    given = name.strip().lower()[:NAME_LETTERS_MAX]
    for matches in (
        [one for one in known if given in _names(one)],
        [one for one in known if given and any(text.startswith(given) for text in _names(one))],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            shown = ", ".join(sorted(one.address for one in matches)[:NAMED_MAX])
            more = f" and {len(matches) - NAMED_MAX} more" if len(matches) > NAMED_MAX else ""
            raise UnknownNode(
                f"{name[:60]!r} can be {len(matches)} nodes: {shown}{more}.",
                remedy="Give the whole address, or more of the node's identity.",
            )
    addresses = sorted(one.address for one in known)
    near = get_close_matches(given, addresses, n=1)
    raise UnknownNode(
        f"The cluster has no node called {name[:60]!r}.",
        remedy=f"Did you mean {near[0]!r}?"
        if near
        else f"Its nodes are {', '.join(addresses[:NAMED_MAX])}; `maitred admin cluster` lists "
        "them all.",
    )


def _names(member: DescribedMember) -> tuple[str, str, str]:
    return member.address.lower(), member.node.lower(), member.id


def _alive(members: Iterable[DescribedMember]) -> list[DescribedMember]:
    return [one for one in members if _state(one) is not MemberState.DEAD]


def _shown(members: Iterable[DescribedMember]) -> list[DescribedMember]:
    """Return the living members, and of each address that has none the member that died last: a
    node that did not come back."""
    known = list(members)
    shown = _alive(known)
    addresses = {one.address for one in shown}
    for one in sorted(known, key=lambda one: one.since, reverse=True):
        if one.address not in addresses:
            addresses.add(one.address)
            shown.append(one)
    return shown


def _state(member: DescribedMember) -> MemberState:
    return MemberState(member.state)


def _common_protocol(members: Iterable[DescribedMember]) -> int:
    """Return the newest version that all living members speak; 0 if there is none."""
    spoken = [set(one.versions) for one in _alive(members) if one.versions]
    return max(set.intersection(*spoken), default=0) if spoken else 0


def _row(member: DescribedMember, counts: MemberPartitions | None) -> MemberRow:
    return MemberRow(
        id=member.id,
        node=member.node,
        address=member.address,
        state=_state(member).value,
        release=member.release,
        protocol=max(member.versions, default=0),
        shards=member.shards,
        since=member.since,
        load=member.load,
        beat_seconds_ago=member.silent_seconds,
        partitions=None if counts is None else counts.placed.get(member.id, 0),
        held=None if counts is None else counts.held.get(member.id),
        clock_ahead_seconds=member.clock_ahead_seconds,
    )
