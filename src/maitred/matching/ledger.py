"""Changes that a partition has to persist, gathered until the next group commit.

A new task is *fresh* and written with the next commit. If a worker has it already, the write may be
held for a little (`hold`): if the task ends first, it is never written.

`take` makes one batch of everything that has to be written now; one batch at a time is under way.
Changes of a task that the batch under way has are deferred until that batch ends.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field

from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.effects import Tell
from maitred.matching.records import (
    PRIORITIES,
    TASK_BYTES,
    Changes,
    Damaged,
    Dead,
    Later,
    Record,
    Result,
    Segment,
    StoredUse,
    encode_record,
    encode_records,
    rows_bytes,
)
from maitred.matching.task import OVER, PARKED, QueueTask, SegmentState, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maitred.matching.effects import RefuseToTell, TellRevoked
    from maitred.matching.records import DamagedKind, PartitionKey
    from maitred.matching.task import Token
    from maitred.matching.task_ends import Ended
    from maitred.routing.counts import PartitionCounts

SEGMENT_TASKS: Final = 1_000
"""Most tasks of a segment. That is half of what a partition has in memory, so that a read that ends
with a whole segment does not exceed its limit by much."""

SEGMENT_BYTES: Final = 2**20
"""Most bytes of payloads of a segment, unless it has one task. Segments are read whole. With rows
this large the number of bytes determines the store's cost; smaller ones would cost it more rows."""

NEVER_EXPIRES: Final = 1e12
"""When a row expires that is kept for as long as its queue, in seconds since 1970: in the year
33,658."""


class Pending(Struct, eq=False):
    """Changes other than new segments. Few requests wait for them, so most may wait a little for
    others and be committed together."""

    marked: dict[SegmentState, list[int]] = field(default_factory=dict)
    """Tasks that are over, by their segment."""
    later: dict[int, tuple[QueueTask, Later]] = field(default_factory=dict)
    """Tasks that get a row of their own, and the row."""
    later_gone: list[int] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    dead_gone: list[int] = field(default_factory=list)
    results: dict[int, Result] = field(default_factory=dict)
    """The last result of each task: a commit has at most one row per task."""
    damaged: list[Damaged] = field(default_factory=list)
    damaged_gone: list[tuple[DamagedKind, int]] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    """Released when these changes are on disk."""
    producers: list[tuple[Ticket, bool]] = field(default_factory=list)
    """Released when these changes are on disk: tickets of producers whose tasks are over and leave
    a dead letter or a result; and whether the task failed."""
    ends: set[int] = field(default_factory=set)
    """Tasks whose ends these changes write. A crash before that would give the task another end, so
    callers hear of the end when it is on disk."""
    answers: list[Tell | TellRevoked | RefuseToTell] = field(default_factory=list)
    """Given when these changes are on disk: to callers that wait for one of these ends, cancel a
    task, or ask for a task that is over."""
    counts: PartitionCounts | None = None

    def __bool__(self) -> bool:
        return bool(
            self.marked
            or self.later
            or self.later_gone
            or self.dead
            or self.dead_gone
            or self.results
            or self.damaged
            or self.damaged_gone
            or self.tickets
            or self.producers
            or self.answers
            or self.counts
        )

    def follow(self, older: Pending) -> None:
        """Put the changes of `older`, which could not be written, before these."""
        for segment, sequences in self.marked.items():
            older.marked.setdefault(segment, []).extend(sequences)
        self.marked = older.marked
        for sequence in self.later_gone:
            older.later.pop(sequence, None)
        older.later.update(self.later)
        self.later = older.later
        self.later_gone = older.later_gone + self.later_gone
        self.dead = older.dead + self.dead
        self.dead_gone = older.dead_gone + self.dead_gone
        self.results = older.results | self.results
        self.damaged = older.damaged + self.damaged
        self.damaged_gone = older.damaged_gone + self.damaged_gone
        self.tickets = older.tickets + self.tickets
        self.producers = older.producers + self.producers
        self.ends |= older.ends
        self.answers = older.answers + self.answers
        self.counts = self.counts or older.counts


class Written(NamedTuple):
    """A segment that a batch writes."""

    state: SegmentState
    members: list[QueueTask]
    parked: bool
    """Whether its tasks leave memory as soon as it is written."""


class Batch(NamedTuple):
    """What one commit writes for one partition, and the requests that wait for it."""

    changes: Changes
    written: list[Written]
    pending: Pending


