"""A worker before an HTTP server: a real server here, with everything that servers do wrong."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import json, msgpack

from maitred import App
from maitred.errors import (
    InvalidArgument,
    InvalidArguments,
    UpstreamError,
    UpstreamFailed,
    UpstreamGarbage,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from maitred.settings import Upstream as UpstreamSettings
from maitred.worker.outcomes import Unfit
from maitred.worker.upstream import UpstreamAddress, UpstreamAnswer, UpstreamPool, parse_upstream
from maitred.worker.upstream_handler import (
    UpstreamHandler,
    UpstreamRequest,
    content,
    result,
    understood,
)
from tests.node.in_process import in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway, read_failure
from tests.worker.running import a_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    Behaviour = Callable[
        [bytes, bytes, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]
    ]

MANY = 2**20
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Reads requests, and has the test answer them."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.place = UpstreamAddress("127.0.0.1", 0, tls=False, path="")
        self.writers: list[asyncio.StreamWriter] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = 0
                for line in head.split(b"\r\n"):
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        size = int(value)
                body = await reader.readexactly(size)
                self.heads.append(head)
                self.bodies.append(body)
                await self._behaviour(head, body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def a_server(behaviour: Behaviour) -> AsyncIterator[Server]:
    made = Server(behaviour)
    server = await asyncio.start_server(made.talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.place = UpstreamAddress("127.0.0.1", port, tls=False, path="")
    try:
        yield made
    finally:
        server.close()
        for writer in made.writers:
            writer.transport.abort()


def answering(answer: bytes, *, close: bool = False) -> Behaviour:
    async def behave(
        head: bytes,  # noqa: ARG001
        body: bytes,  # noqa: ARG001
        reader: asyncio.StreamReader,  # noqa: ARG001
        writer: asyncio.StreamWriter,
    ) -> None:
        writer.write(answer)
        await writer.drain()
        if close:
            raise ConnectionError

    return behave


async def echoing(
    head: bytes,
    body: bytes,
    reader: asyncio.StreamReader,  # noqa: ARG001
    writer: asyncio.StreamWriter,
) -> None:
    told = json.encode({"line": head.split(b"\r\n")[0].decode(), "got": json.decode(body or b"0")})
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n")
    writer.write(b"X-Seen: 1\r\nX-Seen: 2\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told))


async def ask(
    server: Server,
    method: str = "GET",
    path: str = "/",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    **settings: Any,  # noqa: ANN401
) -> UpstreamAnswer:
    upstream = UpstreamPool(server.place, UpstreamSettings(**settings))
    try:
        return await upstream.ask(method, path, headers or {}, body, MANY)
    finally:
        upstream.close()


# Where it is


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://localhost/", "http://localhost"),
        ("https://example.com:443/v1/", "https://example.com/v1"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://[::1]:8080/a/b", "http://[::1]:8080/a/b"),
    ],
)
def test_places(url: str, shown: str) -> None:
    assert str(parse_upstream(url)) == shown


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:9000", "ftp://x", "http://", "http://a:b@c", "http://x:99999", "http://x?a=b",
     "http://x#y", "http://x/a b", "http://[::1", "http://x/\x00"],
)  # fmt: skip
def test_what_is_no_place(url: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_upstream(url)


# Asking


@in_a_loop
async def test_a_request_arrives_as_it_is_and_so_does_the_answer() -> None:
    async with a_server(echoing) as server:
        headers = {"X-Mine": "yes", "Host": "evil", "Content-Length": "999", "Connection": "close"}
        answer = await ask(server, "POST", "/a?b=c", headers, b"[1,2]")
        assert answer.status == 200
        assert json.decode(answer.body) == {"line": "POST /a?b=c HTTP/1.1", "got": [1, 2]}
        assert answer.headers["x-seen"] == "1, 2"
        lines = server.heads[0].split(b"\r\n")
        assert f"Host: {server.place.authority}".encode() in lines
        assert b"X-Mine: yes" in lines
        assert b"Content-Length: 5" in lines
        assert not any(b"evil" in line or b"999" in line or b"close" in line for line in lines)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("CONNECT", "/", {}),
        ("get", "/", {}),
        ("GET / HTTP/1.1\r\nX: y\r\n\r\n", "/", {}),
        ("GET", "", {}),
        ("GET", "http://elsewhere/", {}),
        ("GET", "/a b", {}),
        ("GET", "/\r\nX: y", {}),
        ("GET", "/ü", {}),
        ("GET", "/", {"X\r\nY": "z"}),
        ("GET", "/", {"X": "y\r\nZ: w"}),
        ("GET", "/", {"": "y"}),
        ("GET", "/", {"X": "\u20ac"}),
    ],
)
@in_a_loop
async def test_what_cannot_be_sent_is_not_sent(
    method: str, path: str, headers: dict[str, str]
) -> None:
    async with a_server(echoing) as server:
        with pytest.raises(InvalidArguments):
            await ask(server, method, path, headers, b"")
        assert server.connections == 0


@in_a_loop
async def test_connections_are_kept_and_as_many_as_are_needed() -> None:
    async with a_server(echoing) as server:
        upstream = UpstreamPool(server.place, UpstreamSettings())
        for _ in range(5):
            await upstream.ask("GET", "/", {}, b"", MANY)
        assert (server.connections, upstream.opened) == (1, 1)
        await asyncio.gather(*(upstream.ask("GET", "/", {}, b"", MANY) for _ in range(4)))
        assert server.connections == 4
        upstream.close()
        assert await ask(server, keep_seconds=0) == await ask(server, keep_seconds=0)
        assert server.connections == 6


@in_a_loop
async def test_a_connection_that_is_taken_again_at_once_is_left_alone() -> None:
    """By somebody whose turn comes before that of whom its last answer was for: each that is over
    begins another one here, so that there are all orders of turns."""
    width, left, over = 16, 2_000, asyncio.Event()
    async with a_server(echoing) as server:
        upstream = UpstreamPool(server.place, UpstreamSettings(timeout_seconds=2.0))
        under_way: set[asyncio.Task[None]] = set()
        problems: list[UpstreamError] = []

        async def one() -> None:
            nonlocal left
            try:
                await upstream.ask("GET", "/", {}, b"", MANY)
            except UpstreamError as problem:
                problems.append(problem)
            left -= 1
            if left >= width:
                begin()
            elif left == 0:
                over.set()

        def begin() -> None:
            task = asyncio.create_task(one())
            under_way.add(task)
            task.add_done_callback(under_way.discard)

        for _ in range(width):
            begin()
        async with asyncio.timeout(20.0):
            await over.wait()
        assert problems == []
        assert upstream.opened == width
        upstream.close()


@in_a_loop
async def test_a_kept_connection_that_is_too_old_is_closed_unused() -> None:
    async with a_server(echoing) as server:
        upstream = UpstreamPool(server.place, UpstreamSettings(keep_seconds=0.05))
        await upstream.ask("GET", "/", {}, b"", MANY)
        await until(lambda: not upstream._open)
        await upstream.ask("GET", "/", {}, b"", MANY)
        assert server.connections == 2
        upstream.close()


@in_a_loop
async def test_a_kept_connection_that_was_closed_in_between() -> None:
    """It dies under the request: what may be repeated is, the rest is an error."""
    dying = asyncio.Event()

    async def once_then_die(*told: Any) -> None:  # noqa: ANN401
        if dying.is_set():
            dying.clear()
            raise ConnectionError
        await echoing(*told)

    async with a_server(once_then_die) as server:
        upstream = UpstreamPool(server.place, UpstreamSettings())
        await upstream.ask("GET", "/", {}, b"", MANY)
        dying.set()
        assert (await upstream.ask("GET", "/", {}, b"", MANY)).status == 200
        assert server.connections == 2
        dying.set()
        with pytest.raises(UpstreamUnavailable, match="before it answered"):
            await upstream.ask("POST", "/", {}, b"1", MANY)
        assert server.bodies.count(b"1") == 1
        # A new connection that is closed without a word is an error, whatever the method.
        dying.set()
        with pytest.raises(UpstreamUnavailable):
            await upstream.ask("GET", "/", {}, b"", MANY)
        upstream.close()


@pytest.mark.parametrize(
    ("answer", "close", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
         False, b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", True, b"to the end"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, False, b"{}"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", False, b"ok"),
    ],
)  # fmt: skip
@in_a_loop
async def test_the_shapes_of_answers(answer: bytes, close: bool, body: bytes) -> None:
    async with a_server(answering(answer, close=close)) as server:
        got = await ask(server)
        assert got.body == body
        assert "link" not in got.headers
        assert "x" not in got.headers


@in_a_loop
async def test_head_has_no_body_whatever_its_length_says() -> None:
    async with a_server(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")) as server:
        answer = await ask(server, "HEAD", "/", {}, b"")
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"SSH-2.0-OpenSSH\r\n", UpstreamGarbage),
        (b"\x00" * 100, UpstreamGarbage),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", UpstreamGarbage),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", UpstreamGarbage),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi",
         UpstreamGarbage),
        (b"HTTP/1.1 200 OK\r\n" + b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 100, UpstreamGarbage),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2000), UpstreamGarbage),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + bytes(2000),
         UpstreamGarbage),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", UpstreamUnavailable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", UpstreamUnavailable),
        (b"HTTP/1.1 200 O", UpstreamUnavailable),
        (b"", UpstreamUnavailable),
    ],
)  # fmt: skip
@in_a_loop
async def test_what_servers_do_wrong(answer: bytes, kind: type[UpstreamError]) -> None:
    async with a_server(answering(answer, close=True)) as server:
        with pytest.raises(kind):
            await ask(server, header_bytes=1024, body_bytes=1000)


@in_a_loop
async def test_nobody_is_there() -> None:
    async with a_server(echoing) as server:
        pass
    with pytest.raises(UpstreamUnavailable, match="cannot be reached"):
        await ask(server)


@in_a_loop
async def test_a_server_that_does_not_answer_is_given_up_and_its_connection_closed() -> None:
    gone = asyncio.Event()

    async def silent(
        head: bytes,  # noqa: ARG001
        body: bytes,  # noqa: ARG001
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,  # noqa: ARG001
    ) -> None:
        try:
            await reader.read(1)
        finally:
            gone.set()

    async with a_server(silent) as server:
        with pytest.raises(UpstreamTimeout, match=r"longer than 0\.05 s"):
            await ask(server, timeout_seconds=0.05)
        async with asyncio.timeout(30):
            await gone.wait()


# What arguments mean


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"prompt": "x"}, UpstreamRequest(body={"prompt": "x"}, plain=True)),
        ({"body": 1}, UpstreamRequest(body={"body": 1}, plain=True)),
        ({}, UpstreamRequest(body={}, plain=True)),
        ({"method": "GET", "path": "/a"}, UpstreamRequest("GET", "/a")),
        ({"path": "/a", "body": [1]}, UpstreamRequest("POST", "/a", body=[1])),
        ({"path": "/a", "other": 1}, UpstreamRequest(body={"path": "/a", "other": 1}, plain=True)),
        (["GET", "/a"], UpstreamRequest("GET", "/a")),
        (["PUT", "/a", {"X": "y"}, b"z"], UpstreamRequest("PUT", "/a", {"X": "y"}, b"z")),
        (["one"], UpstreamRequest(body="one", plain=True)),
        ([1, 2, 3], UpstreamRequest(body=[1, 2, 3], plain=True)),
        ([{"a": 1}], UpstreamRequest(body={"a": 1}, plain=True)),
        ([], UpstreamRequest(plain=True)),
        (None, UpstreamRequest(body=None, plain=True)),
    ],
)
def test_what_arguments_mean(given: object, meant: UpstreamRequest) -> None:
    assert understood(msgpack.encode(given)) == meant


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgpack.encode({"method": 1}), msgpack.encode(["GET", "/", {"X": 1}])],
)
def test_arguments_that_mean_nothing(payload: bytes) -> None:
    with pytest.raises(InvalidArguments):
        understood(payload)


def test_what_is_sent() -> None:
    assert content(UpstreamRequest(body={"a": 1}, plain=True)) == (
        {"Accept": "application/json", "Content-Type": "application/json"},
        b'{"a":1}',
    )
    assert content(UpstreamRequest("GET", "/")) == ({}, b"")
    assert content(UpstreamRequest(body="text")) == (
        {"Content-Type": "text/plain; charset=utf-8"},
        b"text",
    )
    assert content(UpstreamRequest(headers={"content-type": "x/y"}, body=b"z")) == (
        {"content-type": "x/y"},
        b"z",
    )
    with pytest.raises(InvalidArguments, match="as JSON"):
        content(UpstreamRequest(body={1: msgpack.Ext(1, b"")}, plain=True))


def test_what_comes_of_an_answer() -> None:
    plain, whole = UpstreamRequest(plain=True), UpstreamRequest("GET", "/")
    as_json = {"content-type": "application/problem+json", "connection": "close"}
    assert result(plain, UpstreamAnswer(200, as_json, b"[1]")) == [1]
    assert result(plain, UpstreamAnswer(200, {"content-type": "text/html"}, b"hi")) == "hi"
    assert result(plain, UpstreamAnswer(200, {}, b"\x00")) == b"\x00"
    assert result(plain, UpstreamAnswer(204, {}, b"")) is None
    assert result(whole, UpstreamAnswer(404, as_json, b"[1]")) == {
        "status": 404,
        "headers": {"content-type": "application/problem+json"},
        "body": [1],
    }
    for request, status in ((plain, 404), (plain, 302), (whole, 500), (whole, 503), (whole, 429)):
        with pytest.raises(UpstreamFailed, match=f"status {status}: no"):
            result(request, UpstreamAnswer(status, {}, b"no"))
    with pytest.raises(UpstreamGarbage, match="JSON"):
        result(plain, UpstreamAnswer(200, as_json, b"{"))


# As a worker


@in_a_loop
async def test_a_worker_before_a_server() -> None:
    async with a_server(echoing) as server, ReservingNode() as node:
        app = App("desk")
        forwarding = UpstreamHandler(server.place, UpstreamSettings())
        forwarding.serve(app, "ask")
        async with a_worker(node, app, limit="knee", slots=64) as worker:
            assert worker.capacity.limit == 16
            async with a_gateway(worker) as gateway:
                first = gateway.run(node.reserve("ask"), named={"prompt": "x"})
                assert await gateway.result(first) == {
                    "line": "POST / HTTP/1.1",
                    "got": {"prompt": "x"},
                }
                assert b"X-Request-Id: gw/7" in server.heads[0]
                second = gateway.run(node.reserve("ask"), "GET", "/a")
                whole = await gateway.result(second)
                assert whole["status"] == 200
                assert whole["body"]["line"] == "GET /a HTTP/1.1"
                third = await gateway.failure(gateway.run(node.reserve("ask"), "GET", "/a b"))
                assert third.kind == InvalidArguments.code
                fourth = await gateway.over(gateway.run(node.reserve("ask"), payload=b"\xc1"))
                assert read_failure(fourth.body).kind == InvalidArguments.code
        forwarding.close()


@in_a_loop
async def test_what_the_server_does_wrong_is_a_typed_failure_and_no_work_done() -> None:
    refusal = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"
    async with a_server(answering(refusal)) as server, ReservingNode() as node:
        app = App("desk")
        forwarding = UpstreamHandler(server.place, UpstreamSettings())
        forwarding.serve(app, "ask")
        async with a_worker(node, app, limit="knee") as worker, a_gateway(worker) as gateway:
            failure = await gateway.failure(gateway.run(node.reserve("ask"), "x"))
            assert failure.kind == UpstreamFailed.code
            assert failure.message.endswith("status 503: busy")
            assert failure.traceback == ""
            assert worker.capacity._gauge.mean_service_seconds == 0.0
        forwarding.close()


@in_a_loop
async def test_a_query_that_is_cancelled_leaves_its_connection() -> None:
    reached, gone = asyncio.Event(), asyncio.Event()

    async def silent(
        head: bytes,  # noqa: ARG001
        body: bytes,  # noqa: ARG001
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,  # noqa: ARG001
    ) -> None:
        reached.set()
        try:
            await reader.read(1)
        finally:
            gone.set()

    async with a_server(silent) as server, ReservingNode() as node:
        app = App("desk")
        forwarding = UpstreamHandler(server.place, UpstreamSettings())
        forwarding.serve(app, "ask")
        async with a_worker(node, app) as worker:
            async with a_gateway(worker) as gateway:
                gateway.run(node.reserve("ask"), "x")
                async with asyncio.timeout(30):
                    await reached.wait()
            async with asyncio.timeout(30):
                await gone.wait()
            await until(lambda: worker.statistics.busy == 0)


@in_a_loop
async def test_forwarding_by_itself() -> None:
    async with a_server(echoing) as server:
        forwarding = UpstreamHandler(server.place, UpstreamSettings())
        assert (await forwarding.forward(msgpack.encode([5])))["got"] == 5
        with pytest.raises(Unfit):
            await forwarding.forward(b"\xc1")
        forwarding.close()
