"""One `tasks-<n>.db` file: its migration, its writes and its reads.

A commit is one statement (sql/sqlite/writing.sql says why). It fails as a whole if one of its
partitions was overtaken; that is rare, and then it is repeated in a transaction that first checks
which partitions were.

Everything here blocks, and has to run in the store's own thread.
"""

from __future__ import annotations

import ctypes
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import json as json_format

from maitred.errors import CannotStart
from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.records import PartitionKey, Result, Segment, StoredHistoryRow, StoredUse
from maitred.store.damaged_rows import damaged_of, without_deletions
from maitred.store.private_files import make_database
from maitred.store.scripts import migrations, script, statements
from maitred.store.sqlite_damage import (
    SUSPECT,
    body_or_nothing,
    dead_one_by_one,
    later_one_by_one,
    segments_one_by_one,
    set_aside,
    whole_damaged,
)
from maitred.store.sqlite_errors import DamagedFileError, translated
from maitred.store.sqlite_rows import (
    MARKS_IN_ROW,
    MOST_ROWS,
    acquired_of,
    dead_of,
    empty_of,
    later_of,
    listed,
    portions,
    reaching,
    rows_of,
    statements_of,
    with_marks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from maitred.matching.records import Acquired, Changes, Damaged, DamagedKind, Dead, Later
    from maitred.store.interface import EmptyPartition, SegmentRead

BUSY_SECONDS: Final = 30.0
"""How long to wait for other processes that write the same file. Their transactions take
milliseconds; a disk that is slow for them is slow for this process, too."""

CHECKPOINT_PAGES: Final = 4_000
"""The size of the log, in pages of 4 KiB, at which SQLite checkpoints it into the file. Most
segments are deleted soon; the longer the log, the fewer of them ever reach the file."""

CACHE_KIB: Final = 16 * 1024

HEADS_AT_FIRST: Final = 8
"""Segments that are looked up at first, and four times as many each time that they have too few
tasks. A segment has up to a thousand tasks, so that mostly one or two are enough; to look up a
thousand of them took longer than to read their first."""

APPLICATION: Final = 0x6D747264
"""The application id `mtrd` in the file's header marks the file as maitred's."""

_STATEMENTS: Final = statements("sqlite")
_DELETING: Final = (
    "raise_watermark",
    *(f"delete_{table}" for table in ("segments", "marks", "later", "dead", "results", "damaged")),
    "delete_partitions",
)
_Entry = tuple[int, "Changes"]
_Head = tuple[int, int, int, int]
"""The head of a segment: first, last, tasks, bytes."""


class SqliteFile:
    """One open database; use `open`, while holding the lock of its directory."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.is_written = False
        """Whether anything was written since the generation was raised."""
        # Python closes a connection that it garbage-collects, and SQLite then removes the log,
        # whose absence means that commits are lost. Only `close` may do that.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    @classmethod
    def open(cls, path: Path, busy_seconds: float = BUSY_SECONDS) -> SqliteFile:
        """Create the file if needed, and migrate it to this program's version; raise `CannotStart`
        if that is impossible."""
        make_database(path)
        connection = sqlite3.connect(
            path, timeout=busy_seconds, isolation_level=None, cached_statements=64
        )
        try:
            _migrate(path, connection)
            # Debian's SQLite overwrites deleted rows with zeros, and nearly all rows get deleted.
            connection.execute("PRAGMA secure_delete = OFF")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.executescript(script("sqlite", "writing"))
        except BaseException:
            connection.close()
            raise
        return cls(path, connection)

    def close(self) -> None:
        self._connection.close()

    def identify(self, store: str, identity: str) -> None:
        """Give the file its identity, unless it has one."""
        with translated(self.path):
            self._connection.execute(_STATEMENTS["identify"], (store, identity))

    def next_generation(self) -> int:
        """Raise the file's generation durably, and return it."""
        self.is_written = False
        return int(self.rows("next_generation", ())[0][0])

    def carry_over(self) -> None:
        """Checkpoint the write-ahead log into the file. The log stays as it is: an empty one would
        mean that commits are lost."""
        with translated(self.path):
            self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def find(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the numbers of those partitions that are in this file."""
        return {keys[at]: number for at, number in self.json("find", (listed(keys),))}

    def make(self, keys: Sequence[PartitionKey], range_id: int) -> dict[PartitionKey, int]:
        """Create partitions for their first owner; return their numbers in this file."""
        rows = self.rows("make", (listed(keys), range_id))
        return {PartitionKey(*key): number for number, *key in rows}

    def acquire(self, numbers: Sequence[int]) -> dict[int, Acquired]:
        """Raise the range ids of those partitions that still exist; return their state."""
        found = dict(map(acquired_of, self.rows("acquire", (listed(numbers),))))
        return {
            number: one._replace(controls=self._controls(number)) for number, one in found.items()
        }

    def _controls(self, number: int) -> bytes | None:
        """Return the row of the controls; None if there is none, empty if it cannot be read."""
        try:
            row = self.row("result", (number, CONTROLS_ROW))
        except DamagedFileError:
            return b""
        if row is None:
            return None
        return row[1] if isinstance(row[1], bytes) else b""

    def watermark(self) -> int:
        """Return the highest range id of any partition that was deleted from this file."""
        return int(self.row("watermark", ())[0])

    def queue_count(self, namespace: str) -> int:
        return int(self.row("queue_count", (namespace,))[0])

    def queue_total(self) -> int:
        return int(self.row("queue_total", ())[0])

    def queues(self, namespace: str, most: int) -> list[str]:
        return [str(name) for name in self.json("queues", (namespace, most))]

    def empty_partitions(self, after: PartitionKey, most: int) -> list[EmptyPartition]:
        rows = self.json("empty_partitions", (*after, most))
        return [empty_of(row) for row in rows]

    def of_queue(self, key: PartitionKey) -> list[tuple[int, int, int, int]]:
        """Return the queue's partitions in this file: number, tasks, dead letters, damaged rows."""
        return [tuple(row) for row in self.json("of_queue", key[:3])]

    def forget(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        """Delete those partitions, given by number and range id, that hold nothing; return their
        numbers."""
        with translated(self.path, writing=True), self._transaction():
            gone = self.json("without_contents", (listed(entries),))
            self._delete(gone)
        return [int(number) for number in gone]

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete partitions, with everything that they hold."""
        with translated(self.path, writing=True), self._transaction():
            self._delete(numbers)

    def _delete(self, numbers: Sequence[int]) -> None:
        for name in _DELETING:
            self._connection.execute(_STATEMENTS[name], (listed(numbers),))

    def write(self, entries: Sequence[_Entry]) -> list[PartitionKey]:
        """Write changes durably; return the partitions that were overtaken and left out."""
        self.is_written = True
        aside = any(changes.damaged or changes.damaged_gone for _, changes in entries)
        try:
            with translated(self.path, writing=True):
                return self._write_as_far_as_owned(entries, aside=aside)
        except DamagedFileError:
            if not aside:
                raise
        # Rows that cannot be read can often not be deleted either; they must not block others.
        entries = [(number, without_deletions(changes)) for number, changes in entries]
        with translated(self.path, writing=True):
            return self._write_as_far_as_owned(entries, aside=True, deletes=False)

    def _write_as_far_as_owned(
        self, entries: Sequence[_Entry], *, aside: bool, deletes: bool = True
    ) -> list[PartitionKey]:
        try:
            if not aside:
                self._write(entries)
                return []
        except sqlite3.IntegrityError as problem:
            if str(problem) != "overtaken":
                raise
        return self._write_others(entries, deletes=deletes)

    def _write(self, entries: Sequence[_Entry]) -> None:
        rows = [row for number, changes in entries for row in rows_of(number, changes)]
        if len(rows) <= MOST_ROWS:
            for statement, values in statements_of(rows):
                self._connection.execute(statement, values)
            return
        with self._transaction():
            for statement, values in statements_of(rows):
                self._connection.execute(statement, values)

    def _write_others(self, entries: Sequence[_Entry], *, deletes: bool) -> list[PartitionKey]:
        with self._transaction():
            numbers = listed([number for number, _ in entries])
            held = dict(self.json("range_ids", (numbers,)))
            good = [entry for entry in entries if held.get(entry[0]) == entry[1].range_id]
            rows = [row for number, changes in good for row in rows_of(number, changes)]
            for statement, values in statements_of(rows):
                self._connection.execute(statement, values)
            for number, changes in good:
                set_aside(self._connection, number, changes, deletes=deletes)
        return [changes.key for number, changes in entries if held.get(number) != changes.range_id]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def segments(
        self, number: int, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        try:
            return self._segments(number, priority, after, tasks, most_bytes)
        except SUSPECT:
            found = segments_one_by_one(
                self, number, priority, after, tasks=tasks, most_bytes=most_bytes
            )
            return self._marked(number, found)

    def _segments(
        self, number: int, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        # Other shards may write this file between two statements, but not this partition.
        heads: list[_Head] = []
        asked, most_bytes = HEADS_AT_FIRST, max(most_bytes, 1)
        while tasks > 0 and most_bytes > 0:
            asked = min(asked, tasks)  # every segment has a task
            listed = self.json("segments_in_order", (number, priority, after, asked))
            for head in listed:
                heads.append(tuple(head))
                after = head[0]
                tasks -= head[2]
                most_bytes -= head[3]
                if tasks <= 0 or most_bytes <= 0:
                    break
            if len(listed) < asked:
                break
            asked *= 4
        found = []
        for part in portions(heads):
            bodies = self._segment_bodies(number, priority, [head[0] for head in part])
            found += [
                Segment(priority, first, last, count, bodies[first])
                for first, last, count, _ in part
            ]
        return self._marked(number, found)

    def _segment_bodies(self, number: int, priority: int, firsts: list[int]) -> dict[int, bytes]:
        if len(firsts) == 1:
            (body,) = self.row("segment_body", (number, priority, firsts[0]))
            return {firsts[0]: body}
        rows = self.json("segment_bodies", (number, priority, firsts[0], firsts[-1]))
        return {first: bytes.fromhex(body) for first, body in rows}

    def segments_around(self, number: int, sequence: int) -> list[SegmentRead]:
        found = []
        for priority, first, last, tasks in self.json("segments_around", (number, sequence)):
            body = body_or_nothing(self, "segment_body", (number, priority, first))
            found.append(Segment(priority, first, last, tasks, body))
        return self._marked(number, sorted(found))

    def _marked(self, number: int, found: list[Segment]) -> list[SegmentRead]:
        if not found:
            return []
        first, last = min(s.first for s in found), max(s.last for s in found)
        # No row has more marks than that, so no row that begins earlier reaches the first segment.
        earliest = first - MARKS_IN_ROW + 1
        return with_marks(found, self.json("marks", (number, earliest, last, first)))

    def later(self, number: int, before: float, most: int, most_bytes: int) -> list[Later]:
        try:
            return self._later(number, before, most, most_bytes)
        except SUSPECT:
            heads = self.rows("later_heads", (number, before, max(most, 0)))
            return later_one_by_one(self, number, heads, most_bytes)

    def later_after(
        self, number: int, after: tuple[float, int], most: int, most_bytes: int
    ) -> list[Later]:
        values = (number, *after, max(most, 0))
        try:
            found = self._later_of(number, reaching(self.json("later_after", values), most_bytes))
            if all(later.body for later in found):
                return found
        except SUSPECT:
            pass
        # The due time of an unreadable row comes from the index: callers go on after that place.
        return later_one_by_one(self, number, self.rows("later_after_heads", values), most_bytes)

    def _later(self, number: int, before: float, most: int, most_bytes: int) -> list[Later]:
        heads = self.json("later", (number, before, max(most, 0)))
        return self._later_of(number, reaching(heads, most_bytes))

    def _later_of(self, number: int, heads: Sequence[Sequence[int]]) -> list[Later]:
        """Return the tasks with these numbers, given with the sizes of their bodies."""
        found: list[Later | None] = []
        for part in portions(heads):
            if len(part) == 1:
                found.append(self.later_one(number, part[0][0]))
                continue
            rows = self.json("later_bodies", (number, listed([head[0] for head in part])))
            found += [later_of(sequence, bytes.fromhex(body)) for sequence, body in rows]
        return sorted(filter(None, found), key=lambda later: (later.due, later.sequence))

    def later_one(self, number: int, sequence: int) -> Later | None:
        row = self.row("later_one", (number, sequence))
        return row and later_of(sequence, row[0])

    def dead(self, number: int, after: int, most: int, most_bytes: int) -> list[Dead]:
        try:
            return self._dead(number, after, most, most_bytes)
        except SUSPECT:
            return dead_one_by_one(self, number, after, most, most_bytes)

    def _dead(self, number: int, after: int, most: int, most_bytes: int) -> list[Dead]:
        found: list[Dead | None] = []
        heads = reaching(self.json("dead", (number, after, max(most, 0))), most_bytes)
        for part in portions(heads):
            if len(part) == 1:
                found.append(self.dead_one(number, part[0][0]))
                continue
            rows = self.json("dead_bodies", (number, listed([head[0] for head in part])))
            found += [dead_of(one, why, bytes.fromhex(body)) for one, why, body in rows]
        return sorted(filter(None, found))

    def dead_one(self, number: int, sequence: int) -> Dead | None:
        row = self.row("dead_one", (number, sequence))
        return row and dead_of(sequence, *row)

    def later_count(self, number: int, most: int) -> int:
        return int(self.row("later_count", (number, max(most, 0)))[0])

    def dead_count(self, number: int) -> int:
        row = self.row("dead_count", (number,))
        return row[0] if row else 0

    def damaged(self, number: int, after: tuple[int, str], most: int) -> list[Damaged]:
        """Return rows that were set aside, without their bodies."""
        rows = self.json("damaged", (number, *after, max(most, 0)))
        return [damaged_of(*row) for row in rows]

    def damaged_one(self, number: int, kind: DamagedKind, first: int) -> Damaged | None:
        """Return one row that was set aside, as it was found, or as it can be read now."""
        found = self.row("damaged_one", (number, first, kind))
        return found and whole_damaged(self, number, kind, first, *found)

    def damaged_around(self, number: int, sequence: int) -> list[Damaged]:
        """Return rows set aside that may hold the task, without their bodies."""
        rows = self.json("damaged_around", (number, sequence, sequence))
        return [damaged_of(*row) for row in rows]

    def damaged_count(self, number: int) -> tuple[int, int]:
        """Return how many rows were set aside, and how many tasks they hold."""
        rows, tasks = self.row("damaged_count", (number,))
        return rows, tasks

    def result(self, number: int, sequence: int) -> Result | None:
        row = self.row("result", (number, sequence))
        return row and Result(sequence, *row)

    def history(
        self, number: int, after: int, most: int, most_bytes: int
    ) -> list[StoredHistoryRow]:
        heads = reaching(self.json("history", (number, after, max(most, 0))), most_bytes)
        found: list[StoredHistoryRow] = []
        for part in portions(heads):
            places = [head[0] for head in part]
            try:
                rows = self.json("history_bodies", (number, listed(places)))
                bodies = {place: bytes.fromhex(body) for place, body in rows}
            except SUSPECT:
                bodies = {one: body_or_nothing(self, "result", (number, one)) for one in places}
            found += [StoredHistoryRow(place, bodies.get(place, b"")) for place in places]
        return found

    def forget_results(self, before: float, most: int) -> int:
        """Delete expired results; read first, so that a file without any is not locked."""
        if most <= 0 or self.row("any_expired", (before,)) is None:
            return 0
        with translated(self.path):
            deleted = self._connection.execute(_STATEMENTS["forget_results"], (before, most))
            return deleted.rowcount

    def partitions(self) -> list[PartitionKey]:
        return [PartitionKey(*row) for row in self.json("partitions", ())]

    def partitions_with_tasks(self) -> list[PartitionKey]:
        return [PartitionKey(*row) for row in self.json("partitions_with_tasks", ())]

    def use(self) -> list[tuple[tuple[str, str], StoredUse, int]]:
        """Return how much each queue has in this file, by namespace and queue, and how many of its
        tasks are dead letters."""
        rows = self.json("use", ())
        return [
            ((namespace, queue), StoredUse(tasks, size), dead)
            for namespace, queue, tasks, size, dead in rows
        ]

    def free_bytes(self) -> int:
        """Return the size of the file's free pages, which SQLite uses before the file grows."""
        with translated(self.path):
            (pages,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            (size,) = self._connection.execute("PRAGMA page_size").fetchone()
        return int(pages) * int(size)

    def json(self, name: str, values: Sequence[Any]) -> Any:  # noqa: ANN401 - what SQLite made
        """Run a statement that returns one JSON text, and return its decoded value."""
        with translated(self.path):
            (text,) = self._connection.execute(_STATEMENTS[name], values).fetchone()
        return json_format.decode(text)

    def row(self, name: str, values: Sequence[Any]) -> Any:  # noqa: ANN401 - a row, or None
        """Run a statement and return its first row; None if it has none."""
        found = self.rows(name, values)
        return found[0] if found else None

    def rows(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Run a statement and return its rows."""
        with translated(self.path):
            # A statement that writes, and with it its transaction, ends when all are fetched.
            return self._connection.execute(_STATEMENTS[name], values).fetchall()


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    known = migrations("sqlite")[-1].version
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION and (
        version or connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    ):
        raise CannotStart(f"{path} is a database of another program.")
    if version > known:
        raise CannotStart(
            f"{path} was written by a newer maitred: it has version {version}, and this program "
            f"knows versions up to {known}.",
            remedy="Use the newer maitred.",
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise CannotStart(
            f"{path} is on a file system on which SQLite can have no write-ahead log.",
            remedy="Put the data directory on a local disk, or use a PostgreSQL store.",
        )
    for migration in migrations("sqlite"):
        if migration.version > version:
            connection.executescript(
                f"BEGIN IMMEDIATE; {migration.script} PRAGMA application_id = {APPLICATION}; "
                f"PRAGMA user_version = {migration.version}; COMMIT;"
            )
