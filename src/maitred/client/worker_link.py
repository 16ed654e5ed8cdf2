"""The gateway's end of a connection to a worker: queries go out, answers come back.

One request may have many answers: rows, and one last frame. An abandoned stream keeps its number
until that last frame has come. Numbers are used in turn, so that an answer that comes twice does
not reach another query.

A gateway sends no part of a query before the worker has proved that it is the one that the node
named. If the worker's listener speaks TLS, its certificate has to be the one that the worker
announced; before that check the gateway sends nothing.

One timer per link checks whether the worker still answers, and whether the link is still used.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from maitred.errors import (
    MaitredError,
    ProtocolViolation,
    TlsFailed,
    TooManyInFlight,
    Unavailable,
    UnknownWorker,
    UnsupportedVersion,
)
from maitred.protocol.frames import (
    ANSWER,
    EVENT_STREAM,
    HEADER,
    REQUEST,
    RESPONSE,
    STREAMS_MAX,
    Frame,
    FrameDecoder,
    Opcode,
)
from maitred.protocol.messages import UNREADABLE
from maitred.protocol.query_link import (
    CREDIT,
    HELLO_BYTES,
    QUERY_LINK_VERSION,
    Hello,
    Proof,
    decode_greeting,
    decode_load,
    encode_hello,
    encode_proof,
    session_proof,
)
from maitred.security.worker_tls import fingerprint_of
from maitred.wire.caller import error_of
from maitred.wire.link import GATHERED_BYTES, Link

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from maitred.dispatch.effects import AnswerReceiver
    from maitred.protocol.queries import Allocation
    from maitred.protocol.query_link import Load
    from maitred.settings import Querying

    class LinkOwner(Protocol):
        """Hears from the links to workers."""

        def link_ended(self, link: WorkerLink, now: float, *, hung: bool) -> None: ...
        def link_refused(self, allocation: Allocation, problem: MaitredError) -> None: ...
        def load_reported(self, session: bytes, load: Load, now: float) -> None: ...
        def stray_answer(self, link: WorkerLink) -> None: ...


QUERY_END: Final = Opcode.RUN + ANSWER
ROWS: Final = Opcode.ROWS + ANSWER
_LOAD: Final = Opcode.LOAD + ANSWER
_PONG: Final = Opcode.PING + ANSWER
_GREETING: Final = Opcode.HELLO + ANSWER
_ERROR: Final = int(Opcode.ERROR)
_RUN: Final = int(Opcode.RUN)
_pack: Final = HEADER.pack
_credit: Final = CREDIT.pack

TURN_FRAMES: Final = 256
"""Answers that are delivered before the rest of the program gets its turn."""

LOOKS: Final = 2
"""Checks of a link per `ping_seconds`."""


class _Dropped:
    """Drops the answers to abandoned queries."""

    def rows_came(self, chunk: bytes, now: float) -> None:
        pass

    def finished(self, body: bytes, now: float) -> None:
        pass

    def refused(self, problem: MaitredError, now: float) -> None:
        pass

    def lost(self, why: str, now: float, *, hung: bool) -> None:
        pass


_DROPPED: Final = _Dropped()


class WorkerLink(Link):
    """A gateway's link to one worker, made by `Links`."""

    __slots__ = (
        "_busy_since",
        "_challenge",
        "_ended",
        "_fingerprint",
        "_frame_bytes_max",
        "_look_at",
        "_name",
        "_next",
        "_owner",
        "_pinged_at",
        "_proved",
        "_settings",
        "_timer",
        "_together",
        "frame_bytes",
        "greeted",
        "session",
        "strays",
        "streams",
        "used_at",
    )

    holds_back = False
    relays = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        session: bytes,
        owner: LinkOwner,
        *,
        settings: Querying,
        frame_bytes: int,
        name: str,
        challenge: bytes,
        fingerprint: bytes = b"",
    ) -> None:
        """With a fingerprint, the connection is by TLS, and the worker's certificate has it."""
        decoder = FrameDecoder(RESPONSE, HELLO_BYTES, named=False)
        super().__init__(loop, decoder, REQUEST, TURN_FRAMES)
        self.session = session
        self.streams: dict[int, AnswerReceiver] = {}
        self.frame_bytes = 0
        """Largest body that the worker takes."""
        self.greeted: asyncio.Future[None] = loop.create_future()
        """Resolved when the worker has proved its identity."""
        self.strays = 0
        """Answers on streams without a query."""
        self.used_at = loop.time()
        self._settings = settings
        self._together = settings.together
        self._name = name
        self._owner = owner
        self._challenge = challenge
        self._fingerprint = fingerprint
        self._proved = False
        """Whether the worker has proved its identity."""
        self._frame_bytes_max = frame_bytes
        self._next = 1
        self._ended = False
        self._busy_since = 0.0
        self._pinged_at = 0.0
        self._look_at = 0.0
        """When the timer fires."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closing else "open" if self._proved else "not greeted"
        return f"<WorkerLink to {self.session.hex()[:8]}, {state}, {len(self.streams)} queries>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._fingerprint and not self._is_announced():
            self.fail(TlsFailed("The worker's listener shows another certificate than announced."))
            return
        self.send(0, 0, Opcode.HELLO, encode_hello(Hello(self._challenge)))
        self.flush()

    def _is_announced(self) -> bool:
        """Return whether the peer's certificate is the one that the worker announced."""
        tls = self.transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        return shown is not None and fingerprint_of(shown) == self._fingerprint

    # Queries

    def run(self, receiver: AnswerReceiver, body: bytes, now: float) -> int:
        """Send a query and return its stream."""
        streams = self.streams
        if self.closing:
            raise Unavailable("The connection to the worker is closed.")
        if len(streams) >= STREAMS_MAX - 1:
            raise TooManyInFlight(
                f"The worker has {len(streams):,} queries of this gateway already."
            )
        stream = self._next
        while stream in streams:
            stream = stream + 1 if stream < STREAMS_MAX - 1 else 1
        self._next = stream + 1 if stream < STREAMS_MAX - 1 else 1
        if not streams:
            self._busy_since = now
        streams[stream] = receiver
        self.used_at = now
        frame = _pack(REQUEST, 0, stream, _RUN, len(body)) + body
        self._gathered.append(frame)
        self._gathered_bytes += len(frame)
        gathered = len(self._gathered)
        if (
            len(streams) == 1
            or gathered >= self._together
            or self._gathered_bytes >= GATHERED_BYTES
        ):
            self.flush()  # a query that is alone does not wait for others
        elif not self._flush_soon:
            self._flush_soon = True
            self.loop.call_soon(self._flush_in_turn)
        return stream

    def stop(
        self,
        stream: int,
        receiver: AnswerReceiver,
        now: float,  # noqa: ARG002
        heir: AnswerReceiver | None = None,
    ) -> None:
        """Have the worker stop: the caller left. The heir receives the worker's last word."""
        if self.streams.get(stream) is receiver:
            self.streams[stream] = heir or _DROPPED
            if not self.closing:
                self.send(0, stream, Opcode.CANCEL, b"")

    def taken(self, stream: int, size: int, now: float) -> None:  # noqa: ARG002
        """The caller took this many bytes of rows."""
        if not self.closing and stream in self.streams:
            self.send(0, stream, Opcode.CREDIT, _credit(size))

    def release(self, token: bytes) -> None:
        """Tell the worker that this reservation will not be used."""
        if not self.closing:
            self.used_at = self.loop.time()
            self.send(0, 0, Opcode.RELEASE, token)

    # Answers

    def frames_received(self, frames: list[Frame], now: float) -> None:
        if not self._proved:
            self._greet(Frame(*frames.pop(0)))
            if self.closing:
                return
        streams = self.streams
        for _, stream, opcode, body in frames:
            if opcode == QUERY_END:
                receiver = streams.pop(stream, None)
                if receiver is not None:
                    receiver.finished(body, now)
                    continue
            elif opcode == ROWS:
                receiver = streams.get(stream)
                if receiver is not None:
                    receiver.rows_came(body, now)
                    continue
            elif opcode == _ERROR:
                receiver = streams.pop(stream, None)
                problem = error_of(Frame(0, stream, opcode, body))
                if receiver is not None:
                    receiver.refused(problem, now)
                    continue
                if stream == EVENT_STREAM:
                    self.fail(problem)  # its last words
                    return
            elif opcode == _LOAD and stream == EVENT_STREAM:
                if not self._report(body, now):
                    return
                continue
            elif opcode == _PONG:
                continue
            else:
                self.fail(ProtocolViolation(f"A worker said something with opcode {opcode:#04x}."))
                return
            self.strays += 1
            if self.strays == 1:
                self._owner.stray_answer(self)
        if not streams:
            self.used_at = now

    def _report(self, body: bytes, now: float) -> bool:
        """Pass the worker's load on; False if it cannot be decoded, which ends the link."""
        try:
            load = decode_load(body)
        except UNREADABLE as problem:
            self.fail(ProtocolViolation(f"The worker's report cannot be read: {problem}."))
            return False
        self._owner.load_reported(self.session, load, now)
        return not self.closing

    def _greet(self, frame: Frame) -> None:
        """Read the first frame: a greeting, or an error that says why there is no greeting."""
        if frame.opcode == _ERROR:
            self.fail(error_of(frame))
            return
        if frame.opcode != _GREETING:
            self.fail(ProtocolViolation("The first thing that a worker says is HELLO."))
            return
        try:
            greeting = decode_greeting(frame.body)
        except UNREADABLE as problem:
            self.fail(ProtocolViolation(f"The worker's HELLO is not as it should be: {problem}."))
            return
        expected = session_proof("worker", self.session, self._challenge)
        if greeting.version != QUERY_LINK_VERSION:
            version = greeting.version
            self.fail(UnsupportedVersion(f"The worker speaks version {version} of the link."))
        elif not compare_digest(greeting.proof, expected):
            self.fail(UnknownWorker("Another worker listens there by now."))
        else:
            self._proved = True
            self.frame_bytes = greeting.frame_bytes
            self.decoder.max_body_bytes = self._frame_bytes_max
            proof = session_proof("gateway", self.session, greeting.challenge)
            proved = Proof(proof, self._name, self._frame_bytes_max)
            self.send(0, 0, Opcode.PROVE, encode_proof(proved))
            self.greeted.set_result(None)
            self._look_later()

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:  # noqa: ARG002
        self.fail(problem)

    # Liveness

    def _look_later(self) -> None:
        self._look_at = self.loop.time() + self._settings.ping_seconds / LOOKS
        self._timer = self.loop.call_at(self._look_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.closing:
            return
        now = self.loop.time()
        settings = self._settings
        # A loop that stood still may run this before it reads an answer that has arrived: then the
        # next check decides.
        stood_still = now - self._look_at > settings.ping_seconds / LOOKS
        if not self.streams:
            if now - self.used_at >= settings.idle_seconds:
                self.end("it was not used")
                return
        elif self._pinged_at > self.arrived_at:
            if now - self._pinged_at >= settings.hung_seconds and not stood_still:
                self._over(
                    f"it has been silent for {now - self.arrived_at:.1f} s, even when asked",
                    hung=True,
                )
                return
        elif now - max(self.arrived_at, self._busy_since) >= settings.ping_seconds:
            self._pinged_at = now
            self.send(0, 0, Opcode.PING, b"")
        self._look_later()

    # The end

    def fail(self, problem: MaitredError) -> None:
        """End the link for this reason."""
        if not self.greeted.done():
            self.greeted.set_exception(problem)
        self.end(problem.sentence.rstrip("."))

    def end(self, why: str) -> None:
        """Close the link, and tell the receivers."""
        self._over(why, hung=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._over(str(exc) if exc else "it closed the connection", hung=False)

    def _over(self, why: str, *, hung: bool) -> None:
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.closing:
            self.flush()
            self.closing = True
            if hung or self.streams:
                self.transport.abort()
            else:
                self.transport.close()
        if not self.greeted.done():
            self.greeted.set_exception(Unavailable(f"The worker is gone: {why}."))
        if not self.greeted.cancelled():
            self.greeted.exception()  # it need not be retrieved by a caller
        now = self.loop.time()
        receivers = list(self.streams.values())
        self._owner.link_ended(self, now, hung=hung)
        self.streams.clear()
        for receiver in receivers:
            receiver.lost(why, now, hung=hung)
