"""One trace from the producer's span over the partition to the handler, at a real node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace

import maitred
from maitred import App
from maitred.errors import InvalidArgument, TaskFailed
from maitred.protocol.inspection import ChangeTasks
from maitred.protocol.tasks import Add, Given, Offer, Offered, Resize
from maitred.routing.names import TASKS
from maitred.trace_context import (
    NOT_RECORDED,
    TRACE_BYTES_MAX,
    from_headers,
    span_id_of,
    waits_recorded,
)
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.node.shops import shop
from tests.store.engines import Simulated
from tests.telemetry.recorded import RecordedTraces, links, parent_id, span_id, trace_id
from tests.worker.serving import serving
from tests.worker.test_log_handler import handled

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.trace import Span

    from maitred.client.client import AsyncClient

SECRET = "4929-1234-5678"  # noqa: S105 - what must not be seen


def attributes(span: object) -> dict[str, object]:
    return dict(getattr(span, "attributes", None) or {})


@in_a_loop
async def test_a_task_is_one_trace(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)

    @app.handler("mails")
    async def mail(to: str) -> str:
        with recorded.tracer.start_as_current_span("smtp"):
            await asyncio.sleep(0)
        trace.get_current_span().set_attribute("by.the.handler", to)
        return to

    async with serving(tmp_path, app, tracing=recorded.tracing):
        with recorded.tracer.start_as_current_span("request"):
            task = await mail.enqueue("ann")
        assert await task.result(timeout=20) == "ann"
        await until(lambda: bool(recorded.named("process shop/mails")))
    request, sent = recorded.one("request"), recorded.one("send shop/mails")
    waited, processed = recorded.one("wait shop/mails"), recorded.one("process shop/mails")
    smtp = recorded.one("smtp")
    order = [request, sent, waited, processed, smtp]
    assert {trace_id(span) for span in order} == {trace_id(request)}
    assert [parent_id(span) for span in order] == [0, *map(span_id, order[:-1])]
    assert attributes(sent)["messaging.message.id"] == task.id
    assert attributes(waited)["messaging.message.id"] == task.id
    assert attributes(processed)["messaging.message.id"] == task.id
    assert attributes(processed)["by.the.handler"] == "ann"
    assert attributes(processed)["maitred.worker"] == "w"


@in_a_loop
async def test_a_function_in_a_thread_and_a_synchronous_producer(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)

    @app.handler("mails")
    def mail(to: str) -> str:
        with recorded.tracer.start_as_current_span("smtp"):
            return to

    def produce() -> str:
        with recorded.tracer.start_as_current_span("request"):
            return mail.sync.enqueue("ann").result(timeout=20)

    async with serving(tmp_path, app, tracing=recorded.tracing):
        assert await asyncio.to_thread(produce) == "ann"
        await until(lambda: bool(recorded.named("process shop/mails")))
        await asyncio.to_thread(app.sync.close)
    assert parent_id(recorded.one("send shop/mails")) == span_id(recorded.one("request"))
    assert parent_id(recorded.one("smtp")) == span_id(recorded.one("process shop/mails"))


@in_a_loop
async def test_a_retry_is_linked_to_the_attempt_before_it(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)

    @app.handler("mails", retries=1, backoff=0.01, hide=["card"])
    async def mail(to: str, card: str) -> None:
        raise ConnectionError(f"{to} refuses {card}")

    async with serving(tmp_path, app, tracing=recorded.tracing):
        task = await mail.enqueue("ann", SECRET)
        with pytest.raises(TaskFailed):
            await task.result(timeout=20)
        await until(lambda: len(recorded.named("process shop/mails")) == 2)
    sent = recorded.one("send shop/mails")
    first, second = recorded.named("process shop/mails")
    waits = recorded.named("wait shop/mails")
    assert [parent_id(one) for one in waits] == [span_id(sent)] * 2
    assert [parent_id(first), parent_id(second)] == [span_id(one) for one in waits]
    assert (links(first), links(second)) == ([], [span_id(first)])
    assert [attributes(one)["maitred.attempt"] for one in (first, second)] == [1, 2]
    (event,) = first.events
    assert (event.attributes or {})["exception.type"] == "ConnectionError"
    assert not first.status.is_ok
    assert SECRET not in recorded.text
    assert "ann refuses" in recorded.text


@in_a_loop
@pytest.mark.parametrize("sample", [1.0, 0.0])
async def test_log_lines_of_handlers_have_the_id_of_a_recorded_trace(
    tmp_path: Path, sample: float
) -> None:
    recorded = RecordedTraces(sample=sample)
    app = App("shop", tracing=recorded.tracing)
    log = RecordedLog()

    @app.handler("mails", retries=1, backoff=0)
    async def mail() -> None:
        own.info("mail %s", maitred.current().number)
        if maitred.current().number == 1:
            raise ConnectionError("refused")

    @app.handler("prints")
    def in_a_thread() -> None:
        own.info("print")

    with handled(log) as own:
        async with serving(tmp_path, app, tracing=recorded.tracing):
            for handler in (mail, in_a_thread):
                await (await handler.enqueue()).result(timeout=20)
    lines = {event: fields for _, event, fields in log.lines}
    assert lines.keys() == {"mail 1", "mail 2", "print"}
    if sample == 0.0:
        assert all("trace" not in fields for fields in lines.values())
        return
    mailed = f"{trace_id(recorded.one('send shop/mails')):032x}"
    printed = f"{trace_id(recorded.one('send shop/prints')):032x}"
    assert mailed != printed
    assert {event: fields.get("trace") for event, fields in lines.items()} == {
        "mail 1": mailed,
        "mail 2": mailed,
        "print": printed,
    }


@in_a_loop
async def test_a_dead_letter_that_is_tried_again_has_spans_of_its_own(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)
    is_mended = False

    @app.handler("mails", retries=0)
    async def mail() -> str:
        if not is_mended:
            raise ConnectionError("refused")
        return "sent"

    async with serving(tmp_path, app, tracing=recorded.tracing):
        task = await mail.enqueue()
        with pytest.raises(TaskFailed):
            await task.result(timeout=20)
        is_mended = True
        _, _, partition, sequence = task.id.split("/")
        retry = ChangeTasks("shop", "mails", TASKS, int(partition), 0, "retry", [int(sequence)])
        await (await app.session()).client.request(retry)
        await until(lambda: len(recorded.named("process shop/mails")) == 2)
    first, second = recorded.named("process shop/mails")
    assert trace_id(first) == trace_id(second)
    assert span_id(first) != span_id(second)


@in_a_loop
async def test_a_batch_has_one_span_and_each_task_its_own(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)

    @app.handler("mails")
    async def mail(to: str) -> None: ...

    async with serving(tmp_path, app, tracing=recorded.tracing):
        for task in await mail.enqueue_many([mail.call(str(n)) for n in range(5)]):
            await task.result(timeout=20)
        await until(lambda: len(recorded.named("process shop/mails")) == 5)
    sent = recorded.one("send shop/mails")
    assert attributes(sent)["messaging.batch.message_count"] == 5
    processed = recorded.named("process shop/mails")
    assert {trace_id(one) for one in processed} == {trace_id(sent)}
    assert len({span_id(one) for one in (*processed, *recorded.named("wait shop/mails"))}) == 10


@in_a_loop
async def test_tasks_added_together_belong_to_their_own_traces(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)

    @app.handler("mails")
    async def mail(to: str) -> None:
        trace.get_current_span().set_attribute("to", to)

    async def request(to: str) -> Span:
        with recorded.tracer.start_as_current_span("request") as span:
            await (await mail.enqueue(to)).result(timeout=20)
        return span

    async with serving(tmp_path, app, tracing=recorded.tracing):
        await asyncio.gather(*(request(str(n)) for n in range(4)))
        await until(lambda: len(recorded.named("process shop/mails")) == 4)
    assert len({trace_id(one) for one in recorded.named("process shop/mails")}) == 4


@in_a_loop
@pytest.mark.parametrize("begun_by", ["a caller that does not record", "a fraction of none"])
async def test_a_trace_that_is_not_recorded_stays_so(tmp_path: Path, begun_by: str) -> None:
    recorded = RecordedTraces(sample=0.0)
    app = App("shop", tracing=recorded.tracing)
    seen = []

    @app.handler("mails")
    async def mail() -> None:
        with recorded.tracer.start_as_current_span("smtp") as span:
            seen.append(span.is_recording())

    async with serving(tmp_path, app, tracing=recorded.tracing):
        if begun_by == "a fraction of none":
            task = await mail.enqueue()
        else:
            unsampled = trace.SpanContext(7, 8, is_remote=True)
            with trace.use_span(trace.NonRecordingSpan(unsampled)):
                task = await mail.enqueue()
        await task.result(timeout=20)
    assert seen == [False]
    assert recorded.spans == []


@in_a_loop
async def test_a_worker_traces_tasks_of_producers_that_do_not(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop")

    @app.handler("mails")
    async def mail() -> None: ...

    async with serving(tmp_path, app, tracing=recorded.tracing):
        await (await mail.enqueue()).result(timeout=20)
        await until(lambda: bool(recorded.named("process shop/mails")))
    assert parent_id(recorded.one("process shop/mails")) == 0
    assert recorded.named("wait shop/mails") == []


@in_a_loop
async def test_an_error_of_the_producer_ends_its_span(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)

    @app.handler("mails")
    async def mail(text: str) -> None: ...

    async with serving(tmp_path, app, tracing=recorded.tracing):
        with pytest.raises(Exception, match="bytes"):
            await mail.enqueue("x" * 3_000_000)
    sent = recorded.one("send shop/mails")
    assert attributes(sent)["error.type"] == "payload-too-large"
    assert not sent.status.is_ok


PARENT = from_headers("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")


def add(partition: int = 0, traces: bytes | list[bytes] = PARENT) -> Add:
    return Add("n", "q", TASKS, partition, 0, 0, [b"\x90"], traces=traces)


def offer(partition: int = 0) -> Offer:
    return Offer("n", "q", TASKS, partition, 0, 0, b"a worker's own..", "ant", 1)


async def given(client: AsyncClient, message: Offer) -> Given:
    answer = await client.request(message, timeout=20)
    assert isinstance(answer, Offered)
    return answer.tasks[0]


@in_a_loop
async def test_a_trace_survives_a_restart_in_the_store(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    async with shop(tmp_path, Simulated(), tracing=recorded.tracing) as running:
        async with running.client() as client:
            await client.request(add())
        await running.restart()
        async with running.client() as client:
            task = await given(client, offer())
    waited = recorded.one("wait n/q")
    assert task.trace == waits_recorded(PARENT)
    assert parent_id(waited) == span_id_of(PARENT)
    assert waited.parent is not None
    assert waited.parent.trace_state.to_header() == "vendor=1"


@in_a_loop
async def test_a_task_that_was_forwarded_waited_once(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    async with (
        shop(tmp_path, Simulated(), tracing=recorded.tracing) as running,
        running.client() as client,
    ):
        await client.request(Resize("n", "q", TASKS, 0, 0, 2, 2))
        waiting = asyncio.create_task(given(client, offer()))
        await client.request(add(1))
        task = await waiting
    assert (task.partition, task.trace) == (1, waits_recorded(PARENT))
    assert attributes(recorded.one("wait n/q"))["maitred.forwarded"] is True


@in_a_loop
async def test_a_node_that_does_not_trace_hands_on_any_context(tmp_path: Path) -> None:
    others = [NOT_RECORDED, b"\x02 of a later release", PARENT]
    async with shop(tmp_path, Simulated()) as running, running.client() as client:
        for trace_of_it in others:
            await client.request(add(traces=[trace_of_it]))
        assert [(await given(client, offer())).trace for _ in others] == others


@in_a_loop
async def test_a_context_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as running, running.client() as client:
        for traces in (bytes(TRACE_BYTES_MAX + 1), [bytes(TRACE_BYTES_MAX + 1)]):
            with pytest.raises(InvalidArgument):
                await client.request(add(traces=traces))
