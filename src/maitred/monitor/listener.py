"""A listener for monitoring: answers GET of three pages, one request per connection, and nothing
else.

It runs beside what is monitored and must never harm it: heads, connections and times are limited, a
connection that sends slowly is closed when its time is over, or earlier if another one needs its
room, and any number of callers of /metrics share one measurement.
"""

from __future__ import annotations

import asyncio
import re
import socket
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from msgspec import json

from maitred.errors import CannotStart
from maitred.metrics.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.logs import Logger

HEAD_BYTES: Final = 8 * 1024
"""Largest request line with headers; Prometheus and probes send a few hundred bytes."""

CONNECTIONS: Final = 64
"""Most open connections: probes, two Prometheus servers and a person need five at a time. For a
new one beyond it, the oldest is closed."""

HEAD_SECONDS: Final = 5.0
"""Longest time from the connection to the end of the head."""

WHOLE_SECONDS: Final = 30.0
"""Longest time of a connection as a whole: three times the time that Prometheus waits for an answer
by default."""

METRICS: Final = "/metrics"

_END: Final = re.compile(rb"\r?\n\r?\n")
"""The end of a head."""


class ProbeVerdict(NamedTuple):
    """The answer to a probe."""

    ok: bool
    state: str
    """The state of the process in one word, such as `ready` or `draining`."""
    problems: tuple[str, ...] = ()
    """Sentences that say what is missing. Every caller may read them: they name no queue."""


class Monitored(Protocol):
    """The process whose pages are served."""

    async def health(self) -> ProbeVerdict:
        """Return whether the process is alive; where it is not, it may be killed."""

    async def ready(self) -> ProbeVerdict:
        """Return whether the process can do its work now."""

    async def metrics(self) -> str:
        """Return all metrics, in the text format of Prometheus."""


class MonitorPage(NamedTuple):
    """What a caller gets."""

    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


class MonitorListener:
    """Serves the pages of one process at one address."""

    def __init__(self, monitored: Monitored, log: Logger, *, open_metrics: bool = False) -> None:
        """`open_metrics`: whether other machines may read /metrics, which names queues."""
        self._monitored = monitored
        self._log = log
        self._open_metrics = open_metrics
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: dict[_Connection, None] = {}
        """Open connections, the oldest first."""
        self._measuring: asyncio.Task[str] | None = None
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen at every address of the host; port 0: a free one. Raise `CannotStart`."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                at = self.port or port
                server = await loop.create_server(
                    lambda: _Connection(self), str(address[0]), at, family=family
                )
                self._servers.append(server)
                self.port = server.sockets[0].getsockname()[1]
        except OSError as problem:
            await self.close()
            raise CannotStart(
                f"Port {port} on {host}, for monitoring, cannot be used: "
                f"{problem.strerror or problem}.",
                remedy="Stop the process that has it, or name another port; 0 finds a free one.",
            ) from problem

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            connection.abort()
        if self._measuring is not None:
            self._measuring.cancel()

    # For connections

    def opened(self, connection: _Connection) -> None:
        """Note a new connection; close the oldest one if there are too many."""
        if len(self._connections) >= CONNECTIONS:
            next(iter(self._connections)).abort()
        self._connections[connection] = None

    def closed(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    async def answer(self, method: str, path: str, *, is_local: bool) -> MonitorPage:
        """Return the page; raise nothing."""
        try:
            return await self._answer(method, path, is_local=is_local)
        except Exception:  # noqa: BLE001 - the caller gets an answer to every error
            self._log.exception("monitoring page failed", path=path)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "The log says more.")

    async def _answer(self, method: str, path: str, *, is_local: bool) -> MonitorPage:
        pages: dict[str, Callable[[], Awaitable[ProbeVerdict]]] = {
            "/health": self._monitored.health,
            "/ready": self._monitored.ready,
        }
        if path != METRICS and path not in pages:
            remedy = "There are /health, /ready and /metrics."
            return _refusal(HTTPStatus.NOT_FOUND, remedy)
        if method not in {"GET", "HEAD"}:
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is served here.")
        if path != METRICS:
            return _page(await pages[path]())
        if not (is_local or self._open_metrics):
            return _refusal(
                HTTPStatus.FORBIDDEN,
                "Metrics name queues; only this machine may read them, unless open_metrics of the "
                "monitor is set.",
            )
        measuring = self._measuring
        if measuring is None or measuring.done():
            measuring = asyncio.ensure_future(self._monitored.metrics())
            self._measuring = measuring
        body = (await asyncio.shield(measuring)).encode()
        return MonitorPage(HTTPStatus.OK, body, CONTENT_TYPE)


class _Connection(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, listener: MonitorListener) -> None:
        self._listener = listener
        self._head = bytearray()
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEAD_SECONDS, self.abort)
        self._last_timer = loop.call_later(WHOLE_SECONDS, self.abort)
        self._listener.opened(self)

    def connection_lost(self, _problem: Exception | None) -> None:
        self._timer.cancel()
        self._last_timer.cancel()
        if self._answering is not None:
            self._answering.cancel()
        self._listener.closed(self)

    def abort(self) -> None:
        """Close the connection without an answer."""
        self._transport.abort()
        self._listener.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._answering is not None:
            return  # a body, or a second request, which is not read
        head = self._head
        head += data
        end = _END.search(head)
        if (len(head) if end is None else end.start()) > HEAD_BYTES:
            self._send(_refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "Send a shorter head."))
        elif end is not None:
            self._timer.cancel()
            lines = bytes(head[: end.start()]).decode("latin-1").split("\n")
            self._answering = asyncio.ensure_future(self._answer(lines[0], _host(lines[1:])))

    def eof_received(self) -> bool:
        """Keep the connection for the answer to a caller that has sent everything, as `nc -N`
        does."""
        return self._answering is not None

    async def _answer(self, line: str, host: str) -> None:
        words = line.split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._send(_refusal(HTTPStatus.BAD_REQUEST, "This is no request of HTTP/1."))
            return
        method, path = words[0], words[1].partition("?")[0]
        answer = await self._listener.answer(method, path, is_local=self._is_local(host))
        self._send(answer, whole=method != "HEAD")

    def _is_local(self, host: str) -> bool:
        """Return whether the caller is on this machine, and knows that. A page in a browser here
        may have made another name point to this machine (DNS rebinding)."""
        peer = self._transport.get_extra_info("peername")
        try:
            address = ip_address(peer[0].partition("%")[0])
            if host not in {"", "localhost"}:
                ip_address(host)
        except (ValueError, TypeError, IndexError):
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return bool((mapped or address).is_loopback)

    def _send(self, answer: MonitorPage, *, whole: bool = True) -> None:
        status, body = answer.status, answer.body
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        ).encode("latin-1")
        self._transport.write(head + body if whole else head)
        self._transport.close()


def _host(headers: list[str]) -> str:
    """Return the name or address in the header Host, without its port; empty if there is none."""
    for line in headers:
        name, _, value = line.partition(":")
        if name.lower() == "host":
            value = value.strip().lower()
            if value.startswith("["):
                return value[1:].partition("]")[0]
            return value.rpartition(":")[0] if ":" in value else value
    return ""


def _page(verdict: ProbeVerdict) -> MonitorPage:
    status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
    said: dict[str, object] = {"state": verdict.state}
    if verdict.problems:
        said["problems"] = verdict.problems
    return MonitorPage(status, json.encode(said))


def _refusal(status: HTTPStatus, sentence: str) -> MonitorPage:
    return MonitorPage(status, json.encode({"error": sentence}))
