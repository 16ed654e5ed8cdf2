"""Takes in what the store answers: segments and rows that were read, and ends of commits."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.errors import OutcomeUnknown
from maitred.matching.effects import (
    Read,
    ReadLater,
    RefuseToTell,
    TellRevoked,
)
from maitred.matching.records import (
    RowDamagedError,
    StoredUse,
    decode_record,
    decode_records,
    rows_bytes,
)
from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.matching.task import (
    AWAY,
    GIVEN,
    ON_DUE,
    ON_UNPARK,
    OVER,
    PARKED,
    READY,
    WAITING,
    QueueTask,
    SegmentState,
    Ticket,
    recalled,
)
from maitred.matching.unread_segments import segment_state
from maitred.trace_context import in_round, round_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from maitred.errors import MaitredError
    from maitred.matching.attempts import Attempts
    from maitred.matching.damaged_rows import SetAsideRows
    from maitred.matching.ledger import Pending
    from maitred.matching.matcher import Matcher
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.records import (
        Changes,
        Dead,
        Later,
        Record,
        Segment,
    )
    from maitred.matching.task_results import TaskResults
    from maitred.matching.task_transitions import OwnTasks

STORE_RETRY_SECONDS = 0.25
"""How long after a failed commit its changes are tried again."""


class StoreReplies:
    """Reads tasks into memory as it runs short, and settles requests when a commit ends."""

    def __init__(
        self,
        state: PartitionState,
        *,
        own_tasks: OwnTasks,
        matcher: Matcher,
        attempts: Attempts,
        damaged_rows: SetAsideRows,
        results: TaskResults,
    ) -> None:
        self._own_tasks = own_tasks
        self._tasks = own_tasks.tasks
        self._matcher = matcher
        self._attempts = attempts
        self._damaged_rows = damaged_rows
        self._backlog = state.backlog
        self._later = state.later
        self._ledger = state.ledger
        self._quotas = state.quotas
        self._results = results
        self._health = state.health
        self._tickets = state.tickets
        self._effects = state.effects
        self._unread = state.unread

    # Reads

    def want_reads(self, now: float) -> None:
        """Ask the store for the next tasks, where memory runs short."""
        wanted = self._backlog.wanted()
        while wanted is not None:
            self._effects.append(Read(wanted))
            wanted = self._backlog.wanted()
        later = self._later
        if not self._ledger.stored and self._ledger.under_way is None and not later.reading:
            later.knows_all()
        before = later.read_wanted(now)
        if before:
            size = later.read_size(len(self._tasks))
            self._effects.append(ReadLater(before, size, later.read_bytes(self._tasks.values())))

    def segments_read(
        self,
        found: Sequence[tuple[Segment, frozenset[int]]],
        reading: Read,
        now: float,
    ) -> None:
        """Take in the segments that a `Read` found."""
        all_of_it = reading.reading.is_all(found)
        last_first = None
        known = reading.reading.known
        wall = self._ledger.wall
        for segment, marks in found:
            if segment.first > known:
                # It was written after the read was asked for, by a commit whose end may not have
                # arrived. It is read later; everything that was asked for is here.
                all_of_it = True
                break
            last_first = segment.first
            state, gone = self._unread.take(segment.first)
            try:
                records = decode_records(segment)
            except RowDamagedError as problem:
                self._damaged_rows.set_aside_segment(segment, marks | gone, str(problem), now)
                continue
            if state is None:
                state = segment_state(segment, records, marks)
            for record in records:
                if record.sequence in marks or record.sequence in gone:
                    continue
                task = recalled(record, wall=wall, now=now, state=READY)
                task.segment = state
                self._take_in(task, now)
        for task in self._backlog.was_read(reading.reading, last_first, all_of_it=all_of_it):
            task.state = ON_UNPARK[task.state]
            self._backlog.push(task)
        self._unread.forget_read()
        self._matcher.match(now)

    def _take_in(self, task: QueueTask, now: float) -> None:
        """Queue a task that was read, unless a worker claims to run it."""
        self._tasks[task.sequence] = task
        if not self._attempts.claims or not self._attempts.claimed(task, now):
            self._backlog.push(task)
        if self._attempts.told:
            self._attempts.hear_what_was_told(task, now)

    def later_read(self, found: Sequence[Later], reading: ReadLater, now: float) -> None:
        """Take in the rows that a `ReadLater` found."""
        wall = self._ledger.wall
        any_new = False
        for later in found:
            if later.sequence in self._tasks or self._later.is_over(later.sequence):
                continue
            any_new = True
            self.recall_later(later, now)
        until = reading.before if reading.is_all(found) else found[-1].due - wall
        self._later.was_read(until, any_new=any_new)
        self.become_due(now)
        self._matcher.match(now)

    def recall_later(self, later: Later, now: float) -> None:
        """Bring a task with a row of its own into memory, unless it is there, or over."""
        if later.sequence in self._tasks or self._later.is_over(later.sequence):
            return
        try:
            record = decode_record(later.body, later.sequence)
        except RowDamagedError as problem:
            self._damaged_rows.set_aside_later(later, str(problem), now)
            return
        wall = self._ledger.wall
        task = recalled(record, wall=wall, now=now, state=WAITING)
        task.later_stored = True
        task.due = task.ready = later.due - wall
        self._tasks[task.sequence] = task
        if not self._attempts.claimed(task, now):
            self._later.add(task)
        self._attempts.hear_what_was_told(task, now)

    def restore(
        self, lost: Iterable[tuple[Record, float]], buried: Collection[int], now: float
    ) -> None:
        """Take in tasks that the store had and has lost, each with the moment at which it is due,
        and have them written again, under their old numbers, in rows of their own. Of those in
        `buried` the store has the dead letter again, which is deleted with the result."""
        for record, due in lost:
            task = recalled(record, wall=self._ledger.wall, now=now, state=WAITING)
            task.due = task.ready = due
            self._own_tasks.opened_again(task)
            self._ledger.postpone(task, None, now)
            if task.sequence in buried:
                self._ledger.forget_result(task.sequence, now)
                self._ledger.forget_dead(task.sequence, None, now)
            if not self._attempts.claimed(task, now):
                self._later.add(task)

    def become_due(self, now: float) -> None:
        """Queue the tasks that are due, as far as their lines have room."""
        later = self._later
        task = later.first(self._backlog.room)
        while task is not None and task.due <= now:
            later.pop(task)
            task.state = ON_DUE[task.state]
            task.ready = now
            self._backlog.push(task)
            task = later.first(self._backlog.room)

    def read_failed(self, read: Read | ReadLater) -> None:
        """Let a read that failed be asked for again."""
        if isinstance(read, Read):
            self._backlog.read_failed(read.reading)
        else:
            self._later.read_ended()

    def committed(self, now: float) -> None:
        """Settle the requests that waited for the batch: it is on disk."""
        self._health.answers()
        before = self._ledger.stored
        batch = self._ledger.committed(now)
        if self._quotas:
            written = _written(batch.changes, before)
            for quota in self._quotas:
                quota.wrote(written)
        for state, members, parked in batch.written:
            for task in members:
                ticket = task.ticket
                if ticket is not None:  # `Tickets.safe`, without a call for each task
                    task.ticket = None
                    ticket.left -= 1
                    ticket.done += 1
                    if not ticket.left:
                        self._tickets.settle(ticket)
                if task.state is PARKED:
                    self._tasks.pop(task.sequence, None)
            if parked:
                self._parked_stored(state, members)
        for task, _ in batch.pending.later.values():
            if task.ticket is not None:
                self._tickets.safe(task.ticket)
                task.ticket = None
        for ticket in batch.pending.tickets:
            self._tickets.safe(ticket)
        for ticket, _ in batch.pending.producers:
            self._tickets.safe(ticket)
        self._effects += batch.pending.answers
        pending = self._ledger.pending
        self._later.rows_crossed_out(pending.later_gone)
        for task in self._later.shrink(pending.later):
            self._tasks.pop(task.sequence, None)

    def _parked_stored(self, state: SegmentState, members: list[QueueTask]) -> None:
        """Note that the parked tasks of a segment that was written are in the store alone; those
        that ended meanwhile are over."""
        self._backlog.parked_stored(state.priority, state.first, members)
        over = {task.sequence for task in members if task.state is OVER}
        if over:
            self._unread.add(state, over)

    def not_committed(self, problem: MaitredError, now: float) -> None:
        """Refuse the new tasks of a batch that was not written, and answer callers that wait for
        it. All other changes are tried again."""
        self._health.fails(problem, now)
        batch = self._ledger.failed(now, now + STORE_RETRY_SECONDS)
        for _, members, _ in batch.written:
            for task in members:
                if task.state is GIVEN or task.state is AWAY:
                    self._ledger.hold_again(task, now + STORE_RETRY_SECONDS)
                elif task.state is not OVER:
                    self._own_tasks.refuse(task)
        for task, _ in list(self._ledger.pending.later.values()):
            if task.ticket is not None and task.state in (READY, WAITING):
                self._own_tasks.refuse(task)
        self._own_tasks.answer_producers(self._ledger.pending)
        self._answer_callers(self._ledger.pending, problem)
        self._refuse_unwritable(now)

    def store_silent(self, problem: MaitredError, now: float) -> None:
        """Refuse new tasks while a commit, of this partition or of others, is not answered, and
        tell requests that wait for it that the outcome is unknown. The commit may still end either
        way."""
        self._health.fails(problem, now)
        for pending in self._ledger.all_pending():
            self._own_tasks.answer_producers(pending)
            self._answer_callers(pending, problem)
        self._refuse_unwritable(now)

    def _refuse_unwritable(self, now: float) -> None:
        self._own_tasks.refuse_unwritable()
        self._matcher.match(now)

    def answer_unsafe(self, now: float) -> None:
        """While nothing can be written, tell the producers that waited long enough that the outcome
        is unknown: their tasks are at a worker, or in a commit that is not answered."""
        next_at = inf
        for task in self._tasks.values():
            ticket = task.ticket
            if ticket is None or ticket.told:
                continue
            until = task.added + UNSAFE_SECONDS
            if until > now:
                next_at = min(next_at, until)
                continue
            where = "A worker has the task" if task.may_have_begun else "The task may be written"
            problem = OutcomeUnknown(f"{where}, and the store does not confirm it.")
            self._tickets.settle_early(ticket, problem)
        self._health.tell_again_at(next_at)

    def _answer_callers(self, pending: Pending, problem: MaitredError) -> None:
        """Tell callers that cancel a task or wait for its end that the store does not answer."""
        answers, pending.answers = pending.answers, []
        for answer in answers:
            if isinstance(answer, TellRevoked) and answer.state == "cancelled":
                unknown = OutcomeUnknown(
                    "The task is cancelled, and the store does not confirm it: if the node fails "
                    "before it does, the task may run."
                )
                self._effects.append(RefuseToTell(answer.token, unknown))
            else:
                self._effects.append(RefuseToTell(answer.token, problem))

    def retry_dead(self, dead: Dead, ticket: Ticket, now: float) -> None:
        """Make a dead letter a task again, under its old number and with all its attempts.

        Raises `RowDamagedError` if the dead letter cannot be read.
        """
        if dead.sequence in self._tasks or self._ledger.is_dead_going(dead.sequence):
            # Another operator was faster; the answer waits until that is on disk.
            self._ledger.forget_dead(dead.sequence, ticket, now)
            return
        record = decode_record(dead.body, dead.sequence)
        task = recalled(record, wall=self._ledger.wall, now=now, state=WAITING)
        task.attempt = 0
        task.trace = in_round(task.trace, round_of(task.trace) + 1)
        task.expires = 0.0
        task.due = task.ready = now
        self._own_tasks.opened_again(task)
        self._results.outcomes.forget(task.sequence)
        self._ledger.forget_result(task.sequence, now)
        self._own_tasks.wait_until_due(task, ticket, now)
        self._ledger.forget_dead(task.sequence, None, now)


def _written(changes: Changes, backlog_before: int) -> StoredUse:
    """Compute what a commit added to the store. Deleted bytes are seen with the next read of the
    sums."""
    return StoredUse(
        changes.backlog - backlog_before + len(changes.dead),
        rows_bytes(changes.segments, changes.later, changes.dead, changes.results),
    )
