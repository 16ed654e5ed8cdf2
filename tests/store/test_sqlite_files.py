"""SQLite's own matters: a file a shard, who finds what where, and files that cannot be used."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import CannotStart, OutcomeUnknown, StoreUnavailable
from maitred.matching.records import ROW_BYTES, Changes, Dead, PartitionKey, StoredUse
from maitred.store import sqlite_rows
from maitred.store.interface import SIGNING_KEY_BYTES, Acquisition, PartlyWritten
from maitred.store.scripts import migrations, statements
from maitred.store.sqlite import open_sqlite
from maitred.store.sqlite_directory import SqliteDirectory
from maitred.store.sqlite_file import APPLICATION, SqliteFile
from tests.store.engines import Sqlite, awaited, opened
from tests.store.samples import (
    ANY_SIZE,
    KEY,
    OTHER,
    acquire,
    everything,
    gone,
    later,
    segment,
    write,
)

ROOT = Path(__file__).parent.parent.parent


def inside(directory: Path) -> dict[str, list[int]]:
    """Which partitions' numbers are in which file."""
    found = {}
    for path in sorted(directory.glob("tasks-*.db")):
        with sqlite3.connect(path) as connection:
            rows = connection.execute("SELECT partition FROM partitions ORDER BY partition")
            found[path.name] = [number for (number,) in rows]
        connection.close()
    return found


@awaited
async def test_another_number_of_shards_finds_everything(tmp_path: Path) -> None:
    keys = [PartitionKey("shop", "mails", 1, n) for n in range(8)]
    async with opened(Sqlite(tmp_path), 0, 1, 2, 3) as stores:
        for n, key in enumerate(keys):
            await acquire(stores[n % 4], key)
            await write(stores[n % 4], key, 1, backlog=n, segments=[segment(1, 9)], marks=[n])
    before = inside(tmp_path)
    assert before == {f"tasks-{n}.db": [n, n + 4] for n in range(4)}
    async with opened(Sqlite(tmp_path), 0, 1) as stores:
        assert await stores[1].partitions() == keys
        for n, key in enumerate(keys):
            assert (await acquire(stores[n % 2], key))[:3:2] == (2, n)
        # One group, four files.
        group = [Changes(key, 2, 50, later=[later(99, 1.0)]) for key in keys[::2]]
        assert await stores[0].commit(group) == []
        for n, key in enumerate(keys):
            found = await everything(stores[1], key)
            assert [read.marks for read in found["segments"]] == [{n} & set(range(1, 10))]
            assert len(found["later"]) == (n % 2 == 0)
        await acquire(stores[1], PartitionKey("shop", "mails", 1, 8))
    assert inside(tmp_path) == before | {"tasks-1.db": [1, 5, 8]}


@awaited
async def test_a_file_that_appears_later_is_found(tmp_path: Path) -> None:
    async with opened(Sqlite(tmp_path), 0) as (first,), opened(Sqlite(tmp_path), 1) as (second,):
        await acquire(second, KEY)
        await write(second, KEY, 1, segments=[segment(1, 1)])
        assert len(await first.segments(KEY, 2, 0, 9, ANY_SIZE)) == 1
        assert (await acquire(first, KEY)).range_id == 2
    assert inside(tmp_path) == {"tasks-0.db": [], "tasks-1.db": [0]}


@awaited
async def test_two_stores_never_make_a_partition_twice(tmp_path: Path) -> None:
    keys = [PartitionKey("shop", "mails", 1, n) for n in range(25)]
    async with opened(Sqlite(tmp_path), 0, 1, 2) as stores:
        found = await asyncio.gather(*[acquire(store, key) for key in keys for store in stores])
    assert sorted(acquired.range_id for acquired in found) == sorted([1, 2, 3] * 25)
    files = inside(tmp_path)
    assert sorted(number for numbers in files.values() for number in numbers) == [*range(25)]


