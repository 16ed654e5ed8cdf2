"""PostgreSQL's own matters: servers that stop, hang, or do not let us in."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import asyncpg
import psutil
import pytest

from maitred.errors import CannotStart, OutcomeUnknown, StoreFull, StoreUnavailable
from maitred.logs import silent
from maitred.matching.records import Changes
from maitred.store.interface import LastOwner
from maitred.store.postgres import open_postgres
from maitred.store.postgres_errors import DamagedPageError, translated, translated_at_start
from maitred.store.scripts import Migration, migrations, statements
from tests.node.raw import PATIENCE_SECONDS
from tests.store.engines import Postgres, awaited, opened
from tests.store.postgres_server import empty_database, new_database, running_server
from tests.store.samples import ANY_SIZE, KEY, OTHER, acquire, everything, segment, write

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def location(postgres_server: Any) -> str:  # noqa: ANN401 - the package's own class
    return empty_database(postgres_server)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One that may be stopped."""
    with running_server(str(tmp_path_factory.mktemp("own"))) as server:
        yield server


async def execute(location: str, statement: str) -> None:
    connection = await asyncpg.connect(location)
    await connection.execute(statement)
    await connection.close()


@awaited
async def test_shards_that_start_together_make_the_tables_once(location: str) -> None:
    stores = await asyncio.gather(*[open_postgres(location, log=silent()) for _ in range(5)])
    assert sorted([(await acquire(store, KEY)).range_id for store in stores]) == [1, 2, 3, 4, 5]
    for store in stores:
        await store.close()


@awaited
async def test_a_database_of_a_newer_program_is_refused(location: str) -> None:
    async with opened(Postgres(location)):
        pass
    newer = migrations("postgres")[-1].version + 1
    await execute(location, f"INSERT INTO maitred.versions VALUES ({newer})")  # noqa: S608
    with pytest.raises(CannotStart, match="written by a newer maitred"):
        await open_postgres(location, log=silent())


@awaited
async def test_a_database_of_a_newer_program_that_keeps_to_this_one_is_used(location: str) -> None:
    async with opened(Postgres(location)):
        pass
    known = migrations("postgres")[-1].version
    values = f"({known + 1}, {known}), ({known + 2}, 3)"
    await execute(location, f"INSERT INTO maitred.versions VALUES {values}")  # noqa: S608
    async with opened(Postgres(location)) as store:
        assert (await acquire(store, KEY)).range_id == 1


@awaited
async def test_a_database_of_an_earlier_release_is_migrated(location: str) -> None:
    await execute(location, statements("postgres")["versions_make"])
    for migration in migrations("postgres")[:6]:
        await execute(location, migration.script)
        await execute(location, f"INSERT INTO maitred.versions VALUES ({migration.version})")  # noqa: S608
    await execute(
        location,
        "SELECT maitred.make_partitions("
        "ARRAY['shop'], ARRAY['mails'], ARRAY[1], ARRAY[0], ARRAY[9], ARRAY[9])",
    )
    async with opened(Postgres(location)) as store:
        assert await store.owners([KEY]) == {KEY: LastOwner(1, "")}
        assert (await acquire(store, KEY)).range_id == 2
        assert await write(store, KEY, 2)


def test_migrations_say_which_programs_can_go_on() -> None:
    assert Migration(9, "-- compatible: 7\n--\n-- More.").compatible == 7
    assert Migration(9, "-- Not compatible.").compatible == 9


@awaited
async def test_who_is_not_let_in_is_told_why(location: str) -> None:
    stranger = location.replace("postgres:", "stranger:hunter2", 1)
    with pytest.raises(CannotStart, match="stranger") as raised:
        await open_postgres(stranger, log=silent())
    assert "hunter2" not in str(raised.value)
    nowhere = location.replace("/test_", "/no_such_")
    with pytest.raises(CannotStart, match="no_such_"):
        await open_postgres(nowhere, log=silent())


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("127.0.0.1:{port}/tasks", " at 127.0.0.1:{port}"),
        ("localhost:{port}/tasks?sslmode=disable&password=hunter3", " at localhost:{port}"),
        ("/tasks?host=127.0.0.1&port={port}", " at 127.0.0.1:{port}"),
        ("no-such-host.invalid/tasks", " at no-such-host.invalid:5432"),
    ],
)
@awaited
async def test_who_finds_no_server_is_told_where_he_looked(place: str, shown: str) -> None:
    with socket.socket() as held:  # bound, and not listening
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        location = f"postgresql://waiter:hunter2@{place.format(port=port)}"
        with pytest.raises(StoreUnavailable) as raised:
            await open_postgres(location, log=silent(), connect_seconds=2)
    said = str(raised.value)
    assert said.startswith(f"The database server{shown.format(port=port)} cannot be reached: ")
    assert said.endswith(" Check whether it runs, and the address in `store`.")
    for secret in ("waiter", "hunter2", "hunter3", "tasks"):
        assert secret not in said


@pytest.mark.parametrize("mark", ["/", "?", "#"])
def test_a_password_that_is_not_quoted_is_not_taken_for_a_host(mark: str) -> None:
    location = f"postgresql://waiter:12{mark}34@db.example/tasks"
    with pytest.raises(StoreUnavailable) as raised, translated_at_start(location):
        raise ConnectionRefusedError("refused")
    assert str(raised.value).startswith("The database server cannot be reached: refused.")


