"""A small HTTP/1.1 client for one back end, which keeps connections and returns whole answers.

It has what a worker in front of an HTTP server needs, and nothing else: one request at a time on
each connection, as many connections as there are queries (the worker bounds these), and a bound on
all times and sizes. A request is repeated only if its method allows that (GET, say) and it was sent
on a kept connection that the back end had closed meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from maitred.errors import (
    InvalidArgument,
    InvalidArguments,
    UpstreamGarbage,
    UpstreamTimeout,
    UpstreamUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.errors import UpstreamError
    from maitred.settings import Upstream as UpstreamSettings

METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
REPEATABLE: Final = frozenset(("GET", "HEAD", "PUT", "DELETE", "OPTIONS"))
"""Idempotent methods."""

OURS: Final = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Headers about one connection, which are not passed on in either direction."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
_PATH: Final = re.compile(r"/[\x21-\x7e]*\Z")


class UpstreamAnswer(NamedTuple):
    """An HTTP back end's complete answer."""

    status: int
    headers: dict[str, str]
    """By lower-case name; values of a repeated header are joined by a comma."""
    body: bytes


class UpstreamAddress(NamedTuple):
    """The host, the port and the path of an HTTP back end."""

    host: str
    port: int
    tls: bool
    path: str
    """Prefix of every path, without a slash at the end."""

    @property
    def authority(self) -> str:
        """The value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.authority}{self.path}"


def parse_upstream(url: str) -> UpstreamAddress:
    """Return the address that a URL names; raise `InvalidArgument` unless it is one of a server."""
    remedy = "Write it like http://127.0.0.1:9000 or http://127.0.0.1:9000/v1."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidArgument(f"{url!r} is no URL.", remedy=remedy) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"{url!r} is no URL of an HTTP server.", remedy=remedy)
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidArgument(
            f"An upstream is a host, a port and a path; {url!r} has more than that.", remedy=remedy
        )
    path = parts.path.rstrip("/")
    if path and not _PATH.match(path):
        raise InvalidArgument(f"The path of {url!r} cannot be sent.", remedy=remedy)
    tls = parts.scheme == "https"
    return UpstreamAddress(parts.hostname, port or (443 if tls else 80), tls, path)


class UpstreamPool:
    """An HTTP back end, and the open connections to it."""

    def __init__(self, place: UpstreamAddress, settings: UpstreamSettings) -> None:
        self.place = place
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.opened = 0
        """Connections that were opened so far."""
        self._idle: list[_Connection] = []
        """Kept connections; the one that was used last is used next."""
        self._open: dict[_Connection, None] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, most_bytes: int
    ) -> UpstreamAnswer:
        """Send a request and return the whole answer. Raise `UpstreamError`, or `InvalidArguments`
        if the request cannot be sent."""
        head = self._head(method, path, headers, len(body))
        most_bytes = min(most_bytes, self.settings.body_bytes)
        seconds = self.settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                while True:
                    kept = self._kept()
                    connection = kept or await self._connect()
                    try:
                        return await connection.ask(head, body, method == "HEAD", most_bytes)
                    except _Stale:
                        if kept is None or method not in REPEATABLE:
                            raise UpstreamUnavailable(
                                f"{self.place} closed the connection before it answered."
                            ) from None
        except TimeoutError:
            raise UpstreamTimeout(f"{self.place} took longer than {seconds:g} s.") from None

    def close(self) -> None:
        """Close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._open):
            connection.abort()

    # Connections

    def entered(self, connection: _Connection) -> None:
        """Note that this connection is open."""
        self.opened += 1
        self._open[connection] = None

    def left(self, connection: _Connection) -> None:
        """Note that this connection is closed."""
        self._open.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def keep(self, connection: _Connection) -> None:
        """Keep this connection for the next request."""
        if not self.settings.keep_seconds:
            connection.abort()
            return
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(self.settings.keep_seconds, self._look)

    def _kept(self) -> _Connection | None:
        now = self.loop.time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.used_at < self.settings.keep_seconds:
                return connection
            connection.abort()
        return None

    def _look(self) -> None:
        self._sweep = None
        old = self.loop.time() - self.settings.keep_seconds
        for connection in [one for one in self._idle if one.used_at <= old]:
            self._idle.remove(connection)
            connection.abort()
        if self._idle:
            first = self._idle[0].used_at - old
            self._sweep = self.loop.call_later(max(0.01, first), self._look)

    async def _connect(self) -> _Connection:
        place, seconds = self.place, self.settings.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                _, connection = await self.loop.create_connection(
                    lambda: _Connection(self), place.host, place.port, ssl=place.tls or None
                )
        except TimeoutError:
            raise UpstreamUnavailable(
                f"{place} did not take a connection within {seconds:g} s."
            ) from None
        except OSError as problem:
            why = problem.strerror or str(problem)
            raise UpstreamUnavailable(f"{place} cannot be reached: {why}.") from None
        return connection

    def _head(self, method: str, path: str, headers: Mapping[str, str], size: int) -> bytes:
        if method not in METHODS:
            raise InvalidArguments(
                f"The method {method!r:.40} is not passed on.",
                remedy=f"Use {', '.join(sorted(METHODS))}.",
            )
        if not _PATH.match(path):
            raise InvalidArguments(
                f"The path {path!r:.100} cannot be sent.",
                remedy="It begins with a slash; what is not ASCII is written as %xx.",
            )
        lines = [f"{method} {self.place.path}{path} HTTP/1.1", f"Host: {self.place.authority}"]
        for name, value in headers.items():
            if not _NAME.match(name) or not _VALUE.match(value):
                raise InvalidArguments(f"The header {name!r:.100} cannot be sent.")
            if name.lower() not in OURS:
                lines.append(f"{name}: {value}")
        if size or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {size}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class _Stale(Exception):
    """The connection was closed before a byte of the answer came."""


