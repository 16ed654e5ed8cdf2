"""The span of a handler in maitred's own processes, which OpenTelemetry's SDK does not record."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode

from maitred.telemetry.exporting import CountingExporter
from maitred.telemetry.otel_tracing import OpenTelemetryTracing
from maitred.telemetry.quick_encoding import encoded
from maitred.telemetry.quick_spans import MOST, QuickSpan, QuickSpans
from maitred.telemetry.tracing import TaskId
from maitred.trace_context import child_of, from_headers
from tests.telemetry.recorded import RecordedTraces, links, parent_id, span_id, trace_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

CALLER = from_headers("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
TASK = TaskId("shop/mails", 2, 7)
PROCESS = "process shop/mails"
OTHER = trace.SpanContext(1, 2, is_remote=True)


def handled(
    recorded: RecordedTraces, handler: Callable[[trace.Span], None], error: str = ""
) -> ReadableSpan:
    """Run a handler within its span; return the span as it is exported."""
    process = recorded.tracing.processes(CALLER, TASK, 2, worker="w")

    def run() -> None:
        process.enter()
        handler(trace.get_current_span())

    contextvars.copy_context().run(run)
    if error:
        process.failed(error, "it broke", "Traceback: it broke")
    else:
        process.end()
    return recorded.one(PROCESS)


@pytest.mark.parametrize("quick", [True, False])
def test_a_handler_adds_to_its_span_as_with_the_sdk(*, quick: bool) -> None:
    recorded = RecordedTraces(quick=quick)

    def handler(span: trace.Span) -> None:
        assert span.is_recording()
        span.set_attribute("shop.size", 3)
        span.set_attributes({"shop.kind": "tea"})
        span.add_event("opened", {"door": 1})
        span.add_link(OTHER)
        span.record_exception(ValueError("caught"))
        span.set_status(Status(StatusCode.ERROR, "half of it"))
        with recorded.tracer.start_as_current_span("smtp"):
            pass

    found = handled(recorded, handler)
    assert found.attributes is not None
    assert (found.attributes["shop.size"], found.attributes["shop.kind"]) == (3, "tea")
    assert found.attributes["messaging.message.id"] == str(TASK)
    assert [one.name for one in found.events] == ["opened", "exception"]
    assert found.events[1].attributes is not None
    assert found.events[1].attributes["exception.type"] == "ValueError"
    assert (found.status.status_code, found.status.description) == (StatusCode.ERROR, "half of it")
    assert len(found.links) == 2
    assert links(found)[1] == OTHER.span_id
    inner = recorded.one("smtp")
    assert (parent_id(inner), trace_id(inner)) == (span_id(found), trace_id(found))


@pytest.mark.parametrize("quick", [True, False])
def test_the_failure_of_a_handler_takes_precedence(*, quick: bool) -> None:
    found = handled(RecordedTraces(quick=quick), lambda span: span.set_attribute("a", 1), "Broken")
    assert found.attributes is not None
    assert (found.attributes["error.type"], found.attributes["a"]) == ("Broken", 1)
    assert (found.status.status_code, found.status.description) == (StatusCode.ERROR, "it broke")
    assert [one.name for one in found.events] == ["exception"]


def test_what_a_handler_adds_is_bounded() -> None:
    def handler(span: trace.Span) -> None:
        for number in range(3 * MOST):
            span.set_attribute(f"a{number}", number)
            span.add_event("e")
            span.add_link(OTHER)

    found = handled(RecordedTraces(quick=True), handler)
    assert found.attributes is not None
    assert len(found.attributes) < 2 * MOST
    assert (len(found.events), len(found.links)) == (MOST, MOST)


@pytest.mark.parametrize("quick", [True, False])
def test_a_span_that_has_ended_takes_nothing_more(*, quick: bool) -> None:
    """A thread or a task that the handler left behind keeps its span, which is being exported."""
    recorded = RecordedTraces(quick=quick)
    process = recorded.tracing.processes(CALLER, TASK, 1, worker="w")
    context = contextvars.copy_context()
    context.run(process.enter)
    span = context.run(trace.get_current_span)
    process.end()
    before = recorded.one(PROCESS).to_json()
    assert not span.is_recording()
    span.set_attribute("late", 1)
    span.set_attributes({"later": 1})
    span.add_event("late")
    span.add_link(OTHER)
    span.update_name("late")
    span.set_status(StatusCode.ERROR)
    span.record_exception(ValueError("late"))
    after = process.readable() if isinstance(process, QuickSpan) else recorded.one(PROCESS)
    assert after.to_json() == before


def test_a_batch_that_cannot_be_read_is_counted_as_lost() -> None:
    exporter = CountingExporter(InMemorySpanExporter())
    ended: list[QuickSpan] = []
    spans = QuickSpans(ended.append, Resource({}))
    for _ in range(2):
        spans.start("process", SpanKind.CONSUMER, {}, CALLER).end()
    ended[1].added = 5  # type: ignore[assignment]
    with pytest.raises(TypeError):
        exporter.export(ended)
    assert exporter.statistics() == {"spans_exported": 0, "spans_lost": 2}


def test_a_refused_batch_is_counted_as_lost() -> None:
    class Refusing(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
            return SpanExportResult.FAILURE

    exporter = CountingExporter(Refusing())
    ended: list[QuickSpan] = []
    QuickSpans(ended.append, Resource({})).start("process", SpanKind.CONSUMER, {}, CALLER).end()
    exporter.export(ended)
    assert exporter.statistics() == {"spans_exported": 0, "spans_lost": 1}


def test_quick_spans_are_encoded_as_opentelemetry_encodes_them() -> None:
    """Plain ones are encoded by our own code, all others by OpenTelemetry's."""
    spans: list[QuickSpan] = []
    recorder = QuickSpans(spans.append, Resource.create({"service.name": "shop"}))
    tracing = OpenTelemetryTracing(recorder, sample=1.0, random=lambda: 0.0)
    task = TaskId("shop/mails", 3, 17)
    sent = tracing.sends("shop/mails", 1)
    many = tracing.sends("shop/mails", 40, child_of(sent.context, 5) + b"vendor=1")
    waited = tracing.waited(sent.context, task, 1, 2.5, forwarded=True)
    attempt = tracing.processes(waited, task, 1, worker="w")
    retry = tracing.processes(waited, task, 2, worker="w")
    query = tracing.queries("shop/price", b"", served=True)
    answer = tracing.answers(query.context, "shop/price", "ab/9", worker="w")
    touched = tracing.answers(query.context, "shop/price", "ab/10", worker="w")

    def handler() -> None:
        touched.enter()
        trace.get_current_span().set_attribute("rows", 3)
        trace.get_current_span().add_event("half")

    contextvars.copy_context().run(handler)
    sent.end(task="shop/mails/3/17")
    many.end()
    attempt.failed("ValueError", "no", "Traceback")
    retry.end()
    answer.end()
    touched.end()
    query.query_ended("done", "w", 1, "")
    assert [one.is_plain for one in spans] == [True, True, False, False, False, True, False, True]
    expected = encode_spans([one.readable() for one in spans])
    ours = encoded(spans)
    for message in (expected, ours):
        for scope in message.resource_spans[0].scope_spans:
            scope.spans.sort(key=lambda one: (one.trace_id, one.span_id))
    assert ours == expected
    assert encoded(spans[2:4]) == encode_spans([one.readable() for one in spans[2:4]])
