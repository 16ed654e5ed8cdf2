"""Convert a commit to rows for the view that executes it, and result rows to records.

sql/sqlite/writing.sql has the view and the meaning of its columns. The number of rows is padded to
one of a few, since each number is another statement, which SQLite has to compile once and keep.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import json

from maitred.matching.records import Acquired, Dead, Later, PartitionKey, Segment, rows_bytes
from maitred.routing.counts import PartitionCounts
from maitred.store.interface import EmptyPartition, SegmentRead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maitred.matching.records import Changes

Head = TypeVar("Head", bound="Sequence[int]")

Row = tuple[str | None, int | None, Any, Any, Any, Any, str | None, bytes | None]

MOST_ROWS: Final = 1024
"""The most rows in one statement. With 8 values a row this is a quarter of SQLite's maximum."""

MARKS_IN_ROW: Final = 1024
"""The most consecutive marks in one row; writing.sql has the number as well. Rows that reach into a
segment are found by their first mark, so none may begin long before it."""

PORTION_BYTES: Final = 2**20
"""The most bytes of bodies that are fetched as one hexadecimal text, which is twice as long and is
copied in memory several times. A body as large as this is fetched alone, as bytes: the cost of one
more row does not matter then."""

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, MOST_ROWS)
_NOTHING: Final[Row] = (None, None, None, None, None, None, None, None)
_VALUES: Final = "(?, ?, ?, ?, ?, ?, ?, ?)"
_STATEMENTS: Final = {
    size: f"INSERT INTO incoming VALUES {', '.join([_VALUES] * size)}"  # noqa: S608 - fixed text
    for size in _SIZES
}
_MOMENT: Final = struct.Struct(">d")


def rows_of(number: int, changes: Changes) -> Iterator[Row]:
    """Yield the rows of one partition's changes, in the order in which they have to be executed."""
    new = rows_bytes(changes.segments, changes.later, changes.dead, changes.results)
    yield (
        *("partition", number, changes.range_id, changes.backlog, int(changes.clean)),
        *(new, None, None),
    )
    if changes.counts is not None:
        counts = changes.counts
        yield "counts", number, counts.read, counts.write, counts.version, None, None, None
    for priority, first, last, tasks, body in changes.segments:
        yield "segment", number, priority, first, last, tasks, None, body
    if changes.marks:
        yield _listed("marks", number, mark_ranges(changes.marks))
    for priority, first, last, *_ in changes.segments_gone:
        yield "gone", number, priority, first, last, None, None, None
    if changes.later_gone:
        yield _listed("later gone", number, changes.later_gone)
    for sequence, due, body in changes.later:
        yield "later", number, sequence, due, None, None, None, _MOMENT.pack(due) + body
    if changes.dead_gone:
        yield _listed("dead gone", number, changes.dead_gone)
    for sequence, died_at, reason, body in changes.dead:
        yield "dead", number, sequence, None, None, None, reason, _MOMENT.pack(died_at) + body
    for sequence, expires_at, body in changes.results:
        yield "result", number, sequence, expires_at, None, None, None, body


def statements_of(rows: Sequence[Row]) -> Iterator[tuple[str, list[Any]]]:
    """Yield as few statements as possible, with their values; the last one is padded."""
    for start in range(0, len(rows), MOST_ROWS):
        part = rows[start : start + MOST_ROWS]
        size = next(size for size in _SIZES if size >= len(part))
        values = [value for row in part for value in row]
        values += _NOTHING * (size - len(part))
        yield _STATEMENTS[size], values


def acquired_of(row: Sequence[Any]) -> tuple[int, Acquired]:
    """Return the partition's number in its file, and its stored state for the new owner."""
    number, range_id, backlog, found_clean, *counts = row
    return number, Acquired(range_id, _counts(*counts), backlog, bool(found_clean))


def empty_of(row: Sequence[Any]) -> EmptyPartition:
    """Convert the row of a partition without tasks."""
    *key, range_id, read, write, version = row
    return EmptyPartition(PartitionKey(*key), range_id, _counts(read, write, version))


def _counts(read: int | None, write: int, version: int) -> PartitionCounts | None:
    return None if read is None else PartitionCounts(read, write, version)


def portions(heads: Sequence[Head]) -> Iterator[Sequence[Head]]:
    """Split heads, which end with their body's size, into portions of at most `PORTION_BYTES`, or
    of one larger body."""
    start = size = 0
    for at, head in enumerate(heads):
        size += head[-1]
        if at > start and size > PORTION_BYTES:
            yield heads[start:at]
            start, size = at, head[-1]
    if start < len(heads):
        yield heads[start:]


def reaching(heads: Sequence[Head], most_bytes: int) -> Sequence[Head]:
    """Return as few of the first heads as have bodies of `most_bytes`, or all."""
    for at, head in enumerate(heads, 1):
        most_bytes -= head[-1]
        if most_bytes <= 0:
            return heads[:at]
    return heads


def later_of(sequence: int, body: bytes) -> Later:
    if len(body) < _MOMENT.size:
        return Later(sequence, 0.0, b"")
    return Later(sequence, _MOMENT.unpack_from(body)[0], body[_MOMENT.size :])


def dead_of(sequence: int, reason: str, body: bytes) -> Dead:
    if len(body) < _MOMENT.size:
        return Dead(sequence, 0.0, reason, b"")
    return Dead(sequence, _MOMENT.unpack_from(body)[0], reason, body[_MOMENT.size :])


def mark_ranges(marks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive marks, `MARKS_IN_ROW` at most."""
    found: list[tuple[int, int]] = []
    ordered = sorted(marks)
    first = last = ordered[0]
    for mark in ordered:
        if mark - last > 1 or mark - first >= MARKS_IN_ROW:
            found.append((first, last))
            first = mark
        last = mark
    found.append((first, last))
    return found


def with_marks(segments: Iterable[Segment], ranges: Sequence[tuple[int, int]]) -> list[SegmentRead]:
    """Give each segment the marks that lie in it."""
    return [
        SegmentRead(
            segment,
            frozenset(
                mark
                for first, last in ranges
                for mark in range(max(first, segment.first), min(last, segment.last) + 1)
            ),
        )
        for segment in segments
    ]


def listed(values: object) -> str:
    """Return the values as JSON, which SQLite can decode itself."""
    return json.encode(values).decode()


def _listed(kind: str, number: int, values: object) -> Row:
    return kind, number, None, None, None, None, listed(values), None
