"""The membership table of a cluster in PostgreSQL.

A node has one connection for it, which is used for everything in turns and listens for changes in
between. When it is lost, it is opened again by itself; a notification may have been lost with it,
so the node is told to read the table again.

A heartbeat is a synchronous commit, and confirmed or not within `BEAT_SECONDS`: the node trusts its
lease only from heartbeats that a standby has too, if the server has one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import asyncpg
from msgspec import Struct, json

from maitred.errors import (
    CannotStart,
    InternalError,
    MaitredError,
    OutcomeUnknown,
    StoreUnavailable,
)
from maitred.membership.table import MEMBER_SECONDS, VOTE_SECONDS, Beats, TableState, Vote
from maitred.membership.view import MEMBER_TABLE, ClusterMember, ClusterView, MemberState
from maitred.store.placement_terms import joined_terms
from maitred.store.postgres_errors import translated, translated_at_start
from maitred.store.postgres_hosts import PostgresServers
from maitred.store.postgres_migration import prepare_database
from maitred.store.postgres_warnings import (
    UnconfirmedCommit,
    begin_session,
    warn_of_few_connections,
)
from maitred.store.scripts import statements

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.store.interface import StoreLog

SECRET_BYTES: Final = 32
"""The length of a cluster's secret."""

BEAT_SECONDS: Final = 2.0
"""How long to wait for the confirmation of a heartbeat. Two fit into the lease of 5 s, with a beat
each second."""

MEMBER_CONNECT_SECONDS: Final = 3.0
"""How long to wait for a new connection."""

MEMBER_LOCK_SECONDS: Final = 1.0
"""How long a change waits, on the server, for the change of another node. Heartbeats wait behind it
on this connection, so it must be well below the lease."""

RECONNECT_SECONDS: Final = 0.5
"""Interval at which a lost connection is opened again."""

LIVE_SECONDS: Final = 60.0
"""A member without a heartbeat for this long, by the database's clock, does not stand in the way of
another cluster in the database, or of another node at its address."""

ADDRESS_WATCH_SECONDS: Final = 3.0
"""How long a joining node watches the heartbeats of another node that announced its address: three
heartbeats. If there is none, the other one is gone."""

ADDRESS_LOOKS: Final = 6
"""How often it looks within that time."""

CHANNEL: Final = "maitred_members"

_STATEMENTS: Final = statements("postgres")


class MemberReport(NamedTuple):
    """What the table says about one member, for people."""

    id: str
    node: str
    address: str
    state: MemberState
    release: str
    versions: tuple[int, ...]
    shards: int
    since: float
    """When the member entered its state, in unix seconds by the database's clock."""
    load: float
    """The load that the node reported with its last heartbeat; 1 is a full core."""
    silent_seconds: float
    """How long ago the last heartbeat was, by the database's clock."""
    clock_ahead_seconds: float | None
    """How far the node's clock was ahead of the database's at the last heartbeat; None if the node
    does not tell."""


class _StoredTable(Struct, frozen=True):
    """The answer of `maitred.table_of`."""

    version: int
    spread_batch: str | None
    placement: str | None
    members: tuple[ClusterMember, ...]
    beats: dict[str, int]
    votes: tuple[tuple[str, str, float], ...]


async def open_members(location: str, cluster: str, log: StoreLog) -> PostgresMembers:
    """Connect to the database, migrate it to this program's version, and return the membership
    table of the cluster, which need not exist yet.

    Raise `CannotStart` if waiting cannot help, `StoreUnavailable` if the server does not answer.
    """
    with translated_at_start(location):
        servers = PostgresServers(location)
        await prepare_database(servers, MEMBER_CONNECT_SECONDS, log=None)
        return PostgresMembers(servers, cluster, log)


def members_of(location: str, cluster: str, log: StoreLog) -> PostgresMembers:
    """Return the membership table of a database that was migrated before; it connects when it is
    first used."""
    return PostgresMembers(PostgresServers(location), cluster, log)


