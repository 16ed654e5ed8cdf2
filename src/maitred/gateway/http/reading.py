"""HTTP requests out of the bytes of a connection.

httptools calls us for every part of a request; a head that is the same as the last one, byte for
byte, is not taken apart again. What could be read in two ways is refused: whoever stands between
may have read it in the other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from maitred.errors import (
    ExpectationFailed,
    HeadersTooLarge,
    InternalError,
    MaitredError,
    MalformedRequest,
    PayloadTooLarge,
    UnsupportedHttp,
)
from maitred.gateway.http.request import Request

if TYPE_CHECKING:
    from maitred.gateway.http.door import HttpDoor

IDLE, HEAD, BODY = range(3)
"""Where in a request its bytes are."""

ONCE: Final = frozenset(
    (
        b"host",
        b"content-length",
        b"content-type",
        b"transfer-encoding",
        b"authorization",
        b"expect",
        b"maitred-timeout",
        b"maitred-priority",
        b"maitred-idempotent",
        b"maitred-do-not-queue",
    )
)
"""Headers of which there may be one only; of others the values are joined."""

END_OF_HEAD: Final = b"\r\n\r\n"

UNUSUAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
"""Headers of requests that are looked at anew each time."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Reading(asyncio.Protocol):
    """The part of a connection that reads; what to do with requests is another's."""

    __slots__ = (
        "_began",
        "_begun",
        "_body",
        "_body_bytes",
        "_callback_bytes",
        "_deaf",
        "_feed",
        "_fresh",
        "_head_bytes",
        "_headers",
        "_is_10",
        "_keep_alive",
        "_known",
        "_known_bytes",
        "_known_head",
        "_metrics",
        "_parser",
        "_phase",
        "_seen_at",
        "_target",
        "_time",
        "_wants_continue",
        "door",
        "peer",
    )

    def __init__(self, door: HttpDoor) -> None:
        self.door = door
        self.peer = ""
        self._metrics = door.metrics
        self._time = door.loop.time
        self._parser = HttpRequestParser(self)
        self._feed = self._parser.feed_data
        self._phase = IDLE
        self._deaf = False
        """Nothing that comes is read any more."""
        self._seen_at = 0.0
        """When the sweep first saw it in the state it is in; 0: not yet."""
        self._began = 0.0
        self._head_bytes = 0
        self._callback_bytes = 0
        self._fresh = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._keep_alive = True
        self._is_10 = False
        self._wants_continue = False
        self._known_head = b""
        """Of the last request, byte for byte, if it was an ordinary one and came in one piece."""
        self._known_bytes = 0
        """Its length with the body."""
        self._known: tuple[bytes, bytes, dict[bytes, bytes]] = (b"", b"", {})
        """Its method, target and headers."""
        self._begun = 0
        """Requests of which something was in the bytes that came last."""

    @property
    def is_busy(self) -> bool:
        """Is there a request that is not answered?"""
        raise NotImplementedError

    def _came(self, request: Request) -> None:
        """A request is complete."""
        raise NotImplementedError

    def _ends_with(self, problem: MaitredError) -> None:
        """Nothing more is read; this is the answer to what was being read."""
        raise NotImplementedError

    def _write(self, data: bytes) -> None:
        raise NotImplementedError

    # Bytes

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        size = len(data)
        self._metrics.bytes_in += size
        between = self._phase == IDLE
        if between and size == self._known_bytes and data.startswith(self._known_head):
            # Whoever asks again and again sends the same head, which says the same again.
            body = data[len(self._known_head) :]
            self._came(Request(*self._known, body, self._time()))
            return
        self._begun = 0
        try:
            self._feed(data)
        except HttpParserUpgrade:
            # Nothing else is spoken here. The request itself is answered, and what follows it is
            # in a language that nobody has agreed to.
            self._deaf = True
            return
        except HttpParserCallbackError as problem:
            self._stop_reading(problem.__context__)
            return
        except HttpParserError as problem:
            self._garbage(str(problem))
            return
        if self._phase == HEAD:
            if self._fresh:
                self._fresh = False
            else:
                self._head_bytes += size
            if max(self._head_bytes, self._callback_bytes) > self.door.settings.header_bytes:
                self._stop_reading(self._too_many_headers())
        elif between and self._phase == IDLE:
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Remember the head of a request that came alone, if nothing but its bytes made it what it
        was."""
        headers, size = self._headers, self._body_bytes
        if (
            self._begun == 1
            and data.find(END_OF_HEAD) == len(data) - size - len(END_OF_HEAD)
            and self._keep_alive
            and not self._is_10
            and headers.get(b"content-length", b"0") == b"%d" % size
            and UNUSUAL.isdisjoint(headers)
        ):
            self._known_head, self._known_bytes = data[: len(data) - size], len(data)
            self._known = (self._parser.get_method(), self._target, headers)
        else:
            self._known_bytes = 0

    def _garbage(self, what: str) -> None:
        self.door.malformed(self.peer, what)
        self._stop_reading(
            MalformedRequest(
                f"This is no HTTP request that is understood here: {what}.",
                remedy="Speak HTTP/1.1.",
            )
        )

    def _stop_reading(self, problem: BaseException | None) -> None:
        """Refuse the request that is being read, when its turn comes, and end."""
        if not isinstance(problem, MaitredError):
            self.door.log.error("http request failed", exc_info=problem)
            problem = InternalError("The gateway failed at reading the request.")
        self._deaf = True
        self._ends_with(problem)

    # What the parser calls

    def on_message_begin(self) -> None:
        self._phase = HEAD
        self._begun += 1
        self._seen_at = 0.0
        self._fresh = True
        self._began = self._time()
        self._head_bytes = self._callback_bytes = 0
        self._target = b""
        self._headers = {}

    def on_url(self, url: bytes) -> None:
        self._target = self._target + url if self._target else url
        self._callback_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._callback_bytes += len(name) + len(value) + 4
        if self._phase == BODY:  # a trailer, which nobody needs
            if self._callback_bytes > self.door.settings.header_bytes:
                raise self._too_many_headers()
            return
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in ONCE:
                raise MalformedRequest(f"The header {name.decode('latin-1')} is there twice.")
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        settings = self.door.settings
        if self._callback_bytes > settings.header_bytes:
            raise self._too_many_headers()
        headers = self._headers
        self._phase = BODY
        self._body = []
        self._body_bytes = 0
        self._keep_alive = self._parser.should_keep_alive()
        self._is_10 = False
        if not self._keep_alive or b"host" not in headers or b"connection" in headers:
            self._check_version()
        if b"transfer-encoding" in headers:
            self._check_coding()
        elif b"content-length" in headers and int(headers[b"content-length"]) > settings.body_bytes:
            raise self._too_large()
        if b"upgrade" in headers and self._parser.should_upgrade():
            self._check_upgrade()
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.door.settings.body_bytes:
            raise self._too_large()
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._phase = IDLE
        self._seen_at = 0.0
        self._wants_continue = False
        body = self._body
        request = Request(
            self._parser.get_method(),
            self._target,
            self._headers,
            body[0] if len(body) == 1 else b"".join(body),
            self._began,
            self._keep_alive,
            self._is_10,
        )
        if not self._keep_alive:
            self._deaf = True
        self._came(request)

    def _check_version(self) -> None:
        version = self._parser.get_http_version()
        if version == "1.1":
            if b"host" not in self._headers:
                raise MalformedRequest("The request has no Host.")
        elif version == "1.0":
            self._is_10 = True
        else:
            raise UnsupportedHttp(f"HTTP/{version} is not spoken here.", remedy="Speak HTTP/1.1.")

    def _check_coding(self) -> None:
        if b"content-length" in self._headers:
            raise MalformedRequest(
                "The request has both a Content-Length and a Transfer-Encoding, and could be read "
                "in two ways."
            )
        if self._headers[b"transfer-encoding"].strip().lower() != b"chunked" or self._is_10:
            raise MalformedRequest("The only transfer coding that is read here is 'chunked'.")

    def _check_upgrade(self) -> None:
        """The parser takes what follows for the other protocol: a body would be lost."""
        headers = self._headers
        self._keep_alive = False
        if b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")):
            raise UnsupportedHttp(
                "A request with a body cannot ask for another protocol as well.",
                remedy="Speak HTTP/1.1; with curl, leave --http2 out.",
            )

    def _expect(self, expected: bytes) -> None:
        if expected.strip().lower() != b"100-continue":
            raise ExpectationFailed("Only 100-continue can be expected here.")
        if self._is_10:
            return
        if self.is_busy:
            self._wants_continue = True  # its turn comes after the answers before it
        else:
            self._write(CONTINUE)

    def _too_many_headers(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"The request line and the headers have more than the "
            f"{self.door.settings.header_bytes:,} bytes allowed.",
            remedy="Send less, or raise gateway.header_bytes.",
        )

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The body has more than the {self.door.settings.body_bytes:,} bytes allowed.",
            remedy="Put it into a store and send a reference, or raise gateway.body_bytes.",
        )