def test_two_processes_never_make_a_partition_twice(tmp_path: Path) -> None:
    """From the very beginning: the directory, the files and their tables are made meanwhile too."""
    program = """
import asyncio, sys
from pathlib import Path
from maitred.matching.records import PartitionKey
from maitred.store.sqlite import open_sqlite
from tests.store.samples import acquire

async def main(own):
    store = await open_sqlite(Path(sys.argv[1]), own)
    for n in (range(40), reversed(range(40)))[own]:
        print((await acquire(store, PartitionKey("shop", "mails", 1, n))).range_id)
    await store.close()

sys.stdin.read(1)  # together
asyncio.run(main(int(sys.argv[2])))
"""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "data"), str(own)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for own in range(2)
    ]
    said = []
    for one in both:
        assert one.stdin is not None
        one.stdin.write("!")
        one.stdin.flush()
    for one in both:
        output, _ = one.communicate(timeout=60)
        assert one.returncode == 0
        said += output.split()
    assert sorted(said) == ["1"] * 40 + ["2"] * 40
    files = inside(tmp_path / "data")
    assert sorted(number for numbers in files.values() for number in numbers) == [*range(40)]


@awaited
async def test_commits_wait_for_the_disk(tmp_path: Path) -> None:
    """On the very connections that write: what a file says of itself is not what each of them does.

    FULL is 2; in WAL mode NORMAL (1) leaves the last commits to the next checkpoint.
    """
    async with opened(Sqlite(tmp_path), 0) as (first,), opened(Sqlite(tmp_path), 1) as (second,):
        for store in (first, second):
            await store.partitions()  # the first has found the file of the second by then
            files = list(store.directory._files.values())
            assert len(files) == 2
            for file in files:

                def asked(pragma: str, file: SqliteFile = file) -> object:
                    return file._connection.execute(f"PRAGMA {pragma}").fetchone()[0]

                assert await store.thread.call(asked, "synchronous") == 2
                assert await store.thread.call(asked, "journal_mode") == "wal"


@awaited
async def test_a_group_of_which_one_file_fails_says_what_was_written(tmp_path: Path) -> None:
    third = PartitionKey("shop", "mails", 1, 2)
    async with opened(Sqlite(tmp_path), 1) as (other,):
        await acquire(other, OTHER)
    store = await open_sqlite(tmp_path, 0, busy_seconds=0.05)
    for key in (KEY, OTHER, third):
        await acquire(store, key)
    await acquire(store, third)
    group = [Changes(KEY, 1, 7), Changes(OTHER, 2, 7), Changes(third, 1, 7)]
    blocker = sqlite3.connect(tmp_path / "tasks-1.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(PartlyWritten, match="locked by others") as raised:
        await store.commit(group)
    assert isinstance(raised.value, OutcomeUnknown)
    assert type(raised.value.problem) is StoreUnavailable
    assert raised.value.written == {KEY}
    assert raised.value.overtaken == {third}
    # If the first one fails, nothing was written, and that is said.
    with pytest.raises(StoreUnavailable):
        await store.commit([Changes(OTHER, 2, 8), Changes(KEY, 1, 8)])
    blocker.execute("ROLLBACK")
    blocker.close()
    assert (await acquire(store, KEY)).backlog == 7
    assert (await acquire(store, OTHER)).backlog == 0
    assert await store.commit([Changes(OTHER, 3, 9), Changes(KEY, 2, 9)]) == []
    await store.close()


@awaited
async def test_a_file_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    async with opened(Sqlite(tmp_path), 3):
        pass
    known = migrations("sqlite")[-1].version
    with sqlite3.connect(tmp_path / "tasks-3.db") as connection:
        connection.execute(f"PRAGMA user_version = {known + 1}")
    connection.close()
    for own in (3, 0):
        with pytest.raises(CannotStart, match=r"tasks-3\.db was written by a newer maitred"):
            await open_sqlite(tmp_path, own)


@awaited
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tasks-0.db"
    text = b"my tasks: buy milk\n" * 100
    path.write_bytes(text)
    with pytest.raises(CannotStart, match=r"tasks-0\.db is not a database"):
        await open_sqlite(tmp_path, 0)
    assert path.read_bytes() == text


@awaited
async def test_a_database_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "tasks-0.db") as connection:
        connection.execute("CREATE TABLE segments (mine)")
    connection.close()
    with pytest.raises(CannotStart, match="another program"):
        await open_sqlite(tmp_path, 0)


@awaited
async def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="file cannot be used"):
        await open_sqlite(tmp_path / "file", 0)


