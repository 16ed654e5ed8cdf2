"""Traces by OpenTelemetry: turns what happens to tasks and queries into spans.

Whether a trace is recorded is decided once, where it begins: by the current span, if there is one,
else by a fraction (`sample`) that is drawn before OpenTelemetry is asked. A span that is not
recorded would cost OpenTelemetry several microseconds, a third of what a whole task costs.

Ids of spans that another process has to know are computed from the context (`derived_span_id`).
OpenTelemetry has a generator of ids for that; this module gives the id that comes next to its own.
"""

from __future__ import annotations

import threading
import time
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from maitred import __version__
from maitred.telemetry.tracing import NoSpan
from maitred.trace_context import (
    NOT_RECORDED,
    derived_span_id,
    flags_of,
    in_round,
    is_context,
    is_recorded,
    is_wait_recorded,
    packed,
    round_of,
    span_id_of,
    state_of,
    trace_id_of,
    traceparent,
    waits_recorded,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from maitred.telemetry.tracing import OpenSpan, TaskId

SCOPE: Final = "maitred"
"""Name of the instrumentation scope of all spans."""

SYSTEM: Final = "maitred"

SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

Attributes = dict[str, str | int]


class _PresetIds(RandomIdGenerator):
    """Random ids, and the span id that was asked for where one was."""

    def __init__(self) -> None:
        self.next = threading.local()

    def generate_span_id(self) -> int:
        preset: int = self.next.__dict__.pop("span", 0)
        return preset or super().generate_span_id()


class _Unrecorded(NoSpan):
    """A span that is not recorded; the trace's context is sent along all the same."""

    __slots__ = ("_within", "context")

    def __init__(self, trace: bytes, within: Context) -> None:
        self.context = trace
        self._within = within

    def enter(self) -> None:
        contexts.attach(self._within)


class _Recorded:
    """A span that is recorded."""

    __slots__ = ("_span", "context", "trace_id")

    def __init__(self, span: Span, trace: bytes) -> None:
        self._span = span
        self.context = trace
        self.trace_id = trace[4:20].hex()

    def enter(self) -> None:
        contexts.attach(set_span_in_context(self._span))

    def end(self, problem: BaseException | None = None, *, task: str = "") -> None:
        if task:
            self._span.set_attribute("messaging.message.id", task)
        if problem is not None:
            # Without its message, which may quote an argument.
            self._fails(getattr(problem, "code", type(problem).__qualname__), "")
        self._span.end()

    def failed(self, kind: str, message: str = "", traceback: str = "") -> None:
        event: Attributes = {"exception.type": kind, "exception.message": message}
        if traceback:
            event["exception.stacktrace"] = traceback
        self._span.add_event("exception", event)
        self._fails(kind, message)
        self._span.end()

    def query_ended(self, status: str, worker: str, attempts: int, error: str) -> None:
        attributes: Attributes = {
            "maitred.query.status": status,
            "maitred.query.attempts": attempts,
        }
        if worker:
            attributes["maitred.worker"] = worker
        self._span.set_attributes(attributes)
        if error:
            self._fails(error.partition(":")[0], error)
        self._span.end()

    def _fails(self, kind: str, message: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, message or kind))


