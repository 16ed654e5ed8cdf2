"""One HTTP connection: requests are answered in the order in which they came.

A complete one is served at once if nothing else is under way, and waits for its turn otherwise. An
answer is one write. Nothing here has a timer: the door looks at all connections once a second
(`look_at_clock`).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from maitred.errors import MaitredError, TooManyConnections, TooSlow
from maitred.gateway.http.formats import AS_JSON
from maitred.gateway.http.reading import BODY, CONTINUE, HEAD, IDLE, Reading
from maitred.gateway.http.statuses import REASONS, extra_headers, status_of, told
from maitred.security.source import Source

if TYPE_CHECKING:
    import asyncio

    from maitred.gateway.http.door import HttpDoor
    from maitred.gateway.http.request import Request
    from maitred.security.directory import Identity

PIPELINED_MAX: Final = 16
"""Requests that wait behind the one that is under way; then nothing more is read."""

WRITE_HIGH_BYTES: Final = 128 * 1024
"""Unsent bytes of answers from which on nothing more is written or read."""

LINGER_SECONDS: Final = 2.0
"""How long a connection that was refused is kept open to let the answer arrive: closing it while
the other end still sends would destroy what it has not read yet."""

LINES: Final = {
    status: b"HTTP/1.1 %d %b\r\nContent-Type: " % (status, reason)
    for status, reason in REASONS.items()
}
"""How answers begin."""


class Connection(Reading):
    """The server's end."""

    __slots__ = (
        "_current",
        "_drained",
        "_held",
        "_linger_since",
        "_pumping",
        "_queue",
        "_reading_paused",
        "_stuck_bytes",
        "_write_paused",
        "authorized",
        "closed",
        "host",
        "name",
        "source",
        "transport",
    )

    def __init__(self, door: HttpDoor) -> None:
        super().__init__(door)
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.name = ""
        """For the query table."""
        self.source = Source("")
        self.closed = False
        self.host: bytes | None = None
        """The last one that was asked for by a name of ours."""
        self.authorized: tuple[bytes, int, Identity] | None = None
        """The last Authorization header that was right, when the users were of that generation."""
        self._queue: deque[Request | MaitredError] = deque()
        self._current: Request | None = None
        self._pumping = False
        self._linger_since = 0.0
        self._reading_paused = False
        self._write_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._held = b""
        """An answer that is written at the end of this turn of the loop."""
        self._stuck_bytes = 0

    # Begin and end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        door = self.door
        self.source = Source.of(transport.get_extra_info("peername"))
        self.peer = str(self.source)
        self.name = f"http {self.peer}"
        door.metrics.accepted += 1
        door.connections[self] = None
        if len(door.connections) > door.settings.connections:
            self._refuse(
                TooManyConnections(
                    f"This gateway has {door.settings.connections:,} connections already.",
                    remedy="Close some, or raise gateway.connections.",
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it is gone either way
        self.closed = True
        self._deaf = True
        self._held = b""
        self.door.connections.pop(self, None)
        self._queue.clear()
        current, self._current = self._current, None
        self.resume_writing()
        if current is not None:
            current.drop()

    def eof_received(self) -> bool:
        """Whoever stops sending has left: there is no other sign by which to know."""
        self.release()
        return False

    @property
    def is_busy(self) -> bool:
        """Is there a request that is not answered?"""
        return self._current is not None or bool(self._queue)

    def drain(self) -> None:
        """Close as soon as nothing is under way; what comes from now on is refused."""
        if not self.is_busy and self._phase == IDLE:
            self._say_goodbye()

    # Taking turns

    def _came(self, request: Request) -> None:
        """A request is complete: it is its turn, or it waits for it."""
        self._seen_at = 0.0
        if self._current is None and not self._queue and not self._write_paused:
            self._current = request
            self.door.serve(self, request)
            return
        self._queue.append(request)
        if len(self._queue) >= PIPELINED_MAX:
            self._look_at_reading()
        self._pump()

    def _ends_with(self, problem: MaitredError) -> None:
        self._queue.append(problem)
        self._pump()

    def _pump(self) -> None:
        """Serve what waits, as long as answers come at once and are taken."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and self._current is None and not self._write_paused:
                following = self._queue.popleft()
                if isinstance(following, MaitredError):
                    self._refuse(following)
                    return
                self._current = following
                self.door.serve(self, following)
        finally:
            self._pumping = False
        if self._reading_paused:
            self._look_at_reading()
        if self._wants_continue and not self.is_busy:
            self._wants_continue = False
            self._write(CONTINUE)

    def _look_at_reading(self) -> None:
        pause = self._write_paused or len(self._queue) >= PIPELINED_MAX
        if pause != self._reading_paused and not self.transport.is_closing():
            self._reading_paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._seen_at = 0.0
        self._look_at_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._seen_at = 0.0
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if not self.closed:
            self._look_at_reading()
            self._pump()

    # Answers

    def answer(
        self,
        request: Request,
        status: int,
        content_type: bytes,
        body: bytes,
        extra: bytes = b"",
    ) -> None:
        """The whole answer; nothing happens if nobody waits for it any more."""
        if self._current is not request:
            return
        door = self.door
        if door.draining:
            request.keep_alive = False
        if not request.keep_alive or request.is_10:
            extra += _connection(request)
        data = b"%b%b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (
            LINES[status],
            content_type,
            len(body),
            door.date,
            extra,
            body if request.method != b"HEAD" else b"",
        )
        metrics = self._metrics
        metrics.bytes_out += len(data)
        if self._held:  # one answer may wait, no more: what is written knows when it is too much
            self.release()
            self.transport.write(data)
        else:
            self._held = data
            door.write_later(self)
        metrics.answered(request.route, status, self._time() - request.began)
        self._current = None
        self._seen_at = 0.0
        if not request.keep_alive or self._queue or self._wants_continue or self._reading_paused:
            self._finished(request)

    def release(self) -> None:
        """Write the answer that is held; whatever else is done to the connection comes after."""
        held, self._held = self._held, b""
        if held and not self.closed:
            self.transport.write(held)

    def answer_error(self, request: Request, problem: MaitredError, extra: bytes = b"") -> None:
        """The same for an error."""
        form = request.form or AS_JSON
        if form.name == "events":
            form = AS_JSON
        body = form.value(told(problem, tracebacks=self.door.settings.tracebacks))
        extra += extra_headers(problem)
        self.answer(request, status_of(problem), form.content_type, body, extra)

    def begin_stream(self, request: Request, content_type: bytes, extra: bytes) -> None:
        """The head of an answer whose body comes in pieces."""
        if request.is_10:
            request.keep_alive = False
        if self.door.draining:
            request.keep_alive = False
        chunked = b"" if request.is_10 else b"Transfer-Encoding: chunked\r\n"
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bCache-Control: no-store\r\n%b%b%b\r\n"
            % (content_type, chunked, self.door.date, extra, _connection(request))
        )
        self.door.metrics.answered(request.route, 200, self.door.loop.time() - request.began)

    async def send_piece(self, request: Request, data: bytes) -> None:
        """A piece of the body; returns when the caller has taken enough for the next one."""
        if self._current is not request or not data:
            return
        self.door.metrics.bytes_out += len(data)
        if request.is_10:
            self.transport.write(data)
        else:  # its head went through `_write`, so nothing is held
            self.transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        while self._write_paused and self._current is request:
            self._drained = self.door.loop.create_future()
            await self._drained

    def end_stream(self, request: Request) -> None:
        """The body is complete."""
        if self._current is not request:
            return
        if not request.is_10:
            self._write(b"0\r\n\r\n")
        self._finished(request)

    def break_off(self, request: Request, last_words: bytes) -> None:
        """The body is not complete, and nobody shall take it for that: its end never comes."""
        if self._current is not request:
            return
        self._current = None
        self._deaf = True
        self._queue.clear()
        if last_words:
            if request.is_10:
                self._write(last_words)
            else:
                self._write(b"%x\r\n%b\r\n" % (len(last_words), last_words))
        if request.is_10 and not last_words:
            self.transport.abort()
        else:
            self.transport.close()

    def _write(self, data: bytes) -> None:
        self.release()
        if not self.closed:
            self.door.metrics.bytes_out += len(data)
            self.transport.write(data)

    def _finished(self, request: Request) -> None:
        self._current = None
        self._seen_at = 0.0
        if not request.keep_alive:
            self._queue.clear()
            self._say_goodbye()
        elif self._queue or self._wants_continue or self._reading_paused:
            self._pump()

    def _refuse(self, problem: MaitredError) -> None:
        """An error for a request that was never complete; the connection ends with it."""
        body = AS_JSON.value(told(problem, tracebacks=False))
        status = status_of(problem)
        self._write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"%b%bConnection: close\r\n\r\n%b"
            % (status, REASONS[status], len(body), self.door.date, extra_headers(problem), body)
        )
        self.door.metrics.answered("none", status, 0.0)
        self._queue.clear()
        self._linger()

    def _say_goodbye(self) -> None:
        """Close; at once if the other end has sent all it wanted, as far as one can tell."""
        self._deaf = True
        self.release()
        if not self.closed:
            self.transport.close()

    def _linger(self) -> None:
        self._deaf = True
        if self.closed:
            return
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        with suppress(OSError, RuntimeError):
            self.transport.write_eof()
        self._linger_since = self.door.loop.time()

    # Once a second

    def look_at_clock(self, now: float) -> None:
        """End what takes too long."""
        settings = self.door.settings
        if self._linger_since:
            if now - self._linger_since > LINGER_SECONDS:
                self.transport.abort()
        elif self._write_paused:
            self._look_at_stuck(now)
        elif self.is_busy or self._deaf:
            return
        elif self._phase == HEAD:
            if now - self._began > settings.header_seconds:
                self._stop_reading(self._too_slow("the headers", settings.header_seconds))
        elif not self._seen_at:
            self._seen_at = now
        elif self._phase == BODY:
            if now - self._seen_at > settings.body_seconds:
                self._stop_reading(self._too_slow("the body", settings.body_seconds))
        elif now - self._seen_at > settings.idle_seconds:
            self._say_goodbye()

    def _look_at_stuck(self, now: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        if not self._seen_at or unsent != self._stuck_bytes:
            self._seen_at, self._stuck_bytes = now, unsent
        elif now - self._seen_at > self.door.settings.body_seconds:
            self.door.log.info("http caller takes nothing; cut off", peer=self.peer, unsent=unsent)
            self.transport.abort()

    @staticmethod
    def _too_slow(what: str, seconds: float) -> TooSlow:
        return TooSlow(f"It took more than {seconds:g} s for {what} of the request to arrive.")


def _connection(request: Request) -> bytes:
    if not request.keep_alive:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if request.is_10 else b""
