"""Parse HTTP requests from the bytes of a connection.

httptools calls this class for every part of a request; a head that is the same as the last one,
byte for byte, is not parsed again.

A request that arrives in one piece is passed on whole. As soon as a body is longer than what came
with its head, the head alone decides whether the caller is authenticated (`_decide`), and nothing
more is read before that is known. So a stranger makes a gateway hold a head and one read's worth of
a body at most, and what all of them hold is counted (`budget.py`).

Bytes are parsed in portions. A single read may hold thousands of requests; they would be thousands
of objects before the first is answered, and keep all other connections waiting.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from maitred.errors import InternalError, MaitredError, MalformedRequest
from maitred.gateway.http.heads import (
    CHUNKS_MAX,
    HEADERS_MAX,
    ONCE,
    check_coding,
    check_encoding,
    check_expectation,
    check_upgrade,
    check_version,
    too_large,
    too_many_chunks,
    too_many_headers,
)
from maitred.gateway.http.request import HttpRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.gateway.http.budget import Budget, Budgets
    from maitred.gateway.http.metrics import Metrics
    from maitred.logs import Logger
    from maitred.settings import GatewaySettings

IDLE, HEAD, BODY = range(3)
"""The phases of reading a request."""

PORTION_BYTES: Final = 1024
"""How many bytes of heads are parsed at a time: some twenty of the shortest, and more than one of
the usual ones."""

CHUNKED_PORTION_BYTES: Final = 4 * 1024
"""How many bytes of chunks are parsed at a time. Of a body with a Content-Length, all that has
arrived is parsed."""

HEAD_COST_BYTES: Final = 4 * 1024
"""The bytes counted for an unfinished head beside its own: about the size of its objects."""

TURN_REQUESTS: Final = 16
"""How many requests of one connection are parsed before others get their turn."""

TURN_PIECES: Final = 64
"""How many pieces of a body are parsed before others get their turn: chunks of two bytes cost as
much time as chunks of four thousand."""

DISCARDED_MAX: Final = 64 * 1024
"""A refused request whose body is not longer than this is answered when all of it has arrived, and
the connection goes on. With a longer body the connection ends."""

END_OF_HEAD: Final = b"\r\n\r\n"

UNUSUAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
"""A request with one of these headers is parsed each time, even if its head repeats."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

UNKNOWN_LENGTH: Final = -1


