"""The history of tasks: the attempts that are over, and the tasks that ended lately.

The history of a task that is not over costs next to nothing: most of it is in the fields that the
task has anyway. Only what an attempt left behind is noted in addition, when it has failed, was lost
or was given back (`PastAttempt`). These notes are stored with the task, so they survive a restart.

A task that is over stays in memory for a while, as it was (`EndedTasks`). That takes no conversion,
and so a fraction of a microsecond for each task: the tasks that end are the hot path. A queue can
have these tasks written to the store as well, later and many at once (`stored_history.py`).
Otherwise a partition that is loaded by another process begins with none.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import DecodeError, Struct, msgpack, structs

from maitred.matching.failures import kind_of, message_of
from maitred.matching.records import TASK_BYTES as STORED_TASK_BYTES
from maitred.matching.records import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from maitred.matching.task import QueueTask
    from maitred.matching.task_ends import EndStatus

ATTEMPTS_MAX: Final = 10
"""Attempts of one task that are noted, the last ones: each takes 50 to 300 bytes of its row."""

MESSAGE_LETTERS: Final = 200
"""Characters of an error's message that the note of an attempt has. The last failure is stored
whole, with its traceback."""

TASK_BYTES: Final = 600
"""What an ended task takes in memory besides its payload and its failure."""

PAYLOAD_BYTES: Final = 16 * 1024
"""A larger payload is not kept with an ended task: some of them would push out the history of all
other tasks."""

DEFAULT_BYTES: Final = 64 * 2**20
"""Memory for the ended tasks of a shard, unless its settings say otherwise."""

KEPT_FOR_SECONDS: Final = 10.0
"""The tasks that ended of a busy partition are a sample of at least so many seconds, if they are
not stored."""

REFILL_SECONDS: Final = 1.0
"""How long the tasks that such a partition keeps are counted together."""

AttemptEnd = str
"""How an attempt ended: `failed`, `timed-out`, `lost`, `returned` or `stopped`."""


class PastAttempt(Struct, array_like=True, frozen=True, gc=False):
    """An attempt that is over and was not the last one. Moments are unix times in seconds."""

    attempt: int
    worker: str
    started_at: float
    """When the worker was given the task; 0: not known."""
    ended_at: float
    how: AttemptEnd
    error: str = ""
    """Class of the exception, or a code."""
    message: str = ""
    forwarded: bool = False
    """Whether the worker waited at a parent partition."""


class PastAttempts(NamedTuple):
    """The attempts that are noted of one task, and how many before them are not."""

    omitted: int
    attempts: list[PastAttempt]


_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(tuple[int, list[PastAttempt]]).decode
_NONE: Final = PastAttempts(0, [])


def past_attempts(notes: bytes) -> PastAttempts:
    """Read the notes of a task; without an error if a later release wrote them in another form."""
    if not notes:
        return _NONE
    try:
        return PastAttempts(*_decode(notes))
    except (DecodeError, UnicodeDecodeError, ValueError):
        return _NONE


def with_attempt(notes: bytes, attempt: PastAttempt) -> bytes:
    """Return the notes with one more attempt."""
    omitted, attempts = past_attempts(notes)
    attempts = [*attempts, attempt]
    if len(attempts) > ATTEMPTS_MAX:
        omitted += len(attempts) - ATTEMPTS_MAX
        del attempts[:-ATTEMPTS_MAX]
    return _encode((omitted, attempts))


def attempt_of(
    task: QueueTask, how: AttemptEnd, failure: bytes, now: float, wall: float
) -> PastAttempt:
    """Return the note about the attempt that a task has just ended."""
    return PastAttempt(
        task.attempt + 1,
        task.worker,
        task.given_at + wall if task.given_at else 0.0,
        now + wall,
        how,
        kind_of(failure) if failure else "",
        message_of(failure, MESSAGE_LETTERS) if failure else "",
        task.forwarded,
    )


class HistoryMemory:
    """Counts the memory that the ended tasks of all partitions of a shard take, and knows which
    partitions have some to store."""

    __slots__ = ("lost", "most_bytes", "unstored", "used")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used = 0
        self.unstored: dict[PartitionKey, None] = {}
        """Partitions whose stored history has to be changed, in the order in which that began."""
        self.lost = 0
        """Tasks that were to be stored, and were dropped before they were, although they were among
        the last `history.tasks` and had not expired."""


class EndedTasks:
    """The tasks of one partition that ended lately, in the order of their ends.

    A partition that is let go and loaded again on this shard finds them here. They are in a queue
    without an index: a task may be added for each that ends, and is looked for when an operator
    asks.

    Where they are written to the store, these are the last `most` that ended, without exception,
    as far as the memory of the shard goes.

    In memory only, a partition that ends tens of thousands of tasks a second would keep the last
    milliseconds, and pay for it: every task would leave the processor's caches before it is
    dropped, which takes 5 to 8 % of the CPU time of all processes. So there, after `most` tasks,
    `most / KEPT_FOR_SECONDS` a second are kept, and the others of that second are left out.
    """

    __slots__ = (
        "_kept",
        "_key",
        "_memory",
        "_refilled_at",
        "_room",
        "is_stored",
        "keeps_at",
        "most",
        "row",
        "seconds",
        "unstored",
    )

    def __init__(self, key: PartitionKey, memory: HistoryMemory) -> None:
        self._key = key
        self._kept: deque[QueueTask] = deque()
        self._memory = memory
        self.most = 0
        self.seconds = 0.0
        self.is_stored = False
        """Whether the tasks that end are to be written to the store."""
        self.unstored: deque[QueueTask] = deque()
        """Tasks that the store does not have and is to get, in the order of their ends. While it
        cannot take them they go with the tasks that are kept, so no more of them wait."""
        self.row: deque[QueueTask] = deque()
        """Tasks that ended before those, and are written next. They stay although later ones push
        them out of the tasks that are kept: in a busy partition all that are kept may have ends
        that no commit has written yet, whenever a row is to be written."""
        self._room = 0.0
        """How many more tasks are kept before the next refill; infinity if all are kept."""
        self._refilled_at = -inf
        self.keeps_at = inf
        """The loop's time from which on a task that ends is kept; until then `add` does nothing."""

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        unstored = len(self.row) + len(self.unstored)
        return f"<EndedTasks: {len(self._kept)} of {self.most}, {unstored} unstored>"

    def limit_to(self, most: int, seconds: float, *, is_stored: bool) -> None:
        """Keep at most `most` tasks from now on, each for `seconds` after its end; have those that
        end from now on stored, or not."""
        if most != self.most or is_stored != self.is_stored:
            self._room, self._refilled_at = inf if is_stored else 0, -inf
            self.keeps_at = -inf if most else inf
        self.most, self.seconds, self.is_stored = most, seconds, is_stored
        while len(self._kept) > most:
            self._drop_oldest()
        while len(self.unstored) > most:
            self.unstored.popleft()
        if not is_stored:
            self.row.clear()
            self.unstored.clear()

    def add(self, task: QueueTask, status: EndStatus, now: float) -> None:
        """Keep a task that ends now, unless it is kept in memory only and too many ended in this
        second."""
        if now < self.keeps_at:
            return
        if not self._room:
            self._refill(now)
        self._room -= 1
        if not self._room:
            self.keeps_at = self._refilled_at + REFILL_SECONDS
        most = self.most
        task.status = status
        task.ended = now
        kept, memory = self._kept, self._memory
        size = len(task.payload)
        if size > PAYLOAD_BYTES:
            task = structs.replace(task, payload=b"", payload_gone=size)
            size = 0
        if task.past:
            size += len(task.past) + len(task.failure)
        if len(kept) == most:  # `_drop_oldest`, without a call for each task
            oldest = kept.popleft()
            size -= len(oldest.payload)
            if oldest.past:
                size -= len(oldest.past) + len(oldest.failure)
        else:
            size += TASK_BYTES
        kept.append(task)
        memory.used += size
        if self.is_stored:
            unstored = self.unstored
            unstored.append(task)
            memory.unstored[self._key] = None  # `want_stored`, without a call for each task
            if len(unstored) > most:
                unstored.popleft()  # it is beyond the number, so it is not lost
        # Another partition may have filled the memory, or a large task came after small ones.
        if memory.used > memory.most_bytes:
            self._fit_memory(now)

    def _fit_memory(self, now: float) -> None:
        """Drop the oldest tasks until those of the shard are within their memory."""
        memory, kept = self._memory, self._kept
        while memory.used > memory.most_bytes and kept:
            self._drop_oldest()
        self._drop_unstored(now)

    def _drop_unstored(self, now: float) -> None:
        """Give up on storing tasks that memory has dropped. One that is among the last `most` and
        has not expired is lost: there was no room for it. With minus infinity for `now`, one that
        has expired is lost, too."""
        unstored = self.unstored
        while len(unstored) > len(self._kept):
            task = unstored.popleft()
            if len(unstored) < self.most and task.ended + self.seconds > now:
                self._memory.lost += 1

    def want_stored(self) -> None:
        """Have the shell look at the stored history of this partition."""
        self._memory.unstored[self._key] = None

    def fill_row(self, most: int, most_bytes: int) -> None:
        """Choose the tasks that are written next, unless some are chosen: at most so many and of so
        many bytes, or one."""
        if self.row:
            return
        row, unstored = self.row, self.unstored
        size = 0
        while unstored and len(row) < most:
            size += stored_bytes(unstored[0])
            if row and size > most_bytes:
                break
            row.append(unstored.popleft())

    def empty_row(self, now: float) -> None:
        """Have the tasks of the next row wait with the others, as long as memory keeps them."""
        self.unstored.extendleft(reversed(self.row))
        self.row.clear()
        self._drop_unstored(now)

    def leave_out(self, stored: Container[int]) -> None:
        """Do not store these tasks, because a row of the store has them: this shard lost the
        partition while the commit with the row was under way."""
        self.unstored = deque(task for task in self.unstored if task.sequence not in stored)

    def _refill(self, now: float) -> None:
        """Allow for further tasks: a second or more has passed since the last refill."""
        seconds = now - self._refilled_at
        self._refilled_at = now
        self._room = min(self.most, ceil(self.most * min(seconds / KEPT_FOR_SECONDS, 1.0)))
        self.keeps_at = -inf

    def get(self, sequence: int, now: float) -> QueueTask | None:
        """Return a task that ended, unless it is forgotten."""
        return next((task for task in self.last_first(now) if task.sequence == sequence), None)

    def last_first(self, now: float) -> Iterator[QueueTask]:
        """Yield the tasks that ended, the last one first."""
        for task in reversed(self._kept):
            if task.ended + self.seconds <= now:
                return
            yield task

    def restore(self, found: Iterable[QueueTask], now: float) -> None:
        """Keep tasks that ended before, at another owner of the partition: of these and those that
        are kept, the last ones that there is room for. They come with the last one first."""
        memory = self._memory
        known = {task.sequence for task in self._kept}
        fresh: list[QueueTask] = []
        for task in found:
            if task.sequence not in known and task.ended + self.seconds > now:
                known.add(task.sequence)
                fresh.append(task)
        if not fresh:
            return
        memory.used += sum(map(kept_bytes, fresh))
        kept = sorted([*reversed(fresh), *self._kept], key=attrgetter("ended"))
        self._kept.clear()
        self._kept += kept
        while len(self._kept) > self.most:
            self._drop_oldest()
        self._fit_memory(now)

    def forget_expired(self, now: float, *, is_loaded: bool = True) -> None:
        """Forget the tasks that ended more than `history.seconds` ago. If the partition is not
        loaded here, those that are not stored are lost: another owner did not have them."""
        kept, before = self._kept, len(self._kept)
        while kept and kept[0].ended + self.seconds <= now:
            self._drop_oldest()
        self._drop_unstored(now if is_loaded else -inf)
        if self.is_stored and len(kept) < before:
            self.want_stored()  # their rows may expire later: `seconds` may have been lowered

    def forget_unless(self, is_over: Callable[[int], bool]) -> None:
        """Forget the tasks of which this is not true: the next owner may run them again."""
        memory, kept = self._memory, [*self._kept]
        self._kept.clear()
        for task in kept:
            if is_over(task.sequence):
                self._kept.append(task)
            else:
                memory.used -= kept_bytes(task)
        self.row = deque(task for task in self.row if is_over(task.sequence))
        self.unstored = deque(task for task in self.unstored if is_over(task.sequence))

    def clear(self) -> None:
        """Forget all of them: the queue was deleted."""
        self.row.clear()
        self.unstored.clear()
        while self._kept:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._memory.used -= kept_bytes(self._kept.popleft())


