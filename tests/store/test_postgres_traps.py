"""How PostgreSQL fails in a cluster: hosts that freeze, standbys, commits that are not confirmed,
poolers."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from maitred.errors import CannotStart, OutcomeUnknown, StoreUnavailable
from maitred.logs import silent
from maitred.matching.records import Acquired, Changes
from maitred.store.postgres import open_postgres
from maitred.store.postgres_errors import translated_at_start
from maitred.store.postgres_hosts import PostgresServers, places_of
from maitred.store.postgres_members import open_members
from maitred.store.postgres_pooler import refuse_shared_sessions
from maitred.store.postgres_warnings import CONNECTIONS, refuse_unsafe_commits, warn_of_risks
from tests.store.engines import awaited
from tests.store.logs import Heard
from tests.store.pgbouncer import pgbouncer
from tests.store.postgres_proxy import location_of, proxies
from tests.store.postgres_server import empty_database, new_database, running_server
from tests.store.samples import ANY_SIZE, KEY, acquire, segment, write
from tests.store.test_postgres_members import execute, joined, states

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

LONG = 60.0
"""Seconds that are never over: whoever waits for them fails the test."""


@pytest.fixture
def location(postgres_server: Any) -> str:  # noqa: ANN401 - the package's own class
    return empty_database(postgres_server)


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One whose settings may be changed."""
    with running_server(str(tmp_path_factory.mktemp("own"))) as server:
        yield server


@pytest.fixture
def lonely_location(lonely: Any) -> str:  # noqa: ANN401
    return new_database(lonely)


