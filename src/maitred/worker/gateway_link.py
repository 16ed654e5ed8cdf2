"""The worker's end of a connection to a gateway.

A link begins with HELLO and PROVE, by which each end proves that it knows the worker's session: the
node tells it to gateways that may ask here. Then queries arrive, each on a stream of its own, each
with its reservation or pass. A peer that knows neither gets an error: garbage is answered with a
typed error or closes the connection, and disturbs no other link.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import (
    Cancelled,
    IdleTooLong,
    InvalidArgument,
    MaitredError,
    ProtocolViolation,
    TooManyConnections,
    TooSlow,
    UnknownRequest,
    UnknownWorker,
    UnsupportedVersion,
)
from maitred.protocol.frames import (
    ANSWER,
    EVENT_STREAM,
    HEADER,
    REQUEST,
    RESPONSE,
    Frame,
    FrameDecoder,
    Opcode,
)
from maitred.protocol.messages import UNREADABLE, not_understood
from maitred.protocol.query_link import (
    CHALLENGE_BYTES,
    CREDIT,
    HELLO_BYTES,
    QUERY_LINK_VERSION,
    Greeting,
    decode_hello,
    decode_proof,
    decode_run,
    encode_greeting,
    encode_load,
    encode_query_end,
    session_proof,
)
from maitred.protocol.refusals import encode_error
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS
from maitred.routing.names import check_shown_name
from maitred.wire.link import GATHERED_BYTES, Link
from maitred.worker.capacity import Sender
from maitred.worker.query import Query

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from maitred.protocol.query_link import Load, QueryEnd
    from maitred.settings import WorkerSettings
    from maitred.worker.worker_queries import WorkerQueries

TURN_FRAMES: Final = 64
"""Frames of one link that are read in one turn of the loop."""

WRITE_BUFFER_BYTES: Final = 8 * 2**20
"""Bytes of unsent answers from which on nothing more is read from that gateway: the windows of two
streams."""

PARTS_MAX: Final = 8
"""Most parts of a frame that are written without joining them; more cost more than the copy."""

QUERY_END_BYTES: Final = 128
"""Most bytes of a `QueryEnd` around its result: 40, and 64 of a report."""

TOGETHER: Final = 64
"""Most answers that are written together. More would save little, and gateway and worker would work
by turns instead of at the same time."""

TOKEN_BYTES: Final = 16

FAREWELL_SECONDS: Final = 5.0
"""Seconds for a gateway to close the connection after the worker's last frame."""

ANSWER_SECONDS: Final = TIMEOUT_MAX_MILLISECONDS / 1000 + 60.0
"""Seconds of silence after which a link with open queries is closed: no query may take longer than
a day."""

_pack: Final = HEADER.pack
_RUN: Final = int(Opcode.RUN)
_QUERY_END: Final = Opcode.RUN + ANSWER
_LOAD: Final = Opcode.LOAD + ANSWER
_ROWS: Final = Opcode.ROWS + ANSWER


def too_many() -> TooManyConnections:
    """Return the error for a connection beyond the limit."""
    return TooManyConnections("This worker has as many connections as it may.")


class LinkListener(Protocol):
    """The listener that accepted a link, which keeps the list of open ones."""

    loop: asyncio.AbstractEventLoop
    """The loop on which the links run."""
    settings: WorkerSettings
    """The settings of the worker, with the largest frame of a link."""
    session: bytes
    """The worker's session, which both ends of a link prove to know."""
    querying: WorkerQueries
    """Runs the queries that arrive by links."""

    @property
    def secret(self) -> Callable[[int], bytes]:
        """Returns that many random bytes."""

    def entered(self, link: GatewayLink) -> bool:
        """Accept a new connection; return False if there are too many."""

    def left(self, link: GatewayLink) -> None:
        """Forget a connection that is closed."""


