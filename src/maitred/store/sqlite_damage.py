"""Read a damaged SQLite file row by row, and set unreadable rows aside.

A page that SQLite cannot read makes every statement fail that touches it, so a statement that reads
many rows fails for all of them. Their keys are mostly in an index, which has pages of its own. So
the keys are read from there, and each row alone; a row that cannot be read comes back with an empty
body, and the partition sets it aside.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import DecodeError

from maitred.matching.records import Later, Segment
from maitred.store.damaged_rows import damaged_of, head_of, is_in_place
from maitred.store.scripts import statements
from maitred.store.sqlite_errors import DamagedFileError
from maitred.store.sqlite_rows import dead_of, later_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from maitred.matching.records import Changes, Damaged, DamagedKind, Dead

SUSPECT: Final = (DamagedFileError, DecodeError, LookupError, TypeError, ValueError, struct.error)
"""The errors of reading many rows together when one of them is damaged: SQLite does not always
notice, and then a column holds a value of another type, or an index names a missing row."""

_STATEMENTS: Final = statements("sqlite")


class File(Protocol):
    """The methods of a `SqliteFile` that this module needs."""

    def json(self, name: str, values: Sequence[Any]) -> Any: ...  # noqa: ANN401
    def row(self, name: str, values: Sequence[Any]) -> Any: ...  # noqa: ANN401


def body_or_nothing(file: File, name: str, values: Sequence[Any]) -> bytes:
    """Return the last column of one row; empty if it cannot be read."""
    try:
        row = file.row(name, values)
    except DamagedFileError:
        return b""
    return row[-1] if row is not None and isinstance(row[-1], bytes) else b""


def segments_one_by_one(
    file: File, number: int, priority: int, after: int, *, tasks: int, most_bytes: int
) -> list[Segment]:
    found = []
    for first, last, count in file.json("segment_heads", (number, priority, after, max(tasks, 0))):
        body = body_or_nothing(file, "segment_body", (number, priority, first))
        found.append(Segment(priority, first, last, count, body))
        tasks -= count
        most_bytes -= len(body)
        if tasks <= 0 or most_bytes <= 0:
            break
    return found


def later_one_by_one(
    file: File, number: int, heads: Iterable[tuple[int, float]], most_bytes: int
) -> list[Later]:
    """Return the tasks with these numbers and due times, as few as have bodies of `most_bytes`."""
    found = []
    for sequence, due in heads:
        read = later_of(sequence, body_or_nothing(file, "later_one", (number, sequence)))
        found.append(Later(sequence, due, read.body))
        most_bytes -= len(read.body)
        if most_bytes <= 0:
            break
    return found


def dead_one_by_one(file: File, number: int, after: int, most: int, most_bytes: int) -> list[Dead]:
    found = []
    for sequence in file.json("dead_heads", (number, after, max(most, 0))):
        found.append(unchecked_dead(file, number, sequence))
        most_bytes -= len(found[-1].body)
        if most_bytes <= 0:
            break
    return found


def unchecked_dead(file: File, number: int, sequence: int) -> Dead:
    """Return a dead letter, as far as it can be read."""
    try:
        row = file.row("dead_one_unchecked", (number, sequence))
    except DamagedFileError:
        row = None
    reason, body = row if row is not None else (b"", b"")
    reason = reason.decode(errors="replace") if isinstance(reason, bytes) else ""
    return dead_of(sequence, reason, body if isinstance(body, bytes) else b"")


def set_aside(
    connection: sqlite3.Connection, number: int, changes: Changes, *, deletes: bool
) -> None:
    """Store the rows that are set aside, and delete those that a person has decided on."""
    for kind, first in changes.damaged_gone:
        connection.execute(_STATEMENTS["damaged_gone"], (number, first, kind))
        connection.execute(_STATEMENTS["damaged_dropped"], (number, first, kind))
    for row in changes.damaged:
        in_place = int(is_in_place(row, deletes=deletes))
        values = (number, row.first, row.kind, row.last, row.tasks, in_place)
        connection.execute(_STATEMENTS["set_aside"], (*values, head_of(row), row.body))


def whole_damaged(
    file: File,
    number: int,
    kind: DamagedKind,
    first: int,
    last: int,
    tasks: int,
    head: str,
    body: bytes,
) -> Damaged:
    """Return a row that was set aside. If its body could not be read, try its own table again: the
    file may have been repaired since."""
    row = damaged_of(kind, first, last, tasks, head, len(body), body)
    if body:
        return row
    if kind == "segment":
        body = body_or_nothing(file, "segment_body", (number, row.priority, first))
    elif kind == "later":
        body = later_of(first, body_or_nothing(file, "later_one", (number, first))).body
    elif kind == "dead":
        body = unchecked_dead(file, number, first).body
    return row._replace(body=body, size=len(body))
