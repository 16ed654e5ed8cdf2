"""Traces that go on over HTTP: from a caller to the gateway, and from a worker to a back end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - handlers' annotations are read
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import json
from opentelemetry import trace

import maitred
from maitred import App
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.listener import HttpListener
from maitred.settings import GatewaySettings, Node
from maitred.settings import Upstream as UpstreamSettings
from maitred.surroundings import Surroundings
from maitred.trace_context import (
    NOT_RECORDED,
    from_headers,
    headers_of,
    is_context,
    is_recorded,
    next_attempt,
    packed,
    round_of,
    traceparent,
)
from maitred.worker.upstream_handler import UpstreamHandler
from tests.gateway.fakes import Answer, Caller, get, post
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.telemetry.recorded import RecordedTraces, parent_id, span_id, trace_id
from tests.worker.serving import serving
from tests.worker.test_upstream import Server, a_server

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.logs import Logger

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = "4929-1234-5678"  # noqa: S105 - what must not be seen


class Stage:
    """A node with a worker, and the port of a gateway."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, path: str, body: bytes = b"[]", *headers: str) -> Answer:
        return await self._said(post(f"/v1/shop/queues/{path}", body, *headers))

    async def get(self, path: str) -> Answer:
        return await self._said(get(path))

    async def _said(self, request: bytes) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        caller = Caller(reader, writer)
        caller.send(request)
        try:
            return await caller.answer()
        finally:
            caller.close()


@asynccontextmanager
async def stage(
    directory: Path,
    app: App,
    *,
    gateway: RecordedTraces | None = None,
    worker: RecordedTraces | None = None,
) -> AsyncIterator[Stage]:
    """A gateway and a worker, each of which traces if there are recorded traces for it."""
    async with serving(directory, app, tracing=worker.tracing if worker else None) as served:
        made = Gateway(
            f"maitred://127.0.0.1:{served.node.port}",
            Node(gateway=GatewaySettings(port=0)),
            Surroundings.real(gateway.tracing if gateway else None),
            cast("Logger", RecordedLog()),
            name="gw",
        )
        address = await made.open(HttpListener(port=0))
        made.connect()
        await made.reaches_shards.wait()
        try:
            yield Stage(int(address.rpartition(":")[2]))
        finally:
            await made.close()


def shop(recorded: RecordedTraces | None = None) -> App:
    """Handlers that return their trace's headers; with recorded traces, from a span of theirs."""
    app = App("shop")

    @app.handler("price", hide=["card"])
    async def price(card: str = "") -> dict[str, str]:  # noqa: ARG001 - it is hidden
        if recorded is not None:
            with recorded.tracer.start_as_current_span("database"):
                pass
        return maitred.current().trace_headers()

    @app.handler("rows")
    async def rows() -> AsyncIterator[dict[str, str]]:
        yield maitred.current().trace_headers()
        yield {}

    return app


