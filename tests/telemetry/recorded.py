"""Spans that a test looks at: the provider of OpenTelemetry records them in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from maitred.telemetry.otel_tracing import OpenTelemetryTracing
from maitred.telemetry.quick_spans import QuickSpan, QuickSpans
from maitred.telemetry.sdk_spans import SdkSpans

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan


class RecordedTraces:
    """A tracing, and the spans that it recorded, in the order of their ends: the spans of the SDK,
    as a program has them that has set up OpenTelemetry itself, or those of a maitred process."""

    def __init__(
        self,
        sample: float = 1.0,
        random: Callable[[], float] = lambda: 0.5,
        *,
        quick: bool = False,
    ) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        spans = QuickSpans(self._export, Resource({})) if quick else SdkSpans(self.provider)
        self.tracing = OpenTelemetryTracing(spans, sample=sample, random=random)
        self.tracer = self.provider.get_tracer("a test")

    def _export(self, span: QuickSpan) -> None:
        self._exporter.export([span.readable()])

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of that name, the earliest first."""
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    @property
    def text(self) -> str:
        """All that the spans say."""
        return "".join(span.to_json() for span in self.spans)


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def parent_id(span: ReadableSpan) -> int:
    return 0 if span.parent is None else span.parent.span_id


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]
