"""Rows that cannot be read: they are set aside, and everything else goes on."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import QueueInUse, TaskDamaged
from maitred.matching.records import Terms
from maitred.protocol.messages import ShardStatus, Status
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    Add,
    Added,
    Await,
    DamagedRows,
    DamagedRowsFound,
    DeadLetters,
    DeadLettersFound,
    DeleteQueue,
    Describe,
    Finish,
    PartitionDescription,
    Revoke,
)
from tests.node.in_process import in_a_loop, until
from tests.node.test_task_faults import SESSION, Stage, stage

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.protocol.tasks import Given

KEPT = Terms(retries=0, retention=3600.0)
AWAY = ("shop", "mails", 1, 0, 0)
EVENT = "damaged rows set aside"


def edit(directory: Path, statement: str, *values: object) -> int:
    """Change the file of a node that has stopped; returns how many rows."""
    with closing(sqlite3.connect(directory / "data" / "tasks-0.db")) as connection, connection:
        return connection.execute(statement, values).rowcount


def body(directory: Path, first: int) -> bytes:
    """The body of the segment that begins with this task."""
    with closing(sqlite3.connect(directory / "data" / "tasks-0.db")) as connection:
        found = connection.execute("SELECT body FROM segments WHERE first = ?", (first,))
        return bytes(found.fetchone()[0])


def flip(directory: Path, table: str, where: str = "1") -> int:
    """Change one byte of the address at the end of bodies, as a disk would: nothing notices but a
    checksum."""
    return edit(
        directory,
        f"""UPDATE {table} SET body = CAST(
            substr(body, 1, length(body) - 6) || x'00' || substr(body, length(body) - 4) AS BLOB
        ) WHERE {where}""",  # noqa: S608 - fixed text
    )


async def asked(one: Stage, action: Any, *rows: Any, **more: Any) -> DamagedRowsFound:  # noqa: ANN401
    found = await one.client.request(DamagedRows(*AWAY, action, list(rows), **more), 5)
    assert isinstance(found, DamagedRowsFound)
    return found


async def settled(one: Stage) -> None:
    """Until what was set aside is on disk."""
    await until(lambda: not one.owned().partition.ledger.pending)
    await until(lambda: one.owned().partition.ledger.under_way is None)


async def three_segments(directory: Path) -> list[int]:
    """The first task of each; each has four."""
    async with stage(directory) as one:
        return [await one.add(4) for _ in range(3)]


def told(one: Stage) -> list[dict[str, Any]]:
    log: Any = one.shard.log
    return [fields for _, event, fields in log.lines if event == EVENT]


def failures(one: Stage) -> list[str]:
    log: Any = one.shard.log
    return [event for level, event, _ in log.lines if level == "error"]


async def take_all(one: Stage, count: int) -> list[Given]:
    """Take so many tasks: segments that are read one after the other come with several offers."""
    found: list[Given] = []
    while len(found) < count:
        found += await one.take(20)
    return found


@in_a_loop
async def test_a_damaged_segment_is_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    first, second, third = await three_segments(tmp_path)
    assert flip(tmp_path, "segments", f"first = {second}") == 1
    async with stage(tmp_path) as one:
        waiting = asyncio.ensure_future(one.client.request(Await(*AWAY, second + 1), 5))
        tasks = await take_all(one, 8)
        assert [task.sequence for task in tasks] == [
            *range(first, first + 4),
            *range(third, third + 4),
        ]
        with pytest.raises(TaskDamaged):
            await waiting
        await settled(one)
        with pytest.raises(TaskDamaged):
            await one.client.request(Revoke(*AWAY, second), 5)
        (row,) = (await asked(one, "list")).rows
        assert (row.kind, row.first, row.last, row.tasks) == ("segment", second, second + 3, 4)
        assert row.body_bytes
        assert not row.body
        described = await one.client.request(Describe(*AWAY), 5)
        assert isinstance(described, PartitionDescription)
        assert (described.damaged_rows, described.damaged_tasks) == (1, 4)
        assert described.backlog + described.running == 8
        status = await one.client.request(Status(0, 0), 5)
        assert isinstance(status, ShardStatus)
        assert status.damaged == {"rows": 1, "tasks": 4}
        (line,) = told(one)
        assert (line["queue"], line["first"], line["tasks"]) == ("mails", second, 4)
        assert not failures(one)
    # It stays so, and nobody hears of it a second time.
    async with stage(tmp_path) as one:
        assert len(await take_all(one, 8)) == 8
        assert (await asked(one, "list")).total == 1
        with pytest.raises(TaskDamaged):
            await one.client.request(Await(*AWAY, second), 5)
        assert not told(one)
        with pytest.raises(QueueInUse):
            await one.client.request(DeleteQueue(*AWAY), 5)


@in_a_loop
async def test_a_row_that_was_mended_is_brought_back_once(tmp_path: Path) -> None:
    first, second, _ = await three_segments(tmp_path)
    with closing(sqlite3.connect(tmp_path / "data" / "tasks-0.db")) as connection:
        ((good,),) = connection.execute("SELECT body FROM segments WHERE first = ?", (second,))
    flip(tmp_path, "segments", f"first = {second}")
    edit(tmp_path, "INSERT INTO marks SELECT partition_id, first + 2, first + 2 FROM segments")
    edit(tmp_path, "UPDATE partitions SET backlog = 9")
    async with stage(tmp_path) as one:
        assert first + 2 not in [task.sequence for task in await one.take(20)]
        await settled(one)
        which = ("segment", second)
        (still,) = (await asked(one, "retry", which)).rows
        assert still.reason == "Its checksum is wrong."
        (kept,) = (await asked(one, "show", which)).rows
        assert len(kept.body) == len(good)
        answers = await asyncio.gather(
            asked(one, "retry", which, body=good), asked(one, "retry", which, body=good)
        )
        done = [row for found in answers for row in found.rows]
        assert [(row.reason, row.tasks) for row in done] == [("", 3)], "the marked task is over"
        back = await take_all(one, 3)
        assert [task.sequence for task in back] == [second, second + 1, second + 3]
        assert (await asked(one, "list")).rows == []


@in_a_loop
async def test_a_person_may_accept_a_wrong_checksum_or_the_loss(tmp_path: Path) -> None:
    first, second, _ = await three_segments(tmp_path)
    flip(tmp_path, "segments", f"first <= {second}")
    async with stage(tmp_path) as one:
        assert len(await take_all(one, 4)) == 4
        await settled(one)
        (done,) = (await asked(one, "retry", ("segment", first), ignore_checksum=True)).rows
        assert (done.reason, done.tasks) == ("", 4)
        assert len(await take_all(one, 4)) == 4
        found = await asked(one, "drop", ("segment", second), ("segment", 1))
        assert [row.first for row in found.rows] == [second]
        assert (found.total, found.tasks) == (0, 0)
    async with stage(tmp_path) as one:
        assert len(await take_all(one, 8)) == 8


@pytest.mark.parametrize("how", ["flipped", "emptied", "no msgpack", "another task"])
@in_a_loop
async def test_a_task_that_waits_for_its_time_may_be_damaged(tmp_path: Path, how: str) -> None:
    async with stage(tmp_path) as one:
        sequences = [await one.add(delay=0.01) for _ in range(3)]
    where = f"sequence = {sequences[1]}"
    if how == "flipped":
        assert flip(tmp_path, "later", where) == 1
    elif how == "emptied":
        edit(tmp_path, f"UPDATE later SET body = x'' WHERE {where}")  # noqa: S608
    elif how == "no msgpack":
        edit(
            tmp_path,
            f"UPDATE later SET body = CAST(substr(body, 1, 8) || x'93ff' AS BLOB) WHERE {where}",  # noqa: S608
        )
    else:
        other = f"(SELECT body FROM later WHERE sequence = {sequences[0]})"  # noqa: S608
        edit(tmp_path, f"UPDATE later SET body = {other} WHERE {where}")  # noqa: S608
    async with stage(tmp_path) as one:
        taken: list[int] = []
        while len(taken) < 2:
            taken += [task.sequence for task in await one.take(5)]
        assert sorted(taken) == [sequences[0], sequences[2]]
        await settled(one)
        (row,) = (await asked(one, "list")).rows
        assert (row.kind, row.first, row.tasks) == ("later", sequences[1], 1)
        assert len(told(one)) == 1
        assert not failures(one)
    async with stage(tmp_path) as one:
        assert len(await one.take(5)) == 2
        assert not told(one)


@in_a_loop
async def test_a_dead_letter_and_a_result_may_be_damaged(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        sequence = await one.add(3, terms=KEPT)
        await one.take(3)
        ends = [
            await one.end(sequence + at, how=how) for at, how in enumerate((FAILED, FAILED, DONE))
        ]
        await one.client.request(Finish(*AWAY, SESSION, ends), 5)
    assert flip(tmp_path, "dead", f"sequence = {sequence}") == 1
    assert flip(tmp_path, "results", f"sequence IN ({sequence}, {sequence + 2})") == 2
    async with stage(tmp_path) as one:
        for _ in range(2):
            letters = await one.client.request(DeadLetters(*AWAY, "list"), 5)
            assert isinstance(letters, DeadLettersFound)
            assert [letter.sequence for letter in letters.letters] == [sequence + 1]
            assert letters.total == 1
            for damaged in (sequence, sequence + 2):
                with pytest.raises(TaskDamaged):
                    await one.client.request(Await(*AWAY, damaged), 5)
            await settled(one)
        rows = (await asked(one, "list")).rows
        assert [(row.kind, row.first) for row in rows] == [
            ("dead", sequence),
            ("result", sequence),
            ("result", sequence + 2),
        ]
        assert [row.tasks for row in rows] == [0, 0, 0]
        assert one.shard.damaged["rows"] == 3
        found = await asked(one, "retry", ("dead", sequence), ignore_checksum=True)
        assert [row.reason for row in found.rows] == [""]
        letters = await one.client.request(DeadLetters(*AWAY, "list"), 5)
        assert isinstance(letters, DeadLettersFound)
        assert letters.total == 2
        assert not failures(one)


def overflow_page(path: Path, body: bytes) -> int:
    """Where in the file a page begins that holds a part of the body and nothing else."""
    content = path.read_bytes()
    at = content.rindex(body[len(body) // 2 :][:64])
    return at - at % 4096


@pytest.mark.parametrize("table", ["segments", "dead"])
@in_a_loop
async def test_a_page_that_sqlite_cannot_read_takes_one_row_with_it(
    tmp_path: Path, table: str
) -> None:
    """The chain of a large body's pages is broken: SQLite reads the other rows, and so do we."""
    large = b"".join(number.to_bytes(4, "big") for number in range(6_400))
    async with stage(tmp_path) as one:
        first = await one.add(2, terms=KEPT)
        added = await one.client.request(Add(*AWAY, 0, [large], terms=KEPT), 5)
        assert isinstance(added, Added)
        await one.add(2, terms=KEPT)
        if table == "dead":
            await one.take(5)
            numbers = [first, first + 1, added.first, added.first + 1, added.first + 2]
            ends = [await one.end(number, how=FAILED) for number in numbers]
            await one.client.request(Finish(*AWAY, SESSION, ends), 5)
    path = tmp_path / "data" / "tasks-0.db"
    content = bytearray(path.read_bytes())
    at = overflow_page(path, large)
    content[at : at + 4] = b"\xff\xff\xff\xf0"  # the number of the next page
    path.write_bytes(content)
    async with stage(tmp_path) as one:
        if table == "segments":
            assert len(await one.take(9)) == 4
        else:
            letters = await one.client.request(DeadLetters(*AWAY, "list"), 5)
            assert isinstance(letters, DeadLettersFound)
            assert len(letters.letters) == 4
        await settled(one)
        (row,) = (await asked(one, "list")).rows
        assert (row.first, row.body_bytes) == (added.first, 0)
        await one.add(1, terms=KEPT)  # the file can be written
        (still,) = (await asked(one, "retry", (row.kind, row.first))).rows
        assert still.reason == "The store cannot read it."
        assert len(told(one)) == 1
        assert not failures(one)
    async with stage(tmp_path) as one:
        assert (await asked(one, "list")).total == 1
        found = await asked(one, "drop", (row.kind, row.first))
        assert [one.reason for one in found.rows] == [""]
        assert not told(one)
    async with stage(tmp_path) as one:
        assert len(await one.take(9)) == (5 if table == "segments" else 1)
        assert (await asked(one, "list")).rows == []
        assert not told(one)
