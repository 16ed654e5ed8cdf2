"""The history of a partition in the store: tasks that ended, many in one row.

A queue can have its tasks written to the store when they are over (`history.stored`), so that they
are shown after a restart. The tasks are those that memory keeps, `EndedTasks`, so one description
of what is kept, and one list, serve both: the rows are read once into memory, before the first look
after the partition was loaded. If more than `history.tasks` end between two commits, those before
the last ones are written no more: they would expire at once.

Rows are written by a commit of their own, about a second after the ends. A task never waits for
that commit and never fails with it; a full disk or a quota costs the history only. Tasks whose ends
still have to be written are left to the next commit: a task that may run again is in no row.

Rows stand among the results under negative numbers, of which each owner of the partition has its
own. They expire `history.seconds` after the last end in them, like results. A partition that has
more than `history.tasks` in its rows lets the oldest row expire at once, so it has at most one row
more than that. A row is sealed with a checksum; one that cannot be read is left out, and expires.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field, msgpack

from maitred.matching.ledger import SEGMENT_BYTES, SEGMENT_TASKS
from maitred.matching.records import (
    ROW_BYTES,
    UNREADABLE,
    Changes,
    Record,
    Result,
    RowDamagedError,
    StoredUse,
    rows_bytes,
    seal,
    unseal,
)
from maitred.matching.task import OVER, recalled
from maitred.matching.task_ends import EndStatus  # noqa: TC001 - msgspec reads it
from maitred.matching.task_history import kept_bytes, stored_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.matching.ledger import Ledger
    from maitred.matching.quotas import Quota
    from maitred.matching.records import StoredHistoryRow
    from maitred.matching.task import QueueTask
    from maitred.matching.task_history import EndedTasks

EXPIRED_AT_ONCE: Final = 1_000
"""Rows that one commit lets expire: some milliseconds of the store's time."""


class EndedRecord(Struct, array_like=True, gc=False):
    """A task that is over, as it is stored. Moments are wall-clock seconds."""

    record: Record
    status: EndStatus
    ended_at: float
    worker: str = ""
    """The worker that had the task last; empty if none had it."""
    given_at: float = 0.0
    """When that worker was given the task; 0: not known."""
    forwarded: bool = False
    """Whether that worker waited at a parent partition."""
    payload_gone: int = 0
    """Length of the payload, if it was too large to be kept."""


class HistoryBody(Struct, array_like=True, gc=False):
    """The tasks of one row, in the order of their ends."""

    expires_at: float
    """When the row expires."""
    ended: list[EndedRecord]


class HistoryBlock(NamedTuple):
    """A row of the store, as the partition remembers it."""

    number: int
    tasks: int
    """Its tasks that are in no later row."""
    expires_at: float
    """When the row expires; infinity if it cannot be read."""
    ended_at: float
    """When the last of its tasks ended; infinity if it cannot be read."""


class HistoryWrite(NamedTuple):
    """What one commit writes of a history."""

    changes: Changes
    block: HistoryBlock | None
    """The new row."""
    tasks: list[QueueTask]
    """The tasks in it."""
    expired: list[HistoryBlock]
    """Rows that are to expire now."""


class HistoryReading(Struct, gc=False):
    """The rows that were read so far; those of the last ends come first."""

    blocks: list[HistoryBlock] = field(default_factory=list)
    tasks: list[QueueTask] = field(default_factory=list)
    """As many as memory may keep, the last one first."""
    bytes: int = 0
    """What these take in memory."""
    seen: set[int] = field(default_factory=set)
    """The tasks of all these rows: one may be in two, if the outcome of a commit was unknown."""
    damaged: int = 0
    """Rows that cannot be read."""


_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(HistoryBody).decode


def decode_history(body: bytes) -> HistoryBody:
    """Read a row; raise `RowDamagedError` if it is damaged."""
    try:
        return _decode(unseal(body))
    except UNREADABLE as problem:
        raise RowDamagedError(f"It is not what was written: {problem}.") from None