@awaited
async def test_a_server_that_says_nothing_is_named_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        location = f"postgresql://waiter:hunter2@127.0.0.1:{port}/tasks"
        with pytest.raises(StoreUnavailable) as raised:
            await open_postgres(location, log=silent(), connect_seconds=0.1)
    said = f"The database server at 127.0.0.1:{port} cannot be reached: it did not answer in time."
    assert raised.value.sentence == said


@awaited
async def test_commits_wait_for_the_disk_whatever_the_server_is_set_to(location: str) -> None:
    name = location.partition("?")[0].rsplit("/", 1)[1]
    await execute(location, f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with opened(Postgres(location)) as store:
        for _ in range(3):  # also when the connection was used before
            assert await store._pool.fetchval("SHOW synchronous_commit") == "on"
            await acquire(store, KEY)
    await execute(location, f"ALTER DATABASE {name} RESET synchronous_commit")


@awaited
async def test_no_read_scans_or_sorts(location: str) -> None:
    async with (
        opened(Postgres(location)) as store,
        store._pool.acquire() as connection,
    ):
        await connection.execute("SET enable_seqscan = off; SET enable_sort = off")
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        for name in (
            *("segments", "segments_around", "later", "later_after", "later_after_heads", "dead"),
            *("result", "forget_results"),
        ):
            count = max(n for n in range(1, 6) if f"${n}" in statements("postgres")[name])
            await connection.execute(f"PREPARE q AS {statements('postgres')[name]}")
            ones = ", ".join(["1"] * count)
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE q({ones})"))
            await connection.execute("DEALLOCATE q")
            assert "Seq Scan" not in plan, plan
            assert "Sort" not in plan or name == "segments_around", plan  # of five at most
            # Whole, so that a page begins at its place among a million tasks of one moment.
            place = "ROW(due, sequence) > ROW("
            assert (place in plan) is (name in {"later_after", "later_after_heads"}), plan
            assert all(place not in step for step in plan.splitlines() if "Filter" in step), plan


def test_a_server_that_stops_and_comes_back(own_server: Any) -> None:  # noqa: ANN401
    location = new_database(own_server)

    async def scenario() -> None:
        store = await open_postgres(location, log=silent(), command_seconds=5, connect_seconds=2)
        await acquire(store, KEY)
        assert await write(store, KEY, 1, backlog=1, segments=[segment(1, 1)])
        before = await everything(store, KEY)
        await asyncio.to_thread(own_server.stop)
        began = time.monotonic()
        # The connections that the server took with it were in no commit.
        with pytest.raises(StoreUnavailable):
            await store.commit([Changes(KEY, 1, 2)])
        with pytest.raises(StoreUnavailable):
            await store.segments(KEY, 2, 0, 9, ANY_SIZE)
        with pytest.raises(StoreUnavailable):
            await open_postgres(location, log=silent(), connect_seconds=2)
        assert time.monotonic() - began < 30
        await asyncio.to_thread(own_server.start)
        assert await everything(store, KEY) == before
        assert await store.commit([Changes(KEY, 1, 3)]) == []
        assert (await acquire(store, KEY)).backlog == 3
        await store.close()

    asyncio.run(scenario())


def test_a_server_that_hangs_is_given_up_and_found_again(own_server: Any) -> None:  # noqa: ANN401
    location = new_database(own_server)
    postmaster = own_server.get_pid()

    async def scenario() -> None:
        # A second: while it does not hang it has to answer in time, on a busy machine as well.
        store = await open_postgres(location, log=silent(), command_seconds=1, connect_seconds=1)
        await acquire(store, KEY)
        await acquire(store, OTHER)
        children = [child.pid for child in psutil.Process(postmaster).children()]
        began = time.monotonic()
        try:
            for pid in (postmaster, *children):
                os.kill(pid, signal.SIGSTOP)
            with pytest.raises(OutcomeUnknown, match="did not answer in time"):
                await store.commit([Changes(KEY, 1, 2)])
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                await store.segments(KEY, 2, 0, 9, ANY_SIZE)
        finally:
            for pid in (postmaster, *children):
                os.kill(pid, signal.SIGCONT)
        assert time.monotonic() - began < 30
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    acquired = await acquire(store, KEY)
                    break
                except StoreUnavailable:
                    continue
        assert acquired.backlog in {0, 2}  # nobody knew
        assert await write(store, OTHER, 1)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("problem", "commit", "error"),
    [
        (asyncpg.DiskFullError("no"), True, StoreFull),
        (asyncpg.DeadlockDetectedError("no"), True, StoreUnavailable),
        (asyncpg.QueryCanceledError("no"), True, StoreUnavailable),
        (asyncpg.PostgresIOError("no"), True, StoreUnavailable),
        (asyncpg.DataCorruptedError("no"), False, DamagedPageError),
        (asyncpg.TooManyConnectionsError("no"), True, StoreUnavailable),
        (asyncpg.AdminShutdownError("no"), True, OutcomeUnknown),
        (asyncpg.AdminShutdownError("no"), False, StoreUnavailable),
        (asyncpg.ConnectionDoesNotExistError("no"), True, OutcomeUnknown),
        (ConnectionResetError("no"), True, OutcomeUnknown),
        (TimeoutError(), True, OutcomeUnknown),
        (TimeoutError(), False, StoreUnavailable),
        (asyncpg.UndefinedTableError("no"), True, asyncpg.UndefinedTableError),
    ],
)
def test_what_the_refusals_mean(problem: Exception, *, commit: bool, error: type) -> None:
    with pytest.raises(error) as raised, translated(commit=commit):
        raise problem
    assert raised.type is error
