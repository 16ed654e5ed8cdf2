"""Adds and cancels tasks for producers."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from maitred.errors import TaskForgotten, UnknownTask
from maitred.matching.hand_out import not_trusted
from maitred.matching.measures import Rate
from maitred.matching.records import SEQUENCES_PER_RANGE, TASK_BYTES
from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.matching.task import AWAY, GIVEN, PARKED, READY, WAITING, QueueTask, Ticket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.errors import MaitredError
    from maitred.matching.allocator import Allocator
    from maitred.matching.effects import Revocation
    from maitred.matching.heartbeats import Heartbeats
    from maitred.matching.matcher import Matcher
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.records import Terms
    from maitred.matching.task import Token
    from maitred.matching.task_ends import EndStatus
    from maitred.matching.task_results import TaskResults
    from maitred.matching.task_transitions import OwnTasks


class TaskIntake:
    """Takes in new tasks, and cancels tasks that are in memory."""

    def __init__(
        self,
        state: PartitionState,
        *,
        own_tasks: OwnTasks,
        matcher: Matcher,
        allocator: Allocator,
        results: TaskResults,
        heartbeats: Heartbeats,
    ) -> None:
        self._key = state.key
        self._settings = state.settings
        self._is_root = state.is_root
        self._hand_out = state.hand_out
        self._quotas = state.quotas
        self._own_tasks = own_tasks
        self._matcher = matcher
        self._requests = allocator.lines
        self._backlog = state.backlog
        self._ledger = state.ledger
        self._offers = state.offers
        self._away = state.away
        self._outcomes = results.outcomes
        self._heartbeats = heartbeats
        self._health = state.health
        self._meter = state.meter
        self.added = Rate(state.loaded_at)
        self.matched_at_once = 0

    def add(
        self,
        payloads: Sequence[bytes],
        *,
        token: Token,
        now: float,
        priority: int,
        terms: Terms,
        delay: float = 0.0,
        expires: float = 0.0,
        results: list[bytes | None] | None = None,
        by: str = "",
        traces: bytes | Sequence[bytes] = b"",
    ) -> int:
        """Take the tasks in; return the number of the first. The token is settled when all tasks
        are safe. If the caller passes an empty list for `results`, it then holds the results of
        the tasks that were done by then and need not be written, in the order of the payloads, with
        None for the others; it stays empty if there are none.

        `by` says for the history of the tasks who adds them. `traces` is the trace context of all
        of them, or of each.

        A batch is taken in as a whole or not at all: `StorageQuotaExceeded` or `StoreFull` if a
        quota of what is stored has no room for it.
        """
        if self._quotas:
            self._admit(payloads, traces, delay, now)
        own_tasks, backlog = self._own_tasks, self._backlog
        first = own_tasks.take_numbers(len(payloads))
        ticket = Ticket(token, len(payloads), first=first, tasks=len(payloads), results=results)
        self.added.count(len(payloads), now)
        self._meter.added += len(payloads)
        state = WAITING if delay else PARKED if backlog.parks(priority) else READY
        tasks = {
            sequence: QueueTask(sequence, priority, terms, payload, now, state, ticket, now, by)
            for sequence, payload in enumerate(payloads, first)
        }
        if traces:
            each = repeat(traces) if isinstance(traces, bytes) else traces
            for task, trace in zip(tasks.values(), each, strict=False):
                task.trace = trace
        if expires:
            for task in tasks.values():
                task.expires = now + expires
        own_tasks.tasks.update(tasks)
        if state is WAITING:
            for task in tasks.values():
                task.due = task.ready = now + delay
                own_tasks.wait_until_due(task, None, now)
        else:
            self._ledger.add(tasks)
        if state is PARKED:
            backlog.park(priority, tasks)
        elif state is READY:
            backlog.extend(priority, tasks.values())
            waiting = backlog.ready
            self._matcher.match(now)
            self.matched_at_once += waiting - backlog.ready
            # Workers of other partitions may be free, and soon have the tasks through the parent.
            passes = not self._is_root and not self._hand_out.is_paused
            if passes and 0 < backlog.ready <= len(payloads):
                until = now + self._settings.hold_seconds
                for task in tasks.values():
                    if task.state is READY:
                        self._ledger.hold(task, until)
        if self._health.problem is not None:
            own_tasks.refuse_unwritable()
            self._matcher.match(now)
            if ticket.left:
                self._health.tell_by(now + UNSAFE_SECONDS)
        return first

    def _admit(
        self, payloads: Sequence[bytes], traces: bytes | Sequence[bytes], delay: float, now: float
    ) -> None:
        count = len(payloads)
        size = sum(map(len, payloads)) + TASK_BYTES * count
        size += len(traces) * count if isinstance(traces, bytes) else sum(map(len, traces))
        for quota in self._quotas:
            if quota.tasks + count > quota.most_tasks or quota.bytes + size > quota.most_bytes:
                at_once = not delay and self._workers_wait_for(count)
                problem = quota.refusal(count, size, now, at_once=at_once)
                if problem is not None:
                    raise problem
        for quota in self._quotas:
            quota.tasks += count
            quota.bytes += size

    def _workers_wait_for(self, tasks: int) -> bool:
        """Return whether offers wait for so many new tasks, and no task or query goes first."""
        return not (
            not self._offers.has(tasks)
            or self._backlog.ready
            or self._backlog.any_unread
            or self._away.tasks
            or self._requests.slots
            or self._own_tasks.recovering
            or self._hand_out.is_paused
        )

    def absence(self, sequence: int) -> MaitredError:
        """Return the problem of a request for a task that is neither in memory nor in the store:
        the task is over, or never existed.

        Every task that was acknowledged is in the store until it is over. The numbers of earlier
        owners are known by their range alone, so for those it only says that the task is over if it
        was ever added.
        """
        key = self._key
        name = f"{key.namespace}/{key.queue}/{key.partition}/{sequence}"
        if not self._hand_out.is_trusted():
            return not_trusted()  # the task may be that of a later owner
        if not SEQUENCES_PER_RANGE <= sequence < self._own_tasks.next_sequence:
            return UnknownTask(
                f"The task {name} does not exist.",
                remedy="The partition has not given out this number. Check the id.",
            )
        if sequence >= self._own_tasks.first_sequence:
            sentence = f"The task {name} is over, and what came of it is no longer kept."
        else:
            sentence = (
                f"The task {name} is no longer known: if it was added, it is over, was deleted "
                "with its queue, or was lost with files of the store."
            )
        return TaskForgotten(
            sentence,
            remedy="Ask sooner, or have results kept for longer with the option `retention`.",
        )

    def revoke(self, sequence: int, now: float) -> Revocation | None:
        """Cancel a task; return None if neither the task nor its end is in memory. Raises the
        store's problem, and does nothing, if the end of the task could not be written now."""
        task = self._own_tasks.tasks.get(sequence)
        if task is None:
            ended = self._outcomes.get(sequence, now)
            return None if ended is None else revocation_of(ended.status)
        if task.state is GIVEN or task.state is AWAY:
            task.revoked = True
            self._heartbeats.tell_revoked(task)
            return "cancelling"
        self._health.raise_problem()
        self._own_tasks.end(task, "cancelled", b"", None, now)
        return "cancelled"


def revocation_of(status: EndStatus) -> Revocation:
    """Return what a caller hears that cancels a task which has ended so. A task that was cancelled
    before is "cancelled": a caller that repeats its request, because the first answer did not
    arrive, hears the same."""
    return "cancelled" if status == "cancelled" else "over"
