"""One call of a handler, for a task or for a query.

An async handler is a task of the loop, a plain function runs in a thread; either way the slot is
busy until the handler has really ended. `Execution` and `Query` add what differs: when it is too
late to begin, and when which end is reported to the node or to the gateway.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from maitred.app.attempt import Attempt, running
from maitred.protocol.tasks import DONE, RETURNED
from maitred.trace_context import headers_of
from maitred.worker import outcomes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from concurrent.futures import ThreadPoolExecutor

    from maitred.redaction import HiddenParameters, Redaction
    from maitred.telemetry.tracing import OpenSpan, Tracing
    from maitred.worker.capacity import Capacity
    from maitred.worker.outcomes import Ending


class HandlerHost(Protocol):
    """The part of a worker in which a handler runs: its slots for tasks, or for queries."""

    loop: asyncio.AbstractEventLoop
    capacity: Capacity
    tracing: Tracing | None
    """Records the spans of handlers; None: the worker does not trace."""

    @property
    def threads(self) -> ThreadPoolExecutor: ...


class HandlerCall(Attempt):
    """The attempt that `maitred.current()` returns, with the call of its handler."""

    __slots__ = ("_entered", "_hidden", "_host", "_thread_call", "span", "task", "trace")

    what: ClassVar[str]
    """The word for it in messages: "task" or "query"."""
    _host: HandlerHost
    _thread_call: Any
    _entered: bool
    """Whether the task of the loop has begun to run."""
    task: asyncio.Task[None] | None
    """Calls an async handler (`run`); None while there is none."""
    span: OpenSpan | None
    """The span of the call; None if the worker does not trace."""
    trace: bytes
    """The trace context that came with the task or query; empty if it belongs to no trace."""
    _hidden: tuple[HiddenParameters, bytes] | Redaction | None
    """The hidden parameters and the encoded arguments, or what was made of them; None if the
    handler hides nothing."""

    def hide(self, hidden: HiddenParameters, payload: bytes) -> None:
        """Keep the hidden ones of these arguments out of logs and failures."""
        self._hidden = (hidden, payload)

    def redaction(self) -> Redaction | None:
        """Return what keeps texts free of hidden arguments; None if the handler hides nothing."""
        hidden = self._hidden
        if isinstance(hidden, tuple):
            parameters, payload = hidden
            hidden = self._hidden = parameters.redaction(payload)
        return hidden

    def redacted(self, body: bytes) -> bytes:
        """Return the failure without hidden arguments."""
        redaction = self.redaction()
        return body if redaction is None else outcomes.redacted(body, redaction)

    def runs_as(self, task: asyncio.Task[Any]) -> bool:
        """Whether that task of the loop calls the handler."""
        return self.task is task

    # What the subclasses define

    @property
    def is_late(self) -> bool:
        """Whether it is too late for the handler to begin."""
        raise NotImplementedError

    def _too_late(self) -> None:
        """End the call, whose handler does not begin."""
        raise NotImplementedError

    def _returned(self, result: Any) -> None:  # noqa: ANN401 - whatever the handler returned
        """End the call of an async handler that returned this."""
        raise NotImplementedError

    def _end(self, ending: Ending) -> None:
        """End the call in any other way."""
        raise NotImplementedError

    def _with_trace(self, labels: dict[str, str | int]) -> dict[str, str | int]:
        """Add the id of the trace to the labels of log lines, if the trace is recorded."""
        if self.span is not None and self.span.trace_id:
            labels["trace"] = self.span.trace_id
        return labels

    def trace_headers(self) -> dict[str, str]:
        trace = self.trace if self.span is None else self.span.context
        return headers_of(trace, self.query_id or self.task_id)

    def end_span(self, span: OpenSpan, ending: Ending) -> None:
        """End the span of the call as the call ended, without hidden arguments."""
        how, body = ending
        if how == DONE:
            span.end()
        elif how == RETURNED:
            span.failed("returned", "The handler did not begin.")
        else:
            failure = outcomes.decode_failure(self.redacted(body))
            span.failed(failure.kind, failure.message, failure.traceback)

    # On the loop

    async def run(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        """Call an async handler, and report how it ended."""
        self._entered = True
        if self.is_late:
            self._too_late()
            return
        running.set(self)  # in the task's own context, so that there is nothing to set back
        if self.span is not None:
            self.span.enter()
        try:
            result = await function(*args, **named)
        except GeneratorExit:
            raise
        except KeyboardInterrupt as problem:
            # Ctrl-C without a signal handler is meant for the whole process.
            self._end(outcomes.raised(problem))
            raise
        except BaseException as problem:  # noqa: BLE001 - SystemExit would end the loop
            self._end(outcomes.raised(problem))
        else:
            self._returned(result)

    def _cancel(self) -> None:
        """Stop an async handler; a function in a thread looks at `cancelled` by itself."""
        if self.task is not None:
            self.task.cancel()
            if not self._entered:  # `run` will never begin, so it cannot report the end
                self.task.add_done_callback(self._never_ran)

    def _never_ran(self, _: object) -> None:
        self._end(outcomes.stopped(self.what))

    # In a thread

    def _begin_in_thread(self, *call: Any) -> None:  # noqa: ANN401 - a function and its arguments
        """Call a function beside the loop, in a context in which this is the current attempt."""
        host = self._host
        tracing = host.tracing
        context = copy_context() if tracing is None else tracing.outside.copy()
        context.run(running.set, self)
        if self.span is not None:
            context.run(self.span.enter)
        enter: Callable[..., Any] = context.run
        self._thread_call = host.capacity.enter_thread(self)
        future = host.loop.run_in_executor(host.threads, enter, self._call_in_thread, *call)
        future.add_done_callback(self._thread_ended)

    def _call_in_thread(self, function: Callable[..., Ending], *arguments: Any) -> Ending | None:  # noqa: ANN401
        """Return how the call ended; None if it was stopped or too late before a thread was
        free."""
        return None if self.cancelled or self.is_late else function(*arguments)

    def _thread_ended(self, future: asyncio.Future[Ending | None]) -> None:
        capacity = self._host.capacity
        capacity.left_pool(capacity.threads, self._thread_call)
        stopped = future.cancelled()
        ending = None if stopped else future.result()
        if ending is not None:
            self._end(ending)
        elif stopped or self.cancelled:
            self._end(outcomes.stopped(self.what))
        else:
            self._too_late()
