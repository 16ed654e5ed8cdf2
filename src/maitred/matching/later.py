"""Tasks that wait until they are due: the next ones in memory, the others in the store.

All tasks that are due before `known_until` are in memory. Later ones are read when the time comes
near. If too many are in memory, those that are due last are left to the store again.

A read may find rows of tasks that are over: rows that the next commit deletes, or that a commit
deleted while the read was under way. `LaterTasks` remembers such tasks and skips their rows.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from maitred.matching.records import PRIORITIES
from maitred.matching.task import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from maitred.matching.task import QueueTask
    from maitred.matching.task_memory import TaskMemory

HORIZON_SECONDS = 60.0
"""How far ahead tasks are read from the store."""

MARGIN_SECONDS = 10.0
"""How long before `known_until` the next tasks are read."""

ROW_BYTES = 192
"""Most bytes that the row of a task has besides its payload, its failure, the notes about its
attempts and its trace context."""

Entry = tuple[float, int, "QueueTask"]


class LaterTasks:
    """Delayed tasks and retries: one heap per priority, ordered by the moment when tasks are due.

    The priorities are separate, so that a line that is full does not keep tasks out of the others.
    """

    def __init__(self, buffer: int, buffer_bytes: int, memory: TaskMemory, *, stored: bool) -> None:
        self._memory = memory
        self._heaps: tuple[list[Entry], ...] = tuple([] for _ in range(PRIORITIES))
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self.bytes = 0
        """Payloads of all tasks in memory that wait until they are due."""
        self._further_bytes = 0
        """Bytes to read in addition, because the last read found only rows that were known."""
        self.known_until = -inf if stored else inf
        """All tasks in the store that are due before this are in memory."""
        self.reading = False
        self._over: dict[int, float] = {}
        """Tasks that are over and whose rows a read may still find; and the number of the commit
        that deleted the row, infinity until then."""
        self._commits = 0
        self._lookups: dict[object, int] = {}
        """Reads that are under way, the oldest first, and how many commits had ended when each
        began."""

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def add(self, task: QueueTask) -> None:
        """Let a task wait in memory until it is due."""
        self._over.pop(task.sequence, None)
        heappush(self._heaps[task.priority], (task.due, task.sequence, task))
        self._count(len(task.payload))

    def first(self, room: Callable[[int], bool]) -> QueueTask | None:
        """Return the task that is due first, of the priorities whose line has room."""
        found: Entry | None = None
        for priority, heap in enumerate(self._heaps):
            if not heap:
                continue
            while heap and not _waits(heap[0]):
                self._count(-len(heappop(heap)[2].payload))
            if heap and (found is None or heap[0] < found) and room(priority):
                found = heap[0]
        return None if found is None else found[2]

    def pop(self, task: QueueTask) -> None:
        """Take out the first task of its priority."""
        heappop(self._heaps[task.priority])
        self._count(-len(task.payload))

    def forget(self) -> None:
        """Give the memory back: the partition is let go."""
        self._count(-self.bytes)

    def _count(self, size: int) -> None:
        self.bytes += size
        self._memory.used += size

    @property
    def _most_bytes(self) -> int:
        """How many bytes may be in memory now."""
        return self._memory.share(self._buffer_bytes, self.bytes)

    def shrink(self, unwritten: Collection[int]) -> list[QueueTask]:
        """If there are too many tasks in memory, take out and return those that are due last and
        that the store has in their present form; `unwritten` are tasks whose rows are pending."""
        most_bytes = self._most_bytes
        if self.reading or (len(self) <= 2 * self._buffer and self.bytes <= 2 * most_bytes):
            return []
        ordered = sorted(entry for heap in self._heaps for entry in heap if _waits(entry))
        kept: list[Entry] = []
        dropped = []
        self.forget()
        for entry in ordered:
            task = entry[2]
            is_full = len(kept) >= self._buffer or self.bytes >= most_bytes
            stored = task.later_stored and not task.writing and task.sequence not in unwritten
            if is_full and stored:
                dropped.append(task)
                self.known_until = min(self.known_until, task.due)
            else:
                kept.append(entry)
                self._count(len(task.payload))
        for heap in self._heaps:
            heap.clear()
        for entry in kept:
            self._heaps[entry[2].priority].append(entry)
        for heap in self._heaps:
            heapify(heap)
        return dropped

    # Rows of tasks that are over

    def row_over(self, sequence: int) -> None:
        """Remember that a task is over whose row the store has, or may have soon."""
        self._over[sequence] = inf

    def is_over(self, sequence: int) -> bool:
        """Return whether a row that a read found belongs to a task that is over."""
        return sequence in self._over

    def rows_crossed_out(self, not_yet: Collection[int]) -> None:
        """Note that a commit has ended; the rows in `not_yet` are still to be deleted.

        A read that began before the commit may still find the deleted rows, so those tasks are
        remembered until no such read is under way.
        """
        self._commits += 1
        if not self._over:
            return
        for sequence, commit in self._over.items():
            if commit == inf and sequence not in not_yet:
                self._over[sequence] = self._commits
        self._forget()

    def lookup_begins(self, lookup: object) -> None:
        """Remember rows of tasks that end from now on, until `lookup_ends`: the store is being
        read, and may return them."""
        self._lookups[lookup] = self._commits

    def has_committed_since(self, lookup: object) -> bool:
        """Return whether a commit has ended since the look-up began."""
        return self._commits > self._lookups[lookup]

    def lookup_ends(self, lookup: object) -> None:
        """Forget the rows that were remembered for this look-up alone."""
        self._lookups.pop(lookup, None)
        self._forget()

    def _forget(self) -> None:
        began = next(iter(self._lookups.values()), self._commits)
        if self._over:
            self._over = {one: commit for one, commit in self._over.items() if commit > began}

    # Reading

    def _enough(self) -> bool:
        """Return whether memory is full of tasks that are due before any in the store."""
        is_full = len(self) >= self._buffer or self.bytes >= self._most_bytes
        return is_full and self._next() <= self.known_until

    def _next(self) -> float:
        first = self.first(lambda _: True)
        return inf if first is None else first.due

    def read_wanted(self, now: float) -> float:
        """Begin a read if one is needed: return the moment up to which to read, else 0."""
        if self.reading or self.known_until - MARGIN_SECONDS > now or self._enough():
            return 0.0
        self.reading = True
        self.lookup_begins(self)
        return now + HORIZON_SECONDS

    def knows_all(self) -> None:
        """Note that the store has no tasks."""
        self.known_until = inf

    def read_wanted_at(self) -> float:
        """Return when the next read is due."""
        if self.reading or self.known_until == inf or self._enough():
            return inf
        return self.known_until - MARGIN_SECONDS

    def read_size(self, in_memory: int) -> int:
        """Return how many rows to read, so that a buffer full of them is new."""
        return self._buffer + in_memory + len(self._over)

    def read_bytes(self, in_memory: Iterable[QueueTask]) -> int:
        """Return how many bytes of bodies to read: tasks in memory are found again."""
        known = sum(
            len(task.payload) + len(task.failure) + len(task.past) + len(task.trace) + ROW_BYTES
            for task in in_memory
            if task.later_stored
        )
        return self._most_bytes + known + self._further_bytes

    def read_ended(self) -> None:
        """Note that the read was answered or failed."""
        self.reading = False
        self.lookup_ends(self)

    def was_read(self, until: float, *, any_new: bool) -> None:
        """Note that all tasks due before `until` are in memory."""
        self.read_ended()
        if any_new or until > self.known_until:
            self._further_bytes = 0
        else:  # only rows of tasks that are over, which filled the whole read
            self._further_bytes = 2 * self._further_bytes + self._buffer_bytes
        self.known_until = max(self.known_until, until)


def _waits(entry: Entry) -> bool:
    """Return whether the entry's task still waits until this moment."""
    return entry[2].state is WAITING and entry[2].due == entry[0]
