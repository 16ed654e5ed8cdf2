"""Spans by OpenTelemetry's own SDK, for programs that have set it up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from maitred import __version__
from maitred.telemetry.tracing import NoSpan, RecordedSpan
from maitred.trace_context import flags_of, packed, span_id_of, state_of, trace_id_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, TracerProvider

    from maitred.telemetry.tracing import Attributes, OpenSpan

SCOPE: Final = "maitred"
"""Name of the instrumentation scope of all spans."""

RECORDED: Final = TraceFlags(TraceFlags.SAMPLED)


class _PresetIds(IdGenerator):
    """The ids of another generator, and the span id that was asked for where one was."""

    def __init__(self, others: IdGenerator) -> None:
        self._others = others
        self.next = threading.local()

    def generate_span_id(self) -> int:
        preset: int = self.next.__dict__.pop("span", 0)
        return preset or self._others.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._others.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return self._others.is_trace_id_random()


class Unrecorded(NoSpan):
    """A span that is not recorded; the trace's context is sent along all the same."""

    __slots__ = ("_within", "context")

    def __init__(self, trace: bytes, within: Context) -> None:
        self.context = trace
        self._within = within

    def enter(self) -> None:
        contexts.attach(self._within)


class _Recorded(RecordedSpan):
    """A span that is recorded."""

    __slots__ = ("_span", "context", "trace_id")

    def __init__(self, span: Span, trace: bytes) -> None:
        self._span = span
        self.context = trace
        self.trace_id = trace[4:20].hex()

    def enter(self) -> None:
        contexts.attach(set_span_in_context(self._span))

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def finish(self, error: str = "", message: str = "", traceback: str = "") -> None:
        span = self._span
        if traceback:
            span.add_event("exception", exception_event(error, message, traceback))
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, message or error))
        span.end()


def exception_event(kind: str, message: str, traceback: str) -> Attributes:
    """Return the attributes of an event for an exception."""
    return {
        "exception.type": kind,
        "exception.message": message,
        "exception.stacktrace": traceback,
    }


class SdkSpans:
    """Begins spans with a provider of OpenTelemetry; see `SpanRecorder`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(SCOPE, __version__)
        if isinstance(self._tracer, SdkTracer):
            # The provider returns the same tracer to a worker and to its app.
            ids = self._tracer.id_generator
            self._ids = ids if isinstance(ids, _PresetIds) else _PresetIds(ids)
            self._tracer.id_generator = self._ids
        else:
            # Another kind of tracer draws its ids itself; then links between attempts point to
            # spans that do not exist, and all else is the same.
            self._ids = _PresetIds(RandomIdGenerator())

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        parent: bytes,
        *,
        span_id: int = 0,
        link: int = 0,
        start_ns: int | None = None,
    ) -> OpenSpan:
        links = []
        if link:
            linked = SpanContext(trace_id_of(parent), link, is_remote=True, trace_flags=RECORDED)
            links.append(Link(linked))
        if span_id:
            self._ids.next.span = span_id
        within = remote(parent) if parent else contexts.Context()
        span = self._tracer.start_span(name, within, kind, attributes, links, start_ns)
        context = span.get_span_context()
        if span.is_recording():
            return _Recorded(span, trace_of(context))
        # The sampler of the provider decided so, or there is no provider.
        trace = trace_of(context) if context.is_valid else b""
        return Unrecorded(trace, set_span_in_context(span))


def remote(trace: bytes) -> Context:
    """Return a context of OpenTelemetry in which the span that sent this one is current."""
    return set_span_in_context(NonRecordingSpan(span_context_of(trace)), contexts.Context())


def span_context_of(trace: bytes, *, is_remote: bool = True) -> SpanContext:
    """Return a trace context as OpenTelemetry has it."""
    state = state_of(trace)
    return SpanContext(
        trace_id_of(trace),
        span_id_of(trace),
        is_remote=is_remote,
        trace_flags=TraceFlags(flags_of(trace)),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def trace_of(context: SpanContext) -> bytes:
    """Return a context of OpenTelemetry as a trace context."""
    state = context.trace_state.to_header() if context.trace_state else ""
    flags = TraceFlags.SAMPLED if context.trace_flags.sampled else TraceFlags.DEFAULT
    return packed(context.trace_id, context.span_id, flags, state)
