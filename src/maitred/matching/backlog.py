"""The backlog: tasks that wait for an offer, in order, as many of them as fit into the buffer.

Each priority is a line of its own. The front of a line is in memory. When a line is longer than the
buffer, in tasks or in bytes, its rest is in the store alone: new tasks are *parked*, which means
that they are forgotten as soon as they are written, and the line is continued by reading segments
above the *cursor*. When everything above it has been read, the line is all in memory again.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from maitred.matching.records import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maitred.matching.records import Segment
    from maitred.matching.task import QueueTask
    from maitred.matching.task_memory import TaskMemory


class Reading(NamedTuple):
    """Segments to read from the store: those of a priority above a sequence number."""

    priority: int
    after: int
    tasks: int
    most_bytes: int
    """Bytes of bodies. The read ends with the segment that reaches this, or that many tasks."""
    known: int
    """The highest segment that the store had when the read was asked for."""

    def is_all(self, found: Sequence[tuple[Segment, frozenset[int]]]) -> bool:
        """Return whether the store had no more: the segments reach neither of both limits."""
        return (
            sum(segment.tasks for segment, _ in found) < self.tasks
            and sum(len(segment.body) for segment, _ in found) < self.most_bytes
        )


class Line:
    """The tasks of one priority."""

    __slots__ = (
        "_memory",
        "_places",
        "_returned",
        "back",
        "bytes",
        "cursor",
        "known",
        "parked",
        "reading",
        "tasks",
    )

    def __init__(self, known: int, memory: TaskMemory) -> None:
        self._memory = memory
        self.tasks: OrderedDict[QueueTask, None] = OrderedDict()
        """Tasks that wait, except those that came back."""
        self.bytes = 0
        """Payloads of all tasks that are READY."""
        self._places = 0
        self.back: set[QueueTask] = set()
        """Tasks that came back, and go before all others."""
        self._returned: list[tuple[int, int, QueueTask]] = []
        """Heap of the tasks that came back, by their original place; some may have left."""
        self.cursor = 0
        """The first number of a segment. All segments up to it have been read, or were written
        from tasks that stayed in memory."""
        self.known = known
        """The highest segment in the store that may not have been read."""
        self.parked: dict[int, QueueTask] = {}
        """New tasks that are not written yet, and follow those in the store."""
        self.reading = False

    @property
    def waiting(self) -> int:
        """The number of tasks that are READY."""
        return len(self.tasks) + len(self.back)

    def push(self, task: QueueTask) -> None:
        self._places += 1
        task.place = self._places
        self.tasks[task] = None
        size = len(task.payload)
        self.bytes += size
        self._memory.used += size

    def extend(self, tasks: Iterable[QueueTask]) -> None:
        """Push tasks, in their order."""
        line, place, size = self.tasks, self._places, 0
        for task in tasks:
            place += 1
            task.place = place
            line[task] = None
            size += len(task.payload)
        self._places = place
        self._count(size)

    def push_back(self, task: QueueTask) -> None:
        """Put a task that came back at its original place."""
        self._places += 1
        self.back.add(task)
        self._count(len(task.payload))
        heappush(self._returned, (task.place, self._places, task))

    def left(self, task: QueueTask) -> None:
        self._count(-len(task.payload))
        if task in self.back:
            self.back.remove(task)
            if not self.back:
                self._returned.clear()
        else:
            del self.tasks[task]

    def first(self) -> QueueTask:
        """Return the next task; there must be one."""
        returned = self._returned
        while returned:
            task = returned[0][2]
            if task in self.back:
                return task
            heappop(returned)
        return next(iter(self.tasks))

    def pop_back(self) -> QueueTask:
        """Take out the first task that came back; the caller counts its bytes."""
        task = self.first()
        heappop(self._returned)
        self.back.remove(task)
        return task

    def forget(self) -> None:
        """Give the memory back: the partition is let go."""
        self._count(-self.bytes)

    def _count(self, size: int) -> None:
        self.bytes += size
        self._memory.used += size

    def __iter__(self) -> Iterator[QueueTask]:
        yield from sorted(self.back, key=attrgetter("place"))
        yield from self.tasks

    @property
    def on_disk(self) -> bool:
        """Whether tasks of the line are in the store alone, or about to be."""
        return self.known > self.cursor or bool(self.parked)


class Backlog:
    """The lines of all priorities."""

    def __init__(
        self,
        buffer: int,
        buffer_bytes: int,
        first_sequence: int,
        memory: TaskMemory,
        *,
        stored: bool,
    ) -> None:
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self._memory = memory
        known = first_sequence - 1 if stored else 0
        self.lines = tuple(Line(known, memory) for _ in range(PRIORITIES))
        self._last = self.lines[-1]
        """The line that `pop` took a task from last."""
        self.ready = 0
        """Tasks in memory that wait for an offer."""

    def __repr__(self) -> str:
        unread = sum(line.on_disk for line in self.lines)
        return f"<Backlog: {self.ready} ready, {unread} lines continue in the store>"

    def _most_bytes(self, line: Line) -> int:
        """Return how many bytes the line may have in memory now."""
        return self._memory.share(self._buffer_bytes, line.bytes)

    def forget(self) -> None:
        """Give the memory back: the partition is let go."""
        for line in self.lines:
            line.forget()

    def parks(self, priority: int) -> bool:
        """Return whether a new task of this priority has to wait behind others in the store."""
        line = self.lines[priority]
        return (
            line.on_disk
            or line.waiting >= self._buffer
            or line.bytes >= self._buffer_bytes
            or self._memory.refuses(line.bytes)
        )

    def park(self, priority: int, tasks: dict[int, QueueTask]) -> None:
        """Keep new tasks only until they are written; by their sequence numbers, rising."""
        line = self.lines[priority]
        if tasks and not line.on_disk:
            line.cursor = max(line.cursor, next(iter(tasks)) - 1)
        line.parked.update(tasks)

    def unparked(self, task: QueueTask) -> None:
        """Forget a parked task that is over."""
        self.lines[task.priority].parked.pop(task.sequence, None)

    def parked_stored(self, priority: int, first: int, tasks: list[QueueTask]) -> None:
        """Forget parked tasks that were written: they are read again when it is their turn."""
        line = self.lines[priority]
        line.known = max(line.known, first)
        for task in tasks:
            line.parked.pop(task.sequence, None)

    def push(self, task: QueueTask) -> None:
        """Append a task to its line."""
        self.lines[task.priority].push(task)
        self.ready += 1

    def extend(self, priority: int, tasks: Iterable[QueueTask]) -> None:
        """Push tasks of one priority."""
        line = self.lines[priority]
        before = len(line.tasks)
        line.extend(tasks)
        self.ready += len(line.tasks) - before

    def push_back(self, task: QueueTask) -> None:
        """Put a task that came back at its original place in its line."""
        self.lines[task.priority].push_back(task)
        self.ready += 1

    def left(self, task: QueueTask) -> None:
        """Take out a task that is READY; the caller changes its state."""
        self.lines[task.priority].left(task)
        self.ready -= 1

    def first(self) -> QueueTask | None:
        """Return the next task, if any."""
        if not self.ready:
            return None
        return next(line.first() for line in self.lines if line.waiting)

    def pop(self) -> QueueTask:
        """Take out the next task, which there must be; the caller changes its state."""
        line = self._last
        if line.back or len(line.tasks) != self.ready:  # other lines may come first
            line = self._last = next(one for one in self.lines if one.waiting)
        task = line.pop_back() if line.back else line.tasks.popitem(last=False)[0]
        size = len(task.payload)
        line.bytes -= size
        self._memory.used -= size
        self.ready -= 1
        return task

    def waiting(self) -> Iterator[QueueTask]:
        """Yield all tasks that are READY, in their order."""
        for line in self.lines:
            yield from line

    def room(self, priority: int) -> bool:
        """Return whether tasks that become due may join the line."""
        line = self.lines[priority]
        return line.waiting < 2 * self._buffer and line.bytes < 2 * self._most_bytes(line)

    # Reading

    def wanted(self) -> Reading | None:
        """Return what to read next, if a line runs short. Each line has one read at a time."""
        for priority, line in enumerate(self.lines):
            if line.known <= line.cursor:  # checked first: it holds for most lines
                continue
            if line.reading or line.waiting > self._buffer // 2:
                continue
            most_bytes = self._most_bytes(line)
            if line.bytes <= most_bytes // 2:
                line.reading = True
                room = max(1, most_bytes - line.bytes)
                return Reading(priority, line.cursor, self._buffer, room, line.known)
        return None

    def was_read(
        self, reading: Reading, last_first: int | None, *, all_of_it: bool
    ) -> list[QueueTask]:
        """Note that segments up to `last_first` are in memory; return parked tasks that follow.

        `all_of_it` says that the store had no more when it was asked.
        """
        line = self.lines[reading.priority]
        line.reading = False
        if last_first is not None:
            line.cursor = max(line.cursor, last_first)
        if all_of_it:
            line.cursor = max(line.cursor, reading.known)
        return self.caught_up(reading.priority)

    def caught_up(self, priority: int) -> list[QueueTask]:
        """If no tasks of the line are in the store alone, return the parked tasks: they are next.

        Parked tasks that are too large for the memory are written and read again instead.
        """
        line = self.lines[priority]
        if line.known > line.cursor or not line.parked:
            return []
        if any(task.writing for task in line.parked.values()):
            return []
        following = list(line.parked.values())
        if line.bytes + sum(len(task.payload) for task in following) > 2 * self._most_bytes(line):
            return []
        line.parked = {}
        return following

    def read_failed(self, reading: Reading) -> None:
        """Allow the line to be read again."""
        self.lines[reading.priority].reading = False

    def unread(self, priority: int, first: int) -> bool:
        """Return whether the tasks of a segment are in the store alone."""
        line = self.lines[priority]
        return line.cursor < first <= line.known

    @property
    def reading(self) -> bool:
        """Whether a read of segments is under way."""
        return any(line.reading for line in self.lines)

    @property
    def any_unread(self) -> bool:
        """Whether the store has tasks that are not in memory."""
        return any(line.known > line.cursor for line in self.lines)
