"""One attempt at a task, from the call of its handler to its end, and the partition it came from.

The end may be reported before the handler has ended: a thread cannot be stopped, so when its time
limit passes that is reported at once. An async handler is cancelled, and has `stop_seconds` to
clean up before the end is reported all the same.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from maitred.protocol.tasks import DONE
from maitred.worker import outcomes
from maitred.worker.handler_call import HandlerCall, HandlerHost

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from maitred.metrics.histogram import Histogram
    from maitred.protocol.tasks import End
    from maitred.routing.names import QueueId
    from maitred.settings import WorkerSettings
    from maitred.telemetry.tracing import OpenSpan
    from maitred.worker.outcomes import Ending


class ExecutionHost(HandlerHost, Protocol):
    """The slots in which attempts at tasks run, and which report their ends."""

    settings: WorkerSettings
    """The settings of the worker, with the time that a stopped handler has to clean up."""
    most_bytes: int
    """Largest result of a task."""

    @property
    def clock(self) -> Callable[[], float]:
        """Returns the loop's time, read anew at each call."""

    def tell(self, execution: Execution, ending: Ending) -> None:
        """Report the end of an attempt to the node, whether its handler has ended or not."""

    def ended(self, execution: Execution, ending: Ending) -> None:
        """Free the slot of an attempt whose handler has ended, and report the end."""

    def lapsed(self, execution: Execution) -> None:
        """Return a task whose lease may have ended before its handler began, and free its slot."""


class Origin:
    """A partition that tasks came from, which gets their heartbeats and their ends."""

    def __init__(self, queue: QueueId, partition: int, handler: str, runs: Histogram) -> None:
        self.queue = queue
        self.name = f"{queue.namespace}/{queue.queue}"
        self.partition = partition
        self.handler = handler
        """The name of the function that its tasks call, for logs."""
        self.runs = runs
        """Counts how long attempts took, for all partitions of the queue."""
        self.lease_seconds = 10.0
        """The lease, as the partition told it last."""
        self.running: dict[tuple[int, int], Execution] = {}
        """Attempts whose end this worker has to report, by sequence number and attempt, the oldest
        first."""
        self.ends: list[End] = []
        """Ends that were not sent yet."""
        self.sending: dict[int, tuple[float, list[End]]] = {}
        """Messages with ends that the node has not answered yet, by a number of their own, and the
        loop's time at which each was first sent: the oldest first."""
        self.unanswered_since = inf
        """The loop's time at which the oldest of these was first sent; infinity without one."""
        self.beating = False
        """Whether heartbeats for this partition are under way."""

    def __repr__(self) -> str:
        running, untold = len(self.running), len(self.ends)
        untold += sum(len(ends) for _, ends in self.sending.values())
        return f"<Origin {self.name}/{self.partition}, {running} running, {untold} to report>"


class Execution(HandlerCall):
    """A task's attempt, with its lease and its time limit."""

    __slots__ = (
        "_timer",
        "_why",
        "begun_at",
        "lease_ends_at",
        "proof",
        "told",
    )

    what = "task"
    origin: Origin
    _host: ExecutionHost

    def __init__(
        self,
        slots: ExecutionHost,
        origin: Origin,
        key: tuple[int, int],
        proof: bytes,
        now: float,
        lease_ends_at: float,
        trace: bytes = b"",
    ) -> None:
        self.origin = origin
        self.key = key
        self.proof = proof
        """Sent to the node with every heartbeat and with the end of this attempt."""
        self.cancelled = False
        self.meter = None  # as `unmeasured` does, without a call for each task
        self.waits = self.calls = self.queued = 0
        self.counted = False
        self.begun_at = now
        self.lease_ends_at = lease_ends_at
        """A handler that has not begun by then does not begin: another worker may have the task.
        Each heartbeat that the node answers extends the lease."""
        self.told = False
        """Whether the end was reported, or need not be: another worker has the task."""
        self._host = slots
        self._why: Ending | None = None
        """The ending that counts if the handler raises because it was stopped."""
        self._entered = False
        self._hidden = None
        self.task = None
        self.span = None
        self.trace = trace
        self._timer: asyncio.TimerHandle | None = None

    def begin_in_thread(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Call a plain function beside the loop."""
        self._begin_in_thread(outcomes.called, function, args, named, self._host.most_bytes)

    def limit(self, seconds: float) -> None:
        """Stop the attempt if it takes longer than this."""
        self._timer = self._host.loop.call_later(seconds, self._time_is_over, seconds)

    @property
    def labels(self) -> dict[str, str | int]:
        """Names it in log lines: queue, handler, task and attempt."""
        origin = self.origin
        labels: dict[str, str | int] = {
            "queue": origin.name,
            "handler": origin.handler,
            "task": self.task_id,
            "attempt": self.number,
        }
        return self._with_trace(labels)

    @property
    def is_late(self) -> bool:
        """Whether the lease may have ended."""
        return self.lease_ends_at <= self._host.clock()

    def _too_late(self) -> None:
        self._host.lapsed(self)

    # Stopping

    def revoke(self) -> bool:
        """Stop the attempt because its task was cancelled; return False if that was known."""
        if self.cancelled:
            return False
        self._why = outcomes.stopped()
        self._stop()
        return True

    def lose(self) -> None:
        """Stop the attempt without a report: another worker has the task by now, or gets it because
        this worker ends."""
        self.told = True
        if self.span is not None and self._why is None:
            self._why = outcomes.failure("lost", "The node gave the task to another worker.")
        if not self.cancelled:
            self._stop()

    def end_span(self, span: OpenSpan, ending: Ending) -> None:
        """End the span as the attempt ended for the node, which heard of it earlier if a time limit
        passed or the lease was lost."""
        why = self._why if self.told else None
        super().end_span(span, ending if why is None else why)

    def _stop(self) -> None:
        self.cancelled = True
        self._cancel()

    def _time_is_over(self, seconds: float) -> None:
        self._timer = None
        self._why = why = outcomes.timed_out(seconds)
        if self.task is None:
            self.cancelled = True
            self._tell(why)
            return
        if not self.cancelled:
            self._stop()
        self._timer = self._host.loop.call_later(self._host.settings.stop_seconds, self._tell, why)

    def _tell(self, ending: Ending) -> None:
        self._timer = None
        if not self.told:
            self._host.tell(self, ending)

    # The end

    def _returned(self, result: Any) -> None:  # noqa: ANN401 - whatever the handler returned
        host = self._host
        ending = outcomes.NOTHING if result is None else outcomes.returned(result, host.most_bytes)
        if self._timer is None and self._why is None:  # `_end`, without a call for each task
            self.task = None
            host.ended(self, ending)
        else:
            self._end(ending)

    def _end(self, ending: Ending) -> None:
        self.task = None  # breaks the cycle of the task, its context and this attempt
        if self._timer is not None:
            self._timer.cancel()
        if self._why is not None and ending[0] != DONE:  # it raised because it was stopped
            ending = self._why
        self._host.ended(self, ending)
