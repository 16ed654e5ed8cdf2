"""What comes back from the store: segments, later tasks, dead letters, and commits."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.matching.effects import (
    Ended,
    Read,
    ReadLater,
    RefuseToTell,
    Tell,
)
from maitred.matching.records import (
    RowDamagedError,
    StoredUse,
    decode_record,
    decode_records,
    rows_bytes,
)
from maitred.matching.setting_aside import SettingAside
from maitred.matching.task import (
    AWAY,
    GIVEN,
    ON_CLAIM,
    ON_DUE,
    ON_UNPARK,
    OVER,
    PARKED,
    READY,
    WAITING,
    SegmentState,
    Task,
    Ticket,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.errors import MaitredError
    from maitred.matching.effects import EndStatus
    from maitred.matching.ledger import Pending
    from maitred.matching.records import (
        Changes,
        Dead,
        Later,
        Record,
        Segment,
    )

STORE_RETRY_SECONDS = 0.25
"""Before what could not be written is tried again."""


class Recalling(SettingAside):
    """Between memory and store."""

    def segments_read(
        self,
        found: Sequence[tuple[Segment, frozenset[int]]],
        reading: Read,
        now: float,
    ) -> None:
        """What a `Read` has found."""
        all_of_it = reading.reading.is_all(found)
        last_first = None
        known = reading.reading.known
        for segment, marks in found:
            if segment.first > known:
                # Written since it was asked, and perhaps we have not heard of that yet. Its turn
                # comes; all that was asked for is here.
                all_of_it = True
                break
            last_first = segment.first
            state, gone = self._touched_unread.pop(segment.first, (None, set()))
            try:
                records = decode_records(segment)
            except RowDamagedError as problem:
                self._set_aside_segment(segment, marks | gone, str(problem), now)
                continue
            if state is None:
                state = _state_of(segment, records, marks)
            for record in records:
                if record.sequence in marks or record.sequence in gone:
                    continue
                task = self._recalled(record, now, READY)
                task.segment = state
                self._take_in(task, now)
        for task in self.backlog.was_read(reading.reading, last_first, all_of_it=all_of_it):
            self._unpark(task)
        if self._touched_unread:
            self._touched_unread = {
                first: touched
                for first, touched in self._touched_unread.items()
                if self.backlog.unread(touched[0].priority, first)
            }
        self._seat(now)

    def _take_in(self, task: Task, now: float) -> None:
        """A task that was read waits in its line, unless a worker said that it runs it."""
        self.tasks[task.sequence] = task
        if not self._claims or not self._is_claimed(task, now):
            self.backlog.push(task)
        if self._told:
            self._hear_what_was_told(task, now)

    def _is_claimed(self, task: Task, now: float) -> bool:
        """Whether a worker said that it runs it: then it is that worker's."""
        claim = self._claims.pop(task.sequence, None)
        if claim is None or claim[3] <= now:
            return False
        self._catch_up(task, claim[2])
        if claim[2] != task.attempt + 1:
            return False
        task.state = ON_CLAIM[task.state]
        self._lease(task, claim[0], b"", claim[1], now)
        return True

    def _unpark(self, task: Task) -> None:
        task.state = ON_UNPARK[task.state]
        self.backlog.push(task)

    def later_read(self, found: Sequence[Later], reading: ReadLater, now: float) -> None:
        """What a `ReadLater` has found."""
        wall = self.ledger.wall
        any_new = False
        for later in found:
            if later.sequence in self.tasks or self.later.is_over(later.sequence):
                continue
            any_new = True
            try:
                record = decode_record(later.body, later.sequence)
            except RowDamagedError as problem:
                self._set_aside_later(later, str(problem), now)
                continue
            task = self._recalled(record, now, WAITING)
            task.later_stored = True
            task.due = task.ready = later.due - wall
            self.tasks[task.sequence] = task
            if not self._is_claimed(task, now):
                self.later.add(task)
            self._hear_what_was_told(task, now)
        until = reading.before if reading.is_all(found) else found[-1].due - wall
        self.later.was_read(until, any_new=any_new)
        self._become_due(now)
        self._seat(now)

    def _become_due(self, now: float) -> None:
        later = self.later
        task = later.first(self.backlog.room)
        while task is not None and task.due <= now:
            later.pop(task)
            task.state = ON_DUE[task.state]
            task.ready = now
            self.backlog.push(task)
            task = later.first(self.backlog.room)

    def read_failed(self, read: Read | ReadLater) -> None:
        """It is asked for again."""
        if isinstance(read, Read):
            self.backlog.read_failed(read.reading)
        else:
            self.later.read_ended()

    def committed(self, now: float) -> None:
        """The batch that was taken is on disk."""
        self.store_answers()
        before = self.ledger.stored
        batch = self.ledger.committed(now)
        if self.quotas:
            written = _written(batch.changes, before)
            for quota in self.quotas:
                quota.wrote(written)
        for state, members, parked in batch.written:
            for task in members:
                if task.ticket is not None:
                    self._part_safe(task.ticket)
                    task.ticket = None
                if task.state is PARKED:
                    self.tasks.pop(task.sequence, None)
            if parked:
                self._parked_stored(state, members)
        for task, _ in batch.pending.later.values():
            if task.ticket is not None:
                self._part_safe(task.ticket)
                task.ticket = None
        for ticket in batch.pending.tickets:
            self._part_safe(ticket)
        for ticket, _ in batch.pending.producers:
            self._part_safe(ticket)
        for ticket, _ in batch.pending.cancelling:
            self._part_safe(ticket)
        for token, ended in batch.pending.told:
            self.effects.append(Tell(token, ended))
        pending = self.ledger.pending
        self.later.rows_crossed_out(pending.later_gone)
        for task in self.later.shrink(pending.later):
            self.tasks.pop(task.sequence, None)

    def _parked_stored(self, state: SegmentState, members: list[Task]) -> None:
        """Those that are still parked are in the store alone; those that are over stay gone."""
        self.backlog.parked_stored(state.priority, state.first, members)
        over = {task.sequence for task in members if task.state is OVER}
        if over:
            self._touched_unread[state.first] = (state, over)

    def not_committed(self, problem: MaitredError, now: float) -> None:
        """Nothing of the batch was written: those who wait with new tasks are told."""
        self.store_problem = problem
        self._unsafe_until = now
        batch = self.ledger.failed(now, now + STORE_RETRY_SECONDS)
        for _, members, _ in batch.written:
            for task in members:
                if task.state is GIVEN or task.state is AWAY:
                    task.hold_until = now + STORE_RETRY_SECONDS
                    self.ledger.held[task.sequence] = task
                elif task.state is not OVER:
                    self._refuse(task)
        for task, _ in list(self.ledger.pending.later.values()):
            if task.ticket is not None and task.state in (READY, WAITING):
                self._refuse(task)
        self._answer_producers(self.ledger.pending)
        self._answer_callers(self.ledger.pending, problem)
        self._refuse_unwritable(now)

    def store_silent(self, problem: MaitredError, now: float) -> None:
        """A commit, of this partition or of others, is not answered: new tasks are refused, and
        whoever waits for the commit hears that the outcome is unknown. The commit itself may still
        end either way."""
        self.store_problem = problem
        self._unsafe_until = now
        for pending in self.ledger.all_pending():
            self._answer_producers(pending)
            self._answer_callers(pending, problem)
        self._refuse_unwritable(now)

    def _answer_callers(self, pending: Pending, problem: MaitredError) -> None:
        """Tell those who cancel a task or wait for its end that the store does not confirm it."""
        cancelling, pending.cancelling = pending.cancelling, []
        for ticket, cancelled in cancelling:
            if cancelled:
                self._part_unknown(
                    ticket,
                    "The task is cancelled, and the store does not confirm it: if the node fails "
                    "before it does, the task may run.",
                )
            else:
                ticket.problem = problem
                self._part_refused(ticket)
        told, pending.told = pending.told, []
        self.effects += [RefuseToTell(token, problem) for token, _ in told]

    def store_answers(self) -> None:
        """Take new tasks again: the store has written something."""
        self.store_problem = None
        self._unsafe_until = inf

    def revoke_stored(
        self, segment: Segment, marks: frozenset[int], sequence: int, now: float
    ) -> bool:
        """Cancel a task that is in the store alone, in this segment. Raises the store's problem,
        and does nothing, if that could not be written now."""
        if self.store_problem is not None:
            raise self.store_problem.with_traceback(None)
        return self._end_stored(segment, marks, sequence, "cancelled", b"", None, now)

    def finish_stored(
        self,
        segment: Segment,
        marks: frozenset[int],
        end: tuple[int, int, int, bytes],
        ticket: Ticket,
        now: float,
    ) -> bool:
        """An attempt at a task that is in the store alone is over; only done counts."""
        sequence, _, how, body = end
        return how == 0 and self._end_stored(segment, marks, sequence, "done", body, ticket, now)

    def _end_stored(
        self,
        segment: Segment,
        marks: frozenset[int],
        sequence: int,
        status: EndStatus,
        body: bytes,
        ticket: Ticket | None,
        now: float,
    ) -> bool:
        if sequence in marks or not self.backlog.unread(segment.priority, segment.first):
            return False  # over: otherwise it would be in memory
        records = self._records_of(segment)
        record = records.get(sequence)
        if record is None:
            return False
        state, gone = self._touched_unread.get(segment.first, (None, set()))
        if sequence in gone:
            return False
        if state is None:
            state = _state_of(segment, records.values(), marks)
        gone.add(sequence)
        self._touched_unread[segment.first] = (state, gone)
        self.ledger.remove_unread(state, sequence, ticket, now)
        self.open_tasks -= 1
        self.finished.count(1, now)
        retention = record.terms.retention
        stored = retention > self.memory_seconds and self._is_stored(sequence, body, now)
        ended = Ended(status, record.attempt + (status == "done"), body, now + retention, stored)
        self._remember(sequence, ended, now)
        self._claims.pop(sequence, None)
        return True

    def recall_later(self, later: Later, now: float) -> Task | None:
        """Bring a task that waits in the store alone into memory; None if it is over already."""
        task = self.tasks.get(later.sequence)
        if task is None:
            if self.later.is_over(later.sequence):
                return None
            try:
                record = decode_record(later.body, later.sequence)
            except RowDamagedError as problem:
                self._set_aside_later(later, str(problem), now)
                return None
            task = self._recalled(record, now, WAITING)
            task.later_stored = True
            task.due = task.ready = later.due - self.ledger.wall
            self.tasks[task.sequence] = task
            self.later.add(task)
            self._hear_what_was_told(task, now)
        return task

    def is_in(self, segment: Segment, sequence: int) -> bool:
        """Whether the segment has this task, which is not over."""
        if sequence in self.tasks:
            return True
        _, gone = self._touched_unread.get(segment.first, (None, ()))
        if sequence in gone or not self.backlog.unread(segment.priority, segment.first):
            return False
        return sequence in self._records_of(segment)

    def _records_of(self, segment: Segment) -> dict[int, Record]:
        """Who asks for one task of a segment asks for others soon."""
        if self._opened is None or self._opened[0] is not segment:
            try:
                records = decode_records(segment)
            except RowDamagedError:
                records = []  # it is set aside when its turn to be read comes
            self._opened = segment, {record.sequence: record for record in records}
        return self._opened[1]

    def retry_dead(self, dead: Dead, ticket: Ticket, now: float) -> None:
        """A dead letter is a task again, under its old number and with all its attempts.

        Raises `RowDamagedError` if the letter cannot be read.
        """
        if dead.sequence in self.tasks or self.ledger.is_dead_going(dead.sequence):
            # Somebody was faster; the answer waits until that is safe.
            self.ledger.forget_dead(dead.sequence, ticket, now)
            return
        task = self._recalled(decode_record(dead.body, dead.sequence), now, WAITING)
        task.attempt = 0
        task.expires = 0.0
        task.due = task.ready = now
        self.tasks[task.sequence] = task
        self.outcomes.forget(task.sequence)
        self.ledger.forget_result(task.sequence, now)
        self.open_tasks += 1
        self.ledger.postpone(task, ticket, now)
        self.ledger.forget_dead(task.sequence, None, now)
        self.later.add(task)

    def drop_dead(self, sequence: int, ticket: Ticket, now: float) -> None:
        """It is gone for good."""
        self.ledger.forget_dead(sequence, ticket, now)


def _written(changes: Changes, backlog_before: int) -> StoredUse:
    """What a commit has added to the store. Bytes that went are known with the next look at it."""
    return StoredUse(
        changes.backlog - backlog_before + len(changes.dead),
        rows_bytes(changes.segments, changes.later, changes.dead, changes.results),
    )


def _state_of(segment: Segment, records: Iterable[Record], marks: frozenset[int]) -> SegmentState:
    """What is left of it. Some marks may belong to a segment of another priority."""
    left = sum([record.sequence not in marks for record in records])
    return SegmentState(segment.priority, segment.first, segment.last, left)
