"""Lines in the worker's log about attempts and queries that went wrong.

The node keeps the failure of a task with its dead letter, and the caller of a query gets its error.
An operator looks at the worker first, so the worker logs it as well: queue, handler, task, attempt,
error, and what follows. Only the node knows what follows, a retry or a dead letter, so the line of
a task is written when the node has answered the report, or has not.

The same failure, at the same place in the code, comes again and again. Its traceback is logged the
first time, and again after an hour or a thousand failures; the other lines have its `failure`, by
which the traceback is found, and count. A handler that fails thousands of times a second would fill
the log and take time from the other handlers, so each queue has a budget of lines.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any, Final

from maitred.line_budget import LineBudgets, left_out
from maitred.protocol.tasks import FAILED, TIMED_OUT
from maitred.worker.outcomes import decode_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.logs import Logger
    from maitred.protocol.tasks import End, Finished
    from maitred.worker.execution import Execution, Origin

BURST_LINES: Final = 20
"""Failures of one queue that are logged one by one, enough to see what the failures of a broken
handler have in common. As many again that the worker has not seen before."""

LINE_SECONDS: Final = 1.0
"""Seconds between two lines of one queue in the long run, enough to see that its handler still
fails, and how."""

TOGETHER_LINES: Final = 200
"""Lines at once of all queues of a worker; in the long run `TOGETHER_SECONDS` between two of them.
A worker of a hundred queues whose database is away writes no more than this."""

TOGETHER_SECONDS: Final = 0.1

FAILURES_KEPT: Final = 1_000
"""Most different failures that a worker remembers. One that was forgotten is logged with its
traceback again."""

SHOWN_AGAIN_SECONDS: Final = 3_600.0
"""A traceback is logged again after this time, so that it is found without reading back for a
day."""

SHOWN_AGAIN_TIMES: Final = 1_000
"""A traceback is logged again after this many failures."""

_FRAME: Final = 'File "'

DEAD: Final = {"next": "dead letter"}
UNCONFIRMED: Final = {"next": "unknown: the node has not confirmed the report"}
LATE: Final = {"next": "nothing: another worker has the task, or it is over"}
REFUSED: Final = {"next": "nothing: the node refused the report"}
OVER: Final = {"next": "nothing: the task is over"}


class KnownFailure:
    """How often a failure happened, and when its traceback was logged."""

    __slots__ = ("shown_at", "shown_times", "times")

    def __init__(self) -> None:
        self.times = 0
        self.shown_at = -inf
        self.shown_times = 0

    def is_to_be_shown(self, now: float) -> bool:
        """Return whether its traceback belongs into a line that is written now, and if so take it
        for written."""
        if (
            now - self.shown_at < SHOWN_AGAIN_SECONDS
            and self.times - self.shown_times < SHOWN_AGAIN_TIMES
        ):
            return False
        self.shown_at, self.shown_times = now, self.times
        return True


class FailureLog:
    """Logs what goes wrong with the tasks and queries of one worker."""

    def __init__(self, log: Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._failed = _budgets()
        self._new = _budgets()
        """For failures that were not seen before: those that come often must not hide a rare
        one."""
        self._lost = _budgets()
        self._known: OrderedDict[str, KnownFailure] = OrderedDict()
        """By fingerprint, in the order in which they happened last."""
        self._waiting: dict[tuple[Origin, int, int], tuple[str, dict[str, Any]]] = {}
        """Lines about attempts whose end the node has not confirmed. No more than the budgets
        allow: an attempt without a line is not among them."""

    # Tasks

    def task_failed(self, origin: Origin, key: tuple[int, int], how: int, body: bytes) -> None:
        """Prepare the line about an attempt that failed or exceeded its time limit, also of one
        whose handler was never called. It is written when the node has answered."""
        facts = self._facts(origin.name, origin.handler, body)
        if facts is not None:
            sequence, attempt = key
            task = {"task": f"{origin.name}/{origin.partition}/{sequence}", "attempt": attempt}
            event = "a task timed out" if how == TIMED_OUT else "a task failed"
            self._waiting[origin, sequence, attempt] = (event, _about(origin) | task | facts)

    def answered(self, origin: Origin, ends: Iterable[End], answer: Finished | None) -> None:
        """Write the lines about these attempts, with what follows them as the node says. None: it
        did not say."""
        if not self._waiting:
            return
        follows = what_follows(answer)
        for end in ends:
            waiting = self._waiting.pop((origin, end.sequence, end.attempt), None)
            if waiting is not None:
                event, fields = waiting
                self._log.warning(event, **fields, **follows(end.sequence))

    def unanswered(self) -> None:
        """Write all lines that wait for an answer of the node: the worker ends."""
        for event, fields in self._waiting.values():
            self._log.warning(event, **fields, **UNCONFIRMED)
        self._waiting.clear()

    def lost(self, execution: Execution, seconds: float, why: str) -> None:
        """Log an attempt that ends without a report, some seconds after it was begun."""
        origin = execution.origin
        unlogged = self._lost.take(origin.name, self._clock())
        if unlogged is not None:
            fields = execution.labels | {"seconds": round(seconds, 1)} | left_out(unlogged)
            self._log.warning(why, **fields)

    def late(self, origin: Origin, tasks: int) -> None:
        """Log ends that the node ignored: it had given the tasks up, or had the ends already."""
        unlogged = self._lost.take(origin.name, self._clock())
        if unlogged is not None:
            self._log.info(
                "ends came too late: the tasks are over, or other workers have them",
                **_about(origin),
                tasks=tasks,
                **left_out(unlogged),
            )

    # Queries

    def query_failed(self, labels: dict[str, str | int], how: int, body: bytes) -> None:
        """Log a query that failed or exceeded its time limit."""
        facts = self._facts(str(labels["queue"]), str(labels["handler"]), body)
        if facts is not None:
            event = "a query failed" if how == FAILED else "a query timed out"
            self._log.warning(event, **labels, **facts)

    # Both

    def _facts(self, queue: str, handler: str, body: bytes) -> dict[str, Any] | None:
        """Count a failure, and return what its line says; None if it has none."""
        now = self._clock()
        failure = decode_failure(body)
        name = fingerprint(queue, handler, failure.kind, failure.traceback)
        known = self._known.get(name)
        is_new = known is None
        if known is None:
            known = self._known[name] = KnownFailure()
            if len(self._known) > FAILURES_KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(name)
        known.times += 1
        is_news = is_new and self._new.take(queue, now) is not None
        unlogged = 0 if is_news else self._failed.take(queue, now)
        if unlogged is None:
            return None
        facts: dict[str, Any] = {"error": failure.kind, "message": failure.message}
        facts |= {"failure": name, "times": known.times} | left_out(unlogged)
        if failure.traceback and known.is_to_be_shown(now):
            facts["exception"] = failure.traceback.rstrip("\n")
        return facts


def what_follows(answer: Finished | None) -> Callable[[int], dict[str, Any]]:
    """Return what says, for a task with this sequence number, what follows its failed attempt, by
    the node's answer to the report; None: there is none."""
    if answer is None:
        return lambda _: UNCONFIRMED
    known: dict[int, dict[str, Any]] = {}
    for sequence, seconds, left in answer.follows or ():
        retry = {"next": "retry", "retry_seconds": round(seconds, 1), "attempts_left": left}
        known[sequence] = retry if left > 0 else OVER if left else DEAD
    known |= dict.fromkeys(answer.late, LATE) | dict.fromkeys(answer.refused, REFUSED)
    # A node of an earlier release says nothing of it.
    return lambda sequence: known.get(sequence, {})


def fingerprint(queue: str, handler: str, kind: str, traceback: str) -> str:
    """Return a short name for all failures of a handler with the same error at the same place: the
    innermost frame of the traceback. It is the same at every worker."""
    at = traceback.rfind(_FRAME)
    place = traceback[at:].partition("\n")[0] if at >= 0 else ""
    text = f"{queue}\n{handler}\n{kind}\n{place}"
    return sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]


def _about(origin: Origin) -> dict[str, Any]:
    return {"queue": origin.name, "handler": origin.handler}


def _budgets() -> LineBudgets:
    return LineBudgets(
        LINE_SECONDS, BURST_LINES, together_seconds=TOGETHER_SECONDS, together=TOGETHER_LINES
    )
