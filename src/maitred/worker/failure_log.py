"""A line in the worker's log for each call of a handler that failed or took too long.

The node keeps the failure of a task with its dead letter, and the caller of a query gets its error.
An operator looks at the worker first, so the worker logs it as well: queue, handler, task, attempt
and error. A handler that fails thousands of times a second would fill the log and take time from
the other handlers, so each queue has a budget of lines; the next line says how many failures had
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.worker.outcomes import decode_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.logs import Logger
    from maitred.worker.execution import Execution

BURST_LINES: Final = 20
"""Failures of one queue that are logged one by one, enough to see what the failures of a broken
handler have in common."""

LINES_PER_SECOND: Final = 1.0
"""Lines of one queue in the long run, enough to see that its handler still fails, and how. Each has
at most 8,000 letters of traceback."""


class LineBudget:
    """Counts the lines that one queue may still write: a token bucket."""

    __slots__ = ("_at", "_lines", "_unlogged")

    def __init__(self, now: float) -> None:
        self._at = now
        self._lines = float(BURST_LINES)
        self._unlogged = 0

    def take(self, now: float) -> int | None:
        """Return how many failures had no line since the last one; None if this one has none."""
        self._lines = min(BURST_LINES, self._lines + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._lines < 1.0:
            self._unlogged += 1
            return None
        self._lines -= 1.0
        unlogged, self._unlogged = self._unlogged, 0
        return unlogged


class FailureLog:
    """Logs the failures of one worker's handlers."""

    def __init__(self, log: Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._budgets: dict[str, LineBudget] = {}
        """By queue; no more than the worker serves."""

    def task_failed(self, execution: Execution, body: bytes) -> None:
        """Log an attempt at a task that failed or exceeded its time limit."""
        origin = execution.origin
        self.attempt_failed(origin.name, origin.handler, execution.task_id, execution.number, body)

    def attempt_failed(
        self, queue: str, handler: str, task: str, attempt: int, body: bytes
    ) -> None:
        """Log the failure of an attempt, also of one whose handler was never called."""
        self._write("a task failed", queue, body, handler=handler, task=task, attempt=attempt)

    def query_failed(self, queue: str, handler: str, query: str, body: bytes) -> None:
        """Log a query that failed or exceeded its time limit."""
        self._write("a query failed", queue, body, handler=handler, query=query)

    def _write(self, event: str, queue: str, body: bytes, **fields: object) -> None:
        now = self._clock()
        budget = self._budgets.get(queue)
        if budget is None:
            budget = self._budgets[queue] = LineBudget(now)
        unlogged = budget.take(now)
        if unlogged is None:
            return
        failure = decode_failure(body)
        fields |= {"error": failure.kind, "message": failure.message}
        if unlogged:
            fields["unlogged"] = unlogged
        if failure.traceback:
            fields["exception"] = failure.traceback.rstrip("\n")
        self._log.warning(event, queue=queue, **fields)
