"""One HTTP connection: requests are answered in the order in which they came.

A complete request is served at once if no other is in progress, and waits for its turn otherwise.
An answer is one write. A connection has no timer: the listener checks all connections once a second
(`look_at_clock`), and every state in which a connection waits has a time limit (`clock.py`).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from maitred.errors import (
    MaitredError,
    Overloaded,
    TooManyConnections,
    TooSlow,
    Unauthenticated,
)
from maitred.gateway.http.budget import SMALL_BYTES
from maitred.gateway.http.clock import WaitState
from maitred.gateway.http.formats import AS_JSON
from maitred.gateway.http.reader import CONTINUE, HEAD, IDLE, HttpReader, ReaderListener
from maitred.gateway.http.request import HttpRequest
from maitred.gateway.http.sessions import CSRF_HEADER
from maitred.gateway.http.statuses import REASONS, extra_headers, status_of, told
from maitred.protocol.refusals import counted_code
from maitred.security.source import Source
from maitred.trace_context import traceparent

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Coroutine, Mapping

    from maitred.security.authenticator import Authenticator
    from maitred.security.directory import Identity
    from maitred.security.guard import Guard

PIPELINED_MAX: Final = 16
"""How many requests may wait behind the one in progress; then the connection is not read."""

WRITE_HIGH_BYTES: Final = 64 * 1024
"""With this many unsent bytes of answers, nothing more is written or read."""

LINES: Final = {
    status: b"HTTP/1.1 %d %b\r\nContent-Type: " % (status, reason)
    for status, reason in REASONS.items()
}
"""Maps a status to the first bytes of its answer."""


class ConnectionListener(ReaderListener, Protocol):
    """The listener that accepted a connection; authenticates and serves its requests."""

    refused: Counter[str]
    """Errors given as answers, by `counted_code`; also those that broke off a stream."""
    connections: dict[HttpConnection, None]
    """The open connections of callers of the HTTP API."""
    guard: Guard
    """Checks the credentials of callers, and their permissions."""

    @property
    def draining(self) -> bool:
        """Whether the gateway is stopping."""

    @property
    def date(self) -> bytes:
        """The Date header, ready to be written."""

    @property
    def limits(self) -> Mapping[WaitState, float]:
        """The longest time of each state, in seconds."""

    def admit(self, connection: HttpConnection, request: HttpRequest) -> bool | None:
        """Return whether the body of a request is needed; None if `admit_later` has to authenticate
        the caller first. Raise if the request is refused."""

    async def admit_later(self, connection: HttpConnection, request: HttpRequest) -> bool:
        """Verify the credentials, then do the same as `admit`."""

    def serve(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer a request, now or later; raise nothing."""

    def still_known(self, connection: HttpConnection, request: HttpRequest) -> bool:
        """Whether the credentials of a request in progress are valid, as far as that is known
        without verifying them again."""

    async def verify(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Verify the credentials of a request, and set its identity; raise if they are wrong."""

    def typed(self, request: HttpRequest, problem: BaseException) -> MaitredError:
        """Return the error that the caller gets; log an unexpected exception."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task until it ends or the listener closes."""

    def read_later(self, connection: HttpConnection) -> None:
        """Let the connection parse more after the others had their turn."""

    def write_later(self, connection: HttpConnection) -> None:
        """Let the connection write its held answer at the end of this iteration of the event
        loop."""


class HttpConnection(HttpReader):
    """The gateway's end of one HTTP connection."""

    __slots__ = (
        "_current",
        "_deciding",
        "_drained",
        "_held",
        "_pumping",
        "_queue",
        "_reading_paused",
        "_seen_waits",
        "_unsent",
        "_verified_again",
        "_write_paused",
        "authorized",
        "closed",
        "name",
        "source",
        "transport",
    )

    listener: ConnectionListener

    def __init__(self, listener: ConnectionListener) -> None:
        super().__init__(listener)
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.name = ""
        """The name of the connection in the query table."""
        self.source = Source("")
        self.closed = False
        self.authorized: tuple[bytes, int, Identity] | None = None
        """The last valid Authorization header, the generation of the users then, and the user."""
        self._queue: deque[HttpRequest | MaitredError] = deque()
        self._current: HttpRequest | None = None
        self._verified_again: HttpRequest | None = None
        """The request in progress, while its token is verified again."""
        self._deciding: HttpRequest | None = None
        """The head of the request that is being read, while its credentials are verified."""
        self._pumping = False
        self._reading_paused = False
        self._write_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._held = b""
        """An answer that is written at the end of this iteration of the event loop."""
        self._unsent = 0
        """How many bytes the caller had not read at the last check, as counted in the budget of all
        connections."""
        self._seen_waits = WaitState.REQUEST
        """The state of the connection at the last check."""

    # Begin and end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        listener = self.listener
        self.source = Source.of(transport.get_extra_info("peername"))
        self.peer = str(self.source)
        self.name = f"http {self.peer}"
        listener.metrics.accepted += 1
        listener.connections[self] = None
        if len(listener.connections) > listener.settings.connections:
            self._refuse(
                TooManyConnections(
                    f"This gateway has {listener.settings.connections:,} connections already.",
                    remedy="Close some, or raise gateway.connections.",
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the cause is unused
        self.closed = True
        self._held = b""
        self.listener.connections.pop(self, None)
        self._count_unsent(0)
        self._leave()
        self.resume_writing()

    def eof_received(self) -> bool:
        """Treat the end of the caller's stream as its leaving: there is no other sign of that."""
        self.release()
        self._leave()
        return False

    def _leave(self) -> None:
        """Drop all requests: the caller has left."""
        self._stop_listening()
        self._forget_queue()
        current = self._current
        if current is not None:
            self._over(current)
            current.drop()

    @property
    def is_busy(self) -> bool:
        """Whether a request is not answered yet."""
        return self._current is not None or bool(self._queue)

    def drain(self) -> None:
        """Close if no request is in progress; requests that come from now on are refused."""
        if not self.is_busy and self._phase == IDLE:
            self._say_goodbye()

    @property
    def waits(self) -> WaitState:
        """The state in which the connection waits; each has a time limit."""
        if self._deaf and not self.is_busy:
            return WaitState.CALLER if self.transport.get_write_buffer_size() else WaitState.CLOSE
        if self._write_paused:
            return WaitState.CALLER
        if self._deciding is not None:
            return WaitState.LOGIN
        # The caller is not to blame while reading is paused for answers. While bytes wait to be
        # parsed it is: it could have sent the same in fewer pieces.
        arrives = self._phase != IDLE and not self._is_full and not self._wants_continue
        if arrives and not self._deaf:
            return WaitState.HEAD if self._phase == HEAD else WaitState.BODY
        return WaitState.ANSWER if self.is_busy else WaitState.REQUEST

    @property
    def _is_trusted(self) -> bool:
        return self.authorized is not None or not self.listener.guard.required

    @property
    def _is_full(self) -> bool:
        return self._write_paused or self._deciding is not None or len(self._queue) >= PIPELINED_MAX

    # Authentication

    def _decide(self) -> None:
        head = HttpRequest(self._method, self._target, self._headers, b"", self._began)
        try:
            keeps_body = self.listener.admit(self, head)
        except Exception as problem:  # noqa: BLE001 - the caller gets an answer to every error
            self._turn_away(self.listener.typed(head, problem))
            return
        if keeps_body is not None:
            self._let_in(keeps_body=keeps_body)
            return
        self._deciding = head
        self._seen_at = 0.0
        self._look_at_reading()
        head.task = self.listener.spawn(self._decide_later(head))

    async def _decide_later(self, head: HttpRequest) -> None:
        """Verify the credentials of a head; the connection is not read meanwhile."""
        problem: MaitredError | None = None
        keeps_body = False
        try:
            keeps_body = await self.listener.admit_later(self, head)
        except Exception as found:  # noqa: BLE001 - likewise
            problem = self.listener.typed(head, found)
        if self._deciding is not head:
            return
        self._deciding = None
        self._seen_at = 0.0
        if problem is not None:
            self._turn_away(problem)
        else:
            self._let_in(keeps_body=keeps_body)
        self._settle()
        self._look_at_reading()
        self.read_on()

    def _stop_listening(self) -> None:
        super()._stop_listening()
        deciding, self._deciding = self._deciding, None
        if deciding is not None:
            deciding.drop()

    def _continue(self) -> None:
        if self._decided and not self.is_busy:
            self._wants_continue = False
            self._seen_at = 0.0
            self._write(CONTINUE)

    # The order of requests

    def _came(self, request: HttpRequest) -> None:
        """Serve a complete request, or queue it until its turn."""
        self._seen_at = 0.0
        size = request.held
        budget = self.listener.budgets.under_way
        budget.held += size
        if budget.held > budget.most and size > SMALL_BYTES:
            self.listener.memory_refused(self.peer, budget)
            request.refusal, request.body = budget.exceeded(), b""
        if self._current is None and not self._queue and not self._write_paused:
            self._current = request
            self.listener.serve(self, request)
            return
        self._queue.append(request)
        if len(self._queue) >= PIPELINED_MAX:
            self._look_at_reading()
        self._pump()

    def _over(self, request: HttpRequest) -> None:
        """End the request in progress, and release its bytes from the budget."""
        self._current = None
        self._seen_at = 0.0
        self.listener.budgets.under_way.held -= request.held

    def _forget_queue(self) -> None:
        budget = self.listener.budgets.under_way
        for waiting in self._queue:
            if isinstance(waiting, HttpRequest):
                budget.held -= waiting.held
        self._queue.clear()

    def _ends_with(self, problem: MaitredError) -> None:
        self._queue.append(problem)
        self._pump()

    def _pump(self) -> None:
        """Serve queued requests, as long as they are answered at once and the caller reads."""
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
                self.listener.serve(self, following)
        finally:
            self._pumping = False
        if self._reading_paused:
            self.read_on()
            self._look_at_reading()
        if self._wants_continue:
            self._continue()

    def _cut_off(self) -> None:
        self.transport.abort()

    def _read_later(self) -> None:
        self.listener.read_later(self)

    def _look_at_reading(self) -> None:
        pause = bool(self._unread) or self._is_full
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
        self._look_at_unsent()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._seen_at = 0.0
        self._count_unsent(0)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if not self.closed:
            self._look_at_reading()
            self._pump()

    # Answers

    def answer(
        self,
        request: HttpRequest,
        status: int,
        content_type: bytes,
        body: bytes,
        extra: bytes = b"",
    ) -> None:
        """Send a whole answer; do nothing if the caller no longer waits for it."""
        if self._current is not request:
            return
        listener = self.listener
        if listener.draining:
            request.keep_alive = False
        if not request.keep_alive or request.is_10:
            extra += _connection(request)
        if request.trace:
            extra += _trace(request)
        data = b"%b%b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (
            LINES[status],
            content_type,
            len(body),
            listener.date,
            extra,
            body if request.method != b"HEAD" else b"",
        )
        metrics = self._metrics
        metrics.bytes_out += len(data)
        if self._held:  # hold one answer only: the transport limits what is written, not this
            self.release()
            self.transport.write(data)
        else:
            self._held = data
            listener.write_later(self)
        metrics.answered(request.route, status, self._time() - request.began)
        self._over(request)
        if not request.keep_alive or self._queue or self._wants_continue or self._reading_paused:
            self._finished(request)

    def release(self) -> None:
        """Write the held answer; call this before anything else is done to the connection."""
        held, self._held = self._held, b""
        if held and not self.closed:
            self.transport.write(held)

    def answer_error(self, request: HttpRequest, problem: MaitredError, extra: bytes = b"") -> None:
        """Count an error, and send it as the whole answer; do nothing if the caller no longer waits
        for it."""
        if self._current is not request:
            return
        self.listener.refused[counted_code(problem.code)] += 1
        form = request.form or AS_JSON
        if form.name == "events":
            form = AS_JSON
        body = form.value(told(problem, tracebacks=self.listener.settings.tracebacks))
        if not isinstance(problem, Unauthenticated) or CSRF_HEADER not in request.headers:
            extra += extra_headers(problem)  # otherwise the browser would ask for Basic credentials
        self.answer(request, status_of(problem), form.content_type, body, extra)

    def begin_stream(self, request: HttpRequest, content_type: bytes, extra: bytes) -> None:
        """Send the head of an answer whose body comes in pieces."""
        if request.is_10:
            request.keep_alive = False
        if self.listener.draining:
            request.keep_alive = False
        if request.trace:
            extra += _trace(request)
        chunked = b"" if request.is_10 else b"Transfer-Encoding: chunked\r\n"
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bCache-Control: no-store\r\n%b%b%b\r\n"
            % (content_type, chunked, self.listener.date, extra, _connection(request))
        )
        self.listener.metrics.answered(
            request.route, 200, self.listener.loop.time() - request.began
        )

    async def send_piece(self, request: HttpRequest, data: bytes) -> None:
        """Send a piece of the body; return when the caller has read enough for the next one."""
        if self._current is not request or not data:
            return
        self.listener.metrics.bytes_out += len(data)
        if request.is_10:
            self.transport.write(data)
        else:  # the head went through `_write`, so no answer is held
            self.transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        while self._write_paused and self._current is request:
            self._drained = self.listener.loop.create_future()
            await self._drained

    def end_stream(self, request: HttpRequest) -> None:
        """Complete the body of a stream."""
        if self._current is not request:
            return
        if not request.is_10:
            self._write(b"0\r\n\r\n")
        self._over(request)
        self._finished(request)

    def break_off(self, request: HttpRequest, code: str, last_words: bytes) -> None:
        """Count the error with this code, and close the connection without the end of the body, so
        that the caller sees that it is incomplete."""
        if self._current is not request:
            return
        self.listener.refused[counted_code(code)] += 1
        self._over(request)
        self._stop_listening()
        self._forget_queue()
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
            self.listener.metrics.bytes_out += len(data)
            self.transport.write(data)

    def _finished(self, request: HttpRequest) -> None:
        if not request.keep_alive:
            self._forget_queue()
            self._say_goodbye()
        elif self._queue or self._wants_continue or self._reading_paused:
            self._pump()

    def _refuse(self, problem: MaitredError) -> None:
        """Answer an incomplete request with an error, and end the connection."""
        self.listener.refused[counted_code(problem.code)] += 1
        body = AS_JSON.value(told(problem, tracebacks=False))
        status = status_of(problem)
        self._write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"%b%bConnection: close\r\n\r\n%b"
            % (status, REASONS[status], len(body), self.listener.date, extra_headers(problem), body)
        )
        self.listener.metrics.answered("none", status, 0.0)
        self._forget_queue()
        self._linger()

    def _say_goodbye(self) -> None:
        """Write the held answer, and close the connection."""
        self._stop_listening()
        self._seen_at = 0.0
        self.release()
        if not self.closed:
            self.transport.close()

    def _linger(self) -> None:
        self._stop_listening()
        self._seen_at = 0.0
        if self.closed:
            return
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        with suppress(OSError, RuntimeError):
            self.transport.write_eof()
        self._look_at_reading()  # what the caller still sends is read and discarded

    # Once a second, and when users change

    def look_at_user(self, authenticator: Authenticator) -> None:
        """Cut the connection off if the user of its request is no longer valid. An error answer is
        impossible: the answer of a stream may have begun."""
        current = self._current
        if current is None or current.identity is None:
            return
        current.identity = authenticator.refreshed(current.identity)
        if current.identity is None:
            self.listener.log.info("http request cut off: its user is gone", peer=self.peer)
            self.transport.abort()

    def look_at_token(self) -> None:
        """Verify the token of the request in progress again: it may be revoked or expired, and a
        gateway is not notified."""
        current = self._current
        if current is None or current.identity is None or current.identity.until == inf:
            return
        if not self.listener.still_known(self, current) and current is not self._verified_again:
            self._verified_again = current
            self.listener.spawn(self._verify_again(current))

    async def _verify_again(self, request: HttpRequest) -> None:
        try:
            await self.listener.verify(self, request)
        except Unauthenticated:
            if self._current is request:
                self.listener.log.info("http request cut off: its user is gone", peer=self.peer)
                self.transport.abort()
        except MaitredError:
            pass  # the node is unreachable or busy; the next check tries again
        finally:
            self._verified_again = None

    def look_at_clock(self, now: float) -> None:
        """End the connection if it has been in one state for longer than the limit."""
        waits = self.waits
        if waits is WaitState.CALLER and self._look_at_unsent():
            self._seen_at = 0.0
        if waits is not self._seen_waits or not self._seen_at:
            self._seen_waits, self._seen_at = waits, now
        elif now - self._seen_at > self.listener.limits[waits]:
            self._lost_patience(waits)

    def _lost_patience(self, waits: WaitState) -> None:
        seconds = self.listener.limits[waits]
        if waits is WaitState.HEAD:
            self._stop_reading(_too_slow("the headers", seconds))
        elif waits is WaitState.BODY:
            self._stop_reading(_too_slow("the body", seconds))
        elif waits is WaitState.LOGIN:
            self._stop_reading(
                Overloaded("The login took too long: too many wait to be let in.", retry_after=1.0)
            )
        elif waits is WaitState.REQUEST:
            self._say_goodbye()
        else:
            if waits is WaitState.CALLER:
                self.listener.log.info(
                    "http caller takes nothing; cut off", peer=self.peer, unsent=self._unsent
                )
            elif waits is WaitState.ANSWER:
                route = self._current.route if self._current is not None else "none"
                self.listener.log.error("http request was never answered", route=route)
            self.transport.abort()

    def _look_at_unsent(self) -> bool:
        """Count the unsent bytes; return whether the caller has read some since the last check."""
        unsent = self.transport.get_write_buffer_size()
        taken = unsent < self._unsent
        self._count_unsent(unsent)
        budget = self.listener.budgets.unsent
        if budget.held > budget.most and unsent:
            self.listener.memory_refused(self.peer, budget)
            self._count_unsent(0)
            self.transport.abort()
        return taken

    def _count_unsent(self, unsent: int) -> None:
        self.listener.budgets.unsent.held += unsent - self._unsent
        self._unsent = unsent


def _too_slow(what: str, seconds: float) -> TooSlow:
    return TooSlow(f"It took more than {seconds:g} s for {what} of the request to arrive.")


def _trace(request: HttpRequest) -> bytes:
    return b"traceresponse: %b\r\n" % traceparent(request.trace).encode()


def _connection(request: HttpRequest) -> bytes:
    if not request.keep_alive:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if request.is_10 else b""