class ReaderListener(Protocol):
    """The listener of a connection, as the part that reads sees it."""

    loop: asyncio.AbstractEventLoop
    """The event loop of the gateway process."""
    settings: GatewaySettings
    """The settings of the gateway, with the largest sizes of heads and bodies."""
    metrics: Metrics
    """Counts the bytes that arrive."""
    budgets: Budgets
    """Count the bytes that all connections hold."""
    log: Logger
    """The log that failures are written to."""

    def check_head(self, method: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Raise if a head can be refused by itself, whatever its user and route are."""

    def malformed(self, peer: str, what: str) -> None:
        """Count and log a connection that does not speak HTTP."""

    def memory_refused(self, peer: str, budget: Budget) -> None:
        """Count and log a connection that was refused because all of them hold too much."""


class HttpReader(asyncio.Protocol):
    """The part of a connection that reads; a subclass decides what to do with requests."""

    __slots__ = (
        "_began",
        "_begun",
        "_body",
        "_body_bytes",
        "_budget",
        "_callback_bytes",
        "_chunks",
        "_counted",
        "_deaf",
        "_decided",
        "_discarded",
        "_feed",
        "_fresh",
        "_head_bytes",
        "_headers",
        "_is_10",
        "_keep_alive",
        "_keeps_body",
        "_known",
        "_known_bytes",
        "_known_head",
        "_length",
        "_lines",
        "_method",
        "_metrics",
        "_parser",
        "_phase",
        "_pieces",
        "_refusal",
        "_seen_at",
        "_target",
        "_time",
        "_unread",
        "_wants_continue",
        "listener",
        "peer",
    )

    def __init__(self, listener: ReaderListener) -> None:
        self.listener = listener
        self.peer = ""
        self._metrics = listener.metrics
        self._time = listener.loop.time
        self._parser = HttpRequestParser(self)
        self._feed = self._parser.feed_data
        self._phase = IDLE
        self._deaf = False
        """Whether all further bytes are discarded."""
        self._discarded = 0
        """How many bytes were discarded."""
        self._seen_at = 0.0
        """When the sweep first saw the connection in its current state; 0: not yet."""
        self._began = 0.0
        self._head_bytes = 0
        self._callback_bytes = 0
        self._lines = 0
        """How many header lines the request that is being read has so far."""
        self._fresh = False
        self._method = b""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._length = 0
        """The declared length of the body; `UNKNOWN_LENGTH` if it is chunked."""
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._chunks = 0
        self._keeps_body = True
        """False if the body is read and discarded: its request is refused or needs none."""
        self._refusal: MaitredError | None = None
        """Why the request that is being read is refused; None if it is not."""
        self._decided = False
        """Whether it was decided if the request that is being read is admitted."""
        self._keep_alive = True
        self._is_10 = False
        self._wants_continue = False
        self._unread = b""
        """The bytes that wait to be parsed; reading is paused while there are some."""
        self._budget: Budget = listener.budgets.strangers
        self._counted = 0
        """How many bytes are counted in `_budget` for this connection."""
        self._known_head = b""
        """The bytes of the last request's head, if it was ordinary and came in one piece."""
        self._known_bytes = 0
        """The length of that request with its body; 0 if there is no known head."""
        self._known: tuple[bytes, bytes, dict[bytes, bytes]] = (b"", b"", {})
        """The method, target and headers of that request."""
        self._begun = 0
        """How many requests began in this turn."""
        self._pieces = 0
        """How many pieces of bodies came in this turn."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is not answered yet."""
        raise NotImplementedError

    @property
    def _is_trusted(self) -> bool:
        """Whether the caller is authenticated on this connection, or no caller has to be."""
        raise NotImplementedError

    @property
    def _is_full(self) -> bool:
        """Whether parsing has to wait: for answers, for the caller to read them, for a login."""
        raise NotImplementedError

    def _came(self, request: HttpRequest) -> None:
        """Take a complete request."""
        raise NotImplementedError

    def _ends_with(self, problem: MaitredError) -> None:
        """Answer the request that was being read with this error; nothing more is read."""
        raise NotImplementedError

    def _decide(self) -> None:
        """Authenticate the caller of the unfinished request, and call `_let_in` or `_turn_away`,
        now or later."""
        raise NotImplementedError

    def _look_at_reading(self) -> None:
        """Pause or resume reading from the transport."""
        raise NotImplementedError

    def _cut_off(self) -> None:
        """End the connection at once."""
        raise NotImplementedError

    def _read_later(self) -> None:
        """Arrange for `read_on` to be called after other connections had their turn."""
        raise NotImplementedError

    def _continue(self) -> None:
        """Tell the caller to send the body, when the answers before it are written."""
        raise NotImplementedError

    @property
    def _is_within(self) -> bool:
        """Whether a part of another request has arrived."""
        return self._phase != IDLE or bool(self._unread)

    # Bytes

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self._metrics.bytes_in += size
        if self._deaf:
            self._discard(size)
            return
        between = self._phase == IDLE
        if between and size == self._known_bytes and data.startswith(self._known_head):
            # A caller that repeats a request sends the same head, so it is not parsed again.
            body = data[len(self._known_head) :]
            self._came(HttpRequest(*self._known, body, self._time()))
            return
        if self._unread:
            self._unread += data
            self._count()
            return
        self._begun = self._pieces = 0
        if size <= PORTION_BYTES:
            self._parse(data)
        else:
            self._parse_portions(data)
        self._settle()
        if between and not self._is_within and not self._deaf:
            self._learn(data)

    def _discard(self, size: int) -> None:
        """Discard what a refused caller had already begun to send, up to the size of a body."""
        self._discarded += size
        if self._discarded > self.listener.settings.body_bytes:
            self._cut_off()

    def _parse_portions(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end and not self._deaf:
            if self._is_full or self._begun >= TURN_REQUESTS or self._pieces >= TURN_PIECES:
                self._unread = data[at:]
                self._known_bytes = 0
                self._look_at_reading()
                if not self._is_full:
                    self._read_later()
                return
            size = PORTION_BYTES
            if self._phase == BODY:
                chunked = self._length == UNKNOWN_LENGTH
                left = CHUNKED_PORTION_BYTES if chunked else self._length - self._body_bytes
                size = max(size, left)
            self._parse(data[at : at + size])
            at += size

    def read_on(self) -> None:
        """Parse a turn's worth of the waiting bytes."""
        if self._unread and not self._deaf and not self._is_full:
            data, self._unread = self._unread, b""
            self._begun = self._pieces = 0
            self._parse_portions(data)
            self._settle()
            self._look_at_reading()

    def _parse(self, data: bytes) -> None:
        try:
            self._feed(data)
        except HttpParserUpgrade:
            # No other protocol is supported. The request itself is answered, and the bytes after
            # it, which are of the other protocol, are discarded.
            self._deaf = True
            return
        except HttpParserCallbackError as problem:
            self._stop_reading(problem.__context__)
            return
        except HttpParserError as problem:
            if not self._deaf:  # bytes after the last request of a connection are ignored
                self._garbage(str(problem))
            return
        if self._phase == HEAD:
            if self._fresh:
                self._fresh = False
            else:
                self._head_bytes += len(data)
            if max(self._head_bytes, self._callback_bytes) > self.listener.settings.header_bytes:
                self._stop_reading(too_many_headers(self.listener.settings))

    def _settle(self) -> None:
        """Decide whether to admit a request with an unfinished body, and count the held bytes."""
        if self._phase == BODY and not self._decided and not self._deaf:
            if self._refusal is not None:
                self._turn_away(self._refusal)
            else:
                self._decide()
        if self._is_within or self._counted:
            self._count()

    def _let_in(self, *, keeps_body: bool) -> None:
        """Admit the unfinished request: read the rest of its body."""
        self._decided = True
        if not keeps_body:
            self._forget_body()
        if self._wants_continue and not self._deaf:
            self._continue()

    def _turn_away(self, problem: MaitredError) -> None:
        """Refuse the unfinished request, without keeping any of its body."""
        self._decided = True
        if self._wants_continue or not 0 <= self._length <= DISCARDED_MAX:
            self._stop_reading(problem)
            return
        self._refusal = problem
        self._forget_body()

    def _forget_body(self) -> None:
        self._keeps_body = False
        self._body = b""

    def _count(self) -> None:
        """Count the bytes that this connection holds in the budget of all connections."""
        budgets = self.listener.budgets
        size = len(self._unread)
        if self._phase == HEAD:
            size += self._head_bytes + HEAD_COST_BYTES
        elif self._phase == BODY:
            size += self._callback_bytes + len(self._body)
        if self._deaf:
            size = 0
        budget = budgets.partial if self._decided or self._is_trusted else budgets.strangers
        before = self._budget
        before.held -= self._counted
        budget.held += size
        grown = size > self._counted or budget is not before
        self._budget, self._counted = budget, size
        if grown and budget.held > budget.most and size:
            self.listener.memory_refused(self.peer, budget)
            self._stop_reading(budget.exceeded())

    def _learn(self, data: bytes) -> None:
        """Remember the head of a request that came alone, if its bytes alone determine how it was
        parsed."""
        headers, size = self._headers, self._body_bytes
        if (
            self._begun == 1
            and data.find(END_OF_HEAD) == len(data) - size - len(END_OF_HEAD)
            and self._keep_alive
            and not self._is_10
            and self._refusal is None
            and headers.get(b"content-length", b"0") == b"%d" % size
            and UNUSUAL.isdisjoint(headers)
        ):
            self._known_head, self._known_bytes = data[: len(data) - size], len(data)
            self._known = (self._method, self._target, headers)
        else:
            self._known_bytes = 0

    def _garbage(self, what: str) -> None:
        self.listener.malformed(self.peer, what)
        self._stop_reading(
            MalformedRequest(
                f"This is no HTTP request that is understood here: {what}.",
                remedy="Speak HTTP/1.1.",
            )
        )

    def _stop_reading(self, problem: BaseException | None) -> None:
        """Refuse the request that is being read, when its turn comes, and end the connection."""
        if not isinstance(problem, MaitredError):
            self.listener.log.error("http request failed", exc_info=problem)
            problem = InternalError("The gateway failed at reading the request.")
        self._stop_listening()
        self._ends_with(problem)

    def _stop_listening(self) -> None:
        """Drop what is being read, and discard all further bytes."""
        self._deaf = True
        self._wants_continue = False
        self._unread = b""
        self._body = b""
        self._headers = {}
        self._count()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._phase = HEAD
        self._begun += 1
        self._seen_at = 0.0
        self._fresh = True
        self._began = self._time()
        self._head_bytes = self._callback_bytes = self._lines = 0
        self._target = b""
        self._headers = {}
        self._refusal = None
        self._decided = False

    def on_url(self, url: bytes) -> None:
        self._target = self._target + url if self._target else url
        self._callback_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._callback_bytes += len(name) + len(value) + 4
        self._lines += 1
        if self._lines > HEADERS_MAX:
            raise too_many_headers(self.listener.settings)
        if self._phase == BODY:  # a trailer, which is ignored
            if self._callback_bytes > self.listener.settings.header_bytes:
                raise too_many_headers(self.listener.settings)
            return
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in ONCE:
                raise MalformedRequest(f"The header {name.decode('latin-1')} is there twice.")
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        settings = self.listener.settings
        if self._callback_bytes > settings.header_bytes:
            raise too_many_headers(settings)
        headers = self._headers
        parser = self._parser
        self._phase = BODY
        self._seen_at = 0.0
        self._body = b""
        self._body_bytes = 0
        self._keeps_body = True
        self._keep_alive = parser.should_keep_alive()
        self._is_10 = False
        if not self._keep_alive or b"host" not in headers or b"connection" in headers:
            self._is_10 = check_version(parser.get_http_version(), headers)
        self._length = 0
        if b"transfer-encoding" in headers:
            check_coding(headers, is_10=self._is_10)
            self._length = UNKNOWN_LENGTH
            self._chunks = 0
        elif b"content-length" in headers:
            self._length = int(headers[b"content-length"])
            if self._length > settings.body_bytes:
                raise too_large(settings)
        if parser.should_upgrade():
            self._keep_alive = False
            check_upgrade(headers)
        if b"expect" in headers:
            check_expectation(headers[b"expect"])
            self._wants_continue = not self._is_10
        try:
            self._method = parser.get_method()
            self.listener.check_head(self._method, headers)
            if b"content-encoding" in headers:
                check_encoding(headers[b"content-encoding"])
        except MaitredError as problem:
            self._refusal = problem
            self._keeps_body = False

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._body_bytes += len(body)
        if self._body_bytes > self.listener.settings.body_bytes:
            raise too_large(self.listener.settings)
        if self._length == UNKNOWN_LENGTH:
            self._chunks += 1
            if self._chunks > CHUNKS_MAX:
                raise too_many_chunks()
        if not self._keeps_body:
            return
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body)
            self._body += body

    def on_message_complete(self) -> None:
        self._phase = IDLE
        self._seen_at = 0.0
        self._wants_continue = False
        body, self._body = self._body, b""
        request = HttpRequest(
            self._method,
            self._target,
            self._headers,
            body if isinstance(body, bytes) else bytes(body),
            self._began,
            self._keep_alive,
            self._is_10,
        )
        request.refusal = self._refusal
        if not self._keep_alive:
            self._deaf = True
        self._came(request)
