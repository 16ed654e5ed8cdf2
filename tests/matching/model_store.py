"""A plain store for one partition, which checks everything that it is told to write."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.records import (
    ROW_BYTES,
    Acquired,
    Segment,
    StoredUse,
    decode_records,
)
from maitred.store.interface import SegmentRead

if TYPE_CHECKING:
    from maitred.matching.records import Changes, Damaged, Dead, Later, Result


class ModelStore:
    """The rows of one partition. Every write is checked against what it should be."""

    def __init__(self) -> None:
        self.range_id = 0
        self.backlog = 0
        self.clean = True
        self.segments: dict[tuple[int, int], Segment] = {}
        self.marks: set[int] = set()
        self._segment_of: dict[int, tuple[int, int]] = {}
        """The segment of each unfinished task that is in one: its priority and first number."""
        self.later: dict[int, Later] = {}
        self.dead: dict[int, Dead] = {}
        self.results: dict[int, Result] = {}
        self.damaged: dict[tuple[str, int], Damaged] = {}
        self.rows_written = 0

    def acquire(self) -> Acquired:
        self.range_id += 1
        clean, self.clean = self.clean, False
        row = self.results.get(CONTROLS_ROW)
        controls = None if row is None else row.body
        return Acquired(self.range_id, None, self.backlog, clean, controls=controls)

    def write(self, changes: Changes) -> None:
        assert changes.range_id == self.range_id, "an owner that was overtaken writes"
        for one in changes.segments:
            self._add(one)
        for mark in changes.marks:
            del self._segment_of[mark]  # is there, and was not crossed out before
        self.marks |= set(changes.marks)
        for one in changes.segments_gone:
            removed = self.segments.pop((one.priority, one.first))
            within = {mark for mark in self.marks if one.first <= mark <= one.last}
            for record in decode_records(removed, trusting=True):
                assert (record.sequence in within) == (record.sequence not in self._segment_of)
                self._segment_of.pop(record.sequence, None)
            self.marks -= {mark for mark in within if not self._covered(mark)}
        for sequence in changes.later_gone:
            del self.later[sequence]
        self.later |= {one.sequence: one for one in changes.later}
        for sequence in changes.dead_gone:
            self.dead.pop(sequence, None)
        self.dead |= {one.sequence: one for one in changes.dead}
        self.results |= {one.sequence: one for one in changes.results}
        self.damaged |= {(row.kind, row.first): row for row in changes.damaged}
        for which in changes.damaged_gone:
            del self.damaged[which]
        self.backlog, self.clean = changes.backlog, changes.clean
        self.rows_written += len(changes.segments) + len(changes.later)
        assert len(self) == changes.backlog, "the count is not what there is"

    def _add(self, new: Segment) -> None:
        records = decode_records(new)
        assert [records[0].sequence, records[-1].sequence] == [new.first, new.last]
        assert len(records) == new.tasks
        for one in self.segments.values():
            if one.priority == new.priority:
                assert new.last < one.first or one.last < new.first, "segments overlap"
        self.segments[new.priority, new.first] = new
        self._segment_of |= dict.fromkeys(
            (record.sequence for record in records), (new.priority, new.first)
        )

    def _covered(self, mark: int) -> bool:
        return any(one.first <= mark <= one.last for one in self.segments.values())

    def __len__(self) -> int:
        return len(self._segment_of) + len(self.later)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._segment_of or sequence in self.later

    def unfinished(self) -> set[int]:
        """Return the tasks that the store holds, each in one place only."""
        assert not self._segment_of.keys() & self.later.keys(), "a task is in the store twice"
        return self._segment_of.keys() | self.later.keys()

    def use(self) -> StoredUse:
        """Return the stored tasks and bytes, counted row by row."""
        bodies = [row.body for row in self.segments.values()]
        for rows in (self.later, self.dead, self.results):
            bodies += [row.body for row in rows.values()]
        size = sum(map(len, bodies)) + ROW_BYTES * len(bodies)
        return StoredUse(len(self) + len(self.dead), size)

    @property
    def empty(self) -> bool:
        """Whether no task is stored; dead letters and results may be."""
        return not (self.segments or self.marks or self.later)

    # Reading

    def read(self, priority: int, after: int, tasks: int, most_bytes: int) -> list[SegmentRead]:
        found: list[SegmentRead] = []
        for (of, first), one in sorted(self.segments.items()):
            if of == priority and first > after and tasks > 0 and most_bytes > 0:
                found.append(SegmentRead(one, self._marks_of(one)))
                tasks -= one.tasks
                most_bytes -= len(one.body)
        return found

    def around(self, sequence: int) -> list[SegmentRead]:
        return [
            SegmentRead(one, self._marks_of(one))
            for one in self.segments.values()
            if one.first <= sequence <= one.last
        ]

    def _marks_of(self, one: Segment) -> frozenset[int]:
        return frozenset(mark for mark in self.marks if one.first <= mark <= one.last)

    def read_later(
        self, before: float = inf, most: int = 10**9, most_bytes: int = 10**12
    ) -> list[Later]:
        found: list[Later] = []
        for one in sorted((one for one in self.later.values() if one.due < before), key=_due):
            if len(found) < most and most_bytes > 0:
                found.append(one)
                most_bytes -= len(one.body)
        return found


def _due(one: Later) -> tuple[float, int]:
    return one.due, one.sequence