def kept_bytes(task: QueueTask) -> int:
    """Return how much a task that is over takes in memory."""
    size = TASK_BYTES + len(task.payload)
    return size + len(task.past) + len(task.failure) if task.past else size


def stored_bytes(task: QueueTask) -> int:
    """Return how much a task that is over takes in the store, at most."""
    return STORED_TASK_BYTES + len(task.payload) + len(task.failure) + len(task.past)


class TaskHistories:
    """The ended tasks of all partitions of a shard, also of those that were let go meanwhile."""

    def __init__(self, most_bytes: int) -> None:
        self.memory = HistoryMemory(most_bytes)
        self._of: dict[PartitionKey, EndedTasks] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, key: PartitionKey) -> EndedTasks:
        """Return the ended tasks of a partition that is being loaded."""
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = EndedTasks(key, self.memory)
        return found

    def forget_expired(self, now: float, loaded: Container[PartitionKey]) -> None:
        """Forget tasks that ended long ago, and partitions that are not loaded and have none."""
        for key, ended in list(self._of.items()):
            is_loaded = key in loaded
            ended.forget_expired(now, is_loaded=is_loaded)
            if not len(ended) and not is_loaded:
                del self._of[key]

    def queue_deleted(self, key: PartitionKey) -> None:
        """Forget the tasks of all partitions of a queue."""
        for one in [one for one in self._of if one[:3] == key[:3]]:
            self._of.pop(one).clear()


def no_history() -> EndedTasks:
    """Return a place for tasks that are over, of a partition whose settings limit it."""
    return EndedTasks(PartitionKey("", "", 0, 0), HistoryMemory(DEFAULT_BYTES))
