"""A connection that a shard has accepted: what it holds, how long it may take, how it ends.

What a connection holds is counted for all of them together, in the shard, and whoever makes it too
much is the one to go. A connection ends with a sentence that says why, if there is anybody to hear
it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from maitred.errors import (
    MaitredError,
    Overloaded,
    ProtocolViolation,
    TokenExpired,
    TooManyConnections,
)
from maitred.node.deferred_reply import HeldWork, node_fault
from maitred.node.patience import Farewell, Observed, lost_patience
from maitred.node.work import expired
from maitred.protocol import cql
from maitred.protocol.frames import (
    ANSWER,
    EVENT_STREAM,
    HANDSHAKE_FRAME_BYTES,
    HEADER,
    REQUEST,
    RESPONSE,
    STREAMS_MAX,
    FrameDecoder,
    Opcode,
)
from maitred.protocol.messages import encode
from maitred.protocol.refusals import decode_error, encode_error
from maitred.security.permissions import EVERYTHING, NOTHING
from maitred.security.source import Source
from maitred.security.users import GATEWAY
from maitred.wire.link import GATHERED_BYTES, Link

if TYPE_CHECKING:
    import asyncio

    from msgspec import Struct

    from maitred.node.shard import Shard
    from maitred.node.work import Work
    from maitred.security.directory import Identity

FORWARDED_EXTRA_BYTES: Final = 1024
"""By so much a request may grow when it is passed on: fields that the client left out are filled
in. A frame beyond the limit would end the link, and with it what others have under way there."""

pack_header: Final = HEADER.pack


class HandshakeState(Enum):
    """How far a connection's handshake has come."""

    FRESH = auto()
    AUTHENTICATING = auto()
    READY = auto()