class Ledger:
    """Knows which changes of a partition are written, being written, and still to be written."""

    def __init__(self, key: PartitionKey, range_id: int, stored: int, wall: float = 0.0) -> None:
        self.key = key
        self.range_id = range_id
        self.stored = stored
        """The number of tasks that the store has."""
        self.wall = wall
        """Added to the loop's time, gives the wall clock's."""
        self.fresh: dict[int, QueueTask] = {}
        self.held: OrderedDict[int, QueueTask] = OrderedDict()
        """Fresh tasks that a worker has and whose write is held; in the order of `hold_until`."""
        self.pending = Pending()
        self.under_way: Batch | None = None
        self._highest = [0] * PRIORITIES
        """The last sequence number in any segment, by priority."""
        self._pending_since = inf
        self._urgent = False
        self._deferred: list[tuple[Callable[[QueueTask, float], None], QueueTask]] = []

    def __repr__(self) -> str:
        fresh, held = len(self.fresh), len(self.held)
        commit = "none" if self.under_way is None else "one"
        return f"<Ledger: {self.stored} stored, {fresh} fresh, {held} held, {commit} under way>"

    # New tasks

    def add(self, tasks: dict[int, QueueTask]) -> None:
        """Have new tasks, by their sequence numbers, written with the next commit."""
        self.fresh.update(tasks)

    def hold(self, task: QueueTask, until: float) -> None:
        """Hold the write of a fresh task that a worker has, or is about to get."""
        sequence = task.sequence
        if self.fresh.pop(sequence, None) is not None or self.held.pop(sequence, None) is not None:
            task.hold_until = until
            self.held[sequence] = task

    def hold_again(self, task: QueueTask, until: float) -> None:
        """Hold the write of a task that a worker has and whose commit failed."""
        task.hold_until = until
        self.held[task.sequence] = task

    def hurry(self, task: QueueTask) -> None:
        """Have a held task that came back written with the next commit."""
        if self.held.pop(task.sequence, None) is not None:
            self.fresh[task.sequence] = task

    def drop(self, task: QueueTask) -> None:
        """Forget a task that was refused: it is not written."""
        sequence = task.sequence
        self.fresh.pop(sequence, None)
        self.held.pop(sequence, None)
        self.pending.later.pop(sequence, None)

    # Changes

    def remove(self, task: QueueTask, ticket: Ticket | None, now: float) -> bool:
        """Remove a task that is over. The ticket, if any, waits until that is written.

        Return False if the task was never written, so that nothing has to be.
        """
        sequence = task.sequence
        if task.writing:
            self.pending.ends.add(sequence)
            self._wait_for(ticket)
            self._deferred.append((self._removed, task))
            return True
        in_hand = self.fresh.pop(sequence, None) or self.held.pop(sequence, None)
        if in_hand is None or task.segment is not None or task.later_stored:
            pending = self.pending
            pending.ends.add(sequence)
            self._removed(task, now)
            # `_wait_for`, without a call for each task.
            tickets = pending.tickets
            if ticket is not None and not (tickets and tickets[-1] is ticket):
                ticket.left += 1
                tickets.append(ticket)
            return True
        # A row of its own may be pending, because a commit that had it failed.
        self.pending.later.pop(sequence, None)
        return False

    def remove_with_trace(self, task: QueueTask, ticket: Ticket | None, now: float) -> None:
        """Remove a task that leaves a dead letter or a result. These are written with the next
        batch, and the ticket waits for it even if the task itself was never written."""
        if not self.remove(task, ticket, now):
            self._wait_for(ticket)

    def keep_waiting(self, task: QueueTask, *, failed: bool) -> None:
        """Have the producer of a task that is over wait until its dead letter or its result is
        written."""
        if task.ticket is not None:
            self.pending.producers.append((task.ticket, failed))
            task.ticket = None

    def _removed(self, task: QueueTask, now: float) -> None:
        pending, segment, sequence = self.pending, task.segment, task.sequence
        if segment is not None:  # `_cross_out`, without a call for each task
            segment.left -= 1
            marks = pending.marked.get(segment)
            if marks is None:
                pending.marked[segment] = [sequence]
            else:
                marks.append(sequence)
        if pending.later:
            pending.later.pop(sequence, None)
        if task.later_stored:
            pending.later_gone.append(sequence)
        if now < self._pending_since:  # `_touch`, without a call for each task
            self._pending_since = now

    def remove_unread(
        self, segment: SegmentState, sequence: int, ticket: Ticket | None, now: float
    ) -> None:
        """Remove a task that is over and that only its segment has."""
        self._cross_out(segment, sequence)
        self.pending.ends.add(sequence)
        self._wait_for(ticket)
        self._touch(now)

    def postpone(self, task: QueueTask, ticket: Ticket | None, now: float) -> None:
        """Give a task a row of its own, which is read when it is due."""
        self._wait_for(ticket)
        if task.writing:
            self._deferred.append((self._postponed, task))
        else:
            self._postponed(task, now)

    def _postponed(self, task: QueueTask, now: float) -> None:
        if task.state is OVER:
            return
        sequence = task.sequence
        if task.ticket is not None:
            self._urgent = True
        self.fresh.pop(sequence, None)
        self.held.pop(sequence, None)
        if task.segment is not None:
            self._cross_out(task.segment, sequence)
            task.segment = None
            task.maybe_stored = True
        later = Later(sequence, task.due + self.wall, encode_record(self.record(task)))
        self.pending.later[sequence] = (task, later)
        self._touch(now)

    def bury(self, task: QueueTask, reason: str, now: float) -> None:
        """Write a dead letter of the task."""
        body = encode_record(self.record(task))
        self.pending.dead.append(Dead(task.sequence, now + self.wall, reason, body))
        self.pending.ends.add(task.sequence)
        self._touch(now)

    def keep_result(self, sequence: int, seconds: float, body: bytes, now: float) -> None:
        """Write a result, which the store keeps for so many seconds."""
        self.pending.results[sequence] = Result(sequence, now + self.wall + seconds, body)
        self._touch(now)

    def forget_result(self, sequence: int, now: float) -> None:
        """Let a result that the store may have expire at once: its task runs again."""
        self.pending.results[sequence] = Result(sequence, 0.0, b"")
        self._touch(now)

    def tell_when_written(self, sequence: int, token: Token, ended: Ended) -> bool:
        """Tell the token when the end of the task is on disk, and hurry the commit; return False if
        the end need not be written any more, so that the token can be told now."""
        if sequence in self.pending.ends:
            self.pending.answers.append(Tell(token, ended))
            self._urgent = True
        elif self.under_way is not None and sequence in self.under_way.pending.ends:
            self.under_way.pending.answers.append(Tell(token, ended))
        else:
            return False
        return True

    def is_ending(self, sequence: int) -> bool:
        """Return whether the end of the task still has to be written."""
        return any(sequence in pending.ends for pending in self.all_pending())

    def is_left(self, sequence: int) -> bool:
        """Return whether something of a task that is over still has to be written: its end, or its
        result. Without them a later owner might run the task again."""
        pending = self.all_pending()
        return any(sequence in one.ends or sequence in one.results for one in pending)

    def unwritten_result(self, sequence: int) -> Result | None:
        """Return a result that the store does not have yet; one that was taken back is expired."""
        rows = [pending.results.get(sequence) for pending in self.all_pending()]
        return next((row for row in rows if row is not None), None)

    def unwritten_dead(self, sequence: int) -> Dead | None:
        """Return a dead letter that the store does not have yet."""
        rows = [row for pending in self.all_pending() for row in pending.dead]
        return next((row for row in rows if row.sequence == sequence), None)

    def is_dead_going(self, sequence: int) -> bool:
        """Return whether the deletion of the dead letter still has to be written."""
        return any(sequence in pending.dead_gone for pending in self.all_pending())

    def forget_dead(self, sequence: int, ticket: Ticket | None, now: float) -> None:
        """Delete a dead letter."""
        self.pending.dead_gone.append(sequence)
        self._wait_for(ticket)
        self._urgent = True
        self._touch(now)

    def set_aside(self, row: Damaged, now: float) -> None:
        """Move a row that cannot be read to the table of damaged rows."""
        self.pending.damaged.append(row)
        self._touch(now)

    def forget_damaged(
        self, kind: DamagedKind, first: int, ticket: Ticket | None, now: float
    ) -> None:
        """Delete a row that was set aside: an operator dropped it or brought it back."""
        self.pending.damaged_gone.append((kind, first))
        self._wait_for(ticket)
        self._urgent = True
        self._touch(now)

    def is_damaged_going(self, kind: DamagedKind, first: int) -> bool:
        """Return whether the deletion of a damaged row still has to be written."""
        return any((kind, first) in pending.damaged_gone for pending in self.all_pending())

    def bring_back(self, row: Dead | Result, now: float) -> None:
        """Write a dead letter or a result again that had been set aside."""
        if isinstance(row, Dead):
            self.pending.dead.append(row)
        else:
            self.pending.results[row.sequence] = row
        self._touch(now)

    def keep_controls(self, row: bytes, ticket: Ticket | None, now: float) -> None:
        """Write the row of the queue's controls, which does not expire."""
        self.pending.results[CONTROLS_ROW] = Result(CONTROLS_ROW, NEVER_EXPIRES, row)
        self._wait_for(ticket)
        self._urgent = True
        self._touch(now)

    def set_counts(self, counts: PartitionCounts, ticket: Ticket | None, now: float) -> None:
        self.pending.counts = counts
        self._wait_for(ticket)
        self._urgent = True
        self._touch(now)

    def wait_for_what_is_pending(self, ticket: Ticket, now: float) -> None:
        """Have the ticket wait until all pending changes are on disk, if there are any."""
        if self.pending or self.under_way is not None:
            self._wait_for(ticket)
            self._touch(now)

    def answer_when_written(self, answer: TellRevoked | RefuseToTell, now: float) -> bool:
        """Give the answer when everything up to now is on disk; False if it is, so that the answer
        can be given at once. If the store fails, the caller hears of that."""
        if not self.pending and self.under_way is None:
            return False
        self.pending.answers.append(answer)
        self._touch(now)
        return True

    def record(self, task: QueueTask) -> Record:
        """Return the task as it is stored."""
        return self._records([task])[0]

    def _records(self, tasks: list[QueueTask]) -> list[Record]:
        wall = self.wall
        return [
            Record(
                task.sequence,
                task.priority,
                task.attempt,
                task.added + wall,
                task.expires + wall if task.expires else 0.0,
                task.terms,
                task.payload,
                task.failure,
                task.by,
                task.past,
                task.trace,
            )
            for task in tasks
        ]

    def _cross_out(self, segment: SegmentState, sequence: int) -> None:
        segment.left -= 1
        marks = self.pending.marked.get(segment)
        if marks is None:
            self.pending.marked[segment] = [sequence]
        else:
            marks.append(sequence)

    def _wait_for(self, ticket: Ticket | None) -> None:
        """Have the ticket wait for the next batch, with one part for all its ends in that batch."""
        tickets = self.pending.tickets
        if ticket is not None and not (tickets and tickets[-1] is ticket):
            ticket.left += 1
            tickets.append(ticket)

    def _touch(self, now: float) -> None:
        if now < self._pending_since:
            self._pending_since = now

    def unwritten(self) -> StoredUse:
        """Compute how much is in memory that the store does not have."""
        if not (self.fresh or self.held or self.under_way is not None or self.pending):
            return StoredUse()
        tasks = self.fresh | self.held
        if self.under_way is not None:
            for _, members, _ in self.under_way.written:
                tasks.update((task.sequence, task) for task in members)
        letters = size = 0
        for pending in self.all_pending():
            later = (task for task, _ in pending.later.values() if not task.stored)
            tasks.update((task.sequence, task) for task in later)
            letters += len(pending.dead)
            size += rows_bytes(pending.dead, pending.results.values())
        size += sum(
            len(task.payload) + len(task.failure) + len(task.past) + len(task.trace)
            for task in tasks.values()
        )
        size += TASK_BYTES * len(tasks)
        return StoredUse(len(tasks) + letters, size)

    # Writing

    def wanted_at(self, finish_seconds: float) -> float:
        """Return when the next batch should be taken; infinity if there is nothing to write."""
        if self.under_way is not None:
            return inf
        if self.fresh or self._urgent:
            return 0.0
        wanted = self._pending_since + finish_seconds if self.pending else inf
        if self.held:
            wanted = min(wanted, next(iter(self.held.values())).hold_until)
        return wanted

    def take(self, now: float, *, anything: bool = False) -> Batch | None:
        """Return a batch of the changes that are due; the caller commits it and then calls
        `committed` or `failed`.

        With `anything`, the batch has all changes, or is empty if there are none: to leave in
        order, or to see whether the store answers again.
        """
        if self.under_way is not None:
            return None
        tasks = list(self.fresh.values())
        self.fresh = {}
        for task in list(self.held.values()):
            if task.hold_until > now and not anything:
                break
            del self.held[task.sequence]
            tasks.append(task)
        pending = self.pending
        if not tasks and not pending and not anything:
            self._urgent = False
            return None
        self.pending = Pending()
        self._pending_since = inf
        self._urgent = False
        late = [task for task in tasks if task.sequence <= self._highest[task.priority]]
        if late:
            # Segments of one priority never overlap, so a late task gets a row of its own.
            tasks = [task for task in tasks if task.sequence > self._highest[task.priority]]
            for task in late:
                body = encode_record(self.record(task))
                later = Later(task.sequence, task.ready + self.wall, body)
                pending.later[task.sequence] = (task, later)
        written = self._segments(tasks)
        changes = Changes(self.key, self.range_id, 0, counts=pending.counts)
        for state, members, _ in written:
            records = self._records(members)
            changes.segments.append(
                Segment(
                    state.priority, state.first, state.last, len(members), encode_records(records)
                )
            )
        removed = len(pending.later_gone)
        for state, sequences in pending.marked.items():
            removed += len(sequences)
            if state.left:
                changes.marks.extend(sequences)
            else:
                gone = Segment(state.priority, state.first, state.last, 0, b"")
                changes.segments_gone.append(gone)
        for task, later in pending.later.values():
            changes.later.append(later)
            removed -= not task.later_stored
            task.writing = True
        changes.later_gone = pending.later_gone
        changes.dead = pending.dead
        changes.dead_gone = pending.dead_gone
        if pending.damaged or pending.damaged_gone:
            removed += _set_aside(changes, pending)
        changes.results = list(pending.results.values())
        changes.backlog = self.stored + len(tasks) - removed
        self.under_way = Batch(changes, written, pending)
        return self.under_way

    def _segments(self, tasks: list[QueueTask]) -> list[Written]:
        """Divide tasks into segments, with parked tasks, which are read again, in their own."""
        groups: dict[tuple[int, bool], list[QueueTask]] = {}
        for task in tasks:
            task.writing = True
            kind = (task.priority, task.state is PARKED)
            group = groups.get(kind)
            if group is None:
                groups[kind] = [task]
            else:
                group.append(task)
        written = []
        for (priority, parked), group in groups.items():
            group.sort(key=_sequence)
            for members in _split(group):
                first, last = members[0].sequence, members[-1].sequence
                state = SegmentState(priority, first, last, len(members))
                written.append(Written(state, members, parked))
            self._highest[priority] = max(self._highest[priority], group[-1].sequence)
        return written

    def committed(self, now: float) -> Batch:
        """Note that the batch under way is on disk, and return it."""
        batch = self._batch_ended()
        self.stored = batch.changes.backlog
        for state, members, _ in batch.written:
            for task in members:
                task.writing = False
                task.segment = state
        for task, _ in batch.pending.later.values():
            task.writing = False
            task.later_stored = True
        self._do_deferred(now)
        return batch

    def failed(self, now: float, again_at: float) -> Batch:
        """Note that the batch under way was not written, and return it. All its changes but new
        tasks are tried again."""
        batch = self._batch_ended()
        for _, members, _ in batch.written:
            for task in members:
                task.writing = False
                task.maybe_stored = True
        for task, _ in batch.pending.later.values():
            task.writing = False
            task.maybe_stored = True
        self.pending.follow(batch.pending)
        if self.pending:
            self._pending_since = min(self._pending_since, again_at)
        self._do_deferred(now)
        return batch

    def all_pending(self) -> list[Pending]:
        """Return the changes that are to be written and those that are being written."""
        return [self.pending] if self.under_way is None else [self.pending, self.under_way.pending]

    def _batch_ended(self) -> Batch:
        batch = self.under_way
        if batch is None:
            raise RuntimeError("no batch is under way")
        self.under_way = None
        return batch

    def _do_deferred(self, now: float) -> None:
        deferred, self._deferred = self._deferred, []
        for happen, task in deferred:
            happen(task, now)


def _set_aside(changes: Changes, pending: Pending) -> int:
    """Put the rows that are set aside into the changes; return how many tasks they take away.

    A batch that failed is taken again, so the lists of the pending changes stay as they are.
    """
    changes.damaged = pending.damaged
    changes.damaged_gone = pending.damaged_gone
    deletable = [row for row in pending.damaged if row.body]
    changes.segments_gone += [
        Segment(row.priority, row.first, row.last, 0, b"")
        for row in deletable
        if row.kind == "segment"
    ]
    later_gone = [row.first for row in deletable if row.kind == "later"]
    changes.later_gone = changes.later_gone + later_gone
    changes.dead_gone = changes.dead_gone + [row.first for row in deletable if row.kind == "dead"]
    return sum(row.tasks for row in pending.damaged)


def _split(group: list[QueueTask]) -> Iterator[list[QueueTask]]:
    """Yield the tasks in order, in parts that are not too large for a segment."""
    start = size = 0
    for at, task in enumerate(group):
        length = len(task.payload)
        size += length
        if at > start and (size > SEGMENT_BYTES or at - start == SEGMENT_TASKS):
            yield group[start:at]
            start, size = at, length
    yield group[start:]


_sequence: Final = attrgetter("sequence")
