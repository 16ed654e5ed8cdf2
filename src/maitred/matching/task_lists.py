"""Lists of a partition's tasks for operators, in pieces, from memory and from rows of the store.

The shell reads rows and asks for the tasks that follow a place in a list; each answer is complete
up to the last row that was read, whatever is in memory alone. What memory knows goes before what a
row says: a row may be that of a task that has ended, or that waits in another way by now.

Running and ended tasks are in memory alone. Ready tasks may be in memory or in segments, delayed
ones in memory or in rows of their own, dead letters in the store.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import groupby, islice
from typing import TYPE_CHECKING

from maitred.matching.records import RowDamagedError, Terms, decode_record, decode_records
from maitred.matching.sighted_task import FIRST, SightedTask
from maitred.matching.task import AWAY, GIVEN, OVER, PARKED, READY, WAITING, QueueTask, recalled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from maitred.matching.attempts import Attempts
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.records import Dead, Later, Record, Segment
    from maitred.matching.sighted_task import Place, SightedState
    from maitred.matching.task_ends import Ended, EndStatus
    from maitred.matching.unread_segments import MarkedSegment


class TaskLists:
    """Lists the tasks of one partition."""

    def __init__(self, state: PartitionState, attempts: Attempts) -> None:
        self._tasks = state.tasks
        self._claims = attempts.claims
        self._unread = state.unread
        self._later = state.later
        self._ledger = state.ledger
        self._ended = state.ended_tasks

    # In memory

    def running(self, after: Place, most: int) -> list[SightedTask]:
        """Return the tasks that a worker has, the one that it has had for longest first."""
        wall = self._ledger.wall
        found = (
            (task.given_at + wall, sequence, task)
            for sequence, task in self._tasks.items()
            if task.state is GIVEN and (task.given_at + wall, sequence) > after
        )
        return [
            SightedTask("running", task, (at, sequence))
            for at, sequence, task in nsmallest(most, found, key=_place)
        ]

    def ended(
        self, kind: EndStatus | None, after: Place, most: int, now: float
    ) -> list[SightedTask]:
        """Return the tasks that ended in this way, or in any, the last one first."""
        places = (
            SightedTask(_status(task.status), task, (at, task.sequence))
            for at, task in self._last_first(now)
            if (after == FIRST or (at, task.sequence) < after) and kind in (None, task.status)
        )
        return list(islice(places, most))

    def _last_first(self, now: float) -> Iterator[tuple[float, QueueTask]]:
        """Yield the tasks that ended, and when: the last one first, and of those that ended in one
        moment the highest number. They are kept in the order in which workers reported them."""
        wall = self._ledger.wall
        ended = ((task.ended + wall, task) for task in self._ended.last_first(now))
        for _, together in groupby(ended, key=_moment):
            yield from sorted(together, key=_sequence, reverse=True)

    def one(self, sequence: int, now: float) -> SightedTask | None:
        """Return a task that memory knows."""
        task = self._tasks.get(sequence)
        wall = self._ledger.wall
        if task is None:
            ended = self._ended.get(sequence, now)
            if ended is None:
                return None
            return SightedTask(_status(ended.status), ended, (ended.ended + wall, sequence))
        if task.state is GIVEN:
            return SightedTask("running", task, (task.given_at + wall, sequence))
        if task.state is WAITING:
            return SightedTask("delayed", task, (task.due + wall, sequence))
        return SightedTask("waiting", task, (float(task.priority), sequence))

    def unread(self, record: Record, now: float) -> SightedTask:
        """Return a task that only its segment has."""
        claim = self._claims.get(record.sequence)
        task = recalled(record, wall=self._ledger.wall, now=now, state=READY)
        if claim is None:
            return SightedTask("waiting", task, (float(task.priority), task.sequence))
        task.worker, task.given_at = claim.worker, claim.given_at
        return SightedTask("running", task, (claim.given_at + self._ledger.wall, task.sequence))

    def ended_unread(self, record: Record, status: EndStatus, now: float) -> None:
        """Keep a task that ended and that only its segment had."""
        task = recalled(record, wall=self._ledger.wall, now=now, state=OVER)
        claim = self._claims.get(record.sequence)
        if claim is not None:
            task.worker, task.given_at = claim.worker, claim.given_at
        self._ended.add(task, status, now)

    def outcome(self, sequence: int, ended: Ended) -> SightedTask:
        """Return a task of which only the result is known."""
        task = QueueTask(sequence, 0, Terms(), b"", 0.0, OVER, status=ended.status)
        task.attempt = max(ended.attempts - (ended.status == "done"), 0)
        return SightedTask(_status(ended.status), task, (0.0, sequence))

    # In memory and in the store

    def waiting(
        self,
        priority: int,
        after: int,
        rows: Sequence[MarkedSegment],
        now: float,
        *,
        is_all: bool,
    ) -> tuple[list[SightedTask], int | None]:
        """Return the tasks of one priority that are ready to run and follow `after`, by number; and
        the number up to which the list is complete, None if it is complete. `rows` are the next
        segments of this priority, from the one on that has the next number; `is_all` says whether
        there are no more."""
        horizon = None if is_all or not rows else rows[-1][0].last
        found = {
            sequence: task
            for sequence, task in self._tasks.items()
            if task.priority == priority
            and after < sequence
            and (horizon is None or sequence <= horizon)
            and task.state in (READY, AWAY, PARKED)
        }
        wall = self._ledger.wall
        for segment, marks in rows:
            for record in self._unread_records(segment, marks):
                sequence = record.sequence
                if (
                    sequence > after
                    and sequence not in self._tasks
                    and sequence not in self._claims
                ):
                    found[sequence] = recalled(record, wall=wall, now=now, state=READY)
        place = float(priority)
        sightings = [
            SightedTask("waiting", found[sequence], (place, sequence)) for sequence in sorted(found)
        ]
        return sightings, horizon

    def _unread_records(self, segment: Segment, marks: frozenset[int]) -> Iterable[Record]:
        """Return the tasks of a segment that was not read into memory and that are not over."""
        over = self._unread.over(segment, marks)
        if over is None:
            return ()
        try:
            records = decode_records(segment)
        except RowDamagedError:
            return ()  # it is set aside when its turn to be read comes
        return [one for one in records if one.sequence not in over]

    def delayed(
        self, after: Place, rows: Sequence[Later], now: float, *, is_all: bool
    ) -> tuple[list[SightedTask], Place | None]:
        """Return the tasks that are not due and follow `after`, in the order in which they are due;
        and the place up to which the list is complete, None if it is complete. `rows` are those
        that follow `after`, read in a block of `QueuePurge.reading`."""
        horizon = None if is_all or not rows else (rows[-1].due, rows[-1].sequence)
        wall = self._ledger.wall
        found: dict[Place, QueueTask] = {}
        for sequence, task in self._tasks.items():
            if task.state is WAITING:
                place = task.due + wall, sequence
                if place > after and (horizon is None or place <= horizon):
                    found[place] = task
        for row in rows:
            sequence = row.sequence
            if sequence in self._tasks or sequence in self._claims or self._later.is_over(sequence):
                continue
            try:
                record = decode_record(row.body, sequence)
            except RowDamagedError:
                continue  # it is set aside when it is due
            found[row.due, sequence] = self._delayed(record, row, now)
        return [SightedTask("delayed", found[place], place) for place in sorted(found)], horizon

    # In the store

    def row(self, row: Later, now: float) -> SightedTask:
        """Return one delayed task; raise `RowDamagedError`."""
        task = self._delayed(decode_record(row.body, row.sequence), row, now)
        return SightedTask("delayed", task, (row.due, row.sequence))

    def _delayed(self, record: Record, row: Later, now: float) -> QueueTask:
        wall = self._ledger.wall
        task = recalled(record, wall=wall, now=now, state=WAITING)
        task.due = task.ready = row.due - wall
        return task

    def dead(self, rows: Iterable[Dead], now: float) -> list[SightedTask]:
        """Return dead letters; those that cannot be read are left to the request that shows
        them."""
        found = []
        for row in rows:
            if self._ledger.is_dead_going(row.sequence):
                continue
            try:
                found.append(self.letter(row, now))
            except RowDamagedError:
                continue
        return found

    def letter(self, row: Dead, now: float) -> SightedTask:
        """Return one dead letter; raise `RowDamagedError`."""
        record = decode_record(row.body, row.sequence)
        task = recalled(record, wall=self._ledger.wall, now=now, state=OVER)
        return SightedTask("dead", task, (0.0, row.sequence), row.died_at, row.reason)


_STATUSES: dict[EndStatus, SightedState] = {
    "done": "done",
    "cancelled": "cancelled",
    "expired": "expired",
    "failed": "failed",
}
_status: Callable[[EndStatus], SightedState] = _STATUSES.__getitem__


def _place(found: tuple[float, int, QueueTask]) -> Place:
    return found[:2]


def _moment(ended: tuple[float, QueueTask]) -> float:
    return ended[0]


def _sequence(ended: tuple[float, QueueTask]) -> int:
    return ended[1].sequence