async def until(holds: Callable[[], Any]) -> None:
    """Wait until this, or what it awaits, is true."""
    async with asyncio.timeout(LONG):
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("location", "places"),
    [
        ("postgresql://u:p@db/d", [("db", 5432)]),
        ("postgresql://u:p@a:1,b:2,c/d", [("a", 1), ("b", 2), ("c", 5432)]),
        ("postgresql://a,b/d?port=7", [("a", 7), ("b", 7)]),
        ("postgresql://[::1]:8,[::2]/d", [("::1", 8), ("::2", 5432)]),
        ("postgresql:///d?host=/run/pg,db&port=1,2", [("/run/pg", 1), ("db", 2)]),
        ("postgresql://u@%2Frun%2Fpg/d", [("/run/pg", 5432)]),
        ("postgresql:///d", []),
        ("postgresql:///d?service=main&host=a,b", []),
    ],
)
def test_the_hosts_of_a_location(
    location: str, places: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGPORT", raising=False)
    assert [*places_of(location)] == places


def test_hosts_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGPORT", "1,2")
    assert [*places_of("postgresql:///d")] == [("a", 1), ("b", 2)]
    with pytest.raises(ValueError, match="as many ports"):
        places_of("postgresql:///d?port=1,2,3")


@pytest.mark.parametrize("named", ["standby", "read-only", "prefer-standby", "hunter2"])
def test_a_location_that_asks_for_a_standby_is_refused(named: str) -> None:
    location = f"postgresql://a,b/d?target_session_attrs={named}"
    with (
        pytest.raises(CannotStart, match="do not lead to a primary"),
        translated_at_start(location),
    ):
        PostgresServers(location)


@pytest.mark.parametrize("frozen", [0, 1])
@awaited
async def test_a_frozen_host_costs_nothing(location: str, frozen: int) -> None:
    async with proxies(location, 2) as both:
        both[frozen].freeze()
        async with asyncio.timeout(LONG / 2):
            store = await open_postgres(location_of(*both), log=silent(), connect_seconds=LONG)
            assert (await acquire(store, KEY)).range_id == 1
            await store.close()
        assert both[frozen].connections
        both[frozen].thaw()


@awaited
async def test_the_primary_is_found_among_standbys(location: str) -> None:
    async with proxies(location, 3) as each:
        each[0].kind = each[2].kind = "standby"
        store = await open_postgres(location_of(*each), log=silent(), connect_seconds=LONG)
        await acquire(store, KEY)
        each[1].kind = "standby"
        servers = PostgresServers(location_of(*each))
        with pytest.raises(StoreUnavailable, match="No database server that answers is a primary"):
            await open_postgres(location_of(*each), log=silent(), connect_seconds=LONG)
        assert "3 distrusted" not in repr(servers)
        await store.close()


@awaited
async def test_a_standby_that_is_promoted_is_found_while_another_host_is_frozen(
    location: str,
) -> None:
    async with proxies(location, 2) as (frozen, standby), asyncio.timeout(LONG / 2):
        frozen.freeze()
        standby.kind = "standby"
        servers = PostgresServers(location_of(frozen, standby))
        connecting = asyncio.create_task(servers.connect(timeout=LONG))
        await until(lambda: standby.connections > 1)
        assert not connecting.done()
        standby.kind = "primary"
        connection = await connecting
        assert connection.place == ("127.0.0.1", standby.port)
        connection.terminate()
        frozen.thaw()


@awaited
async def test_a_host_that_does_not_answer_is_left_for_another(location: str) -> None:
    async with proxies(location, 2) as both, asyncio.timeout(LONG):
        store: Any = await open_postgres(
            location_of(*both), log=silent(), connect_seconds=LONG, command_seconds=2
        )
        await acquire(store, KEY)
        async with store._pool.acquire() as connection:
            used = connection.place.port
        (first,) = [one for one in both if one.port == used]
        first.freeze()
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.segments(KEY, 2, 0, 9, ANY_SIZE)
        while True:
            try:
                await acquire(store, KEY)
                break
            except StoreUnavailable:
                continue
        async with store._pool.acquire() as connection:
            assert connection.place.port != used
        first.thaw()
        await store.close()


@awaited
async def test_a_distrusted_host_is_tried_after_the_others(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maitred.store.postgres_hosts.HEAD_START_SECONDS", LONG)
    async with proxies(location, 2) as both:
        servers = PostgresServers(location_of(*both))
        connection = await servers.connect(timeout=2 * LONG)
        servers.distrust(connection)
        assert "1 distrusted" in repr(servers)
        async with asyncio.timeout(LONG / 2):
            other = await servers.connect(timeout=2 * LONG)
        assert other.place != connection.place
        connection.terminate()
        other.terminate()


@awaited
async def test_the_kernel_watches_connections(location: str) -> None:
    async with proxies(location, 1) as (one,):
        connection = await PostgresServers(location_of(one)).connect(timeout=LONG)
        found = connection._transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = {
            "TCP_KEEPIDLE": 1,
            "TCP_KEEPINTVL": 1,
            "TCP_KEEPCNT": 3,
            "TCP_USER_TIMEOUT": 4_000,
        }
        for name, value in options.items():
            if (option := getattr(socket, name, None)) is not None:
                assert found.getsockopt(socket.IPPROTO_TCP, option) == value
        connection.terminate()


@asynccontextmanager
async def read_only(location: str) -> AsyncIterator[None]:
    """What a session finds on a primary that was demoted under it."""
    name = location.partition("?")[0].rsplit("/", 1)[1]
    await execute(location, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        yield
    finally:
        reset = f"ALTER DATABASE {name} RESET default_transaction_read_only"
        await execute(location, f"BEGIN READ WRITE; {reset}; COMMIT", simple=True)


@awaited
async def test_a_connection_that_became_read_only_is_not_used_again(location: str) -> None:
    store = await open_postgres(location, log=silent())
    table = await open_members(location, "maitred", silent())
    async with read_only(location):
        with pytest.raises(StoreUnavailable, match="read-only"):
            await acquire(store, KEY)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await joined(table, "a")
    assert (await acquire(store, KEY)).range_id == 1
    assert [*states(await joined(table, "a"))] == ["a"]
    await store.close()
    await table.close()


@pytest.mark.parametrize("value", ["off", "local", "remote_write", "on", "remote_apply"])
@awaited
async def test_weak_commits_are_raised_in_every_session(location: str, value: str) -> None:
    name = location.partition("?")[0].rsplit("/", 1)[1]
    await execute(location, f"ALTER DATABASE {name} SET synchronous_commit = {value}")
    try:
        store: Any = await open_postgres(location, log=silent(), command_seconds=LONG)
        table: Any = await open_members(location, "maitred", silent())
        await table.read()
        expected = "remote_apply" if value == "remote_apply" else "on"
        for session in (store._pool, table._connection):
            assert await session.fetchval("SHOW synchronous_commit") == expected
        assert await store._pool.fetchval("SHOW statement_timeout") == "54s"
        assert await store._pool.fetchval("SHOW lock_timeout") == "0"
        assert await table._connection.fetchval("SHOW lock_timeout") == "1s"
        await store.close()
        await table.close()
    finally:
        await execute(location, f"ALTER DATABASE {name} RESET synchronous_commit")


class Told:
    """A connection that answers what it was told to answer."""

    def __init__(self, *answers: object, pid: int = 1) -> None:
        self._answers = itertools.cycle(answers)
        self._pid = pid
        self.terminated = False

    async def fetchrow(self, _statement: str, *_values: object) -> object:
        return next(self._answers)

    async def fetchval(self, _statement: str) -> object:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_server_pid(self) -> int:
        return self._pid

    def terminate(self) -> None:
        self.terminated = True


@awaited
async def test_weak_commits_that_cannot_be_raised_are_refused() -> None:
    with pytest.raises(CannotStart, match="synchronous_commit = local"):
        await refuse_unsafe_commits(Told(("local", "", "")))


@pytest.mark.parametrize(
    ("risks", "warnings"),
    [
        (("on", "*", 1), []),
        (("on", "", 0), ["no standby: if its disk is lost"]),
        (("on", "", 2), ["no synchronous standby: a failover can lose"]),
        (("off", "", 0), ["fsync = off", "no standby"]),
    ],
)
@awaited
async def test_what_can_be_lost_is_said(risks: tuple[object, ...], warnings: list[str]) -> None:
    log = Heard()
    await warn_of_risks(Told(risks), log)
    assert len(log.warnings) == len(warnings)
    assert all(said in one for said, one in zip(warnings, log.warnings, strict=True))


@awaited
async def test_one_shard_of_a_node_says_what_can_be_lost(location: str) -> None:
    log = Heard()
    for warns in (True, False):
        store = await open_postgres(location, log=log, warns=warns)
        await store.close()
    assert sum("has no standby" in one for one in log.warnings) == 1


class _Through:
    """Hands out one other session of a pooler."""

    def __init__(self, other: Told) -> None:
        self.other = other

    async def connect(self, **_more: object) -> Told:
        return self.other


@pytest.mark.parametrize(
    ("mine", "others", "shared"),
    [
        ([7], [9], False),  # the process is the session's own
        ([8], [9], False),  # a pooler by session
        ([8], [8], True),
        ([8, 9], [9, 8], True),  # in turns
        ([8, 8, 9], [7], True),
        ([8], [7, 6], True),
        ([asyncpg.InvalidSQLStatementNameError("gone")], [9], True),
        ([8], [asyncpg.DuplicatePreparedStatementError("there")], True),
    ],
)
@awaited
async def test_a_pooler_by_transaction_is_refused(
    mine: list[object], others: list[object], *, shared: bool
) -> None:
    servers: Any = _Through(Told(*others))
    if shared:
        with pytest.raises(CannotStart, match="for single transactions") as raised:
            await refuse_shared_sessions(servers, Told(*mine, pid=7), LONG)
        assert "pool_mode = session" in str(raised.value)
    else:
        await refuse_shared_sessions(servers, Told(*mine, pid=7), LONG)
    assert servers.other.terminated == (mine[0] == 8)


@awaited
async def test_a_pooler_by_session_is_used(location: str) -> None:
    async with proxies(location, 1) as (pooler,):
        pooler.kind = "pooler"
        connection = await PostgresServers(location_of(pooler)).connect(timeout=LONG)
        assert connection.get_server_pid() == 4711
        assert await connection.fetchval("SELECT pg_backend_pid()") != 4711
        connection.terminate()
        store = await open_postgres(location_of(pooler), log=silent())
        assert (await acquire(store, KEY)).range_id == 1
        await store.close()


@awaited
async def test_a_real_pooler_by_session_is_used(location: str, tmp_path: Path) -> None:
    with pgbouncer(location, "session", tmp_path) as pooled:
        store = await open_postgres(pooled, log=silent())
        assert (await acquire(store, KEY)).range_id == 1
        await store.close()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@awaited
async def test_a_real_pooler_by_transaction_is_refused(
    location: str, tmp_path: Path, mode: str
) -> None:
    with (
        pgbouncer(location, mode, tmp_path) as pooled,
        pytest.raises(CannotStart, match="for single transactions"),
    ):
        await open_postgres(pooled, log=silent())


@asynccontextmanager
async def lost_standby(server: Any) -> AsyncIterator[None]:  # noqa: ANN401
    """A primary that waits for a standby that is not there."""
    location = server.get_uri()
    shown = "SELECT current_setting('synchronous_standby_names')"

    async def set_(names: str) -> None:
        await execute(location, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        await execute(location, "SELECT pg_reload_conf()")
        await until(lambda: execute(location, f"{shown} = '{names}'"))

    await set_("nobody")
    try:
        yield
    finally:
        await set_("")


_WAITING = (
    "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE 'maitred%' "
)


async def cancel_the_wait(location: str) -> None:
    await until(lambda: execute(location, f"SELECT count(pg_cancel_backend(pid)) {_WAITING}"))


@awaited
async def test_a_commit_whose_wait_for_the_standby_is_cancelled_is_unknown(
    lonely: Any,  # noqa: ANN401
    lonely_location: str,
) -> None:
    location = lonely_location
    store = await open_postgres(location, log=silent(), command_seconds=LONG)
    table = await open_members(location, "maitred", silent())
    await acquire(store, KEY)
    await joined(table, "a")
    async with lost_standby(lonely):
        written = asyncio.create_task(store.commit([Changes(KEY, 1, 1, segments=[segment(1, 1)])]))
        await cancel_the_wait(location)
        with pytest.raises(OutcomeUnknown, match="did not confirm a commit"):
            await written
        acquired = asyncio.create_task(acquire(store, KEY))
        await cancel_the_wait(location)
        with pytest.raises(StoreUnavailable, match="did not confirm"):
            await acquired
        beat = asyncio.create_task(table.beat("a", 0.0))
        await cancel_the_wait(location)
        with pytest.raises(StoreUnavailable, match=r"did not (confirm|answer)"):
            await beat
    # With the standby it goes on, as after any unknown outcome: from what the database has.
    assert await acquire(store, KEY) == Acquired(3, None, 1, clean=False)
    assert await write(store, KEY, 3, backlog=1)
    await store.close()
    await table.close()


@awaited
async def test_commits_that_time_out_leave_no_connections_behind(
    lonely: Any,  # noqa: ANN401
    lonely_location: str,
) -> None:
    location = lonely_location
    store = await open_postgres(location, log=silent(), command_seconds=1, connect_seconds=LONG)
    await acquire(store, KEY)
    async with lost_standby(lonely):
        for _ in range(3):
            with pytest.raises(OutcomeUnknown, match="did not answer in time"):
                await store.commit([Changes(KEY, 1, 1)])
        await until(lambda: execute(location, f"SELECT count(*) = 0 {_WAITING}"))
    await store.close()


@awaited
async def test_a_shard_opens_no_more_connections_than_the_documents_say(location: str) -> None:
    store = await open_postgres(location, log=silent(), command_seconds=LONG)
    opened = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'maitred%'"
    )
    keys = [KEY._replace(queue=f"q{number}") for number in range(40)]
    blocker = await asyncpg.connect(location)
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE maitred.partitions IN ACCESS EXCLUSIVE MODE")
            waiting = [asyncio.create_task(acquire(store, key)) for key in keys]
            blocked = f"{opened} AND wait_event_type = 'Lock'"
            await until(lambda: execute(location, f"{blocked} HAVING count(*) >= {CONNECTIONS}"))
            assert await execute(location, opened) == CONNECTIONS
        assert [one.range_id for one in await asyncio.gather(*waiting)] == [1] * len(keys)
        assert await execute(location, opened) <= CONNECTIONS
    finally:
        await blocker.close()
        await store.close()


@awaited
async def test_only_changes_of_the_membership_notify(location: str) -> None:
    """A notification takes a lock of the whole server until its commit is over."""
    store = await open_postgres(location, log=silent())
    table = await open_members(location, "maitred", silent())
    statements = "FROM pg_proc WHERE pronamespace = 'maitred'::regnamespace AND prosrc ~* 'notify'"
    assert await execute(location, f"SELECT array_agg(proname::text) {statements}") == [
        "raise_version"
    ]
    told = asyncio.Queue[int]()
    await joined(table, "a")
    await table.listen(lambda: told.put_nowait(1))
    await acquire(store, KEY)
    await write(store, KEY, 1, backlog=1, segments=[segment(1, 1)])
    await table.beat("a", 0.0)
    await table.read()  # its answer comes after all notifications
    assert told.empty()
    await store.close()
    await table.close()
