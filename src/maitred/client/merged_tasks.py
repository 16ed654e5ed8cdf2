"""Merges the tasks that the partitions of a queue list into one order.

Each partition lists its tasks by a moment: when they began, are due, or ended. The merged order is
that of (moment, partition, sequence number), counted up or, for tasks that are over, down. It is
total and does not depend on who answers first, so *one* place in it says where to go on in every
partition, and a cursor has the same size for one partition and for a thousand.

A partition does a bounded amount of work for an answer. It may say that it has looked at its tasks
up to some place, and found none that passes the filter. So each partition has a *frontier*: up to
there all its tasks are known, and a task of another partition beyond it has to wait.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from maitred.protocol.inspection import ListedTask, TasksListed

After = tuple[float, int]
"""A place in the list of one partition: a moment and a sequence number. Its next task is the one
behind this place."""

BEGINNING: Final[After] = (0.0, 0)
SEQUENCE_MIN: Final = 1
SEQUENCE_MAX: Final = 2**63 - 1
"""All tasks have numbers between these two. 0 would say the beginning, with the moment 0."""

_Key = tuple[float, int, int]
"""Moment, partition and sequence number; all of them negative in an order that is counted down."""


class TaskPlace(NamedTuple):
    """A place in the merged order: behind this task of this partition."""

    moment: float
    partition: int
    sequence: int


def check_listed(partition: int, asked: After, listed: TasksListed, *, descending: bool) -> None:
    """Raise `ProtocolViolation` unless the answer goes on behind the place `asked`, in order: a
    caller that follows its cursors would never come to an end."""
    sign = -1 if descending else 1
    before = None if asked == BEGINNING else (sign * asked[0], sign * asked[1])
    for one in listed.tasks:
        at = (sign * one.at[0], sign * one.at[1])
        if before is not None and at <= before:
            raise ProtocolViolation(f"The list of partition {partition} goes backwards.")
        before = at
    cursor = listed.cursor
    if cursor is None:
        return
    at = (sign * cursor[0], sign * cursor[1])
    # The cursor may be the place of the last task.
    is_behind = before is None or at > before or (at == before and bool(listed.tasks))
    if cursor == BEGINNING or not is_behind:
        raise ProtocolViolation(f"The list of partition {partition} does not go on.")


class MergedTasks:
    """One page of the merged order. Decides which partitions to ask, and takes their answers."""

    def __init__(self, place: TaskPlace | None, most: int, *, descending: bool) -> None:
        """`place` is where the page begins; None: at the beginning."""
        self.tasks: list[ListedTask] = []
        """The page, as far as it is known."""
        self._begin = place
        self._last = place
        self._most = most
        self._sign = -1 if descending else 1
        self._known: dict[int, list[ListedTask]] = {}
        """Tasks of each partition that wait for their turn, the next one last."""
        self._frontiers: dict[int, After] = {}
        """Where to go on in partitions that may have more tasks."""
        self._heads: list[tuple[_Key, int]] = []
        """A heap with one entry for each partition: its next known task, or else its frontier."""

    def begins(self, partition: int) -> After:
        """Return the place from which the partition is asked."""
        place = self._begin
        if place is None:
            return BEGINNING
        if partition == place.partition:
            return (place.moment, place.sequence)
        # Counted up, the tasks of lower partitions that share the moment are on earlier pages: go
        # on behind them all. Counted down, they are on later ones: begin before them all. In both
        # cases this is behind the highest number, and for higher partitions behind the lowest.
        is_lower = partition < place.partition
        return (place.moment, SEQUENCE_MAX if is_lower else SEQUENCE_MIN)

    def answered(self, answers: Mapping[int, TasksListed]) -> None:
        """Take the answers of partitions."""
        self.lost(answers)
        for partition, listed in answers.items():
            if listed.cursor is not None:
                self._frontiers[partition] = listed.cursor
            self._known[partition] = list(reversed(listed.tasks))
            self._queue(partition)

    def lost(self, partitions: Collection[int]) -> None:
        """Go on without these partitions."""
        for partition in partitions:
            self._frontiers.pop(partition, None)
        self._heads = [head for head in self._heads if head[1] not in partitions]
        heapify(self._heads)

    def take(self) -> None:
        """Move to the page the tasks of which it is known that they are next."""
        while self._heads and len(self.tasks) < self._most:
            key, partition = self._heads[0]
            waiting = self._known[partition]
            if not waiting:
                # All that comes is behind this frontier: the page may go on here, if it ends.
                self._last = self._place(key)
                return
            self.tasks.append(waiting.pop())
            self._last = self._place(key)
            heappop(self._heads)
            self._queue(partition)

    @property
    def place(self) -> TaskPlace | None:
        """Return where the next page begins, or None if this page is the last one."""
        return self._last if self._heads else None

    def wanted(self) -> dict[int, After]:
        """Return the partitions whose next tasks have to be known before the page can go on, and
        from where to ask each."""
        found: dict[int, After] = {}
        if len(self.tasks) < self._most:
            for _, partition in sorted(self._heads):
                if self._known[partition]:
                    break  # what is behind this task is not needed yet
                found[partition] = self._frontiers[partition]
        return found

    def _queue(self, partition: int) -> None:
        """Enter the partition's next task, or its frontier, into the heap."""
        waiting = self._known[partition]
        at = waiting[-1].at if waiting else self._frontiers.get(partition)
        if at is not None:
            heappush(self._heads, (self._key(partition, at), partition))

    def _key(self, partition: int, at: After) -> _Key:
        sign = self._sign
        return sign * at[0], sign * partition, sign * at[1]

    def _place(self, key: _Key) -> TaskPlace:
        sign = self._sign
        return TaskPlace(sign * key[0], sign * key[1], sign * key[2])
