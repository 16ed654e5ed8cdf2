"""A gateway with a fake behind it: doors are tested without a node.

    async with open_door() as place:
        ... bytes to place.port ...

What is asked of `FakeAsking` is answered by the queue's name: `echo` gives the payload's first
argument back, `rows` streams, `fail` raises, `hang` never answers, and so on.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from msgspec import msgpack

from maitred import errors
from maitred.client.asked_query import Rows, Whole
from maitred.dispatch.query_table import QueryTable
from maitred.errors import Cancelled, MaitredError, QueryFailed, WorkerLost
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.listener import HttpListener
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.tasks import Signatures, SignaturesFound
from maitred.security.audit_log import audit_log
from maitred.settings import GatewaySettings, Node, Querying
from maitred.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from maitred.dispatch.ask import Ask
    from maitred.dispatch.query_table import QueryEntry
    from maitred.logs import Logger


class FakeRunning:
    """A query, answered when the fake says so."""

    def __init__(self, asking: FakeAsking, ask: Ask, entry: QueryEntry) -> None:
        self.asking = asking
        self.ask = ask
        self.entry = entry
        self.sequence = entry.sequence
        self.worker = "fake worker"
        self.over = False
        self.outcome: Whole | Rows | MaitredError | None = None
        self.told: Callable[[Whole | Rows | MaitredError], None] | None = None
        self.taken_bytes = 0

    def then(self, told: Callable[[Whole | Rows | MaitredError], None]) -> None:
        self.told = told
        if self.outcome is not None:
            told(self.outcome)

    def cancel(self) -> None:
        if not self.over:
            self.asking.cancelled.append(self)
            self.asking.news.set()
            self.finish(Cancelled("The query was cancelled."), "cancelled")

    def taken(self, size: int) -> None:
        """What `Rows` calls when a chunk was taken."""
        self.taken_bytes += size

    def finish(self, outcome: Whole | Rows | MaitredError, status: str = "done") -> None:
        if self.over:
            return
        self.over = not isinstance(outcome, Rows)
        if self.over:
            self.asking.table.move(self.entry, cast("Any", "running"), 1.0)
            self.asking.table.move(self.entry, cast("Any", status), 1.0)
        if self.outcome is None:
            self.outcome = outcome
            if self.told is not None:
                self.told(outcome)

    def end(self, problem: MaitredError | None = None) -> None:
        """Of a stream."""
        self.over = True
        rows = self.outcome
        assert isinstance(rows, Rows)
        rows.ended(problem, at_once=False)


class FakeAsking:
    """Answers by the name of the queue."""

    def __init__(self) -> None:
        self.table = QueryTable(Querying(table_rows=1000), "fake0000", "fake")
        self.asked: list[FakeRunning] = []
        self.cancelled: list[FakeRunning] = []
        self.news = asyncio.Event()
        """Something was asked or cancelled."""
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self, ask: Ask) -> FakeRunning:
        if ask.queue in REFUSED:
            raise REFUSED[ask.queue]
        running = FakeRunning(self, ask, self.table.enter(ask, 1.0))
        self.asked.append(running)
        self.news.set()
        asyncio.get_running_loop().call_soon(self._answer, running)
        return running

    def _answer(self, running: FakeRunning) -> None:
        ask = running.ask
        arguments = msgpack.decode(ask.payload)
        first = arguments[0] if isinstance(arguments, list) and arguments else arguments
        if ask.queue == "echo":
            running.finish(Whole(msgpack.encode(first)))
        elif ask.queue == "late":
            running.finish(errors.DeadlineExceeded("Too late."), "late")
        elif ask.queue == "ext":
            running.finish(Whole(msgpack.encode(msgpack.Ext(5, b"abc"))))
        elif ask.queue == "fail":
            problem = QueryFailed(
                "It failed.", kind="ValueError", message="no", remote_traceback="line 1"
            )
            running.finish(problem, "failed")
        elif ask.queue in {"rows", "endless", *BREAKS}:
            rows = Rows(cast("Any", running), 4 * 2**20)
            running.finish(rows)
            self.tasks.append(asyncio.ensure_future(self._stream(running, rows, first)))
        elif ask.queue != "hang":
            running.finish(Whole(msgpack.encode(arguments)))

    async def _stream(self, running: FakeRunning, rows: Rows, count: object) -> None:
        number = 0
        many = count if isinstance(count, int) else 3
        while not running.over and (running.ask.queue == "endless" or number < many):
            if rows.waiting < 2**20:
                chunk = msgpack.encode(
                    [number, "x" * (60_000 if running.ask.queue == "endless" else 5)]
                )
                rows.came(chunk)
                number += 1
            await asyncio.sleep(0)
        if not running.over:
            running.end(BREAKS.get(running.ask.queue))

    def cancel(self, sequence: int) -> bool:
        for running in self.asked:
            if running.sequence == sequence and not running.over:
                running.cancel()
                return True
        return False

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()


REFUSED: dict[str, MaitredError] = {
    "nobody": errors.NoWorker("Nobody serves it."),
    "unknown": errors.UnknownQueue("Nobody ever used it.", remedy="Did you mean 'echo'?"),
    "full": errors.Overloaded("Too much.", retry_after=2.2),
    "later": errors.RemoteError("Of a later release.", code="made-up-1"),
    "bug": cast("MaitredError", ZeroDivisionError("a bug")),
}


BREAKS: dict[str, MaitredError] = {
    "broken": WorkerLost("The worker was lost."),
    "broken-later": errors.RemoteError("Of a later release.", code="made-up-2"),
}
"""How streams end, by queue; those of other queues end well."""

PLAIN = encode_shape(HandlerShape("ask", [("text", "str", True)]))
HIDING = encode_shape(HandlerShape("ask", [("text", "str", True)], ["text"]))
"""What workers announce whose handlers hide nothing, and an argument."""


class FakeNode:
    """A node whose workers have announced these signatures for every queue."""

    def __init__(self, announced: list[bytes]) -> None:
        self.announced = announced
        self.answers = asyncio.Event()
        """While this is not set, its answers are on their way."""
        self.answers.set()
        self.asked = 0

    async def request(self, message: object, _timeout: float | None = None) -> SignaturesFound:
        assert isinstance(message, Signatures)
        self.asked += 1
        found = SignaturesFound(self.announced)
        await self.answers.wait()
        return found

    async def close(self) -> None:
        pass


@dataclass
class Opened:
    """A door that is open."""

    door: HttpListener
    gateway: Gateway
    asking: FakeAsking
    port: int
    lines: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def dial(self) -> Caller:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return Caller(reader, writer)


@dataclass
class Answer:
    """An HTTP answer, taken apart."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Caller:
    """The other end, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> Answer:
        async with asyncio.timeout(20):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), {k.lower(): v for k, v in headers.items()}, b"")

    async def answer(self, *, has_body: bool = True) -> Answer:
        found = await self.head()
        async with asyncio.timeout(20):
            if not has_body:
                return found
            if found.headers.get("transfer-encoding") == "chunked":
                found.body = await self.chunks()
            elif "content-length" in found.headers:
                found.body = await self.reader.readexactly(int(found.headers["content-length"]))
            else:
                found.body = await self.reader.read()
        return found

    async def chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body

    async def rest(self) -> bytes:
        """Until the other end closes."""
        async with asyncio.timeout(20):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()


def post(path: str, body: bytes = b"", *headers: str, length: bool = True) -> bytes:
    """A request with JSON, unless the headers say otherwise."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    if body and not any(line.lower().startswith("content-type") for line in headers):
        lines.append("Content-Type: application/json")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def query(queue: str, body: bytes = b"", *headers: str) -> bytes:
    return post(f"/v1/default/queues/{queue}/query", body, *headers)


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "\r\n"]).encode()


class _Log:
    """Keeps what is said."""

    def __init__(self, lines: list[tuple[str, dict[str, Any]]]) -> None:
        self._lines = lines

    def __getattr__(self, level: str) -> Callable[..., None]:
        def said(event: str, **fields: Any) -> None:  # noqa: ANN401
            self._lines.append((event, fields))

        return said


@asynccontextmanager
async def open_door(settings: Node | None = None, **gateway: Any) -> AsyncIterator[Opened]:  # noqa: ANN401
    """A door with a fake behind it, on a free port."""
    lines: list[tuple[str, dict[str, Any]]] = []
    settings = settings or Node(gateway=GatewaySettings(port=0, **gateway))
    log = cast("Logger", _Log(lines))
    audit = None
    if settings.audit.directory is not None:  # where a test looks for it
        audit = audit_log(settings, "gateway", log, time.time)
    made = Gateway("maitred://127.0.0.1:1", settings, Surroundings.real(), log, audit=audit)
    asking = FakeAsking()
    made.querying = asking
    door = HttpListener(port=0)
    address = await made.open(door)
    try:
        yield Opened(door, made, asking, int(address.rpartition(":")[2]), lines)
    finally:
        await made.close()


async def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Look again and again until it holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(0.005)