class GatewayLink(Link):
    """The worker's end of one connection; `QueryListener` makes it for each that it accepts."""

    __slots__ = (
        "_challenge",
        "_listener",
        "_querying",
        "_unsent_seen",
        "answer_bytes",
        "body_bytes",
        "gateway",
        "opened_at",
        "ready",
        "sender",
        "streams",
    )

    def __init__(self, listener: LinkListener) -> None:
        # One frame a turn until the gateway has proved itself: larger ones are allowed after that.
        decoder = FrameDecoder(REQUEST, HELLO_BYTES, named=False)
        super().__init__(listener.loop, decoder, RESPONSE, 1)
        self.opened_at = self.arrived_at
        self.ready = False
        """Whether the gateway has proved that the node sent it."""
        self.gateway = ""
        """Its name, for people to read."""
        self.body_bytes = HELLO_BYTES
        """Largest frame that the gateway takes."""
        self.answer_bytes = 0
        """Largest result that fits into one."""
        self.streams: dict[int, Query | bytes] = {}
        """Queries that are not answered yet, by stream; the token of one that waits for its
        reservation."""
        self.sender = Sender(self._report)
        """The link as the worker's capacity knows it, for gateways with passes."""
        self._challenge = b""
        """The challenge that the gateway has to answer; empty before its HELLO."""
        self._listener = listener
        self._querying = listener.querying
        self._unsent_seen = 0

    def __repr__(self) -> str:
        proved = "proved" if self.ready else "not proved"
        return f"<GatewayLink {self.gateway} {proved}, {len(self.streams)} queries>"

    # Beginning and end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        name = self.transport.get_extra_info("peername")
        self.gateway = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"
        if not self._listener.entered(self):
            self.say_farewell(too_many())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        self.closing = True
        self._listener.left(self)
        self._drop_all()
        self._querying.capacity.gone(self.sender)

    def _drop_all(self) -> None:
        streams, self.streams = self.streams, {}
        for stream, asked in streams.items():
            if isinstance(asked, Query):
                asked.abandon()
            else:
                self._querying.forget(self, stream, asked)

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:  # noqa: ARG002
        self.say_farewell(problem)

    def say_farewell(self, problem: MaitredError) -> None:
        """Send the error, stop the queries of this link, and close it."""
        if self.closing:
            return
        self._listener.querying.complaints.say("a connection was refused", self.gateway, problem)
        stream = EVENT_STREAM if self._challenge else 0
        self.send(0, stream, Opcode.ERROR, encode_error(problem))
        self.finish()
        self._drop_all()

    def look_at_clock(self, now: float, settings: WorkerSettings) -> None:
        """Close the link if its peer is too slow or silent; called about once a second."""
        if self.closing_since is not None:
            if now - self.closing_since > FAREWELL_SECONDS:
                self.abort()
            return
        if self.write_paused_since is not None:
            unsent = self.transport.get_write_buffer_size()
            if unsent < self._unsent_seen:
                self.write_paused_since = now
            self._unsent_seen = unsent
            if now - self.write_paused_since > settings.stalled_seconds:
                problem = TooSlow("The gateway does not take its answers.")
                self._listener.querying.complaints.say(
                    "a connection was closed", self.gateway, problem
                )
                self.abort()
            return
        since = self.partial_since if self.ready else self.opened_at
        if since is not None:
            if now - since > settings.link_seconds:
                what = "a frame" if self.ready else "HELLO and PROVE"
                self.say_farewell(
                    TooSlow(f"It took longer than {settings.link_seconds:g} s for {what}.")
                )
        elif now - self.arrived_at > (
            ANSWER_SECONDS if self.streams else settings.link_idle_seconds
        ):
            self.say_farewell(IdleTooLong("The gateway has said nothing for too long."))

    # What comes in

    def frames_received(self, frames: list[Frame], now: float) -> None:
        for flags, stream, opcode, body in frames:
            if opcode == _RUN and self.ready and stream >= 0 and not flags:
                if stream in self.streams:
                    # An answer on this stream could be taken for either query's.
                    self.say_farewell(
                        ProtocolViolation(f"Stream {stream} has a query under way already.")
                    )
                    return
                try:
                    message = decode_run(body)
                except UNREADABLE as problem:
                    self._refuse(stream, not_understood(opcode, problem))
                    continue
                token = self._querying.run(self, stream, message, now)
                if token is not None:
                    self.streams[stream] = token
            elif self.ready:
                self._other(flags, stream, opcode, body)
            else:
                self._introduced(flags, stream, opcode, body)
            if self.closing:
                return

    def _introduced(self, flags: int, stream: int, opcode: int, body: bytes) -> None:
        """Read one of the first two frames: HELLO, then PROVE."""
        expected = Opcode.PROVE if self._challenge else Opcode.HELLO
        try:
            if opcode != expected or stream or flags:
                raise ProtocolViolation(
                    "The first things said to a worker are HELLO and PROVE, on stream 0."
                )
            if expected == Opcode.HELLO:
                self._hello(body)
            else:
                self._prove(body)
        except UNREADABLE as problem:
            self.say_farewell(not_understood(expected, problem))
        except MaitredError as problem:
            self.say_farewell(problem)

    def _hello(self, body: bytes) -> None:
        listener = self._listener
        hello = decode_hello(body)
        if hello.version != QUERY_LINK_VERSION:
            raise UnsupportedVersion(
                f"This worker speaks version {QUERY_LINK_VERSION} of the query link, "
                f"not {hello.version}."
            )
        self._challenge = listener.secret(CHALLENGE_BYTES)
        proof = session_proof("worker", listener.session, hello.challenge)
        frame_bytes = listener.settings.link_frame_bytes
        greeting = Greeting(proof, self._challenge, QUERY_LINK_VERSION, frame_bytes)
        self.send(0, 0, Opcode.HELLO + ANSWER, encode_greeting(greeting))

    def _prove(self, body: bytes) -> None:
        listener = self._listener
        proved = decode_proof(body)
        if not compare_digest(
            proved.proof, session_proof("gateway", listener.session, self._challenge)
        ):
            raise UnknownWorker("Another worker listens at this address by now.")
        check_shown_name("gateway", proved.name)
        if proved.frame_bytes < HELLO_BYTES:
            raise InvalidArgument(
                f"A gateway takes frames of {HELLO_BYTES:,} bytes at least, "
                f"not {proved.frame_bytes:,}."
            )
        self.ready = True
        self.gateway = proved.name or self.gateway
        self.body_bytes = proved.frame_bytes
        self.answer_bytes = proved.frame_bytes - QUERY_END_BYTES
        self.decoder.max_body_bytes = listener.settings.link_frame_bytes
        self._turn_frames = TURN_FRAMES

    def _other(self, flags: int, stream: int, opcode: int, body: bytes) -> None:
        asked = self.streams.get(stream)
        if flags or stream < 0:
            self.say_farewell(ProtocolViolation("A frame with flags, or on a stream below 0."))
        elif opcode == Opcode.CREDIT:
            if len(body) != CREDIT.size:
                self._violated(stream, "CREDIT has four bytes.")
            elif isinstance(
                asked, Query
            ):  # otherwise the query is over, and the CREDIT was on its way
                asked.credit(CREDIT.unpack(body)[0])
        elif opcode == Opcode.CANCEL:
            if isinstance(asked, Query):
                asked.cancel()
            elif asked is not None:
                self._querying.forget(self, stream, asked)
                self.refused(stream, Cancelled("The query was taken back before it began."))
        elif opcode == Opcode.RELEASE:
            if len(body) != TOKEN_BYTES:
                self._violated(stream, f"RELEASE has {TOKEN_BYTES} bytes.")
            else:
                self._querying.release(body)
        elif opcode == Opcode.PING:
            self.send(0, stream, Opcode.PING + ANSWER, body)
        else:
            self._violated(
                stream, f"A worker does not know the opcode 0x{opcode:02x}.", UnknownRequest
            )

    def _violated(
        self, stream: int, sentence: str, kind: type[MaitredError] = InvalidArgument
    ) -> None:
        if stream in self.streams:  # an ERROR there would be taken for the query's answer
            self.say_farewell(ProtocolViolation(sentence))
        else:
            self._refuse(stream, kind(sentence))

    def _refuse(self, stream: int, problem: MaitredError) -> None:
        self._listener.querying.complaints.say("a frame was refused", self.gateway, problem)
        self.refused(stream, problem)

    # What goes out (see `query.Asker`)

    def begun(self, stream: int, query: Query) -> None:
        """Register a query whose handler has begun."""
        self.streams[stream] = query

    def rows(self, stream: int, parts: list[bytes], size: int) -> None:
        """Send rows of a stream."""
        header = _pack(RESPONSE, 0, stream, _ROWS, size)
        if size < GATHERED_BYTES or len(parts) > PARTS_MAX:
            self.write(b"".join((header, *parts)))
        elif not self.closing:
            self.flush()
            self.transport.writelines((header, *parts))

    def over(self, stream: int, end: QueryEnd) -> None:
        """Send the end of a query that was begun, together with others of this turn."""
        self.streams.pop(stream, None)
        body = encode_query_end(end)
        frame = _pack(RESPONSE, 0, stream, _QUERY_END, len(body)) + body
        gathered = self._gathered
        gathered.append(frame)
        self._gathered_bytes += len(frame)
        if len(gathered) >= TOGETHER or not self.streams or self._gathered_bytes >= GATHERED_BYTES:
            self.flush()  # enough to be worth a write, or no other answer is to come
        elif not self._flush_soon:
            self._flush_soon = True
            self.loop.call_soon(self._flush_in_turn)

    def _report(self, load: Load) -> None:
        """Send the worker's load, unless the gateway has not taken the last report yet."""
        if not self.closing and self.write_paused_since is None:
            body = encode_load(load)
            self.write(_pack(RESPONSE, 0, EVENT_STREAM, _LOAD, len(body)) + body)

    def refused(self, stream: int, problem: MaitredError) -> None:
        """Send the error for a query that was not begun."""
        self.streams.pop(stream, None)
        self.send(0, stream, Opcode.ERROR, encode_error(problem))