class OpenTelemetryTracing:
    """Records spans with a provider of OpenTelemetry; see `Tracing` for what each method means."""

    def __init__(
        self,
        provider: TracerProvider,
        *,
        sample: float,
        random: Callable[[], float],
        statistics: Callable[[], dict[str, int]] | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`random` returns a number from 0 to 1, for each trace that begins here; the fraction
        `sample` of them is recorded. `close` exports what is left; without it, that is up to the
        owner of the provider."""
        self._tracer = provider.get_tracer(SCOPE, __version__)
        self._ids = _PresetIds()
        if isinstance(self._tracer, SdkTracer):
            # Another kind of tracer draws its ids itself; then links between attempts point to
            # spans that do not exist, and all else is the same.
            self._tracer.id_generator = self._ids
        self._sample = sample
        self._random = random
        self._statistics = statistics
        self._close = close
        unrecorded = SpanContext(
            self._ids.generate_trace_id(), self._ids.generate_span_id(), is_remote=True
        )
        self._not_recorded = _Unrecorded(
            NOT_RECORDED, set_span_in_context(NonRecordingSpan(unrecorded))
        )
        self._last = (b"", contexts.Context())
        self.outside = copy_context()
        self.outside.run(self._not_recorded.enter)

    # Producers

    def skipped(self) -> bytes | None:
        current = contexts.get_current()
        if not current:  # no span, and no baggage either
            return NOT_RECORDED if self._sample <= self._random() else None
        span = get_current_span(current).get_span_context()
        if not span.is_valid:
            return NOT_RECORDED if self._sample <= self._random() else None
        return None if span.trace_flags.sampled else _packed(span)

    def sends(self, queue: str, tasks: int, parent: bytes = b"") -> OpenSpan:
        attributes = _of_queue(queue, "send")
        if tasks > 1:
            attributes["messaging.batch.message_count"] = tasks
        return self._begin(
            parent, f"send {queue}", SpanKind.PRODUCER, attributes, contexts.get_current()
        )

    # Nodes

    def waited(
        self, trace: bytes, task: TaskId, attempt: int, seconds: float, *, forwarded: bool
    ) -> bytes:
        if not is_recorded(trace):
            return trace
        attributes = _of_task(task, "wait", attempt)
        if forwarded:
            attributes["maitred.forwarded"] = True
        now = time.time_ns()
        self._ids.next.span = derived_span_id(trace, "wait", str(task), attempt)
        span = self._tracer.start_span(
            f"wait {task.queue}",
            context=self._remote(trace),
            attributes=attributes,
            start_time=now - int(max(seconds, 0.0) * 1e9),
        )
        span.end(now)
        return waits_recorded(trace)

    # Workers

    def processes(self, trace: bytes, task: TaskId, attempt: int, *, worker: str) -> OpenSpan:
        if trace == NOT_RECORDED:
            return self._not_recorded
        attributes = _of_task(task, "process", attempt) | {"maitred.worker": worker}
        name = f"process {task.queue}"
        if not is_recorded(trace):
            return self._begin_at_worker(trace, name, SpanKind.CONSUMER, attributes)
        parent = trace
        if is_wait_recorded(trace):
            waited = derived_span_id(trace, "wait", str(task), attempt)
            parent = packed(trace_id_of(trace), waited, flags_of(trace), state_of(trace))
        return self._attempt(
            parent, trace, name, (SpanKind.CONSUMER, str(task), attempt), attributes
        )

    def answers(self, trace: bytes, queue: str, query: str, *, worker: str) -> OpenSpan:
        attempt = max(round_of(trace), 1)
        attributes: Attributes = {
            "rpc.system": SYSTEM,
            "rpc.service": queue,
            "maitred.query": query,
            "maitred.attempt": attempt,
            "maitred.worker": worker,
        }
        name = f"answer {queue}"
        if not is_recorded(trace):
            return self._begin_at_worker(trace, name, SpanKind.SERVER, attributes)
        base = in_round(trace, 0)  # the same for all attempts, whose number the round is
        # Without the gateway: a worker may know it by an address, which changes with the link.
        item = f"{queue} {query.rpartition('/')[2]}"
        return self._attempt(trace, base, name, (SpanKind.SERVER, item, attempt), attributes)

    def _attempt(
        self,
        parent: bytes,
        base: bytes,
        name: str,
        attempt: tuple[SpanKind, str, int],
        attributes: Attributes,
    ) -> OpenSpan:
        kind, item, number = attempt
        links = []
        if number > 1:
            before = derived_span_id(base, "run", item, number - 1)
            links.append(
                Link(SpanContext(trace_id_of(base), before, is_remote=True, trace_flags=SAMPLED))
            )
        preset = derived_span_id(base, "run", item, number)
        return self._start(name, kind, attributes, self._remote(parent), links, preset)

    # Gateways

    def queries(self, queue: str, parent: bytes, *, served: bool) -> OpenSpan:
        attributes: Attributes = {"rpc.system": SYSTEM, "rpc.service": queue}
        kind = SpanKind.SERVER if served else SpanKind.CLIENT
        current = contexts.get_current()
        if not parent:
            trace = self.skipped()
            if trace == NOT_RECORDED:
                return self._not_recorded
            if trace is not None:
                return _Unrecorded(trace, current)
        return self._begin(parent, f"query {queue}", kind, attributes, current)

    # All

    def headers(self) -> dict[str, str]:
        current = get_current_span().get_span_context()
        if not current.is_valid:
            return {}
        headers = {"traceparent": traceparent(_packed(current))}
        if current.trace_state:
            headers["tracestate"] = current.trace_state.to_header()
        return headers

    def statistics(self) -> dict[str, int]:
        return {} if self._statistics is None else self._statistics()

    async def close(self) -> None:
        if self._close is not None:
            await self._close()

    def _begin_at_worker(
        self, trace: bytes, name: str, kind: SpanKind, attributes: Attributes
    ) -> OpenSpan:
        """Begin a span whose caller does not record its trace, or does not trace at all. The
        current span is none of the caller's, so it does not count."""
        if not trace and self._sample <= self._random():
            return self._not_recorded
        return self._begin(trace, name, kind, attributes, contexts.Context())

    def _begin(
        self, parent: bytes, name: str, kind: SpanKind, attributes: Attributes, current: Context
    ) -> OpenSpan:
        """Begin a span whose parent is this context, or else the current span, unless the trace of
        the parent is not recorded."""
        if parent == NOT_RECORDED:
            return self._not_recorded
        if is_context(parent):
            current = self._remote(parent)
            if not is_recorded(parent):
                return _Unrecorded(parent, current)
        return self._start(name, kind, attributes, current)

    def _start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, str | int],
        within: Context,
        links: Sequence[Link] = (),
        preset: int = 0,
    ) -> OpenSpan:
        if preset:
            self._ids.next.span = preset
        span = self._tracer.start_span(name, within, kind, attributes, links)
        context = span.get_span_context()
        if span.is_recording():
            return _Recorded(span, _packed(context))
        # The sampler of the provider decided so, or there is no provider.
        trace = _packed(context) if context.is_valid else b""
        return _Unrecorded(trace, set_span_in_context(span))

    def _remote(self, trace: bytes) -> Context:
        """Return a context of OpenTelemetry in which a span of another process is current. The
        tasks of one batch have the same, so the last one is kept."""
        known, context = self._last
        if known != trace:
            state = TraceState.from_header([state_of(trace)]) if state_of(trace) else None
            span = SpanContext(
                trace_id_of(trace),
                span_id_of(trace),
                is_remote=True,
                trace_flags=TraceFlags(flags_of(trace)),
                trace_state=state,
            )
            context = set_span_in_context(NonRecordingSpan(span), contexts.Context())
            self._last = (trace, context)
        return context


def _packed(context: SpanContext) -> bytes:
    state = context.trace_state.to_header() if context.trace_state else ""
    flags = TraceFlags.SAMPLED if context.trace_flags.sampled else TraceFlags.DEFAULT
    return packed(context.trace_id, context.span_id, flags, state)


def _of_queue(queue: str, operation: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation if operation != "wait" else "receive",
        "messaging.destination.name": queue,
    }


def _of_task(task: TaskId, operation: str, attempt: int) -> Attributes:
    return _of_queue(task.queue, operation) | {
        "messaging.destination.partition.id": str(task.partition),
        "messaging.message.id": str(task),
        "maitred.attempt": attempt,
    }
