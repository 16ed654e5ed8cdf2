"""The history of tasks: the attempts that are over, and the tasks that ended lately.

The history of a task that is not over costs next to nothing: most of it is in the fields that the
task has anyway. Only what an attempt left behind is noted in addition, when it has failed, was lost
or was given back (`PastAttempt`). These notes are stored with the task, so they survive a restart.

A task that is over stays in memory for a while, as it was (`EndedTasks`). That takes no conversion,
and so a fraction of a microsecond for each task: the tasks that end are the hot path. A partition
that is loaded again, or moves to another node, begins with none.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import DecodeError, Struct, msgpack, structs

from maitred.matching.failures import kind_of, message_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from maitred.matching.records import PartitionKey
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
"""The tasks that ended of a busy partition are a sample of at least so many seconds."""

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
    """Counts the memory that the ended tasks of all partitions of a shard take."""

    __slots__ = ("most_bytes", "used")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used = 0


class EndedTasks:
    """The tasks of one partition that ended lately, in the order of their ends.

    A partition that is let go and loaded again on this shard finds them here. They are in a queue
    without an index: a task may be added for each that ends, and is looked for when an operator
    asks.

    A partition that ends tens of thousands of tasks a second would keep the last milliseconds only,
    and pay for it: every task would leave the processor's caches before it is dropped, which takes
    5 to 8 % of the CPU time of all processes. So after `most` tasks, `most / KEPT_FOR_SECONDS` a
    second are kept, and the others of that second are left out.
    """

    __slots__ = ("_kept", "_left", "_memory", "_most", "_refilled_at", "_seconds")

    def __init__(self, most: int, seconds: float, memory: HistoryMemory) -> None:
        self._kept: deque[QueueTask] = deque()
        self._memory = memory
        self._most = most
        self._seconds = seconds
        self._left = 0
        """How many more tasks are kept before the next refill."""
        self._refilled_at = -inf

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<EndedTasks: {len(self._kept)} of {self._most}>"

    def limit_to(self, most: int, seconds: float) -> None:
        """Keep at most `most` tasks from now on, each for `seconds` after its end."""
        if most != self._most:
            self._most, self._left, self._refilled_at = most, 0, -inf
        self._seconds = seconds
        while len(self._kept) > most:
            self._drop_oldest()

    def add(self, task: QueueTask, status: EndStatus, now: float) -> None:
        """Keep a task that ends now, unless too many ended in this second."""
        if self._left <= 0 and not self._refill(now):
            return
        self._left -= 1
        most = self._most
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
        # Another partition may have filled the memory, or a large task came after small ones.
        while memory.used > memory.most_bytes and kept:
            self._drop_oldest()

    def _refill(self, now: float) -> bool:
        """Allow for further tasks, if a second has passed; return whether there is room for one."""
        seconds = now - self._refilled_at
        if seconds < 1.0:
            return False
        self._refilled_at = now
        self._left = min(self._most, ceil(self._most * min(seconds / KEPT_FOR_SECONDS, 1.0)))
        return self._left > 0

    def get(self, sequence: int, now: float) -> QueueTask | None:
        """Return a task that ended, unless it is forgotten."""
        return next((task for task in self.last_first(now) if task.sequence == sequence), None)

    def last_first(self, now: float) -> Iterator[QueueTask]:
        """Yield the tasks that ended, the last one first."""
        for task in reversed(self._kept):
            if task.ended + self._seconds <= now:
                return
            yield task

    def forget_expired(self, now: float) -> None:
        """Forget the tasks that ended more than `history.seconds` ago."""
        kept = self._kept
        while kept and kept[0].ended + self._seconds <= now:
            self._drop_oldest()

    def clear(self) -> None:
        """Forget all of them: the queue was deleted."""
        while self._kept:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._kept.popleft()
        self._memory.used -= TASK_BYTES + len(oldest.payload)
        if oldest.past:
            self._memory.used -= len(oldest.past) + len(oldest.failure)


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
            found = self._of[key] = EndedTasks(0, 0.0, self.memory)
        return found

    def forget_expired(self, now: float, loaded: Container[PartitionKey]) -> None:
        """Forget tasks that ended long ago, and partitions that are not loaded and have none."""
        for key, ended in list(self._of.items()):
            ended.forget_expired(now)
            if not len(ended) and key not in loaded:
                del self._of[key]

    def queue_deleted(self, key: PartitionKey) -> None:
        """Forget the tasks of all partitions of a queue."""
        for one in [one for one in self._of if one[:3] == key[:3]]:
            self._of.pop(one).clear()


def no_history() -> EndedTasks:
    """Return a place for tasks that are over, of a partition whose settings limit it."""
    return EndedTasks(0, 0.0, HistoryMemory(DEFAULT_BYTES))
