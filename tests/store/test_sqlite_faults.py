"""Disks that fill up and files that others hold: nothing of it was written, and it goes on."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import (
    CannotStart,
    OutcomeUnknown,
    StoreFull,
    StoreUnavailable,
)
from maitred.matching.records import Changes, Result
from maitred.store.sqlite import open_sqlite
from maitred.store.sqlite_errors import DamagedFileError, translated
from maitred.store.sqlite_file import SqliteFile
from tests.store.engines import Sqlite, awaited, opened
from tests.store.samples import ANY_SIZE, KEY, acquire, everything, later, segment, write

if TYPE_CHECKING:
    from maitred.matching.records import Later

ROOT = Path(__file__).parent.parent.parent


def connection_of(store: Any, own: int = 0) -> sqlite3.Connection:  # noqa: ANN401 - looks inside
    found: sqlite3.Connection = store.directory._files[own]._connection
    return found


@awaited
async def test_a_file_that_may_not_grow_is_full_and_goes_on_when_it_may(tmp_path: Path) -> None:
    async with opened(Sqlite(tmp_path)) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, backlog=1, segments=[segment(1, 1)])
        before = await everything(store, KEY)

        def limit(pages: int) -> None:
            connection_of(store).execute(f"PRAGMA max_page_count = {pages}")

        await store.thread.call(limit, 1)  # as many as there are
        large = Changes(KEY, 1, 9, segments=[segment(2, 9, body=bytes(10**5))])
        with pytest.raises(StoreFull, match=r"no room left for tasks-0\.db") as raised:
            await store.commit([large])
        assert raised.value.remedy
        assert await everything(store, KEY) == before
        assert await write(store, KEY, 1, backlog=2)  # needs no room
        await store.thread.call(limit, 10**6)
        assert await store.commit([large]) == []
        assert (await acquire(store, KEY)).backlog == 9


FILLS_A_DISK = """
import asyncio, sys
from pathlib import Path
from maitred.errors import StoreFull
from maitred.matching.records import Changes
from maitred.store.sqlite import open_sqlite
from tests.store.samples import ANY_SIZE, KEY, segment, acquire

async def main():
    disk = Path(sys.argv[1])
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(2_500_000))
    store = await open_sqlite(disk / "data", 0)
    await acquire(store, KEY)
    written = 0
    async def commit(n):
        made = segment(n, n, body=bytes(20_000))
        return await store.commit([Changes(KEY, 1, n, segments=[made])])
    try:
        while True:
            assert await commit(written + 1) == []
            written += 1
    except StoreFull:
        pass
    assert written > 3, written
    for _ in range(3):
        try:
            await commit(written + 1)
        except StoreFull:
            pass
        else:
            raise AssertionError("there was room")
    async def there():
        return [read.segment.first for read in await store.segments(KEY, 2, 0, 10**9, ANY_SIZE)]
    assert await there() == list(range(1, written + 1))
    ballast.unlink()
    assert await commit(written + 1) == []
    await store.close()
    store = await open_sqlite(disk / "data", 0)
    assert (await acquire(store, KEY)).backlog == written + 1
    assert await there() == list(range(1, written + 2))
    await store.close()
    print("went on")