def test_what_is_large_is_read_whatever_the_longest_text_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite makes no text of more than a billion letters: 500 tasks with a megabyte each."""
    letters = 2 * 2**20
    monkeypatch.setattr("maitred.store.sqlite_rows.PORTION_BYTES", letters // 4)
    file = SqliteFile.open(tmp_path / "tasks-0.db")
    number = file.make([KEY], 1)[KEY]
    sizes = [10, 20, letters // 8, letters // 8, 30, letters // 2, letters // 2 + 1, 40] * 4
    bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
    segments = [segment(n, n, body=body) for n, body in enumerate(bodies)]
    laters = [later(n, float(n), body) for n, body in enumerate(bodies)]
    letters_of_the_dead = [Dead(n, float(n), "failed", body) for n, body in enumerate(bodies)]
    for one in range(len(bodies)):
        part = slice(one, one + 1)
        file.write(
            [
                (
                    number,
                    Changes(
                        *(KEY, 1, 0),
                        segments=segments[part],
                        later=laters[part],
                        dead=letters_of_the_dead[part],
                    ),
                )
            ]
        )
    file._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, letters)
    assert [read.segment for read in file.segments(number, 2, -1, 10**6, ANY_SIZE)] == segments
    assert [read.segment for read in file.segments_around(number, 6)] == [segments[6]]
    assert file.later(number, 10.0**6, 10**6, ANY_SIZE) == laters
    assert file.dead(number, -1, 10**6, ANY_SIZE) == letters_of_the_dead
    file.close()


def test_nothing_is_scanned_and_nothing_sorted(tmp_path: Path) -> None:
    """So that ten million tasks are found as quickly as ten."""
    SqliteFile.open(tmp_path / "tasks-0.db").close()
    connection = sqlite3.connect(tmp_path / "tasks-0.db")
    # Rows of partitions, however many tasks they have; those that have some are looked for twice a
    # minute, what all hold is summed up once a second, and queues are counted when one is made; an
    # index would cost every commit.
    walks_all = {
        "partitions_with_tasks": "SCAN partitions",
        "queue_total": "SCAN partitions USING COVERING INDEX sqlite_autoindex_partitions_1",
        "use": "SCAN partitions USING INDEX sqlite_autoindex_partitions_1",
    }
    for name, statement in statements("sqlite").items():
        values = [1] * max(statement.count("?"), 0)
        if "?1" in statement:
            values = [1] * max(map(int, re.findall(r"\?(\d)", statement)))
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        tables = r"SCAN (partitions|segments|s|near|marks|later|dead|results|damaged|d)\b"
        scans = [step for step in plan if re.match(tables, step) or "TEMP B-TREE" in step]
        assert scans in ([], [walks_all.get(name)]) or name == "partitions", (name, plan)
        if name in {"later_after", "later_after_heads"}:
            # Whole, so that a page begins at its place among a million tasks of one moment.
            assert any("later_by_due" in step and "(due,sequence)>(?,?)" in step for step in plan)
    connection.close()


def test_only_its_owner_reads_the_signing_key_even_in_a_directory_that_was_there(
    tmp_path: Path,
) -> None:
    async def made() -> bytes:
        async with opened(Sqlite(tmp_path)) as store:
            key: bytes = await store.signing_key()
            return key

    tmp_path.chmod(0o755)
    key = asyncio.run(made())
    path = tmp_path / "tasks.key"
    assert path.read_bytes() == key
    assert path.stat().st_mode & 0o777 == 0o600
    left = sorted(one.name for one in tmp_path.glob("tasks.*"))
    expected = ["tasks.key", "tasks.lock", "tasks.manifest", "tasks.users"]
    assert left == expected, "nothing half written is left behind"


@awaited
async def test_a_signing_key_that_is_damaged_is_named_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "tasks.key").write_bytes(b"short")
    (tmp_path / "tasks.new").write_bytes(b"of a start that was killed")
    async with opened(Sqlite(tmp_path)) as store:
        with pytest.raises(StoreUnavailable, match=r"tasks\.key .* damaged") as refused:
            await store.signing_key()
        assert refused.value.remedy
        (tmp_path / "tasks.key").unlink()
        assert len(await store.signing_key()) == SIGNING_KEY_BYTES


@awaited
async def test_a_document_is_its_owners_alone_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    async with opened(Sqlite(tmp_path)) as store:
        assert await store.replace_document("tokens", 0, b"body")
        path = tmp_path / "tokens.document"
        assert path.stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / "tokens.new").exists()
        path.write_bytes(b"body without a version")
        with pytest.raises(StoreUnavailable, match=r"tokens\.document .* damaged"):
            await store.document("tokens")
        with pytest.raises(StoreUnavailable):
            await store.replace_document("tokens", 0, b"never written over it")


def test_a_file_of_the_first_version_is_counted_once_when_it_is_opened(tmp_path: Path) -> None:
    """From then on the sums are kept up."""
    path = tmp_path / "tasks-0.db"
    connection = sqlite3.connect(path)
    connection.executescript(migrations("sqlite")[0].script)
    connection.executescript(
        f"""
        PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1;
        INSERT INTO partitions VALUES (7, 'n', 'q', 1, 0, 1, 3, 1, 1, NULL, NULL, NULL);
        INSERT INTO segments VALUES (1, 7, 2, 1, 2, 2, x'{"00" * 100}');
        INSERT INTO later VALUES (7, 3, 5.0, x'{"00" * (8 + 10)}');
        INSERT INTO dead VALUES (1, 7, 4, 'failed', x'{"00" * (8 + 20)}');
        INSERT INTO results VALUES (7, 5, 5.0, x'{"00" * 30}');
        INSERT INTO marks VALUES (7, 2), (7, 9);
        """  # noqa: S608 - fixed text
    )
    connection.close()
    file = SqliteFile.open(path)
    assert [read.marks for read in file.segments(7, 2, 0, 9, ANY_SIZE)] == [{2}]
    assert file.use() == [(("n", "q"), StoredUse(3 + 1, 100 + 10 + 20 + 30 + 4 * ROW_BYTES), 1)]
    assert file.dead_count(7) == 1
    file.close()


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(1, 8))
def test_rows_of_marks_are_runs_that_are_not_too_long(marks: set[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_rows, "MARKS_IN_ROW", most)
        ranges = sqlite_rows.mark_ranges([*marks, *marks])
    assert [mark for first, last in ranges for mark in range(first, last + 1)] == sorted(marks)
    for (first, last), (following, _) in pairwise([*ranges, (10**9, 0)]):
        assert last - first < most
        assert following > last + 1 or last - first == most - 1


@awaited
async def test_marks_of_many_consecutive_tasks_are_read_and_deleted(tmp_path: Path) -> None:
    """They take several rows, which reach over the borders of the segments."""
    parts = [segment(1, 1500), segment(1501, 3000), segment(3001, 4500)]
    async with opened(Sqlite(tmp_path)) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, segments=parts, marks=list(range(700, 4001)))
        found = await store.segments(KEY, 2, 0, ANY_SIZE, ANY_SIZE)
        assert [len(read.marks) for read in found] == [801, 1500, 1000]
        await write(store, KEY, 1, segments_gone=[gone(parts[1])])
        found = await store.segments(KEY, 2, 0, ANY_SIZE, ANY_SIZE)
        assert [len(read.marks) for read in found] == [801, 1000]
        await write(store, KEY, 1, segments_gone=[gone(parts[0]), gone(parts[2])])
    with sqlite3.connect(tmp_path / "tasks-0.db") as connection:
        assert connection.execute("SELECT count(*) FROM marks").fetchone() == (0,)
    connection.close()


def test_pages_that_were_deleted_are_room(tmp_path: Path) -> None:
    """A file never shrinks: what once filled the disk must not count as full for ever."""
    directory = SqliteDirectory(tmp_path, 0, 1.0)
    large = segment(1, 2)._replace(body=bytes(2**20))
    directory.acquire([Acquisition(KEY)])
    directory.commit([Changes(KEY, 1, 2, segments=[large])])
    file = directory._files[0]
    assert file.free_bytes() < 2**19
    directory.commit([Changes(KEY, 1, 0, segments_gone=[gone(large)])])
    assert file.free_bytes() >= 2**20
    assert (directory.use().free_bytes or 0) > file.free_bytes()
    directory.close()
