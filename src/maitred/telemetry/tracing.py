"""What the other parts of maitred need of tracing: an interface without OpenTelemetry.

A process that does not trace has None in place of a `Tracing`, and so pays one comparison for each
task or query. Contexts are the bytes of `maitred.trace_context`.

A trace looks like this; each line is a span, and those further in are its children:

    send shop/mails                 the producer, until the task is durable
      wait shop/mails               the node, from ready to given to a worker
        process shop/mails          the worker, while the handler runs; what it traces is further in
      wait shop/mails               the same for the second attempt
        process shop/mails          linked to the first attempt's

    query shop/price                the gateway or the caller, from its begin to its end
      answer shop/price             the worker; a second attempt is linked to the first
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from maitred.trace_context import NOT_RECORDED

if TYPE_CHECKING:
    import contextvars

Attributes = dict[str, str | int]
"""What a span says of a task or query."""


class OpenSpan(Protocol):
    """A span that has begun; it is recorded when it ends."""

    @property
    def context(self) -> bytes:
        """The context that is sent along, for spans further in."""

    @property
    def trace_id(self) -> str:
        """The id of the trace in hexadecimal digits, for logs; empty if it is not recorded."""

    def enter(self) -> None:
        """Make it the current span of the running context: what runs there is further in."""

    def end(self, problem: BaseException | None = None, *, task: str = "") -> None:
        """End it, with the error that the caller gets, if it gets one. `task` is the id of the
        task that was added."""

    def failed(self, kind: str, message: str = "", traceback: str = "") -> None:
        """End it because the handler failed. The texts are free of hidden arguments."""

    def query_ended(self, status: str, worker: str, attempts: int, error: str) -> None:
        """End the span of a query as its row in the query table says."""


class RecordedSpan:
    """What a span that is recorded says at its end. Subclasses record it."""

    __slots__ = ()

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""
        raise NotImplementedError

    def finish(self, error: str = "", message: str = "", traceback: str = "") -> None:
        """End the span; with the class or code of an error, if there was one."""
        raise NotImplementedError

    def end(self, problem: BaseException | None = None, *, task: str = "") -> None:
        if task:
            self.note({"messaging.message.id": task})
        if problem is None:
            self.finish()
        else:
            # Without its message, which may quote an argument.
            self.finish(getattr(problem, "code", type(problem).__qualname__))

    def failed(self, kind: str, message: str = "", traceback: str = "") -> None:
        self.finish(kind, message, traceback)

    def query_ended(self, status: str, worker: str, attempts: int, error: str) -> None:
        attributes: Attributes = {
            "maitred.query.status": status,
            "maitred.query.attempts": attempts,
        }
        if worker:
            attributes["maitred.worker"] = worker
        self.note(attributes)
        self.finish(error.partition(":")[0], error)


class TaskId(NamedTuple):
    """Names a task; its text is the id that users see."""

    queue: str
    """`namespace/queue`"""
    partition: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.partition}/{self.sequence}"


class Tracing(Protocol):
    """Records the spans of one process. Names of queues are `namespace/queue`."""

    outside: contextvars.Context
    """A context in which the current span is one that is not recorded: handlers whose trace is not
    recorded run in copies of it, so that nothing of what they do is recorded either."""

    def skipped(self) -> bytes | None:
        """Decide whether the trace of a task that is added now is recorded; return the context to
        send with the task if it is not, and None if `sends` is to be called. It is called for every
        task, and so has to be quick."""

    def sends(self, queue: str, tasks: int, parent: bytes = b"") -> OpenSpan:
        """Begin the span of adding tasks; its parent is the caller's context, else the current
        span. Without either, `skipped` has decided."""

    def waited(
        self, trace: bytes, task: TaskId, attempt: int, seconds: float, *, forwarded: bool
    ) -> bytes:
        """Record that a task waited for so many seconds until now, when a worker was given it;
        return the context for the worker."""

    def processes(self, trace: bytes, task: TaskId, attempt: int, *, worker: str) -> OpenSpan:
        """Begin the span of an attempt at a task."""

    def queries(self, queue: str, parent: bytes, *, served: bool) -> OpenSpan:
        """Begin the span of a query; `served` tells whether this gateway serves it for another
        program, rather than asks for itself."""

    def answers(self, trace: bytes, queue: str, query: str, *, worker: str) -> OpenSpan:
        """Begin the span of a query at a worker; `query` is the gateway and its number there."""

    def statistics(self) -> dict[str, int]:
        """Return how many spans were exported, and how many were lost."""

    async def close(self) -> None:
        """Export what was recorded, for a bounded time."""


class NoSpan:
    """Stands for the span of a trace that is not recorded."""

    __slots__ = ()
    context = NOT_RECORDED
    trace_id = ""

    def enter(self) -> None:
        """Do nothing."""

    def end(self, problem: BaseException | None = None, *, task: str = "") -> None:
        """Do nothing."""

    def failed(self, kind: str, message: str = "", traceback: str = "") -> None:
        """Do nothing."""

    def query_ended(self, status: str, worker: str, attempts: int, error: str) -> None:
        """Do nothing."""
