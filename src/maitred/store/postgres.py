"""The PostgreSQL engine: many nodes share one database.

A commit is one call of a function in the database: one round trip, one transaction, on disk when it
answers. The call includes the COMMIT, so a connection that is lost during it leaves the outcome
unknown; a failure before a connection is acquired has done nothing.

If the server does not answer within `COMMAND_SECONDS`, the call fails and its connection is closed;
the pool opens new connections when they are needed, to the server that is the primary then, so the
store recovers by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from maitred.errors import StoreUnavailable
from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.records import (
    Acquired,
    Dead,
    Later,
    PartitionKey,
    Result,
    Segment,
    StoredHistoryRow,
    StoredUse,
)
from maitred.store.damaged_rows import damaged_of, head_of, is_in_place, without_deletions
from maitred.store.fences import Fence, Fences, ServerTimeline
from maitred.store.interface import (
    COMMAND_SECONDS,
    SIGNING_KEY_BYTES,
    Document,
    EmptyPartition,
    LastOwner,
    QueueContents,
    Refusal,
    SegmentRead,
    StoreUse,
)
from maitred.store.postgres_errors import DamagedPageError, translated, translated_at_start
from maitred.store.postgres_hosts import HostConnection, PostgresServers
from maitred.store.postgres_migration import prepare_database
from maitred.store.postgres_rows import (
    columns_of,
    columns_of_keys,
    counts_of,
    segment_read,
)
from maitred.store.postgres_warnings import CONNECTIONS, UnconfirmedCommit, begin_session
from maitred.store.scripts import statements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from maitred.matching.records import Changes, Damaged, DamagedKind
    from maitred.store.interface import Acquisition, Store, StoreLog

CONNECT_SECONDS: Final = 5.0
"""How long to wait for a connection of the pool, including opening a new one."""

_STATEMENTS: Final = statements("postgres")
_REFUSALS: Final = {
    "namespace": Refusal.NAMESPACE_FULL,
    "store": Refusal.STORE_FULL,
    "overtaken": Refusal.OVERTAKEN,
}


async def open_postgres(
    location: str,
    *,
    log: StoreLog,
    owner: str = "",
    warns: bool = True,
    command_seconds: float = COMMAND_SECONDS,
    connect_seconds: float = CONNECT_SECONDS,
) -> Store:
    """Connect, and migrate the database to this program's version.

    With an `owner`, "<member>/<random>", the store writes only to partitions that this owner was
    the last to acquire; without one, commits are checked by the range id alone. `warns` is whether
    to log what the server's settings put at risk; one shard of a node is enough.

    Raise `CannotStart` if waiting cannot help, `StoreUnavailable` if the server does not answer.
    """
    timeline = ServerTimeline()
    with translated_at_start(location):
        servers = PostgresServers(location)
        await prepare_database(servers, connect_seconds, log if warns else None)
        pool = await asyncpg.create_pool(
            location,
            connect=servers.connect,
            connection_class=HostConnection,
            min_size=0,
            max_size=CONNECTIONS,
            timeout=connect_seconds,
            command_timeout=command_seconds,
            init=partial(_prepare, command_seconds=command_seconds, timeline=timeline),
            reset=_as_it_is,
            server_settings={"application_name": "maitred"},
        )
    log.info("The store is open.", engine="postgresql")
    return _PostgresStore(
        pool,
        servers,
        timeline,
        owner=owner,
        command_seconds=command_seconds,
        connect_seconds=connect_seconds,
    )


async def _prepare(
    connection: asyncpg.Connection, *, command_seconds: float, timeline: ServerTimeline
) -> None:
    await begin_session(connection, command_seconds)
    timeline.see((await connection.fetchrow(_STATEMENTS["timeline"]))[0])


async def _as_it_is(_connection: asyncpg.Connection) -> None:
    """Skip the pool's reset: no session state needs it, and it would cost a round trip."""


