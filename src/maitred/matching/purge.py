"""Drops tasks that wait, for operators: in pieces, so that other requests are served in between.

The partition drops what it has in memory, and then reads the next tasks from the store as it always
does. So a purge of ten million tasks takes no more memory than the backlog may.

A purge ends with the tasks that were there when it began: `until` is the last number given out
then. Tasks at a worker, or on their way to one, are not touched.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import msgpack, structs

from maitred.matching.task import PARKED, READY, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maitred.matching.backlog import Line
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.records import Dead, Later, Record, Terms
    from maitred.matching.store_replies import StoreReplies
    from maitred.matching.task import QueueTask, Ticket
    from maitred.matching.task_results import TaskResults
    from maitred.matching.task_transitions import OwnTasks

PURGED: Final = msgpack.encode(["task-purged", "An operator purged the queue.", ""])
"""What callers are told of a purged task, beside the status `cancelled`: an encoded `Failure`."""


class QueuePurge:
    """Drops waiting tasks, delayed tasks and dead letters of one partition."""

    def __init__(
        self,
        state: PartitionState,
        own_tasks: OwnTasks,
        store_replies: StoreReplies,
        results: TaskResults,
    ) -> None:
        self._own_tasks = own_tasks
        self._store_replies = store_replies
        self._results = results
        self._backlog = state.backlog
        self._later = state.later
        self._ledger = state.ledger
        self._health = state.health

    @property
    def must_wait(self) -> bool:
        """Whether a worker may run a task that the partition believes to wait, or tasks are being
        read: the next piece comes later."""
        return self._own_tasks.recovering or self._backlog.reading

    def drop_waiting(
        self, most: int, until: int, older_than: float, ticket: Ticket, now: float
    ) -> int:
        """Drop tasks that are ready to run and in memory; return how many. The ticket waits until
        that is written."""
        found = []
        for line in self._backlog.lines:
            for task in (*line, *line.parked.values()):
                if _is_meant(task, until, older_than, now):
                    found.append(task)
                    if len(found) == most:
                        break
        return self._drop(found[:most], ticket, now)

    def is_over(self, until: int, older_than: float, now: float) -> bool:
        """Return whether neither memory nor the store has tasks left that `drop_waiting` would
        drop."""
        return all(self._is_line_over(line, until, older_than, now) for line in self._backlog.lines)

    def _is_line_over(self, line: Line, until: int, older_than: float, now: float) -> bool:
        in_memory = (*line, *line.parked.values())
        if any(_is_meant(task, until, older_than, now) for task in in_memory):
            return False
        if line.known <= line.cursor or line.cursor >= until:
            return True
        # Segments are read in order: behind a task that is too young, there are younger ones.
        return any(task.segment is not None and task.origin < 0 for task in line)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Remember the rows of tasks that end meanwhile: the store is being read, and may return
        them to `drop_delayed`, which belongs into this block, too."""
        lookup = object()
        self._later.lookup_begins(lookup)
        try:
            yield
        finally:
            self._later.lookup_ends(lookup)

    def drop_delayed(self, rows: Iterable[Later], most: int, ticket: Ticket, now: float) -> int:
        """Drop tasks that wait until they are due, retries included: those of the rows, and those
        in memory; return how many."""
        for row in rows:
            self._store_replies.recall_later(row, now)
        waiting = [one for one in self._own_tasks.tasks.values() if one.state is WAITING]
        return self._drop(waiting[:most], ticket, now)

    def drop_dead(
        self, letters: Sequence[Dead], older_than: float, ticket: Ticket, now: float
    ) -> int:
        """Drop dead letters; return how many."""
        before = now + self._ledger.wall - older_than
        found = [one for one in letters if not older_than or one.died_at <= before]
        for one in found:
            self._ledger.forget_dead(one.sequence, ticket, now)
        return len(found)

    def delayed(self, stored: int) -> int:
        """Return how many tasks wait until they are due, if the store has so many rows of them."""
        unwritten = due = 0
        for task in self._own_tasks.tasks.values():
            if task.state is WAITING:
                unwritten += not task.later_stored
            else:
                due += task.later_stored
        return max(stored + unwritten - due, 0)

    def counts(self, record: Record, *, before: float, is_unread: bool) -> bool:
        """Return whether a task of a segment waits, and was added before that unix time."""
        if record.added_at > before:
            return False
        task = self._own_tasks.tasks.get(record.sequence)
        return is_unread if task is None else task.state is READY

    def _drop(self, tasks: Iterable[QueueTask], ticket: Ticket, now: float) -> int:
        self._health.raise_problem()
        dropped = 0
        short: dict[int, Terms] = {}
        seconds = self._results.memory_seconds
        for task in tasks:
            terms = task.terms
            if terms.retention > seconds:
                # A row for each of ten million results would take longer than the purge.
                kept = short.get(id(terms))
                if kept is None:
                    kept = short[id(terms)] = structs.replace(terms, retention=seconds)
                task.terms = kept
            self._own_tasks.end(task, "cancelled", PURGED, ticket, now)
            dropped += 1
        return dropped


def _is_meant(task: QueueTask, until: int, older_than: float, now: float) -> bool:
    return (
        task.origin < 0
        and task.sequence <= until
        and now - task.added >= older_than
        and (task.state is READY or task.state is PARKED)
    )
