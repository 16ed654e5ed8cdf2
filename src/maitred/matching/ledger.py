"""What a partition has to write down, gathered until the next group is committed.

A new task is *fresh*. One that nobody has taken is written with the next group. One that a worker
has got already may wait a little (`hold`): if it ends first, nothing of it is ever written.

`take` makes one batch of everything that is to be written now; one batch at a time is under way.
What happens to a task while a batch has it waits for the end of the batch.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field

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

    from maitred.matching.effects import Ended, RefuseToTell, TellRevoked
    from maitred.matching.records import DamagedKind, PartitionKey
    from maitred.matching.task import Token
    from maitred.routing.counts import PartitionCounts

SEGMENT_TASKS: Final = 1_000
"""No segment has more. Half of what a partition has in memory: a read that reaches what it wants
with its last segment does not go far beyond."""

SEGMENT_BYTES: Final = 2**20
"""Nor payloads of more, unless it is of one task: segments are read whole. A row this large costs
a store what its bytes cost; smaller ones would cost it more rows."""


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
        """These came after `older`, which could not be written: they become one."""
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
    """Whether its tasks are in the store alone as soon as it is written."""


class Batch(NamedTuple):
    """What one commit writes for one partition, and the requests that wait for it."""

    changes: Changes
    written: list[Written]
    pending: Pending


class Ledger:
    """What is written, what is being written, and what is not yet."""

    def __init__(self, key: PartitionKey, range_id: int, stored: int, wall: float = 0.0) -> None:
        self.key = key
        self.range_id = range_id
        self.stored = stored
        """Tasks that the store has."""
        self.wall = wall
        """What to add to the loop's time for the wall clock's."""
        self.fresh: dict[int, QueueTask] = {}
        self.held: OrderedDict[int, QueueTask] = OrderedDict()
        """Fresh too, but with a worker; in the order of `hold_until`."""
        self.pending = Pending()
        self.under_way: Batch | None = None
        self._highest = [0] * PRIORITIES
        """The last sequence number in any segment, by priority."""
        self._pending_since = inf
        self._urgent = False
        self._deferred: list[tuple[Callable[[QueueTask, float], None], QueueTask]] = []

    # New tasks

    def add(self, tasks: dict[int, QueueTask]) -> None:
        """These, by their sequence numbers, have to be written as soon as can be."""
        self.fresh.update(tasks)

    def hold(self, task: QueueTask, until: float) -> None:
        """A worker has got it, or is about to: its writing may wait."""
        sequence = task.sequence
        if self.fresh.pop(sequence, None) is not None or self.held.pop(sequence, None) is not None:
            task.hold_until = until
            self.held[sequence] = task

    def hold_again(self, task: QueueTask, until: float) -> None:
        """A commit that had it failed, and a worker has it."""
        task.hold_until = until
        self.held[task.sequence] = task

    def hurry(self, task: QueueTask) -> None:
        """No worker has it any more: it has to be written as soon as can be."""
        if self.held.pop(task.sequence, None) is not None:
            self.fresh[task.sequence] = task

    def drop(self, task: QueueTask) -> None:
        """Write nothing of it: it was refused."""
        sequence = task.sequence
        self.fresh.pop(sequence, None)
        self.held.pop(sequence, None)
        self.pending.later.pop(sequence, None)

    # What becomes of them

    def remove(self, task: QueueTask, ticket: Ticket | None, now: float) -> bool:
        """Remove a task that is over. The ticket, if any, waits until the store knows.

        False if the task was never written: then the store need not know of it.
        """
        sequence = task.sequence
        if task.writing:
            self.pending.ends.add(sequence)
            self._wait_for(ticket)
            self._deferred.append((self._removed, task))
            return True
        in_hand = self.fresh.pop(sequence, None) or self.held.pop(sequence, None)
        if in_hand is None or task.segment is not None or task.later_stored:
            self.pending.ends.add(sequence)
            self._removed(task, now)
            self._wait_for(ticket)
            return True
        # A row of its own may be waiting to be written, since a commit that had it failed.
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
        if task.segment is not None:
            self._cross_out(task.segment, task.sequence)
        self.pending.later.pop(task.sequence, None)
        if task.later_stored:
            self.pending.later_gone.append(task.sequence)
        if now < self._pending_since:  # `_touch`, without a call for each task
            self._pending_since = now

    def remove_unread(
        self, segment: SegmentState, sequence: int, ticket: Ticket | None, now: float
    ) -> None:
        """A task that is in the store alone is over."""
        self._cross_out(segment, sequence)
        self.pending.ends.add(sequence)
        self._wait_for(ticket)
        self._touch(now)

    def postpone(self, task: QueueTask, ticket: Ticket | None, now: float) -> None:
        """It gets a row of its own, found when it is due."""
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
        later = Later(sequence, task.due + self.wall, encode_record(self.record(task)))
        self.pending.later[sequence] = (task, later)
        self._touch(now)

    def bury(self, task: QueueTask, reason: str, now: float) -> None:
        """It becomes a dead letter."""
        body = encode_record(self.record(task))
        self.pending.dead.append(Dead(task.sequence, now + self.wall, reason, body))
        self.pending.ends.add(task.sequence)
        self._touch(now)

    def keep_result(self, sequence: int, seconds: float, body: bytes, now: float) -> None:
        """The result outlives the process."""
        self.pending.results[sequence] = Result(sequence, now + self.wall + seconds, body)
        self._touch(now)

    def forget_result(self, sequence: int, now: float) -> None:
        """The task is not over after all: a result that the store may have expires at once."""
        self.pending.results[sequence] = Result(sequence, 0.0, b"")
        self._touch(now)

    def tell_when_written(self, sequence: int, token: Token, ended: Ended) -> bool:
        """Tell the token when the end of the task is on disk, which is then soon; False if nothing
        of it has to be written any more, so that the token can be told now."""
        if sequence in self.pending.ends:
            self.pending.answers.append(Tell(token, ended))
            self._urgent = True
        elif self.under_way is not None and sequence in self.under_way.pending.ends:
            self.under_way.pending.answers.append(Tell(token, ended))
        else:
            return False
        return True

    def is_ending(self, sequence: int) -> bool:
        """Whether the task is over, and its end has to be written and is not on disk."""
        return any(sequence in pending.ends for pending in self.all_pending())

    def unwritten_result(self, sequence: int) -> Result | None:
        """Return a result that the store does not have yet; one that was taken back is expired."""
        rows = [pending.results.get(sequence) for pending in self.all_pending()]
        return next((row for row in rows if row is not None), None)

    def unwritten_dead(self, sequence: int) -> Dead | None:
        """Return a dead letter that the store does not have yet."""
        rows = [row for pending in self.all_pending() for row in pending.dead]
        return next((row for row in rows if row.sequence == sequence), None)

    def is_dead_going(self, sequence: int) -> bool:
        """Whether the dead letter is crossed out, though the store may not know yet."""
        return any(sequence in pending.dead_gone for pending in self.all_pending())

    def forget_dead(self, sequence: int, ticket: Ticket | None, now: float) -> None:
        self.pending.dead_gone.append(sequence)
        self._wait_for(ticket)
        self._urgent = True
        self._touch(now)

    def set_aside(self, row: Damaged, now: float) -> None:
        """A row that cannot be read leaves its place and is kept for a person."""
        self.pending.damaged.append(row)
        self._touch(now)

    def forget_damaged(
        self, kind: DamagedKind, first: int, ticket: Ticket | None, now: float
    ) -> None:
        """A person dropped a row that was set aside, or brought it back."""
        self.pending.damaged_gone.append((kind, first))
        self._wait_for(ticket)
        self._urgent = True
        self._touch(now)

    def is_damaged_going(self, kind: DamagedKind, first: int) -> bool:
        """Whether a person has decided on the row, though the store may not know yet."""
        return any((kind, first) in pending.damaged_gone for pending in self.all_pending())

    def bring_back(self, row: Dead | Result, now: float) -> None:
        """A dead letter or a result that had been set aside is in its place again."""
        if isinstance(row, Dead):
            self.pending.dead.append(row)
        else:
            self.pending.results[row.sequence] = row
        self._touch(now)

    def set_counts(self, counts: PartitionCounts, ticket: Ticket | None, now: float) -> None:
        self.pending.counts = counts
        self._wait_for(ticket)
        self._urgent = True
        self._touch(now)

    def wait_for_what_is_pending(self, ticket: Ticket, now: float) -> None:
        """The ticket says nothing new, and is not answered before what was said is on disk."""
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
        """The task as it is written down."""
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
        """Have the ticket wait for the next batch. One part of it waits for all its ends that are
        in the same batch."""
        tickets = self.pending.tickets
        if ticket is not None and not (tickets and tickets[-1] is ticket):
            ticket.left += 1
            tickets.append(ticket)

    def _touch(self, now: float) -> None:
        if now < self._pending_since:
            self._pending_since = now

    def unwritten(self) -> StoredUse:
        """Compute how much is in memory that the store does not have, written soon or never."""
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
        size += sum(len(task.payload) + len(task.failure) for task in tasks.values())
        size += TASK_BYTES * len(tasks)
        return StoredUse(len(tasks) + letters, size)

    # Writing

    def wanted_at(self, finish_seconds: float) -> float:
        """When the next batch should be taken; infinity if there is nothing to write."""
        if self.under_way is not None:
            return inf
        if self.fresh or self._urgent:
            return 0.0
        wanted = self._pending_since + finish_seconds if self.pending else inf
        if self.held:
            wanted = min(wanted, next(iter(self.held.values())).hold_until)
        return wanted

    def take(self, now: float, *, anything: bool = False) -> Batch | None:
        """What is to be written now; the caller commits it, and says what came of it.

        With `anything`, also what could wait, and an empty batch if there is nothing: to leave in
        order, or to see whether the store is back.
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
            # Segments of one priority never overlap, so one who comes late gets a row of its own.
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
        """Parked tasks apart from the others: they will be read again, the others will not."""
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
        """The batch under way is on disk."""
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
        """Nothing of the batch under way was written; all but new tasks will be tried again."""
        batch = self._batch_ended()
        for _, members, _ in batch.written:
            for task in members:
                task.writing = False
        for task, _ in batch.pending.later.values():
            task.writing = False
        self.pending.follow(batch.pending)
        if self.pending:
            self._pending_since = min(self._pending_since, again_at)
        self._do_deferred(now)
        return batch

    def all_pending(self) -> list[Pending]:
        """What is to be written and what is being written."""
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
    """Put what is set aside into the changes; return how many tasks of the backlog that takes.

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
    """In their order, parts that are not too large for a segment."""
    start = size = 0
    for at, task in enumerate(group):
        length = len(task.payload)
        size += length
        if at > start and (size > SEGMENT_BYTES or at - start == SEGMENT_TASKS):
            yield group[start:at]
            start, size = at, length
    yield group[start:]


_sequence: Final = attrgetter("sequence")
