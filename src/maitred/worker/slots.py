"""The slots of a worker: tasks begin and end in them, and queries take and leave them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidArguments
from maitred.metrics.histogram import SHORTEST_WORK, WORK_BOUNDS
from maitred.protocol.tasks import DONE, FAILED, RETURNED, STOPPED, TIMED_OUT, End
from maitred.telemetry.tracing import TaskId
from maitred.trace_context import NOT_RECORDED
from maitred.worker import outcomes
from maitred.worker.completions import SLOW_SECONDS
from maitred.worker.execution import Execution
from maitred.worker.lifecycle import SERVING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.protocol.tasks import Given
    from maitred.worker.capacity import Capacity
    from maitred.worker.completions import CompletionReports
    from maitred.worker.context import WorkerContext
    from maitred.worker.execution import Origin
    from maitred.worker.outcomes import Ending
    from maitred.worker.served import Served


GIVEN_ELSEWHERE: Final = "a lease was lost: the node gives the task to another worker"
GIVEN_AGAIN: Final = "a lease was lost: the node gives the task to this worker again"
"""Log lines about an attempt that the node has given up."""

LOOKED_FOR: Final = 32
"""Up to this attempt, each earlier one is looked for by its number, in less than two microseconds.
From a later one on, all tasks of the partition that run are looked at, which may be thousands."""


class WorkerSlots:
    """The slots of one worker. A slot is busy until its handler has really ended."""

    def __init__(
        self,
        context: WorkerContext,
        completions: CompletionReports,
        capacity: Capacity,
        *,
        most_bytes: int,
        freed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings = context.settings
        self.clock = clock
        """The loop's time, read anew at each call (see `Pulse.time`)."""
        self.most_bytes = most_bytes
        """Largest result of a task."""
        self.capacity = capacity
        self.threads = ThreadPoolExecutor(settings.threads or settings.slots, "maitred-task")
        """For plain functions; each thread starts when it is first needed."""
        self.lifecycle = context.lifecycle
        """Tasks that arrive while the worker does not serve are returned."""
        self.strict = False
        """Whether slots are on offer in several places: a task beyond the measured limit then used
        a slot that another task has used, and is returned. Otherwise such a task begins: the limit
        has only changed since the offer."""
        self._completions = completions
        self._statistics = context.statistics
        self._freed = freed
        self.supply_soon = False
        """Whether the worker is about to offer its free slots, so that it need not be told of one
        more; set by the worker."""
        self.failures = context.failures
        self.tracing = context.tracing
        self._worker = context.name

    @property
    def free(self) -> int:
        """Slots that may be offered: free ones within the measured limit."""
        return max(0, self.capacity.room) if self.lifecycle.phase is SERVING else 0

    @property
    def has_room(self) -> bool:
        """Whether a task or reservation that arrives for an offer may have a slot."""
        return not self.strict or self.capacity.room > 0

    def take(self) -> bool:
        """Take a slot for a query; return False if none is free."""
        statistics = self._statistics
        if statistics.busy >= statistics.slots:
            return False
        statistics.busy += 1
        return True

    def leave(self) -> None:
        """Free a slot that `take` took."""
        self._statistics.busy -= 1
        if not self.supply_soon:
            self._freed()

    def begin(
        self, served: Served, given: Given, origin: Origin, now: float, lease_ends_at: float
    ) -> None:
        """Begin a task, or return it to the node if there is no room for it. An attempt that runs
        already, or whose end is being reported, does not begin again."""
        statistics = self._statistics
        key = (given.sequence, given.attempt)
        if key in origin.running or (
            now - origin.unanswered_since >= SLOW_SECONDS
            and self._completions.has_ended(origin, key, now)
        ):
            # The previous owner of the partition gave this attempt to this worker.
            self._freed()
            return
        if given.attempt > 1:
            self._give_up_earlier(origin, given)
        if (
            self.lifecycle.phase is not SERVING
            or statistics.busy >= statistics.slots
            or (self.strict and not self.has_room)
        ):
            statistics.returned += 1
            self._completions.add(origin, End(*key, given.proof, RETURNED, outcomes.NIL))
            return
        statistics.begun += 1
        try:
            args, named = served.read(given.payload)
        except InvalidArguments as problem:
            self._unreadable(served, origin, given, outcomes.misfit(problem))
            return
        except Exception as problem:  # noqa: BLE001 - a user's class; other tasks came in the same answer
            self._unreadable(served, origin, given, outcomes.raised(problem))
            return
        statistics.busy += 1
        execution = origin.running[key] = Execution(
            self, origin, key, given.proof, now, lease_ends_at, given.trace
        )
        self.capacity.begun(execution, now)
        if served.hidden is not None:
            execution.hide(served.hidden, given.payload)
        context = None
        if self.tracing is not None:
            context = self.tracing.outside.copy()
            if given.trace != NOT_RECORDED:
                task = TaskId(origin.name, origin.partition, given.sequence)
                execution.span = self.tracing.processes(
                    given.trace, task, given.attempt, worker=self._worker
                )
        if served.is_async:
            called = execution.run(served.function, args, named)
            if context is None:
                execution.task = self.loop.create_task(called)
            else:
                execution.task = self.loop.create_task(called, context=context)
        else:
            execution.begin_in_thread(served.function, args, named)
        if given.timeout:
            execution.limit(given.timeout)

    def _give_up_earlier(self, origin: Origin, given: Given) -> None:
        """Stop an earlier attempt at the task that still runs here: the node has given it up. Two
        attempts at a task must not be in one heartbeat, whose answer names tasks."""
        running, sequence = origin.running, given.sequence
        numbers: Iterable[int] = range(1, given.attempt)
        if given.attempt > LOOKED_FOR:
            numbers = [number for one, number in running if one == sequence]
        for number in numbers:
            earlier = running.get((sequence, number))
            if earlier is not None:
                self.lost(earlier, GIVEN_AGAIN)

    def _unreadable(self, served: Served, origin: Origin, given: Given, ending: Ending) -> None:
        self.count(FAILED)
        key, (how, body) = (given.sequence, given.attempt), ending
        if served.hidden is not None:
            body = outcomes.redacted(body, served.hidden.redaction(given.payload))
        self.failures.task_failed(origin, key, how, body)
        self._completions.add(origin, End(*key, given.proof, how, body))
        self._freed()

    def tell(self, execution: Execution, ending: Ending) -> None:
        """Report the end of an attempt to the node, whether its handler has ended or not."""
        execution.told = True
        origin, key, (how, body) = execution.origin, execution.key, ending
        if how == FAILED:
            body = execution.redacted(body)
        origin.running.pop(key, None)
        end = End(key[0], key[1], execution.proof, how, body)
        if origin.ends:
            origin.ends.append(end)  # `CompletionReports.add`, without a call for each task
        else:
            self._completions.add(origin, end)
        if how == DONE:
            self._statistics.done += 1
        else:
            self.count(how)
            if how in (FAILED, TIMED_OUT):
                self.failures.task_failed(origin, key, how, body)

    def ended(self, execution: Execution, ending: Ending) -> None:
        """Free the slot of an attempt whose handler has ended, and report the end."""
        statistics, origin = self._statistics, execution.origin
        statistics.busy -= 1
        now = self.loop.time()
        how, body = ending
        good = how == DONE
        self.capacity.ended(execution, now, good=good)
        runs, seconds = origin.runs, now - execution.begun_at
        # `Histogram.add`, without a call for each task.
        runs.counts[0 if seconds <= SHORTEST_WORK else bisect_left(WORK_BOUNDS, seconds)] += 1
        runs.total += seconds
        if execution.span is not None:
            execution.end_span(execution.span, ending)
        if not execution.told:
            if good and origin.ends:  # `tell`, without a call for each task
                execution.told = True
                sequence, attempt = key = execution.key
                origin.running.pop(key, None)
                origin.ends.append(End(sequence, attempt, execution.proof, how, body))
                statistics.done += 1
            else:
                self.tell(execution, ending)
        if not self.supply_soon:
            self._freed()

    def lapsed(self, execution: Execution) -> None:
        """Return a task whose lease may have ended before its handler began, and free its slot."""
        self._statistics.lapsed += 1
        self._statistics.returned += 1
        self._log_lost(execution, "a task was returned: its lease may have ended before it began")
        self.ended(execution, (RETURNED, outcomes.NIL))

    def lost(self, execution: Execution, why: str = GIVEN_ELSEWHERE) -> None:
        """Stop an attempt that the node has given up."""
        if execution.told:
            return  # that was known, or the end is reported already
        self._log_lost(execution, why)
        execution.origin.running.pop(execution.key, None)
        self._statistics.lost += 1
        execution.lose()

    def _log_lost(self, execution: Execution, why: str) -> None:
        self.failures.lost(execution, self.loop.time() - execution.begun_at, why)

    def count(self, how: int) -> None:
        """Count a task or query that ended in this way."""
        statistics = self._statistics
        if how == DONE:
            statistics.done += 1
        elif how == FAILED:
            statistics.failed += 1
        elif how == TIMED_OUT:
            statistics.timed_out += 1
        elif how == STOPPED:
            statistics.stopped += 1