class _Connection(asyncio.Protocol):
    """One connection to a back end, and the request that is under way on it."""

    def __init__(self, upstream: UpstreamPool) -> None:
        self.used_at = upstream.loop.time()
        self._upstream = upstream
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[UpstreamAnswer] | None = None
        self._begin(0, is_head=False)

    def _begin(self, most_bytes: int, *, is_head: bool) -> None:
        self._parser = HttpResponseParser(self)
        self._most_bytes = most_bytes
        self._is_head = is_head
        self._heard = False
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._head_over = False
        self._parts: list[bytes] = []
        self._size = 0

    async def ask(self, head: bytes, body: bytes, is_head: bool, most_bytes: int) -> UpstreamAnswer:
        """Send one request and wait for its answer; a caller that stops waiting closes the
        connection."""
        if self._transport.is_closing():
            raise _Stale
        self._begin(most_bytes, is_head=is_head)
        answer: asyncio.Future[UpstreamAnswer] = self._upstream.loop.create_future()
        self._answer = answer
        self._transport.writelines((head, body) if body else (head,))
        try:
            return await answer
        finally:
            # If the answer came, another request may use the connection already.
            if self._answer is answer:
                self._answer = None
                self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._upstream.entered(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # there is no request to answer
            self.abort()
            return
        self._heard = True
        if not self._head_over:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail(UpstreamGarbage(f"{self._upstream.place} does not speak HTTP/1.1."))
        if not self._head_over and self._head_bytes > self._upstream.settings.header_bytes:
            self._fail(UpstreamGarbage(f"{self._upstream.place} sends a head without an end."))

    def eof_received(self) -> None:
        self._ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.left(self)
        if exc is None:
            self._ended()
        elif self._answer is not None:
            self._fail(UpstreamUnavailable(f"{self._upstream.place} broke the connection: {exc}."))

    def _ended(self) -> None:
        """End the request under way: nothing more will arrive. It fails, unless its answer lasts
        until the connection is closed."""
        if self._answer is None:
            return
        if not self._heard:
            self._fail(_Stale())
        elif self._until_the_end:
            self._done()
        else:
            self._fail(
                UpstreamUnavailable(
                    f"{self._upstream.place} closed the connection in the middle of its answer."
                )
            )

    @property
    def _until_the_end(self) -> bool:
        """Whether the body ends with the connection."""
        return (
            self._head_over
            and "content-length" not in self._headers
            and "transfer-encoding" not in self._headers
        )

    # From the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_over:  # trailers are not used
            return
        text = name.decode("latin-1").lower()
        before = self._headers.get(text)
        said = value.decode("latin-1")
        self._headers[text] = said if before is None else f"{before}, {said}"

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self._head_over = True
        if self._is_head:  # the answer has no body, whatever its Content-Length says
            self._done(keep=False)

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._most_bytes:
            self._fail(
                UpstreamGarbage(
                    f"{self._upstream.place} answers with more than {self._most_bytes:,} bytes."
                )
            )
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # "continue", or hints: the answer follows
            self._headers = {}
            self._head_bytes = 0
            return
        self._done(keep=self._parser.should_keep_alive())

    # The end

    def _done(self, *, keep: bool = False) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        self.used_at = self._upstream.loop.time()
        if not answer.done():
            body = b"".join(self._parts)
            status = self._parser.get_status_code()
            answer.set_result(UpstreamAnswer(status, self._headers, body))
        self._parts = []
        if keep and not self._transport.is_closing():
            self._upstream.keep(self)
        else:
            self.abort()

    def _fail(self, problem: UpstreamError | _Stale) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(problem)
        self._parts = []
        self.abort()