class _PostgresStore:
    """Implements `Store`; a read of a partition that does not exist returns nothing."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        servers: PostgresServers,
        timeline: ServerTimeline,
        *,
        owner: str,
        command_seconds: float,
        connect_seconds: float,
    ) -> None:
        self._pool = pool
        self._servers = servers
        self._timeline = timeline
        self._owner = owner
        self._command_seconds = command_seconds
        self._connect_seconds = connect_seconds
        self._closed = False
        self._ids: dict[PartitionKey, int] = {}
        """Maps the partitions that were found so far to their ids; an id is never used twice."""
        self._fences = Fences()

    def __repr__(self) -> str:
        open_, idle = self._pool.get_size(), self._pool.get_idle_size()
        state = "closed" if self._closed else f"{open_ - idle} of {open_} connections in use"
        return f"<PostgresStore {state}, {len(self._ids)} partitions known>"

    @asynccontextmanager
    async def _connection(self, *, commit: bool = False) -> AsyncIterator[asyncpg.Connection]:
        """Borrow a connection of the pool; close it if anything but the server's answer ends its
        use."""
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        with translated():
            connection = await self._pool.acquire(timeout=self._connect_seconds)
        retired = False
        try:
            with translated(commit=commit), UnconfirmedCommit(connection, commit=commit):
                try:
                    yield connection
                except TimeoutError:
                    retired = True
                    self._servers.retire(connection, partial(self._pool.release, connection))
                    await self._look_elsewhere()
                    raise
                except asyncpg.ReadOnlySQLTransactionError:
                    connection.terminate()
                    await self._look_elsewhere()
                    raise
                except asyncpg.PostgresError:
                    raise
                except BaseException:
                    connection.terminate()
                    raise
        finally:
            if not retired:
                await self._pool.release(connection)

    async def _look_elsewhere(self) -> None:
        """Open new connections instead of all present ones: their server is not, or no longer, the
        primary, or does not answer."""
        if self._servers.several:
            await self._pool.expire_connections()

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        found: dict[PartitionKey, Acquired | Refusal] = {}
        await self._acquire("acquire", group, found, [one.range_id for one in group])
        # Most partitions exist. Creating takes a lock, so it is a statement of its own.
        missing = [one for one in group if one.key not in found and one.makes]
        if missing:
            quotas = zip(*(one.quota for one in missing), strict=True)
            known = {one.key: self._fences.get(one.key) for one in missing}
            await self._acquire("make_partitions", missing, found, *map(list, quotas))
            if self._owner and any(known.values()):
                await self._see_unmade(known, found)
        return [
            found.get(one.key, Refusal.OVERTAKEN if one.makes else Refusal.UNKNOWN) for one in group
        ]

    async def _acquire(
        self,
        statement: str,
        group: Sequence[Acquisition],
        found: dict[PartitionKey, Acquired | Refusal],
        *more: Sequence[int | None],
    ) -> None:
        columns = columns_of_keys(one.key for one in group)
        rows = await self._fetch(statement, *columns, self._owner, *more, CONTROLS_ROW)
        for at, refusal, number, range_id, backlog, found_clean, *more_of_row in rows:
            *counts, found_range_id, found_owner, found_commits, controls = more_of_row
            key = group[at - 1].key
            if refusal is not None:
                found[key] = _REFUSALS[refusal]
                continue
            self._ids[key] = number
            before = Fence(found_range_id, found_commits)
            is_own = bool(self._owner) and found_owner == self._owner
            undone = self._fences.acquired(key, range_id, before, is_own=is_own)
            undone = undone and bool(self._owner) and statement == "acquire"
            found[key] = Acquired(
                range_id, counts_of(*counts), backlog, found_clean, undone, controls, is_own
            )

    async def _see_unmade(
        self,
        known: dict[PartitionKey, Fence | None],
        found: dict[PartitionKey, Acquired | Refusal],
    ) -> None:
        """Note which partitions that were just made had existed before and were not deleted: the
        watermark is not below any range id of a deleted partition."""
        watermark = (await self._fetch("watermark"))[0][0]
        for key, fence in known.items():
            made = found.get(key)
            if fence is not None and fence.range_id > watermark and isinstance(made, Acquired):
                found[key] = made._replace(undone=True)

    async def owners(self, group: Sequence[PartitionKey]) -> dict[PartitionKey, LastOwner]:
        rows = await self._fetch("owners", *columns_of_keys(group))
        return {group[place - 1]: LastOwner(range_id, member) for place, range_id, member in rows}

    async def overtaken(self, group: Sequence[PartitionKey]) -> list[PartitionKey]:
        if not self._owner:
            return []
        asked = [
            (key, self._ids[key], fence)
            for key in group
            if key in self._ids and (fence := self._fences.get(key)) is not None
        ]
        ids = [number for _, number, _ in asked]
        ranges, commits = ([fence[at] for _, _, fence in asked] for at in range(2))
        rows = await self._fetch("overtaken", self._owner, ids, ranges, commits)
        return [asked[row[0] - 1][0] for row in rows]

    def watch(self, may_have_lost: Callable[[], None]) -> None:
        self._timeline.changed = may_have_lost

    async def commit(self, group: Sequence[Changes]) -> Sequence[PartitionKey]:
        known = [(self._ids[changes.key], changes) for changes in group if changes.key in self._ids]
        overtaken = [changes.key for changes in group if changes.key not in self._ids]
        if known:
            aside = any(changes.damaged or changes.damaged_gone for _, changes in known)
            numbers = await (self._commit_damaged(known) if aside else self._commit(known))
            for number, changes in known:
                if number in numbers:
                    overtaken.append(changes.key)
                else:
                    self._fences.confirmed(changes.key)
        return overtaken

    def _columns(self, known: Sequence[tuple[int, Changes]]) -> list[list[Any]]:
        """Return the arguments of a commit; a store without an owner does not count commits."""
        commits = [
            self._fences.commits(changes.key, changes.range_id) if self._owner else None
            for _, changes in known
        ]
        return columns_of(known, commits)

    async def _commit(self, known: Sequence[tuple[int, Changes]]) -> set[int]:
        columns = self._columns(known)
        async with self._connection(commit=True) as connection:
            rows = await connection.fetch(_STATEMENTS["commit"], self._owner, *columns)
        return {row[0] for row in rows}

    async def _commit_damaged(self, known: Sequence[tuple[int, Changes]]) -> set[int]:
        """Set rows aside; leave them in their tables if deleting fails, as it often does for rows
        that cannot be read. They must not block the commits of other partitions."""
        try:
            return await self._set_aside(known, deletes=True)
        except DamagedPageError:
            known = [(number, without_deletions(changes)) for number, changes in known]
            return await self._set_aside(known, deletes=False)

    async def _set_aside(self, known: Sequence[tuple[int, Changes]], *, deletes: bool) -> set[int]:
        columns = self._columns(known)
        async with self._connection(commit=True) as connection, connection.transaction():
            rows = await connection.fetch(_STATEMENTS["commit"], self._owner, *columns)
            overtaken = {row[0] for row in rows}
            for number, changes in known:
                if number in overtaken:
                    continue
                for kind, first in changes.damaged_gone:
                    await connection.execute(_STATEMENTS["damaged_gone"], number, first, kind)
                    await connection.execute(_STATEMENTS["damaged_dropped"], number, first, kind)
                for row in changes.damaged:
                    place = is_in_place(row, deletes=deletes)
                    values = number, row.first, row.kind, row.last, row.tasks, place
                    await connection.execute(
                        _STATEMENTS["set_aside"], *values, head_of(row), row.body
                    )
        return overtaken

    async def segments(
        self, key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        most = max(tasks, 0), max(most_bytes, 1)
        try:
            rows = await self._read("segments", key, priority, after, *most)
        except DamagedPageError:
            heads = await self._read("segment_heads", key, priority, after, most[0])
            return await self._segments_one_by_one(key, heads, *most)
        return [segment_read(row) for row in rows]

    async def segments_around(self, key: PartitionKey, sequence: int) -> list[SegmentRead]:
        try:
            rows = await self._read("segments_around", key, sequence)
        except DamagedPageError:
            heads = await self._read("segment_heads_around", key, sequence)
            return await self._segments_one_by_one(key, heads)
        return [segment_read(row) for row in rows]

    async def _segments_one_by_one(
        self,
        key: PartitionKey,
        heads: list[asyncpg.Record],
        tasks: float = inf,
        most_bytes: float = inf,
    ) -> list[SegmentRead]:
        found = []
        for priority, first, last, count, marks in heads:
            body = await self._body_or_nothing("segment_body", key, priority, first)
            segment = Segment(priority, first, last, count, body)
            found.append(SegmentRead(segment, frozenset(marks)))
            tasks -= count
            most_bytes -= len(body)
            if tasks <= 0 or most_bytes <= 0:
                break
        return found

    async def _body_or_nothing(self, name: str, key: PartitionKey, *values: object) -> bytes:
        """Return the last column of one row; empty if the server cannot read it."""
        try:
            rows = await self._read(name, key, *values)
        except DamagedPageError:
            return b""
        return bytes(rows[0][-1]) if rows else b""

    async def later(
        self, key: PartitionKey, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        return await self._later("later", key, [before], most=most, most_bytes=most_bytes)

    async def later_after(
        self, key: PartitionKey, after: tuple[float, int], most: int, most_bytes: int
    ) -> list[Later]:
        return await self._later("later_after", key, after, most=most, most_bytes=most_bytes)

    async def _later(
        self, name: str, key: PartitionKey, where: Sequence[float], *, most: int, most_bytes: int
    ) -> list[Later]:
        try:
            rows = await self._read(name, key, *where, max(most, 0), max(most_bytes, 1))
        except DamagedPageError:
            found = []
            for sequence, due in await self._read(f"{name}_heads", key, *where, max(most, 0)):
                body = await self._body_or_nothing("later_one", key, sequence)
                found.append(Later(sequence, due, body))
                most_bytes -= len(body)
                if most_bytes <= 0:
                    break
            return found
        return [Later(*row) for row in rows]

    async def later_one(self, key: PartitionKey, sequence: int) -> Later | None:
        rows = await self._read("later_one", key, sequence)
        return Later(*rows[0]) if rows else None

    async def dead(self, key: PartitionKey, after: int, most: int, most_bytes: int) -> list[Dead]:
        most = max(most, 0)
        try:
            rows = await self._read("dead", key, after, most, max(most_bytes, 1))
        except DamagedPageError:
            found = []
            for one, died_at, reason in await self._read("dead_heads", key, after, most):
                body = await self._body_or_nothing("dead_one", key, one)
                found.append(Dead(one, died_at, reason, body))
                most_bytes -= len(body)
                if most_bytes <= 0:
                    break
            return found
        return [Dead(*row) for row in rows]

    async def dead_one(self, key: PartitionKey, sequence: int) -> Dead | None:
        rows = await self._read("dead_one", key, sequence)
        return Dead(*rows[0]) if rows else None

    async def later_count(self, key: PartitionKey, most: int) -> int:
        rows = await self._read("later_count", key, max(most, 0))
        return int(rows[0][0]) if rows else 0

    async def dead_count(self, key: PartitionKey) -> int:
        rows = await self._read("dead_count", key)
        return int(rows[0][0]) if rows else 0

    async def damaged(self, key: PartitionKey, after: tuple[int, str], most: int) -> list[Damaged]:
        rows = await self._read("damaged", key, *after, max(most, 0))
        return [damaged_of(*row) for row in rows]

    async def damaged_one(self, key: PartitionKey, kind: DamagedKind, first: int) -> Damaged | None:
        rows = await self._read("damaged_one", key, first, kind)
        if not rows:
            return None
        found = damaged_of(*rows[0])
        if found.body or kind == "result":
            return found
        # The server may have been repaired since.
        statement = "segment_body" if kind == "segment" else f"{kind}_one"
        values = (found.priority, first) if kind == "segment" else (first,)
        body = await self._body_or_nothing(statement, key, *values)
        return found._replace(body=body, size=len(body))

    async def damaged_around(self, key: PartitionKey, sequence: int) -> list[Damaged]:
        return [damaged_of(*row) for row in await self._read("damaged_around", key, sequence)]

    async def damaged_count(self, key: PartitionKey) -> tuple[int, int]:
        rows = await self._read("damaged_count", key)
        return (rows[0][0], rows[0][1]) if rows else (0, 0)

    async def result(self, key: PartitionKey, sequence: int) -> Result | None:
        rows = await self._read("result", key, sequence)
        return Result(*rows[0]) if rows else None

    async def history(
        self, key: PartitionKey, after: int, most: int, most_bytes: int
    ) -> list[StoredHistoryRow]:
        try:
            rows = await self._read("history", key, after, max(most, 0), max(most_bytes, 1))
        except DamagedPageError:
            found = []
            for (number,) in await self._read("history_heads", key, after, max(most, 0)):
                found.append(
                    StoredHistoryRow(number, await self._body_or_nothing("result", key, number))
                )
                most_bytes -= len(found[-1].body)
                if most_bytes <= 0:
                    break
            return found
        return [StoredHistoryRow(*row) for row in rows]

    async def forget_results(self, before: float, most: int) -> int:
        rows = await self._fetch("forget_results", before, max(most, 0))
        return int(rows[0][0])

    async def partitions(self) -> list[PartitionKey]:
        return [PartitionKey(*row) for row in await self._fetch("partitions")]

    async def queues(self, namespace: str, most: int) -> list[str]:
        return [row[0] for row in await self._fetch("queues", namespace, max(most, 0))]

    async def queue_count(self, namespace: str) -> int:
        return int((await self._fetch("queue_count", namespace))[0][0])

    async def empty_partitions(self, after: PartitionKey | None, most: int) -> list[EmptyPartition]:
        start = after or PartitionKey("", "", 0, 0)
        rows = await self._fetch("empty_partitions", *start, max(most, 0))
        return [EmptyPartition(PartitionKey(*row[:4]), row[4], counts_of(*row[5:])) for row in rows]

    async def forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        ranges = [range_id for _, range_id in group]
        columns = columns_of_keys(key for key, _ in group)
        rows = await self._fetch("forget_partitions", *columns, ranges)
        gone = sorted(group[row[0] - 1][0] for row in rows)
        for key in gone:
            self._forget(key)
        return gone

    def _forget(self, key: PartitionKey) -> None:
        """Forget a partition that was deleted."""
        self._ids.pop(key, None)
        self._fences.forget(key)

    async def delete_queue(self, key: PartitionKey, *, force: bool) -> QueueContents:
        ((*contents,),) = await self._fetch("delete_queue", *key[:3], force)
        if contents[0]:
            for other in [one for one in self._ids if one[:3] == key[:3]]:
                self._forget(other)
        return QueueContents(*contents)

    async def partitions_with_tasks(self) -> list[PartitionKey]:
        return [PartitionKey(*row) for row in await self._fetch("partitions_with_tasks")]

    async def children_with_tasks(self) -> list[PartitionKey]:
        return [key for key in await self.partitions_with_tasks() if key.partition]

    async def use(self) -> StoreUse:
        rows = await self._fetch("use")
        found = {(row[0], row[1]): StoredUse(row[2], row[3]) for row in rows}
        return StoreUse(found, None, {(row[0], row[1]): row[4] for row in rows if row[4]})

    async def signing_key(self) -> bytes:
        rows = await self._fetch("signing_key", token_bytes(SIGNING_KEY_BYTES))
        return bytes(rows[0][0])

    async def document(self, name: str, known: int = 0) -> Document | None:
        rows = await self._fetch("document", name, known)
        return Document(rows[0][0], bytes(rows[0][1])) if rows else None

    async def replace_document(self, name: str, version: int, body: bytes) -> bool:
        made = "replace_document" if version else "make_document"
        async with self._connection(commit=True) as connection:
            return bool(await connection.fetch(_STATEMENTS[made], name, version, body))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._servers.close()
        try:
            await asyncio.wait_for(self._pool.close(), self._command_seconds)
        except (TimeoutError, OSError, asyncpg.InterfaceError):
            self._pool.terminate()

    async def _read(self, name: str, key: PartitionKey, *values: object) -> list[asyncpg.Record]:
        number = self._ids.get(key)
        if number is None:
            found = await self._fetch("find", *key)
            if not found:
                return []
            number = self._ids[key] = found[0][0]
        return await self._fetch(name, number, *values)

    async def _fetch(self, name: str, *values: object) -> list[asyncpg.Record]:
        async with self._connection() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(_STATEMENTS[name], *values)
        return rows
