"""Segments whose tasks are in the store alone: which of their tasks are over, and what they hold.

A caller may end a task before its segment is read: a worker finishes it after a restart, or a
producer cancels it. The store learns of that with the next commit, and a read that is under way may
miss it even then. So the partition remembers which tasks of an unread segment are over, until it
has read the segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.matching.records import RowDamagedError, decode_records
from maitred.matching.task import SegmentState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.backlog import Backlog
    from maitred.matching.records import Record, Segment

MarkedSegment = tuple["Segment", frozenset[int]]
"""A segment, and the marks that the store has within its range."""


class UnreadSegments:
    """Answers for single tasks of segments that the partition has not read into memory."""

    __slots__ = ("_backlog", "_opened", "_touched")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._touched: dict[int, tuple[SegmentState, set[int]]] = {}
        """Unread segments with tasks that ended under this owner, by their first number."""
        self._opened: tuple[Segment, dict[int, Record]] | None = None
        """The segment that was asked for last, decoded: callers ask for several of its tasks."""

    def record(self, segment: Segment, marks: frozenset[int], sequence: int) -> Record | None:
        """Return the task as the segment has it; None if the segment does not have it, if it is
        over, or if the segment was read, so that the task is in memory or over."""
        if not segment.first <= sequence <= segment.last or sequence in marks:
            return None
        if not self._backlog.unread(segment.priority, segment.first):
            return None
        _, ended = self._touched.get(segment.first, (None, ()))
        return None if sequence in ended else self._records(segment).get(sequence)

    def over(self, segment: Segment, marks: frozenset[int]) -> frozenset[int] | None:
        """Return the tasks of a segment that are over; None if the segment was read, so that each
        of its tasks is in memory or over."""
        if not self._backlog.unread(segment.priority, segment.first):
            return None
        _, ended = self._touched.get(segment.first, (None, ()))
        return marks.union(ended)

    def _records(self, segment: Segment) -> dict[int, Record]:
        if self._opened is None or self._opened[0] is not segment:
            try:
                records = decode_records(segment)
            except RowDamagedError:
                records = []  # the segment is set aside when its turn to be read comes
            self._opened = segment, {record.sequence: record for record in records}
        return self._opened[1]

    def end(self, segment: Segment, marks: frozenset[int], sequence: int) -> SegmentState:
        """Remember that a task which `record` returned is over; return the state of its segment."""
        state, ended = self._touched.get(segment.first, (None, set()))
        if state is None:
            state = segment_state(segment, self._records(segment).values(), marks)
        ended.add(sequence)
        self._touched[segment.first] = state, ended
        return state

    def add(self, state: SegmentState, ended: set[int]) -> None:
        """A segment was written, and these of its tasks ended while that was under way."""
        self._touched[state.first] = state, ended

    def take(self, first: int) -> tuple[SegmentState | None, set[int]]:
        """Forget a segment that is being read; return its state, if known, and its ended tasks."""
        return self._touched.pop(first, (None, set()))

    def forget_read(self) -> None:
        """Forget the segments that have been read by now."""
        if self._touched:
            self._touched = {
                first: touched
                for first, touched in self._touched.items()
                if self._backlog.unread(touched[0].priority, first)
            }

    def close(self) -> None:
        """Free the decoded segment; the next caller decodes it again."""
        self._opened = None


def segment_state(
    segment: Segment, records: Iterable[Record], marks: frozenset[int]
) -> SegmentState:
    """Return how much of a segment is left. Marks may belong to a segment of another priority."""
    left = sum([record.sequence not in marks for record in records])
    return SegmentState(segment.priority, segment.first, segment.last, left)
