"""Spans for processes whose exports maitred sets up, at a fraction of what the SDK's own take.

A span of OpenTelemetry's SDK takes 30 to 40 microseconds of the thread that records it, and several
times that where such spans are rare, because none of that code is in the processor's caches then:
at a sampling of 1 %, three of them took more than the hundred tasks that they stood for could bear.
A `QuickSpan` keeps what it is told, and the rest is done where it is exported, in a thread of its
own.

A program that has set up OpenTelemetry itself gets the SDK's spans (`sdk_spans.py`).
"""

from __future__ import annotations

from random import getrandbits
from time import time_ns
from traceback import format_exception
from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    Status,
    StatusCode,
    set_span_in_context,
)

from maitred import __version__
from maitred.telemetry.sdk_spans import SCOPE, exception_event, span_context_of
from maitred.telemetry.tracing import RecordedSpan
from maitred.trace_context import HEAD_BYTES, SAMPLED, child_of, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import SpanKind
    from opentelemetry.util.types import AnyValue

    from maitred.telemetry.tracing import Attributes

MOST: Final = 128
"""Most attributes, events and links that a handler adds to its span, as in the SDK."""

_UNSET: Final = Status(StatusCode.UNSET)
_SCOPE: Final = InstrumentationScope(SCOPE, __version__)


class QuickSpan(RecordedSpan):
    """A span that is recorded."""

    __slots__ = (
        "_error",
        "_recorder",
        "added",
        "context",
        "end_ns",
        "events",
        "given",
        "kind",
        "links",
        "name",
        "parent",
        "start_ns",
        "status",
    )

    def __init__(
        self,
        recorder: QuickSpans,
        name: str,
        kind: SpanKind,
        given: Attributes,
        parent: bytes,
        context: bytes,
        link: int,
        start_ns: int,
    ) -> None:
        self._recorder = recorder
        self.name = name
        self.kind = kind
        self.given = given
        self.parent = parent
        self.context = context
        self.start_ns = start_ns
        self.end_ns = 0
        self.links = [_link(parent, link)] if link else None
        self._error: tuple[str, str, str] | None = None
        # What the handler adds.
        self.added: BoundedAttributes | None = None
        self.events: list[Event] | None = None
        self.status: Status | None = None

    @property
    def trace_id(self) -> str:
        return self.context[4:20].hex()

    @property
    def has_ended(self) -> bool:
        """Whether the span has ended: another thread may read it, so it takes nothing more."""
        return self.end_ns != 0

    @property
    def is_plain(self) -> bool:
        """Whether the span has no error, no link, no `tracestate`, and nothing that a handler
        added."""
        return (
            self._error is None
            and self.links is None
            and self.added is None
            and self.events is None
            and self.status is None
            and len(self.context) == HEAD_BYTES
        )

    def enter(self) -> None:
        contexts.attach(set_span_in_context(HandlerSpan(self)))

    def note(self, attributes: Attributes) -> None:
        self.given |= attributes

    def finish(self, error: str = "", message: str = "", traceback: str = "") -> None:
        if error:
            self._error = (error, message, traceback)
        self.end_ns = time_ns()
        self._recorder.queue(self)

    def readable(self) -> ReadableSpan:
        """Return the span as exporters take it."""
        attributes: dict[str, AnyValue] = {**self.given, **(self.added or {})}
        events = self.events or []
        status = self.status or _UNSET
        if self._error is not None:
            kind, message, traceback = self._error
            attributes["error.type"] = kind
            status = Status(StatusCode.ERROR, message or kind)
            if traceback:
                told = exception_event(kind, message, traceback)
                events = [*events, Event("exception", told, self.end_ns)]
        return ReadableSpan(
            name=self.name,
            context=span_context_of(self.context, is_remote=False),
            parent=span_context_of(self.parent) if self.parent else None,
            resource=self._recorder.resource,
            attributes=attributes,
            events=events,
            links=self.links or (),
            kind=self.kind,
            status=status,
            start_time=self.start_ns,
            end_time=self.end_ns,
            instrumentation_scope=_SCOPE,
        )


class HandlerSpan(Span):
    """The current span while a handler runs. The handler may add to it; the worker ends it. Threads
    and tasks that the handler left behind may still have it then."""

    __slots__ = ("_span",)

    def __init__(self, span: QuickSpan) -> None:
        self._span = span

    def get_span_context(self) -> SpanContext:
        """Return the ids of the span."""
        return span_context_of(self._span.context, is_remote=False)

    def is_recording(self) -> bool:
        """Return whether the handler runs."""
        return not self._span.has_ended

    def set_attribute(self, key: str, value: AnyValue) -> None:
        """Set an attribute, unless there are too many."""
        span = self._span
        if span.has_ended:
            return
        if span.added is None:
            span.added = BoundedAttributes(MOST, immutable=False)
        span.added[key] = value

    def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
        """Set several attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(
        self,
        name: str,
        attributes: Mapping[str, AnyValue] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add an event, unless there are too many."""
        span = self._span
        if span.has_ended:
            return
        if span.events is None:
            span.events = []
        if len(span.events) < MOST:
            limited = BoundedAttributes(MOST, attributes or {})
            span.events.append(Event(name, limited, timestamp or time_ns()))

    def add_link(
        self, context: SpanContext, attributes: Mapping[str, AnyValue] | None = None
    ) -> None:
        """Add a link, unless there are too many."""
        span = self._span
        if span.has_ended:
            return
        if span.links is None:
            span.links = []
        if len(span.links) < MOST:
            span.links.append(Link(context, BoundedAttributes(MOST, attributes or {})))

    def update_name(self, name: str) -> None:
        """Give the span another name."""
        if not self._span.has_ended:
            self._span.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status; a failure of the handler takes precedence."""
        found = status if isinstance(status, Status) else Status(status, description)
        if not self._span.has_ended:
            self._span.status = found

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, AnyValue] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: ARG002 - as OpenTelemetry has it
    ) -> None:
        """Add an event for an exception that the handler has caught."""
        lines = "".join(format_exception(exception))
        told = exception_event(type(exception).__qualname__, str(exception), lines)
        self.add_event("exception", {**told, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """Do nothing: the span ends when the handler does."""


class QuickSpans:
    """Begins spans; see `SpanRecorder`."""

    def __init__(self, queue: Callable[[QuickSpan], None], resource: Resource) -> None:
        """`queue` takes a span that has ended, from any thread."""
        self.queue = queue
        self.resource = resource

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
    ) -> QuickSpan:
        drawn = span_id or getrandbits(64) or 1
        if parent:
            context = child_of(parent, drawn)
        else:
            context = packed(getrandbits(128) or 1, drawn, SAMPLED)
        began = time_ns() if start_ns is None else start_ns
        return QuickSpan(self, name, kind, attributes, parent, context, link, began)


def _link(trace: bytes, span_id: int) -> Link:
    return Link(span_context_of(child_of(trace, span_id)))