@in_a_loop
async def test_a_query_by_http_is_one_trace(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    async with stage(tmp_path, shop(recorded), gateway=recorded, worker=recorded) as here:
        body = json.encode([SECRET])
        said = await here.ask(
            "price/query", body, f"traceparent: {PARENT}", "tracestate: a=1", "tracestate: b=2"
        )
        await until(lambda: bool(recorded.named("answer shop/price")))
    asked, answered = recorded.one("query shop/price"), recorded.one("answer shop/price")
    inner = recorded.one("database")
    assert {f"{trace_id(span):032x}" for span in (asked, answered, inner)} == {TRACE}
    assert f"{parent_id(asked):016x}" == "b7ad6b7169203331"
    assert [parent_id(answered), parent_id(inner)] == [span_id(asked), span_id(answered)]
    assert asked.kind is trace.SpanKind.SERVER
    assert asked.context is not None
    assert asked.context.trace_state.to_header() == "a=1,b=2"
    assert said.headers["traceresponse"] == f"00-{TRACE}-{span_id(asked):016x}-01"
    assert SECRET not in recorded.text


@in_a_loop
@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_a_stream_by_http_is_one_trace(tmp_path: Path, accept: str) -> None:
    recorded = RecordedTraces()
    async with stage(tmp_path, shop(), gateway=recorded, worker=recorded) as here:
        said = await here.ask("rows/query", b"[]", f"Accept: {accept}", f"traceparent: {PARENT}")
        await until(lambda: bool(recorded.named("answer shop/rows")))
    asked = recorded.one("query shop/rows")
    assert said.headers["traceresponse"] == f"00-{TRACE}-{span_id(asked):016x}-01"
    assert parent_id(recorded.one("answer shop/rows")) == span_id(asked)


@in_a_loop
async def test_a_task_by_http_is_one_trace(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    async with stage(tmp_path, shop(recorded), gateway=recorded, worker=recorded) as here:
        said = await here.ask("price/tasks", json.encode([SECRET]), f"traceparent: {PARENT}")
        await until(lambda: bool(recorded.named("process shop/price")))
    sent = recorded.one("send shop/price")
    assert said.status == 202
    assert said.headers["traceresponse"] == f"00-{TRACE}-{span_id(sent):016x}-01"
    assert f"{parent_id(sent):016x}" == "b7ad6b7169203331"
    assert (sent.attributes or {})["messaging.message.id"] == json.decode(said.body)["id"]
    assert f"{trace_id(recorded.one('database')):032x}" == TRACE
    assert SECRET not in recorded.text


@in_a_loop
async def test_refusals_name_their_trace_and_no_argument(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    async with stage(tmp_path, shop(), gateway=recorded) as here:
        body = json.encode({SECRET: 1})
        task = await here.ask("price/tasks", body)
        query = await here.ask("price/query?", b"[1", f"traceparent: {PARENT}")
        priority = await here.ask("nobody/query", body, "Maitred-Do-Not-Queue: true")
    assert (task.status, query.status, priority.status) == (422, 400, 404)
    sent, asked = recorded.one("send shop/price"), recorded.one("query shop/nobody")
    assert task.headers["traceresponse"] == f"00-{trace_id(sent):032x}-{span_id(sent):016x}-01"
    assert (sent.attributes or {})["error.type"] == "no-handler-fits"
    assert "traceresponse" not in query.headers  # no span: its body is not JSON
    assert priority.headers["traceresponse"].startswith(f"00-{trace_id(asked):032x}-")
    assert SECRET not in recorded.text


@in_a_loop
@pytest.mark.parametrize("path", ["price/query", "price/tasks"])
async def test_a_worker_continues_a_trace_that_passed_an_untraced_gateway(
    tmp_path: Path, path: str
) -> None:
    recorded = RecordedTraces()
    async with stage(tmp_path, shop(recorded), worker=recorded) as here:
        said = await here.ask(path, b"[]", f"traceparent: {PARENT}")
        name = "answer shop/price" if path == "price/query" else "process shop/price"
        await until(lambda: bool(recorded.named(name)))
    assert "traceresponse" not in said.headers
    assert f"{trace_id(recorded.one(name)):032x}" == TRACE
    if path == "price/query":
        assert f"{parent_id(recorded.one(name)):016x}" == "b7ad6b7169203331"
    assert parent_id(recorded.one("database")) == span_id(recorded.one(name))


@in_a_loop
async def test_an_unsampled_caller_is_not_recorded(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    async with stage(tmp_path, shop(recorded), gateway=recorded, worker=recorded) as here:
        said = await here.ask("price/query", b"[]", f"traceparent: {PARENT[:-2]}00")
    assert "traceresponse" not in said.headers
    assert json.decode(said.body)["traceparent"] == f"{PARENT[:-2]}00"
    assert recorded.spans == []


@in_a_loop
async def test_headers_that_are_not_valid_are_ignored(tmp_path: Path) -> None:
    wrong: list[tuple[str, ...]] = [
        (f"traceparent: {PARENT}", f"traceparent: {PARENT}"),
        (f"traceparent: {PARENT.upper()}",),
        (f"traceparent: {PARENT}-more",),
        ("traceparent: ",),
        ("traceparent: 00-" + "0" * 32 + "-b7ad6b7169203331-01",),
        (f"traceparent: ff{PARENT[2:]}",),
        (f"traceparent: cc{PARENT[2:]}-x, cc{PARENT[2:]}",),
        ("traceparent: " + "x" * 8_000,),
        ("tracestate: a=1",),
    ]
    dropped = (
        (f"traceparent: {PARENT}", "tracestate: " + "a" * 600 + "=1"),
        (f"traceparent: {PARENT}", "tracestate: a=\u00e9"),
    )
    async with stage(tmp_path, shop()) as here:
        for headers in wrong:
            said = await here.ask("price/query", b"[]", *headers)
            assert (said.status, json.decode(said.body)) == (200, {})
            assert (await here.ask("price/tasks", b"[]", *headers)).status == 202
        for headers in dropped:
            said = await here.ask("price/query", b"[]", *headers)
            assert (said.status, json.decode(said.body)) == (200, {"traceparent": PARENT})


@in_a_loop
@pytest.mark.parametrize("is_traced", [True, False], ids=["traced", "untraced"])
async def test_serve_http_sends_the_trace_to_its_back_end(tmp_path: Path, is_traced: bool) -> None:
    recorded = RecordedTraces()

    async def answer(_: Any, __: Any, ___: Any, writer: asyncio.StreamWriter) -> None:  # noqa: ANN401
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    def heard(server: Server) -> dict[str, str]:
        lines = server.heads[-1].decode().lower().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines if line)
        return {name: value for name, value in headers.items() if name.startswith("trace")}

    async with a_server(answer) as server:
        handler = UpstreamHandler(server.place, UpstreamSettings())
        app = App("shop")
        handler.serve(app, "inference")
        async with stage(tmp_path, app, worker=recorded if is_traced else None) as here:
            headers = (f"traceparent: {PARENT}", "tracestate: a=1")
            await here.ask("inference/query", b"[1]", *headers)
            sent = heard(server)
            if is_traced:
                await until(lambda: bool(recorded.spans))
                own = span_id(recorded.one("answer shop/inference"))
                assert sent == {"traceparent": f"00-{TRACE}-{own:016x}-01", "tracestate": "a=1"}
            else:
                assert sent == {"traceparent": PARENT, "tracestate": "a=1"}
                await here.ask("inference/tasks", b"[1]", *headers)
                await until(lambda: len(server.heads) == 2)
                assert heard(server) == sent
                await here.ask("inference/query", b"[1]")
                assert heard(server) == {}
            own_trace = {"path": "/", "headers": {"Traceparent": "00-mine"}}
            await here.ask("inference/query", json.encode(own_trace), *headers)
            assert heard(server) == {"traceparent": "00-mine"}
        handler.close()


@in_a_loop
async def test_a_gateway_decides_what_is_recorded_of_traces_that_begin_there(
    tmp_path: Path,
) -> None:
    seldom, always = RecordedTraces(sample=0.0), RecordedTraces()
    async with stage(tmp_path, shop(always), gateway=seldom, worker=always) as here:
        said = await here.ask("price/query")
        assert json.decode(said.body)["traceparent"].endswith("-00")
        task = json.decode((await here.ask("price/tasks")).body)
        result = await here.get(f"{task['location']}?wait=8")
        assert json.decode(result.body)["traceparent"].endswith("-00")
    assert "traceresponse" not in said.headers
    assert (seldom.spans, always.spans) == ([], [])


def test_what_is_sent_of_a_context() -> None:
    context = from_headers(PARENT, "a=1")
    assert headers_of(context, "gw/1") == {"traceparent": PARENT, "tracestate": "a=1"}
    assert headers_of(b"", "gw/1") == headers_of(b"\x02 of a later release", "gw/1") == {}
    forged = packed(1, 2, 1, "a=1\r\nHost: elsewhere")
    assert headers_of(forged, "gw/1").keys() == {"traceparent"}
    made_up = headers_of(NOT_RECORDED, "gw/1")["traceparent"]
    assert is_context(from_headers(made_up))
    assert not is_recorded(from_headers(made_up))
    assert made_up != headers_of(NOT_RECORDED, "gw/2")["traceparent"]


def test_attempts_at_a_query_are_counted_in_the_context() -> None:
    first = from_headers(PARENT)
    second = next_attempt(first)
    assert [round_of(one) for one in (first, second, next_attempt(second))] == [0, 2, 3]
    assert traceparent(second) == PARENT
    assert [next_attempt(one) for one in (b"", NOT_RECORDED)] == [b"", NOT_RECORDED]