class Accepted(Link):
    """The shard's end of a connection; `peer` if it comes from another shard of the node."""

    __slots__ = (
        "_agreed_version",
        "_in_flight_max",
        "_peer",
        "_unsent_counted",
        "_unsent_seen",
        "_verifying",
        "announced",
        "events",
        "identity",
        "opened_at",
        "permissions",
        "shard",
        "state",
        "under_way",
        "version",
    )

    def __init__(self, shard: Shard, *, peer: bool = False) -> None:
        limits = shard.limits
        size = (
            limits.frame_bytes + FORWARDED_EXTRA_BYTES
            if peer
            else min(HANDSHAKE_FRAME_BYTES, limits.frame_bytes)
        )
        super().__init__(shard.loop, FrameDecoder(REQUEST, size), RESPONSE, limits.turn_frames)
        self.shard = shard
        self.opened_at = self.arrived_at
        self.state = HandshakeState.READY if peer else HandshakeState.FRESH
        self.version = shard.description.versions[-1] if peer else 0
        """The version of our messages that both ends speak; 0: a driver that has none, or somebody
        who is not READY yet."""
        self._agreed_version = 0
        self.identity: Identity | None = None
        self.permissions = EVERYTHING if peer else NOTHING
        self.events: frozenset[str] = frozenset()
        self.announced: tuple[str, str] | None = None
        """The address that a worker announced last on this connection, and what gateways are told
        instead: see `announced.py`."""
        self.under_way: dict[int, Work] = {}
        """Requests that are not answered yet, by stream."""
        self._peer = peer
        # A link carries the requests of everybody at that shard, each of whom has a limit there.
        self._in_flight_max = STREAMS_MAX if peer else limits.in_flight
        self._unsent_seen = 0
        self._unsent_counted = 0
        self._verifying: asyncio.Task[None] | None = None
        """What finds out who this is."""

    # Beginning and end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        shard = self.shard
        self.transport.set_write_buffer_limits(high=shard.limits.write_buffer_bytes)
        shard.connections[self] = None
        if self._peer:
            return
        shard.client_connections += 1
        if shard.client_connections > shard.limits.connections:
            self.say_farewell(
                TooManyConnections(
                    f"This shard has its {shard.limits.connections:,} connections already.",
                    remedy="Close some, add shards, or raise limits.connections.",
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        shard = self.shard
        shard.connections.pop(self, None)
        if not self._peer:
            shard.client_connections -= 1
        self.closing = True
        shard.partial_bytes -= self.partial_bytes
        if self.state is not HandshakeState.READY:
            shard.strangers_bytes -= self.partial_bytes
        self.partial_bytes = 0
        self._count_unsent(0)
        for work in list(self.under_way.values()):
            work.stop(None)
        self.under_way.clear()
        if self._verifying is not None:
            self._verifying.cancel()

    def partial_bytes_changed(self, partial_bytes: int) -> None:
        shard = self.shard
        more = partial_bytes - self.partial_bytes
        shard.partial_bytes += more
        self.partial_bytes = partial_bytes
        if self.state is not HandshakeState.READY:
            shard.strangers_bytes += more
            if more > 0 and shard.strangers_bytes > shard.limits.handshake_bytes:
                self.say_farewell(
                    Overloaded("The incomplete frames of all handshakes take too much memory.")
                )
            return
        # Another shard did not choose what its clients sent; closing it would hit them all.
        excused = self.closing or self._peer
        held = shard.partial_bytes - shard.strangers_bytes
        if held > shard.limits.partial_bytes and not excused:
            self.say_farewell(
                Overloaded("The incomplete frames of all connections take too much memory.")
            )

    def unsent_piles_up(self) -> None:
        self._count_unsent(self.transport.get_write_buffer_size())
        shard = self.shard
        if shard.unsent_bytes > shard.limits.unsent_bytes and not self._peer:
            self._part(
                Farewell(
                    Overloaded("The answers that nobody reads take too much memory."), heard=False
                )
            )

    def resume_writing(self) -> None:
        self._count_unsent(0)
        super().resume_writing()

    def _count_unsent(self, unsent: int) -> None:
        self.shard.unsent_bytes += unsent - self._unsent_counted
        self._unsent_counted = unsent

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:
        # A driver that tries a newer version waits for the answer on the stream of its first frame.
        self.say_farewell(problem, stream if self.state is HandshakeState.FRESH else EVENT_STREAM)

    def say_farewell(self, problem: MaitredError, stream: int = EVENT_STREAM) -> None:
        """Say why, and close."""
        if self.closing:
            return
        self.shard.count_error(problem.code)
        if self.state is not HandshakeState.READY and stream == EVENT_STREAM:
            stream = 0
        # First: the end of one request can be the answer to another one of this connection.
        self._stop_work(None)
        self.send(0, stream, Opcode.ERROR, encode_error(problem))
        self.shard.log.debug("connection refused", peer=self.peer_name, error=problem)
        self.finish()

    def look_at_clock(self, now: float) -> None:
        """Called about once a second: is it still worth keeping?"""
        stalled_since = self.write_paused_since
        if stalled_since is not None:
            # Only what becomes less was taken; answers to earlier requests may make it more.
            unsent = self.transport.get_write_buffer_size()
            if unsent < self._unsent_seen:
                self.write_paused_since = now
            self._unsent_seen = unsent
            self._count_unsent(unsent)
        for work in list(self.under_way.values()):
            if isinstance(work, HeldWork) and work.deadline <= now:
                work.stop(expired())
        farewell = None if self._peer else lost_patience(self._observed(), self.shard.limits, now)
        if farewell is not None:
            self._part(farewell)

    def look_at_expiry(self, moment: float) -> None:
        """Called as often: is whoever is there still allowed to be, by the wall clock?"""
        if self.identity is not None and self.identity.until <= moment:
            self.say_farewell(
                TokenExpired(
                    "The token or certificate with which this connection was opened has expired.",
                    remedy="Connect with a new one.",
                )
            )

    def _observed(self) -> Observed:
        return Observed(
            opened_at=self.opened_at,
            ready=self.state is HandshakeState.READY,
            arrived_at=self.arrived_at,
            partial_since=self.partial_since,
            stalled_since=self.write_paused_since,
            closing_since=self.closing_since,
            # Nothing can arrive while we do not read.
            busy=bool(self.under_way) or self.write_paused_since is not None,
        )

    def _part(self, farewell: Farewell) -> None:
        if farewell.heard:
            self.say_farewell(farewell.problem)
        else:
            self.shard.log.debug("connection cut", peer=self.peer_name, error=farewell.problem)
            self.shard.count_error(farewell.problem.code)
            self.abort()

    def _stop_work(self, reason: MaitredError | None) -> None:
        for work in list(self.under_way.values()):
            work.stop(reason)

    def drain(self, problem: MaitredError) -> None:
        """The time for what is under way is over: say so to each, and close."""
        self._stop_work(problem)
        self.finish()

    @property
    def user(self) -> str:
        """The name of the user at the other end; empty on a node without users."""
        return self.identity.name if self.identity is not None else ""

    @property
    def is_gateway(self) -> bool:
        """Whether the node's own gateway is at the other end; only a node with users can tell."""
        return self.identity is not None and self.identity.name == GATEWAY

    @property
    def peer_host(self) -> str:
        """The IP address that the connection comes from; empty if it is closed."""
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def peer_name(self) -> str:
        """The peer's name, for the log."""
        return "shard" if self._peer else str(self.source)

    @property
    def source(self) -> Source:
        """The address that the connection comes from."""
        return Source.of(self.transport.get_extra_info("peername"))

    # Answers

    def answer(self, stream: int, opcode: int, message: Struct) -> None:
        """Answer a request of ours."""
        body = encode(message)
        self.shard.requests += 1
        frame = pack_header(RESPONSE, 0, stream, opcode + ANSWER, len(body)) + body
        if self._flush_soon:  # as `write`, for an answer in the turn of its request
            self._gathered.append(frame)
            self._gathered_bytes += len(frame)
            if self._gathered_bytes < GATHERED_BYTES:
                return
            self.flush()
        else:
            self.write(frame)

    def refuse(self, stream: int, problem: MaitredError) -> None:
        """Answer with an error; the connection goes on."""
        self.shard.requests += 1
        self.shard.count_error(problem.code)
        if not self.closing:
            self.send(0, stream, Opcode.ERROR, encode_error(problem))

    def pass_answer(self, flags: int, stream: int, opcode: int, body: bytes) -> None:
        """Answer with what another shard has said."""
        self.shard.requests += 1
        self.send(flags, stream, opcode, body)

    def pass_error(self, stream: int, body: bytes) -> None:
        """Answer with another shard's error."""
        self.shard.requests += 1
        self.shard.count_error(decode_error(body).code)
        self.send(0, stream, Opcode.ERROR, body)

    def blame_ourselves(self, stream: int, problem: BaseException) -> None:
        """A fault of ours: the details go to the log, the caller gets a sentence."""
        self.shard.log.error("request failed", peer=self.peer_name, exc_info=problem)
        self.refuse(stream, node_fault())

    # What is under way

    def work_begins(self, stream: int, work: Work, size: int) -> None:
        """Register a request that is under way, and count its body."""
        self.under_way[stream] = work
        self.shard.under_way_bytes += size

    def work_ends(self, stream: int, work: Work, size: int) -> bool:
        """Remove a request that is over; return False if it was removed before."""
        if self.under_way.get(stream) is not work:
            return False
        del self.under_way[stream]
        self.shard.under_way_bytes -= size
        return True

    def _stream_refused(self, stream: int) -> bool:
        """End the connection if no answer can be given on this stream."""
        if stream < 0:
            self.say_farewell(ProtocolViolation("Requests have stream ids from 0 to 32,767."))
        elif stream in self.under_way:
            # An answer on this stream could be taken for either request's.
            self.say_farewell(
                ProtocolViolation(f"Stream {stream} has a request under way already.")
            )
        else:
            return False
        return True

    def announce_drain(self) -> None:
        """Tell a peer that registered for it that the node is stopping, by our event or by
        CQL's."""
        if cql.DRAINING in self.events:
            self.send(0, EVENT_STREAM, Opcode.EVENT, cql.encode_draining())
        if cql.STATUS_CHANGE in self.events:
            address, _ = self.transport.get_extra_info("sockname")[:2]
            event = cql.encode_status_change("DOWN", address, self.shard.place.port)
            self.send(0, EVENT_STREAM, Opcode.EVENT, event)
