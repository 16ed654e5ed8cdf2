"""Spans as OpenTelemetry records them: ids, parents, links, sampling, what another process did."""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from maitred.errors import Unavailable
from maitred.telemetry.otel_tracing import OpenTelemetryTracing
from maitred.telemetry.sdk_spans import SdkSpans
from maitred.telemetry.tracing import TaskId
from maitred.trace_context import (
    NOT_RECORDED,
    derived_span_id,
    from_headers,
    in_round,
    is_context,
    is_recorded,
    packed,
    span_id_of,
    state_of,
    trace_id_of,
    waits_recorded,
)
from tests.telemetry.recorded import RecordedTraces, links, parent_id, span_id, trace_id

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "shop/mails"
TASK = TaskId(QUEUE, 2, 7)
CALLER = from_headers(
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "congo=t61rcWkgMzE"
)
UNSAMPLED = from_headers("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "")


_KINDS = {
    "tasks, queries": "send wait process query answer",
    "tasks": "send wait process",
    "queries": "query answer",
    "all that failed": "send wait process query answer",
}
"""What the table of attributes calls several kinds of spans."""


def alone(work: Callable[[], None]) -> None:
    """Run it in a context of its own: a span that it enters is current nowhere else."""
    contextvars.copy_context().run(work)


def test_a_task_over_three_processes() -> None:
    recorded = RecordedTraces()
    tracing = recorded.tracing
    send = tracing.sends(QUEUE, 1)
    assert is_recorded(send.context)
    worker_context = tracing.waited(send.context, TASK, 1, 2.5, forwarded=True)
    process = tracing.processes(worker_context, TASK, 1, worker="w")
    process.end()
    send.end(task=str(TASK))
    sent, waited, processed = (
        recorded.one(f"{one} {QUEUE}") for one in ("send", "wait", "process")
    )
    assert {trace_id(sent), trace_id(waited), trace_id(processed)} == {trace_id_of(send.context)}
    assert (parent_id(waited), parent_id(processed)) == (span_id(sent), span_id(waited))
    assert span_id(waited) == derived_span_id(send.context, "wait", str(TASK), 1)
    assert span_id(processed) == derived_span_id(send.context, "run", str(TASK), 1)
    assert waited.start_time is not None
    assert waited.end_time is not None
    assert waited.end_time - waited.start_time >= 2_500_000_000
    kinds = [one.kind for one in (sent, waited, processed)]
    assert kinds == [SpanKind.PRODUCER, SpanKind.INTERNAL, SpanKind.CONSUMER]
    assert waited.attributes is not None
    assert waited.attributes["maitred.forwarded"] is True
    assert process.trace_id == f"{trace_id(sent):032x}"


@pytest.mark.parametrize("quick", [True, False])
def test_spans_have_the_attributes_that_the_docs_list(*, quick: bool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()
    table = page.partition("## Attributes")[2].partition("\n## ")[0]
    documented: dict[str, set[str]] = {}
    for names, spans, _ in re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|$", table, re.MULTILINE):
        for span in re.findall(r"\w+", _KINDS.get(spans, spans)):
            documented.setdefault(span, set()).update(re.findall(r"`(.+?)`", names))
    recorded = RecordedTraces(quick=quick)
    tracing, failure = recorded.tracing, Unavailable("No node answers.")
    tracing.sends(QUEUE, 2).end(failure, task=str(TASK))
    tracing.waited(CALLER, TASK, 1, 2.5, forwarded=True)
    tracing.processes(CALLER, TASK, 1, worker="w").failed("ValueError")
    query = tracing.queries("shop/price", CALLER, served=True)
    tracing.answers(query.context, "shop/price", "g/1", worker="w").failed("ValueError")
    query.query_ended("failed", "w", 1, "ValueError")
    found = {one.name.partition(" ")[0]: one.attributes or {} for one in recorded.spans}
    for documents in documented["send"], documented["query"]:
        assert "error.type" in documents
    documented["wait"].discard("error.type")  # it cannot fail
    rpc, messaging = {"rpc.system"}, {"messaging.system"}
    for name, attributes in found.items():
        other = messaging if name in {"query", "answer"} else rpc
        assert attributes.keys() == documented[name] - other, name
        for key in (messaging | rpc) - other:
            assert attributes[key] == "maitred"
    assert found["process"]["messaging.destination.partition.id"] == "2"


def test_without_a_wait_the_attempt_is_a_child_of_the_producer() -> None:
    """The node does not trace."""
    recorded = RecordedTraces()
    recorded.tracing.processes(CALLER, TASK, 1, worker="w").end()
    assert parent_id(recorded.one(f"process {QUEUE}")) == span_id_of(CALLER)


def test_a_retry_is_linked_to_the_attempt_of_another_worker() -> None:
    first, second = RecordedTraces(), RecordedTraces()
    failed = first.tracing.processes(CALLER, TASK, 1, worker="a")
    failed.failed("ValueError", "no such card", "Traceback ...")
    second.tracing.processes(waits_recorded(CALLER), TASK, 2, worker="b").end()
    before, after = first.one(f"process {QUEUE}"), second.one(f"process {QUEUE}")
    assert links(before) == []
    assert links(after) == [span_id(before)]
    assert before.status.status_code is StatusCode.ERROR
    assert before.attributes is not None
    assert before.attributes["error.type"] == "ValueError"
    (event,) = before.events
    assert event.name == "exception"
    assert dict(event.attributes or {}) == {
        "exception.type": "ValueError",
        "exception.message": "no such card",
        "exception.stacktrace": "Traceback ...",
    }


def test_a_query_and_its_second_attempt() -> None:
    recorded = RecordedTraces()
    tracing = recorded.tracing
    query = tracing.queries("shop/price", CALLER, served=True)
    for attempt in (1, 2):
        context = in_round(query.context, attempt)
        tracing.answers(context, "shop/price", "g/9", worker="w").end()
    query.query_ended("done", "w", 2, "")
    asked = recorded.one("query shop/price")
    answers = recorded.named("answer shop/price")
    assert parent_id(asked) == span_id_of(CALLER)
    assert asked.kind is SpanKind.SERVER
    assert [parent_id(one) for one in answers] == [span_id(asked)] * 2
    assert [links(one) for one in answers] == [[], [span_id(answers[0])]]
    assert len({span_id(one) for one in answers}) == 2


def test_a_query_that_failed_says_why() -> None:
    recorded = RecordedTraces()
    recorded.tracing.queries("shop/price", b"", served=False).query_ended(
        "failed", "", 1, "lost: x"
    )
    asked = recorded.one("query shop/price")
    assert asked.kind is SpanKind.CLIENT
    assert asked.status.status_code is StatusCode.ERROR
    assert asked.attributes is not None
    assert asked.attributes["error.type"] == "lost"


def test_the_error_of_a_producer_has_its_code() -> None:
    recorded = RecordedTraces()
    recorded.tracing.sends(QUEUE, 3).end(Unavailable("The queue is full."))
    sent = recorded.one(f"send {QUEUE}")
    assert sent.attributes is not None
    assert sent.attributes["error.type"] == Unavailable.code
    assert sent.attributes["messaging.batch.message_count"] == 3


@pytest.mark.parametrize(("drawn", "is_kept"), [(0.0, True), (0.29, True), (0.3, False)])
def test_the_fraction_is_drawn_where_a_trace_begins(drawn: float, *, is_kept: bool) -> None:
    recorded = RecordedTraces(0.3, lambda: drawn)
    tracing = recorded.tracing
    skipped = tracing.skipped()
    assert skipped == (None if is_kept else NOT_RECORDED)
    if skipped is None:
        tracing.sends(QUEUE, 1).end()
    # A worker draws for tasks of producers that do not trace, and for no others.
    tracing.processes(skipped or b"", TASK, 1, worker="w").end()
    assert len(recorded.spans) == (2 if is_kept else 0)


def test_nothing_is_drawn_within_a_trace() -> None:
    def draw() -> float:
        raise AssertionError

    recorded = RecordedTraces(0.3, draw)
    with recorded.tracer.start_as_current_span("request"):
        assert recorded.tracing.skipped() is None
        recorded.tracing.sends(QUEUE, 1).end()
    recorded.tracing.sends(QUEUE, 1, CALLER).end()
    recorded.tracing.queries("shop/price", UNSAMPLED, served=True).end()
    assert len(recorded.named(f"send {QUEUE}")) == 2
    assert recorded.named("query shop/price") == []


def test_a_caller_that_does_not_record_is_handed_on() -> None:
    recorded = RecordedTraces()
    tracing = recorded.tracing
    span = tracing.sends(QUEUE, 1, UNSAMPLED)
    assert span.context == UNSAMPLED
    assert tracing.waited(span.context, TASK, 1, 1.0, forwarded=False) == UNSAMPLED
    process = tracing.processes(span.context, TASK, 1, worker="w")

    def handler() -> None:
        process.enter()
        # What the handler calls sees the trace, and does not record it either.
        found = trace.get_current_span().get_span_context()
        assert found.trace_id == trace_id_of(UNSAMPLED)
        with recorded.tracer.start_as_current_span("smtp"):
            assert not trace.get_current_span().get_span_context().trace_flags.sampled

    alone(handler)
    process.end()
    assert recorded.spans == []


def test_a_trace_that_was_drawn_out_stays_so_in_the_handler() -> None:
    recorded = RecordedTraces()
    process = recorded.tracing.processes(NOT_RECORDED, TASK, 1, worker="w")

    def handler() -> None:
        process.enter()
        skipped = recorded.tracing.skipped()
        assert skipped is not None
        assert not is_recorded(skipped)
        with recorded.tracer.start_as_current_span("smtp"):
            pass

    alone(handler)
    process.end()
    assert recorded.spans == []


def test_the_tracestate_of_a_caller_is_carried_to_the_handler() -> None:
    recorded = RecordedTraces()
    tracing = recorded.tracing
    span = tracing.sends(QUEUE, 1, CALLER)
    assert state_of(span.context) == "congo=t61rcWkgMzE"
    process = tracing.processes(waits_recorded(span.context), TASK, 1, worker="w")

    def handler() -> None:
        process.enter()
        found = trace.get_current_span().get_span_context()
        assert found.trace_state.to_header() == "congo=t61rcWkgMzE"
        assert (found.trace_id, found.span_id) == (
            trace_id_of(CALLER),
            span_id_of(process.context),
        )

    alone(handler)
    process.end()
    span.end()


NO_TRACES = pytest.mark.parametrize(
    "trace", [b"", b"\x02 of a later release", b"\x01", packed(0, 0, 1)]
)


@NO_TRACES
def test_the_fraction_is_drawn_for_bytes_that_name_no_trace(trace: bytes) -> None:
    recorded = RecordedTraces(sample=0.01)
    recorded.tracing.processes(trace, TASK, 1, worker="w").end()
    recorded.tracing.answers(trace, "shop/price", "g/9", worker="w").end()
    assert recorded.spans == []


@NO_TRACES
def test_bytes_that_name_no_trace_begin_one(trace: bytes) -> None:
    recorded = RecordedTraces()
    recorded.tracing.processes(trace, TASK, 1, worker="w").end()
    recorded.tracing.answers(trace, "shop/price", "g/9", worker="w").end()
    assert recorded.tracing.waited(trace, TASK, 1, 1.0, forwarded=False) == trace
    assert [parent_id(one) for one in recorded.spans] == [0, 0]


def test_other_spans_of_the_program_keep_random_ids() -> None:
    """The id that comes next is used once, by the span that it was computed for."""
    recorded = RecordedTraces()
    recorded.tracing.processes(CALLER, TASK, 1, worker="w").end()
    ids = set()
    for _ in range(3):
        with recorded.tracer.start_as_current_span("smtp") as span:
            ids.add(span.get_span_context().span_id)
        recorded.tracing.sends(QUEUE, 1).end()
    ids |= {span_id(one) for one in recorded.spans}
    assert len(ids) == 7


class _CountedIds(RandomIdGenerator):
    """Trace ids that a receiver wants to have a certain form, as AWS X-Ray does."""

    def generate_trace_id(self) -> int:
        return 0x5759E988 << 96 | super().generate_trace_id() >> 32

    def is_trace_id_random(self) -> bool:
        return False


def test_traces_that_begin_here_have_ids_of_the_programs_generator() -> None:
    provider = TracerProvider(id_generator=_CountedIds(), shutdown_on_exit=False)
    tracing = OpenTelemetryTracing(SdkSpans(provider), sample=1.0, random=lambda: 0.5)
    assert tracing.sends(QUEUE, 1).trace_id.startswith("5759e988")


def test_a_worker_and_its_app_record_with_the_same_provider() -> None:
    """The app of a worker that has `tracing=True` takes none of the ids that the worker asks
    for."""
    recorded = RecordedTraces()
    apps = OpenTelemetryTracing(SdkSpans(recorded.provider), sample=1.0, random=lambda: 0.5)
    recorded.tracing.processes(CALLER, TASK, 1, worker="w").end()
    apps.sends(QUEUE, 1).end()
    recorded.tracing.processes(CALLER, TASK, 2, worker="w").end()
    first, second = recorded.named(f"process {QUEUE}")
    assert span_id(first) == derived_span_id(CALLER, "run", str(TASK), 1)
    assert links(second) == [span_id(first)]


def test_threads_do_not_take_each_others_ids() -> None:
    recorded = RecordedTraces()

    def work(number: int) -> None:
        for sequence in range(50):
            task = TaskId(QUEUE, number, sequence)
            recorded.tracing.processes(CALLER, task, 1, worker="w").end()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = {span_id(one) for one in recorded.spans}
    assert found == {
        derived_span_id(CALLER, "run", f"{QUEUE}/{number}/{sequence}", 1)
        for number in range(4)
        for sequence in range(50)
    }


def test_a_program_without_a_provider_records_nothing() -> None:
    tracing = OpenTelemetryTracing(SdkSpans(NoOpTracerProvider()), sample=1.0, random=lambda: 0.5)
    span = tracing.sends(QUEUE, 1)
    assert not is_context(span.context)
    span.end(task=str(TASK))
    tracing.processes(CALLER, TASK, 2, worker="w").end()
    assert tracing.statistics() == {}
    asyncio.run(tracing.close())


def test_the_sampler_of_the_program_may_refuse_a_trace() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    tracing = OpenTelemetryTracing(SdkSpans(provider), sample=1.0, random=lambda: 0.5)
    span = tracing.sends(QUEUE, 1)
    assert is_context(span.context)
    assert not is_recorded(span.context)
    assert span.trace_id == ""
