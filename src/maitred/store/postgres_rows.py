"""Converts commits to the columns that `maitred.write_down` takes, in the order of its arguments,
and rows to records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.matching.records import Segment, rows_bytes
from maitred.routing.counts import PartitionCounts
from maitred.store.interface import SegmentRead

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import asyncpg

    from maitred.matching.records import Changes, PartitionKey


def columns_of(
    entries: Sequence[tuple[int, Changes]], commits: Sequence[int | None]
) -> list[list[Any]]:
    """Return the columns of changes, each given with its partition's id, and with the number of
    commits that the owner counts, or None if that is not to be checked."""
    ids, ranges, *heads = _columns(
        5, ((n, c.range_id, c.backlog, c.clean, _bytes(c)) for n, c in entries)
    )
    return [
        *(ids, ranges, list(commits), *heads),
        *_columns(
            4,
            (
                (n, c.counts.read, c.counts.write, c.counts.version)
                for n, c in entries
                if c.counts is not None
            ),
        ),
        *_columns(6, ((n, *segment) for n, c in entries for segment in c.segments)),
        *_columns(2, ((n, mark) for n, c in entries for mark in c.marks)),
        *_columns(4, ((n, *segment[:3]) for n, c in entries for segment in c.segments_gone)),
        *_columns(2, ((n, sequence) for n, c in entries for sequence in c.later_gone)),
        *_columns(4, ((n, *later) for n, c in entries for later in _last(c.later))),
        *_columns(2, ((n, sequence) for n, c in entries for sequence in c.dead_gone)),
        *_columns(5, ((n, *dead) for n, c in entries for dead in _last(c.dead))),
        *_columns(4, ((n, *result) for n, c in entries for result in _last(c.results))),
    ]


def _bytes(changes: Changes) -> int:
    """Return the size of the rows that are written: the last of each sequence number."""
    single = (_last(rows) for rows in (changes.later, changes.dead, changes.results))
    return rows_bytes(changes.segments, *single)


def columns_of_keys(keys: Iterable[PartitionKey]) -> list[list[Any]]:
    """Return the columns of keys: namespaces, queues, types and partition numbers."""
    return _columns(4, keys)


def _last(records: Iterable[Any]) -> Collection[Any]:
    """Return the last record of each sequence number: a statement cannot write a row twice."""
    return {record.sequence: record for record in records}.values()


def _columns(width: int, rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    taken = list(rows)
    return [[row[column] for row in taken] for column in range(width)]


def counts_of(read: int | None, write: int, version: int) -> PartitionCounts | None:
    """Return the partition counts of a row; None if it has none."""
    return None if read is None else PartitionCounts(read, write, version)


def segment_read(row: asyncpg.Record) -> SegmentRead:
    """Return the segment of a row, whose last column is its marks."""
    *segment, marks = row
    return SegmentRead(Segment(*segment), frozenset(marks))
