"""One trace from the caller of a query to its handler, at a real node with real connections."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator  # noqa: TC003 - handlers' annotations are read
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

import maitred
from maitred import App
from maitred.client.query_calls import read_anything, written
from maitred.client.query_gateway import QueryGateway
from maitred.dispatch.ask import Ask
from maitred.errors import DeadlineExceeded, MaitredError, PermissionDenied, QueryFailed
from maitred.settings import Querying
from maitred.surroundings import Surroundings
from maitred.trace_context import NOT_RECORDED, from_headers, span_id_of
from tests.node.in_process import in_a_loop, until
from tests.telemetry.recorded import RecordedTraces, links, parent_id, span_id, trace_id
from tests.worker.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from maitred.client.query_gateway import Hook

SECRET = "4929-1234-5678"  # noqa: S105 - what must not be seen
PARENT = from_headers("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
UNSAMPLED = from_headers("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@asynccontextmanager
async def asking(
    port: int,
    recorded: RecordedTraces | None,
    hook: Hook | None = None,
    **settings: Any,  # noqa: ANN401
) -> AsyncIterator[QueryGateway]:
    """A gateway of its own, which traces if there are recorded traces."""
    around = Surroundings.real(None if recorded is None else recorded.tracing)
    async with maitred.connect(f"maitred://127.0.0.1:{port}") as client:
        gateway = QueryGateway(client, Querying(**settings), around, hook=hook)
        client.ask_with(gateway)
        yield gateway


def ask(queue: str, *, payload: bytes = b"\x90", **wishes: Any) -> Ask:  # noqa: ANN401
    deadline = asyncio.get_running_loop().time() + 30
    return Ask(
        **{"namespace": "shop", "queue": queue, "payload": payload, "deadline": deadline, **wishes}
    )


@in_a_loop
async def test_a_query_is_one_trace(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop", tracing=recorded.tracing)
    names = ("coroutine", "thread", "rows", "thread-rows")

    @app.handler("coroutine")
    async def coroutine() -> int:
        with recorded.tracer.start_as_current_span("in coroutine"):
            return 1

    @app.handler("thread")
    def thread() -> int:
        with recorded.tracer.start_as_current_span("in thread"):
            return 1

    @app.handler("rows")
    async def rows() -> AsyncIterator[int]:
        with recorded.tracer.start_as_current_span("in rows"):
            yield 1
            await asyncio.sleep(0)
            yield 2

    @app.handler("thread-rows")
    def thread_rows() -> Iterator[int]:
        with recorded.tracer.start_as_current_span("in thread-rows"):
            yield 1
            yield 2

    async with serving(tmp_path, app, tracing=recorded.tracing):
        with recorded.tracer.start_as_current_span("request"):
            assert await coroutine.query() == 1
            assert await thread.query() == 1
            assert [row async for row in rows.stream()] == [1, 2]
            assert [row async for row in thread_rows.stream()] == [1, 2]
        await until(lambda: all(recorded.named(f"answer shop/{name}") for name in names))
    request = recorded.one("request")
    for name in names:
        asked, answered = recorded.one(f"query shop/{name}"), recorded.one(f"answer shop/{name}")
        order = [request, asked, answered, recorded.one(f"in {name}")]
        assert {trace_id(span) for span in order} == {trace_id(request)}
        assert [parent_id(span) for span in order] == [0, *map(span_id, order[:-1])]
        assert asked.kind is trace.SpanKind.CLIENT
        assert attributes(asked)["maitred.query.status"] == "done"
        assert attributes(asked)["maitred.worker"] == attributes(answered)["maitred.worker"] == "w"
        assert asked.status.is_unset
        assert links(answered) == []
    assert recorded.one("answer shop/rows").end_time
    assert len(recorded.spans) == 1 + 3 * len(names)


@in_a_loop
async def test_an_attempt_is_linked_to_the_one_that_was_lost(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop")
    runs = 0
    began, forever = asyncio.Event(), asyncio.Event()

    @app.handler("price", idempotent=True)
    async def price() -> int:
        nonlocal runs
        runs += 1
        began.set()
        if runs == 1:
            await forever.wait()
        return runs

    async with (
        serving(tmp_path, app, tracing=recorded.tracing) as served,
        asking(served.node.port, recorded) as gateway,
    ):
        query = gateway.begin(ask("price", idempotent=True))
        await began.wait()
        for link in list(gateway.open_links.values()):
            link.transport.abort()
        assert (await query.answer()).read(lambda body: body) == b"\x02"
        await until(lambda: len(recorded.named("answer shop/price")) == 2)
    asked = recorded.one("query shop/price")
    first, second = recorded.named("answer shop/price")
    assert [parent_id(first), parent_id(second)] == [span_id(asked)] * 2
    assert (links(first), links(second)) == ([], [span_id(first)])
    assert [attributes(one)["maitred.attempt"] for one in (first, second)] == [1, 2]
    assert attributes(first)["error.type"] == "cancelled"
    assert second.status.is_unset
    assert attributes(asked)["maitred.query.attempts"] == 2


@in_a_loop
async def test_a_relayed_query_carries_its_trace(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop")

    @app.handler("price")
    async def price() -> int:
        return 1

    async with (
        serving(tmp_path, app, tracing=recorded.tracing) as served,
        asking(served.node.port, recorded) as gateway,
    ):
        gateway.connect = lambda allocation, waiter, now: waiter.unreachable(now)  # noqa: ARG005
        await gateway.begin(ask("price")).answer()
        assert gateway.statistics().relayed == 1
        await until(lambda: bool(recorded.named("answer shop/price")))
    asked, answered = recorded.one("query shop/price"), recorded.one("answer shop/price")
    assert parent_id(answered) == span_id(asked)


@in_a_loop
async def test_every_end_ends_both_spans_once_and_tells_no_argument(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop")
    began = asyncio.Event()

    @app.handler("price", hide=["card"])
    async def price(how: str, card: str) -> None:
        if how == "raise":
            raise ConnectionError(f"refuses {card}")
        began.set()
        await asyncio.Event().wait()

    @app.handler("rows", hide=["card"])
    async def rows(card: str) -> AsyncIterator[str]:
        yield card
        raise ConnectionError(f"refuses {card}")

    def hook(asked: Ask) -> Ask:
        if asked.text == "refuse":
            raise PermissionDenied(f"Not {SECRET}.")
        return asked

    def call(*arguments: object, queue: str = "price", **wishes: Any) -> Ask:  # noqa: ANN401
        return ask(queue, payload=written(arguments, None), **wishes)

    async def ends(asked: Ask, gateway: QueryGateway) -> None:
        with pytest.raises(MaitredError):
            async for _ in await gateway.begin(asked).answer():  # type: ignore[union-attr]
                pass

    async with (
        serving(tmp_path, app, tracing=recorded.tracing) as served,
        asking(served.node.port, recorded, hook, under_way=1) as gateway,
    ):
        loop = asyncio.get_running_loop()
        with pytest.raises(QueryFailed, match="ConnectionError"):
            await gateway.begin(call("raise", SECRET)).answer()
        await ends(call(SECRET, queue="rows"), gateway)
        await ends(call("raise", [SECRET]), gateway)  # does not fit
        await ends(call("raise", SECRET, text="refuse"), gateway)
        await ends(call("raise", SECRET, deadline=loop.time()), gateway)
        late = gateway.begin(call("wait", SECRET))
        await began.wait()
        (running,) = served.worker.querying.running
        running.time_is_over()
        with pytest.raises(DeadlineExceeded):
            await late.answer()
        await until(lambda: len(recorded.named("answer shop/price")) == 3)
        began.clear()
        left = gateway.begin(call("wait", SECRET, text=SECRET))
        await ends(call("wait", SECRET), gateway)  # the query table is full
        await began.wait()
        left.cancel()
        began.clear()
        closed = gateway.begin(call("wait", SECRET))
        await began.wait()
        await gateway.close()
        assert closed.over
        await until(lambda: len(recorded.named("answer shop/price")) == 5)
    found = [
        (attributes(one)["maitred.query.status"], attributes(one)["error.type"])
        for one in recorded.named("query shop/price")
    ]
    assert found == [
        ("failed", "ConnectionError"),
        ("failed", "invalid-arguments"),
        ("refused", "permission-denied"),
        ("late", "deadline-exceeded"),
        ("late", "deadline-exceeded"),
        ("cancelled", "cancelled"),
        ("refused", "overloaded"),
        ("refused", "closed"),
    ]
    streamed = attributes(recorded.one("query shop/rows"))
    assert (streamed["maitred.query.status"], streamed["error.type"]) == (
        "failed",
        "ConnectionError",
    )
    assert [attributes(one)["error.type"] for one in recorded.named("answer shop/price")] == [
        "ConnectionError",
        "invalid-arguments",
        *["timed-out", "cancelled", "cancelled"],
    ]
    assert "refuses" in recorded.text  # at the worker, which hides the argument
    assert SECRET not in recorded.text


@in_a_loop
async def test_the_trace_survives_a_hook(tmp_path: Path) -> None:
    recorded = RecordedTraces()
    app = App("shop")

    @app.handler("price")
    async def price() -> int:
        return 1

    async def hook(asked: Ask) -> Ask:
        return Ask(namespace="shop", queue="price", payload=b"\x90", deadline=asked.deadline)

    async with (
        serving(tmp_path, app, tracing=recorded.tracing) as served,
        asking(served.node.port, recorded, hook) as gateway,
    ):
        await gateway.begin(ask("elsewhere", trace=PARENT)).answer()
        await until(lambda: bool(recorded.named("answer shop/price")))
    asked = recorded.one("query shop/elsewhere")
    assert parent_id(asked) == span_id_of(PARENT)
    assert parent_id(recorded.one("answer shop/price")) == span_id(asked)


@in_a_loop
@pytest.mark.parametrize("begun_by", [UNSAMPLED, NOT_RECORDED, b""], ids=["flag", "mark", "here"])
async def test_a_trace_that_is_not_recorded_stays_so(tmp_path: Path, begun_by: bytes) -> None:
    recorded = RecordedTraces(sample=0.0)
    app = App("shop")
    seen = []

    @app.handler("price")
    async def price() -> dict[str, str]:
        with recorded.tracer.start_as_current_span("database") as span:
            seen.append(span.is_recording())
        return maitred.current().trace_headers()

    async with (
        serving(tmp_path, app, tracing=recorded.tracing) as served,
        asking(served.node.port, recorded) as gateway,
    ):
        headers = await gateway.begin(ask("price", trace=begun_by)).answer()
    assert seen == [False]
    assert recorded.spans == []
    assert headers.read(read_anything)["traceparent"].endswith("-00")


@in_a_loop
async def test_a_context_passes_a_gateway_and_a_worker_that_do_not_trace(tmp_path: Path) -> None:
    app = App("shop")

    @app.handler("price")
    async def price() -> dict[str, str]:
        return maitred.current().trace_headers()

    async with (
        serving(tmp_path, app) as served,
        asking(served.node.port, None) as gateway,
    ):
        headers = (await gateway.begin(ask("price", trace=PARENT)).answer()).read(read_anything)
        assert from_headers(headers["traceparent"], headers["tracestate"]) == PARENT
        assert (await gateway.begin(ask("price")).answer()).read(read_anything) == {}


WITHOUT = """
import asyncio, sys, tempfile
from pathlib import Path
from maitred import App
from tests.worker.serving import serving

app = App("shop")

@app.handler("price")
async def price() -> int:
    return 1

async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with serving(Path(directory), app):
            assert await price.query() == 1
            assert await (await price.enqueue()).result(timeout=20) == 1

asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_without_tracing_nothing_of_opentelemetry_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