asyncio.run(main())
"""


def test_a_full_disk_and_room_again(tmp_path: Path) -> None:
    """A real one: a file system in memory that only this test's process can see."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("NO FULL DISK IS TESTED: there is no unshare here to mount a small one.")
    disk = tmp_path / "disk"
    disk.mkdir()
    private = [unshare, "--map-root-user", "--mount", "sh", "-c"]
    mount = f'mount -t tmpfs -o size=4m none "{disk}"'
    if subprocess.run([*private, mount], capture_output=True, check=False).returncode:
        pytest.skip("NO FULL DISK IS TESTED: this user may not mount a small one, even privately.")
    ran = subprocess.run(
        [*private, f'{mount} && exec "$0" -c "$1" "{disk}"', sys.executable, FILLS_A_DISK],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "went on\n", ran.stderr


@awaited
async def test_a_file_that_others_hold_for_too_long(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path, 0, busy_seconds=0.05)
    await acquire(store, KEY)
    blocker = sqlite3.connect(tmp_path / "tasks-0.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by others"):
        await store.commit([Changes(KEY, 1, 5)])
    with pytest.raises(StoreUnavailable, match="locked by others"):
        await acquire(store, KEY)
    assert await store.segments(KEY, 2, 0, 1, ANY_SIZE) == []  # readers do not mind
    blocker.execute("ROLLBACK")
    blocker.close()
    assert await store.commit([Changes(KEY, 1, 5)]) == []
    await store.close()


@awaited
async def test_a_file_that_others_hold_for_a_moment(tmp_path: Path) -> None:
    async with opened(Sqlite(tmp_path)) as store:
        await acquire(store, KEY)
        blocker = sqlite3.connect(tmp_path / "tasks-0.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.commit([Changes(KEY, 1, 5)]))
        await asyncio.sleep(0)
        blocker.execute("COMMIT")
        blocker.close()
        assert await waiting == []


@awaited
async def test_a_page_of_delayed_tasks_names_those_that_cannot_be_read(tmp_path: Path) -> None:
    exact = 1_800_000_000.123_456_7
    async with opened(Sqlite(tmp_path)) as store:
        await acquire(store, KEY)
        rows = [later(number, exact, b"body") for number in range(1, 6)]
        await write(store, KEY, 1, later=rows)
    with closing(sqlite3.connect(tmp_path / "tasks-0.db")) as connection, connection:
        connection.execute("UPDATE later SET body = x'00' WHERE sequence = 2")
    rows[1] = later(2, exact, b"")
    async with opened(Sqlite(tmp_path)) as store:
        for most in (1, 2, 9):
            found: list[Later] = []
            after = 0.0, 0
            while page := await store.later_after(KEY, after, most, ANY_SIZE):
                found += page
                after = page[-1].due, page[-1].sequence
            assert found == rows
        assert await store.later_after(KEY, (exact, 1), 9, 1) == rows[1:3]


@awaited
async def test_rows_of_a_history_are_read_one_by_one_if_some_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Sqlite(tmp_path)) as store:
        await acquire(store, KEY)
        rows = [Result(-number, 9.0, b"body") for number in (3, 2, 1)]
        await write(store, KEY, 1, results=rows)
        ask, row = SqliteFile.json, SqliteFile.row

        def damaged_together(file: SqliteFile, name: str, values: Any) -> Any:  # noqa: ANN401
            if name == "history_bodies":
                raise DamagedFileError("A page is damaged.")
            return ask(file, name, values)

        def damaged_alone(file: SqliteFile, name: str, values: Any) -> Any:  # noqa: ANN401
            if name == "result" and values[-1] == -2:
                raise DamagedFileError("A page is damaged.")
            return row(file, name, values)

        monkeypatch.setattr(SqliteFile, "json", damaged_together)
        monkeypatch.setattr(SqliteFile, "row", damaged_alone)
        found = await store.history(KEY, -9, 9, ANY_SIZE)
        assert found == [(-3, b"body"), (-2, b""), (-1, b"body")]


@awaited
async def test_a_damaged_file_is_reported_in_words(tmp_path: Path) -> None:
    async with opened(Sqlite(tmp_path)) as store:
        await acquire(store, KEY)
    path = tmp_path / "tasks-0.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xee" * (len(whole) - 100))
    with pytest.raises(CannotStart, match=r"tasks-0\.db is not a database, or it is damaged"):
        await open_sqlite(tmp_path, 0)


@pytest.mark.parametrize(
    ("name", "writing", "error"),
    [
        ("SQLITE_IOERR_FSYNC", True, OutcomeUnknown),
        ("SQLITE_IOERR_WRITE", True, OutcomeUnknown),
        ("SQLITE_IOERR_READ", True, StoreUnavailable),
        ("SQLITE_IOERR_FSYNC", False, StoreUnavailable),
        ("SQLITE_READONLY_DBMOVED", True, StoreUnavailable),
        ("SQLITE_BUSY_SNAPSHOT", True, StoreUnavailable),
        ("SQLITE_FULL", True, StoreFull),
        ("SQLITE_ERROR", True, sqlite3.OperationalError),
    ],
)
def test_what_the_refusals_mean(name: str, *, writing: bool, error: type) -> None:
    problem = sqlite3.OperationalError("no")
    problem.sqlite_errorname = name
    with pytest.raises(error) as raised, translated(Path("tasks-0.db"), writing=writing):
        raise problem
    assert raised.type is error