class PostgresMembers:
    """Implements `MembershipTable`."""

    def __init__(self, servers: PostgresServers, cluster: str, log: StoreLog) -> None:
        self._servers = servers
        self._cluster = cluster
        self._log = log
        self._connection: asyncpg.Connection | None = None
        self._turn = asyncio.Lock()
        self._changed: Callable[[], None] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        connected = self._connection is not None and not self._connection.is_closed()
        state = "closed" if self._closed else "connected" if connected else "not connected"
        return f"<PostgresMembers of {self._cluster}, {state}>"

    async def secret(self) -> bytes:
        values = token_bytes(SECRET_BYTES), LIVE_SECONDS
        secret, others = await self._change("cluster_secret", *values)
        if secret is None:
            raise _wrong_database(self._cluster, ", ".join(others))
        return bytes(secret)

    async def read(self) -> TableState:
        return self._table(await self._ask("cluster_table", VOTE_SECONDS))

    async def join(self, member: ClusterMember, spread_batch: str, placement: str) -> TableState:
        await self._warn_of_few_connections(member.shards)
        given = expected = spread_batch, placement
        silent: tuple[str | None, int | None] = None, None
        while True:
            refusal, named, beats, now, state = await self._change(
                "join_cluster",
                *(member.id, member.node, member.host, member.port, member.member_port),
                *(member.shards, list(member.shard_ports), member.release, list(member.versions)),
                *(*given, *expected, *silent),
                *(token_bytes(SECRET_BYTES), LIVE_SECONDS, VOTE_SECONDS),
            )
            if refusal is None:
                return self._table((state,))
            if refusal == "clusters":
                raise _wrong_database(self._cluster, named)
            if refusal == "address":
                await self._watch_silence(member.name, named, beats)
                silent = named, beats
            else:
                expected = json.decode(named, type=tuple[str, str])
                given = joined_terms(expected, (spread_batch, placement), now)

    async def beat(self, id_: str, load: float, clock_ahead_seconds: float | None = None) -> Beats:
        try:
            values = id_, load, clock_ahead_seconds
            row = await self._change("beat", *values, seconds=BEAT_SECONDS)
        except OutcomeUnknown as unknown:
            raise StoreUnavailable(unknown.sentence, remedy=unknown.remedy) from unknown
        if row is None:
            return Beats(0, {}, alive=False)
        version, alive, beats, now = row
        return Beats(version, json.decode(beats, type=dict[str, int]), alive, now)

    async def change(self, id_: str, before: MemberState, after: MemberState) -> TableState:
        if after not in MEMBER_TABLE.transitions[before].values():
            raise InternalError(f"A member that is {before.value} cannot become {after.value}.")
        values = id_, before.value, after.value, VOTE_SECONDS
        return self._table(await self._change("change_member", *values))

    async def accuse(
        self, accuser: str, accused: str, *, beat: int, version: int, needed: int
    ) -> TableState:
        values = accuser, accused, beat, version, needed, VOTE_SECONDS
        return self._table(await self._change("accuse_member", *values))

    async def describe(self) -> list[MemberReport]:
        """Return what the table says about each member, also about those that died within a day,
        ordered by their addresses."""
        rows = await self._ask("describe_members", all_rows=True)
        return [
            MemberReport(
                id_, node, _address(host, port), MemberState(state), release, tuple(versions), *more
            )
            for id_, node, host, port, state, release, versions, *more in rows
        ]

    async def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the version rises, and after every interruption. If the database
        is away now, this raises and listening begins when it is back."""
        self._changed = changed
        try:
            with translated():
                async with self._turn:
                    connection = await self._connected()
                    try:
                        await connection.add_listener(CHANNEL, self._notified)
                    except BaseException:
                        connection.terminate()
                        raise
        except MaitredError:
            self._lost(self._connection)
            raise

    async def close(self) -> None:
        self._closed = True
        if self._recovery is not None:
            self._recovery.cancel()
            with suppress(asyncio.CancelledError):
                await self._recovery
        if self._connection is not None:
            self._connection.terminate()
        await self._servers.close()

    def _table(self, row: Any) -> TableState:  # noqa: ANN401 - asyncpg has no types
        if row is None or row[0] is None:
            return TableState(ClusterView(cluster=self._cluster, version=0, members=()), {})
        stored = json.decode(row[0], type=_StoredTable)
        view = ClusterView(
            cluster=self._cluster,
            version=stored.version,
            members=stored.members,
            spread_batch=stored.spread_batch or "0",
            placement=stored.placement or "wrap",
        )
        return TableState(view, stored.beats, tuple(Vote(*vote) for vote in stored.votes))

    async def _watch_silence(self, address: str, id_: str, beats: int) -> None:
        """Return if the member that announced this address has no heartbeat for a while; raise
        `CannotStart` if it has one."""
        for _ in range(ADDRESS_LOOKS):
            await asyncio.sleep(ADDRESS_WATCH_SECONDS / ADDRESS_LOOKS)
            row = await self._ask("member_beats", id_)
            if row is None:
                return
            if row[0] != beats:
                raise CannotStart(
                    f"Another node of the cluster announces the address {address}, and is alive.",
                    remedy="Set `cluster.announce` to an address at which only this node can be "
                    "reached, or stop the other node.",
                )

    async def _warn_of_few_connections(self, shards: int) -> None:
        ((connections,),) = await self._ask("connections", all_rows=True, of_cluster=False)
        warn_of_few_connections(connections, shards, self._log)

    async def _change(self, name: str, *values: object, seconds: float = MEMBER_SECONDS) -> Any:  # noqa: ANN401
        return await self._ask(name, *values, seconds=seconds, commit=True)

    async def _ask(
        self,
        name: str,
        *values: object,
        seconds: float = MEMBER_SECONDS,
        commit: bool = False,
        all_rows: bool = False,
        of_cluster: bool = True,
    ) -> Any:  # noqa: ANN401 - asyncpg has no types
        """Return the row, or all rows, of a statement whose first value is the cluster."""
        if of_cluster:
            values = self._cluster, *values
        async with self._turn:
            with translated():
                connection = await self._connected()
            with translated(commit=commit), UnconfirmedCommit(connection, commit=commit):
                try:
                    if all_rows:
                        return await connection.fetch(_STATEMENTS[name], *values, timeout=seconds)
                    return await connection.fetchrow(_STATEMENTS[name], *values, timeout=seconds)
                except TimeoutError:
                    self._give_up(connection)
                    raise
                except asyncpg.ReadOnlySQLTransactionError:
                    connection.terminate()  # it was a primary once
                    raise
                except asyncpg.PostgresError:
                    raise
                except BaseException:
                    connection.terminate()
                    raise

    async def _connected(self) -> asyncpg.Connection:
        """Return the connection, opened anew if it was lost; the caller has the turn."""
        if self._closed:
            raise StoreUnavailable("The membership table is closed.")
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        connection = await self._servers.connect(
            timeout=MEMBER_CONNECT_SECONDS,
            command_timeout=MEMBER_SECONDS,
            server_settings={"application_name": "maitred member"},
        )
        try:
            await begin_session(connection, MEMBER_SECONDS, MEMBER_LOCK_SECONDS)
            await connection.fetchrow(_STATEMENTS["see_timeline"], self._cluster)
            if self._changed is not None:
                await connection.add_listener(CHANNEL, self._notified)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection
        connection.add_termination_listener(self._lost)
        if self._changed is not None:
            self._changed()
        return connection

    def _give_up(self, connection: asyncpg.Connection) -> None:
        """Stop using a connection on which a statement timed out."""
        self._connection = None
        self._servers.retire(connection)
        self._lost(connection)

    def _notified(self, _connection: object, _pid: int, _channel: str, cluster: str) -> None:
        if cluster == self._cluster and self._changed is not None:
            self._changed()

    def _lost(self, connection: asyncpg.Connection | None) -> None:
        """Open the connection again, if the node listens on it: nothing else may do so for long."""
        if self._connection not in (None, connection) or self._closed or self._changed is None:
            return
        if self._recovery is None or self._recovery.done():
            self._recovery = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        problem = ""
        while not self._closed:
            try:
                with translated():
                    async with self._turn:
                        await self._connected()
            except MaitredError as unavailable:
                if not problem:
                    self._log.warning(
                        "The membership table is away: the node serves on, and its members stay "
                        "as they are.",
                        problem=unavailable.sentence,
                    )
                problem = unavailable.sentence
                await asyncio.sleep(RECONNECT_SECONDS)
            else:
                if problem:
                    self._log.info("The membership table is back.")
                return


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _wrong_database(cluster: str, others: str) -> CannotStart:
    return CannotStart(
        f"The database belongs to another cluster, with nodes that are alive: {others}. The "
        f"cluster {cluster} cannot use it too, because the two would take queues from each other.",
        remedy=f"Check `cluster.name` and the database in `store`. To rename the cluster, stop all "
        f"its nodes and wait {LIVE_SECONDS:.0f} s.",
    )
