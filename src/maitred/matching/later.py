"""The tasks that wait for their time: the next ones in memory, the others in the store.

All that are due before `known_until` are in memory. What is due after it is read when the time
comes near. If too many are in memory, those that are due last are left to the store again.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from maitred.matching.task import WAITING

if TYPE_CHECKING:
    from maitred.matching.task import Task

HORIZON_SECONDS = 60.0
"""So far ahead tasks are read from the store."""

MARGIN_SECONDS = 10.0
"""So long before the end of what is known the next ones are read."""


class LaterTasks:
    """A heap by the moment when they are due."""

    def __init__(self, buffer: int, *, stored: bool) -> None:
        self._heap: list[tuple[float, int, Task]] = []
        self._buffer = buffer
        self.known_until = -inf if stored else inf
        """Nothing in the store is due before this that is not here."""
        self.reading = False

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, task: Task) -> bool:
        """Keep it here; False if the store will do."""
        if task.due >= self.known_until and not task.writing and task.later_stored:
            return False
        heappush(self._heap, (task.due, task.sequence, task))
        return True

    def next_due(self) -> float:
        """When the first one here is due."""
        heap = self._heap
        while heap and (heap[0][2].state is not WAITING or heap[0][2].due != heap[0][0]):
            heappop(heap)
        return heap[0][0] if heap else inf

    def peek(self) -> Task:
        """The first, after `next_due` has said that there is one."""
        return self._heap[0][2]

    def pop(self) -> None:
        """The first leaves."""
        heappop(self._heap)

    def shrink(self) -> list[Task]:
        """If there are too many: those that the store has and that are due last."""
        if len(self._heap) <= 2 * self._buffer:
            return []
        ordered = sorted(entry for entry in self._heap if entry[2].state is WAITING)
        kept = ordered[: self._buffer]
        dropped = []
        for entry in ordered[self._buffer :]:
            task = entry[2]
            if task.later_stored and not task.writing:
                dropped.append(task)
                self.known_until = min(self.known_until, task.due)
            else:
                kept.append(entry)
        heapify(kept)
        self._heap = kept
        return dropped

    def read_wanted(self, now: float) -> float:
        """The moment up to which to read now; 0 if there is no need."""
        if self.reading or self.known_until - MARGIN_SECONDS > now:
            return 0.0
        if len(self._heap) >= self._buffer:
            return 0.0  # first those that are here
        self.reading = True
        return now + HORIZON_SECONDS

    def read_wanted_at(self) -> float:
        """When the next read is due."""
        if self.reading or len(self._heap) >= self._buffer:
            return inf
        return self.known_until - MARGIN_SECONDS

    def was_read(self, before: float, last_due: float, *, all_of_it: bool) -> None:
        """Everything before the moment is here, or as far as `last_due`."""
        self.reading = False
        self.known_until = max(self.known_until, before if all_of_it else last_due)