class StoredHistory:
    """Knows which tasks that ended a partition has in the store, and what is to be written."""

    def __init__(
        self,
        first_sequence: int,
        ledger: Ledger,
        ended: EndedTasks,
        quotas: Sequence[Quota],
    ) -> None:
        """`first_sequence` is the first number of this owner of the partition."""
        self._first = first_sequence
        self._ledger = ledger
        self._ended = ended
        self._quotas = quotas
        self._blocks: deque[HistoryBlock] = deque()
        """The rows in the store, the oldest first."""
        self._tasks = 0
        """The tasks in them."""
        self._written = 0
        """Numbers of rows that this owner has used."""
        self._is_read = False
        self.lacks_room = False
        """Whether a quota had no room to spare for the next row."""
        if self.has_unstored:
            self.want_written()

    def __repr__(self) -> str:
        return f"<StoredHistory: {self._tasks} tasks in {len(self._blocks)} rows>"

    # Reading

    @property
    def is_known(self) -> bool:
        """Whether memory has what the rows of earlier owners have, as far as it is kept."""
        return self._is_read or not self._ended.is_stored

    @property
    def rows_of_others(self) -> int:
        """The number above which the rows of earlier owners are."""
        return -self._first

    def read(self, rows: Iterable[StoredHistoryRow], into: HistoryReading, most_bytes: int) -> None:
        """Add rows that follow those that were read; keep tasks of at most so many bytes."""
        ended, wall = self._ended, self._ledger.wall
        for number, body in rows:
            try:
                found = decode_history(body)
            except RowDamagedError:
                into.damaged += 1
                into.blocks.append(HistoryBlock(number, 0, inf, inf))
                continue
            last = found.ended[-1].ended_at if found.ended else 0.0
            fresh = [one for one in found.ended if one.record.sequence not in into.seen]
            into.seen.update(one.record.sequence for one in fresh)
            into.blocks.append(HistoryBlock(number, len(fresh), found.expires_at, last))
            for one in reversed(fresh):
                if len(into.tasks) >= ended.most or into.bytes >= most_bytes:
                    break
                task = _task_of(one, wall)
                into.bytes += kept_bytes(task)
                into.tasks.append(task)

    def read_whole(self, reading: HistoryReading, now: float) -> None:
        """Take over all rows of earlier owners, unless that was done meanwhile."""
        if self._is_read:
            return
        self._is_read = True
        self._blocks.extendleft(reading.blocks)
        self._tasks += sum(block.tasks for block in reading.blocks)
        self._ended.leave_out(reading.seen)
        self._ended.restore(reading.tasks, now)

    # Writing

    @property
    def has_unstored(self) -> bool:
        """Whether tasks have ended that the store is to have and has not."""
        return bool(self._ended.row or self._ended.unstored)

    def is_due(self, now: float) -> bool:
        """Return whether there is something to write: tasks that have ended, or rows that are to
        expire."""
        return self.has_unstored or self._is_oldest_due(self._tasks, now + self._ledger.wall)

    def want_written(self) -> None:
        """Have the shell take what is to be written: the settings have changed, or more is left."""
        self._ended.want_stored()

    def take(self, now: float) -> HistoryWrite | None:
        """Return what the next commit is to write; None if there is nothing. The caller reports
        with `stored` or `not_stored`."""
        ended, ledger = self._ended, self._ledger
        tasks = self._next(now)
        changes = Changes(ledger.key, ledger.range_id, ledger.stored)
        block = None
        left = self._tasks
        if tasks:
            number = -(self._first + self._written)
            self._written += 1
            ended_at = tasks[-1].ended + ledger.wall
            expires_at = ended_at + ended.seconds
            body = HistoryBody(expires_at, [_record_of(task, ledger) for task in tasks])
            changes.results.append(Result(number, expires_at, seal(_encode(body))))
            block = HistoryBlock(number, len(tasks), expires_at, ended_at)
            left += len(tasks)
        expired: list[HistoryBlock] = []
        blocks, wall_now = self._blocks, now + ledger.wall
        while len(expired) < EXPIRED_AT_ONCE and self._is_oldest_due(left, wall_now):
            oldest = blocks.popleft()
            self._tasks -= oldest.tasks
            left -= oldest.tasks
            if oldest.expires_at > wall_now:  # else the store deletes it, or has done so
                expired.append(oldest)
        changes.results += [Result(one.number, 0.0, b"") for one in expired]
        if not changes.results:
            return None
        return HistoryWrite(changes, block, tasks, expired)

    def _is_oldest_due(self, tasks: int, wall_now: float) -> bool:
        """Return whether the oldest row is too old, or one too many with so many tasks in all."""
        if not self._blocks:
            return False
        ended, oldest = self._ended, self._blocks[0]
        most = ended.most if ended.is_stored else 0
        if tasks - oldest.tasks >= most:
            return True
        # By the present settings, or by those with which it was written.
        return min(oldest.ended_at + ended.seconds, oldest.expires_at) <= wall_now

    def _next(self, now: float) -> list[QueueTask]:
        """Return the tasks of the next row; none if a quota has no room to spare."""
        ended, is_left = self._ended, self._ledger.is_left
        tasks: list[QueueTask] = []
        self.lacks_room = False
        if not self.has_unstored:
            return tasks
        if self._has_spare(0, now):  # else without a look at each task
            ended.fill_row(SEGMENT_TASKS, SEGMENT_BYTES)
            tasks += takewhile(lambda task: not is_left(task.sequence), ended.row)
        self.lacks_room = not self._has_spare(sum(map(stored_bytes, tasks)), now)
        if self.lacks_room:
            self.wait(now)
            return []
        return tasks

    def _has_spare(self, size: int, now: float) -> bool:
        """Return whether the quotas have room to spare for a row with tasks of so many bytes."""
        return all(quota.has_spare(ROW_BYTES + size, now) for quota in self._quotas)

    def wait(self, now: float) -> None:
        """Leave the tasks of the next row to memory: they cannot be written for now."""
        self._ended.empty_row(now)

    def stored(self, write: HistoryWrite) -> None:
        """Note that the commit is on disk."""
        row = self._ended.row
        for task in write.tasks:
            if row and row[0] is task:  # unless the setting was changed meanwhile
                row.popleft()
        if write.block is not None:
            self._blocks.append(write.block)
            self._tasks += write.block.tasks
        added = StoredUse(0, rows_bytes(write.changes.results))
        for quota in self._quotas:
            quota.wrote(added)

    def not_stored(self, write: HistoryWrite, now: float, *, maybe: bool = False) -> None:
        """Note that nothing was written, or `maybe` something. The tasks are taken again, unless
        memory drops them, and written in another row: tasks that are in two are shown once."""
        self.wait(now)
        self._blocks.extendleft(reversed(write.expired))
        self._tasks += sum(block.tasks for block in write.expired)
        if maybe and write.block is not None:
            self._blocks.append(write.block._replace(tasks=0))


def _record_of(task: QueueTask, ledger: Ledger) -> EndedRecord:
    return EndedRecord(
        ledger.record(task),
        task.status,
        task.ended + ledger.wall,
        task.worker,
        task.given_at + ledger.wall if task.given_at else 0.0,
        task.forwarded,
        task.payload_gone,
    )


def _task_of(ended: EndedRecord, wall: float) -> QueueTask:
    at = ended.ended_at - wall
    task = recalled(ended.record, wall=wall, now=at, state=OVER)
    task.status, task.ended = ended.status, at
    task.worker, task.forwarded = ended.worker, ended.forwarded
    task.given_at = ended.given_at - wall if ended.given_at else 0.0
    task.payload_gone = ended.payload_gone
    return task
