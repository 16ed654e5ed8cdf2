"""A connection that a shard has accepted: its state, its memory, its time limits, its end.

The shard counts the memory of all connections together, and closes the connection that exceeds the
limit. The last frame of a connection says why it ends, if its peer still reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import (
    ConnectionLost,
    MaitredError,
    NotOwner,
    Overloaded,
    ProtocolViolation,
    TokenExpired,
    TooManyConnections,
)
from maitred.matching.records import BY_LETTERS
from maitred.node.connection_shard import ConnectionShard
from maitred.node.connection_states import (
    CONNECTION_TABLE,
    HANDSHAKE,
    ConnectionEvent,
    ConnectionState,
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
from maitred.security.source import LOCAL, Source
from maitred.security.users import GATEWAY
from maitred.wire.link import GATHERED_BYTES, Link

if TYPE_CHECKING:
    import asyncio

    from msgspec import Struct

    from maitred.node.work import Work
    from maitred.security.cluster_proof import ListenerProof
    from maitred.security.directory import Identity

FORWARDED_EXTRA_BYTES: Final = 1024
"""Bytes by which a request may grow when it is forwarded: the shard fills in fields that the client
left out. A frame beyond the limit would end the link, with the requests of all clients on it."""

PEER_SILENCE_SECONDS: Final = 45.0
"""A connection of another node on which nothing arrived for this long is closed. The other end
probes it several times meanwhile (`remote_peer.IDLE_SECONDS`)."""

FOR_NODES: Final = 64
"""Connections beyond `limits.connections` that a node of a cluster keeps for other nodes, so that
clients which use up the limit do not cut the node off. Such a connection counts until its handshake
shows that it comes from another node."""

pack_header: Final = HEADER.pack


class AcceptingShard(ConnectionShard, Protocol):
    """The shard with its open connections."""

    @property
    def connections(self) -> dict[Accepted, None]:
        """The open connections, in the order of arrival."""


class Accepted(Link):
    """The shard's end of a connection; `peer` if it comes from another shard of the node. The
    handshake of a shard of another node makes its connection one of a peer, too."""

    __slots__ = (
        "_agreed_version",
        "_for_node",
        "_in_flight_max",
        "_origin",
        "_peer",
        "_proving",
        "_unsent_counted",
        "_unsent_seen",
        "_verifying",
        "_view_told",
        "announced",
        "events",
        "identity",
        "member",
        "opened_at",
        "permissions",
        "shard",
        "state",
        "under_way",
        "version",
    )

    def __init__(self, shard: AcceptingShard, *, peer: bool = False) -> None:
        limits = shard.limits
        size = (
            limits.frame_bytes + FORWARDED_EXTRA_BYTES
            if peer
            else min(HANDSHAKE_FRAME_BYTES, limits.frame_bytes)
        )
        super().__init__(shard.loop, FrameDecoder(REQUEST, size), RESPONSE, limits.turn_frames)
        self.shard = shard
        self.opened_at = self.arrived_at
        self.state = ConnectionState.READY if peer else ConnectionState.FRESH
        self.version = shard.description.versions[-1] if peer else 0
        """The version of maitred's messages that both ends speak; 0 for a driver that speaks CQL
        only, and until the connection is READY."""
        self._agreed_version = 0
        self.identity: Identity | None = None
        self.permissions = EVERYTHING if peer else NOTHING
        self.events: frozenset[str] = frozenset()
        self.announced: tuple[str, str] | None = None
        """The address that a worker announced last on this connection, and the address that
        gateways are told instead (`announced.py`)."""
        self.under_way: dict[int, Work] = {}
        """Requests that are not answered yet, by stream."""
        self.member = ""
        """The id of the member whose shard or gateway is at the other end, as it says; empty for
        others, and for processes of this node."""
        self._view_told = 0
        """The version of the newest view of the cluster that was sent on this connection."""
        self._for_node = False
        """Whether the connection is beyond the limit, and refused unless it comes from another
        node."""
        self._peer = peer
        self._origin: str | None = None
        # A link between shards carries the requests of many connections, each with its own limit.
        self._in_flight_max = STREAMS_MAX if peer else limits.in_flight
        self._unsent_seen = 0
        self._unsent_counted = 0
        self._proving: ListenerProof | None = None
        """This end of the mutual proof with a process of another node, during the handshake."""
        self._verifying: asyncio.Task[None] | None = None
        """Verifies the client's credentials; cancelled when the connection is lost."""

    def __repr__(self) -> str:
        who = f"another {self.peer_name}" if self._peer else self.user or "a client"
        return (
            f"<{type(self).__name__} of {who}: {self.state.name}, {len(self.under_way)} in flight>"
        )

    # Beginning and end

    def happen(self, event: ConnectionEvent) -> None:
        """Change the state by the table; raise `InternalError` for an event out of place."""
        self.state = CONNECTION_TABLE.after(self.state, event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        shard = self.shard
        self.transport.set_write_buffer_limits(high=shard.limits.write_buffer_bytes)
        shard.connections[self] = None
        if self._peer:
            return
        shard.client_connections += 1
        excess = shard.client_connections - shard.limits.connections
        if excess > (FOR_NODES if shard.clustered else 0):
            self.say_farewell(self._too_many())
        elif excess > 0:
            self._for_node = True

    def _too_many(self) -> TooManyConnections:
        return TooManyConnections(
            f"This shard has its {self.shard.limits.connections:,} connections already.",
            remedy="Close some, add shards, or raise limits.connections.",
        )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        shard = self.shard
        shard.connections.pop(self, None)
        if not self._peer:
            shard.client_connections -= 1
        self.closing = True
        self._forget_partial()
        self.happen(ConnectionEvent.LOSE)
        self._count_unsent(0)
        for work in list(self.under_way.values()):
            work.stop(None)
        self.under_way.clear()
        if self._verifying is not None:
            self._verifying.cancel()

    def finish(self) -> None:
        if not self.closing:
            self._forget_partial()
            self.happen(ConnectionEvent.CLOSE)
            super().finish()

    def abort(self) -> None:
        self._forget_partial()
        self.happen(ConnectionEvent.CLOSE)
        if self.closing_since is None:
            self.closing_since = self.loop.time()
        super().abort()

    def _forget_partial(self) -> None:
        """Free the bytes of incomplete frames: a closing connection decodes no more."""
        if self.partial_bytes:
            self.decoder = FrameDecoder(REQUEST, 0)
            self.shard.partial_bytes -= self.partial_bytes
            if self.state in HANDSHAKE:
                self.shard.strangers_bytes -= self.partial_bytes
            self.partial_bytes = 0

    def partial_bytes_changed(self, partial_bytes: int) -> None:
        shard = self.shard
        more = partial_bytes - self.partial_bytes
        shard.partial_bytes += more
        self.partial_bytes = partial_bytes
        if self.state in HANDSHAKE:
            shard.strangers_bytes += more
            if more > 0 and shard.strangers_bytes > shard.limits.handshake_bytes:
                self.say_farewell(
                    Overloaded("The incomplete frames of all handshakes take too much memory.")
                )
            return
        # A link between shards stays: closing it would end the requests of many clients.
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
                    Overloaded("The unread answers of all connections take too much memory."),
                    heard=False,
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
        self.say_farewell(problem, stream if self.state is ConnectionState.FRESH else EVENT_STREAM)

    def say_farewell(self, problem: MaitredError, stream: int = EVENT_STREAM) -> None:
        """Send the error as the last frame, and close."""
        if self.closing:
            return
        self.shard.count_error(problem.code)
        if self.state is not ConnectionState.READY and stream == EVENT_STREAM:
            stream = 0
        # Before the error: the end of one request can answer another request of this connection.
        self._stop_work(None)
        self.send(0, stream, Opcode.ERROR, encode_error(problem))
        self.shard.log.debug("connection refused", peer=self.peer_name, error=problem)
        self.finish()

    def look_at_clock(self, now: float) -> None:
        """Close the connection if its peer exceeds a time limit; called about once a second."""
        if self.state is ConnectionState.CLOSED:
            return
        stalled_since = self.write_paused_since
        if stalled_since is not None:
            # A smaller buffer shows that the peer reads; answers may have made it larger meanwhile.
            unsent = self.transport.get_write_buffer_size()
            if unsent < self._unsent_seen:
                self.write_paused_since = now
            self._unsent_seen = unsent
            self._count_unsent(unsent)
        for work in list(self.under_way.values()):
            if isinstance(work, HeldWork) and work.deadline <= now:
                work.stop(expired())
        if self._peer:
            if self.member and now - self.arrived_at > PEER_SILENCE_SECONDS:
                self._part(Farewell(ConnectionLost("The other node was silent."), heard=False))
            return
        farewell = lost_patience(self._observed(), self.shard.limits, now)
        if farewell is not None:
            self._part(farewell)

    def _become_peer(self, member: str) -> None:
        """Serve the connection as that of a shard of another node, which has proved itself."""
        limits = self.shard.limits
        self._peer = True
        self.member = member
        self.permissions = EVERYTHING
        self.shard.client_connections -= 1
        self._in_flight_max = STREAMS_MAX
        self.decoder.max_body_bytes = limits.frame_bytes + FORWARDED_EXTRA_BYTES

    def look_at_expiry(self, moment: float) -> None:
        """Close the connection if its token or certificate has expired by the wall clock; called
        about once a second."""
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
            ready=self.state is ConnectionState.READY,
            arrived_at=self.arrived_at,
            partial_since=self.partial_since,
            stalled_since=self.write_paused_since,
            closing_since=self.closing_since,
            # Nothing can arrive while the shard does not read.
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
        """Refuse the requests in flight with this error, and close: `drain_seconds` are over."""
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
    def origin(self) -> str:
        """The user and the address, for the history of tasks, as in `alice@10.0.0.7`."""
        if self._origin is None:
            host = self.peer_host or LOCAL
            self._origin = f"{self.user}@{host}"[:BY_LETTERS] if self.user else host
        return self._origin

    @property
    def peer_name(self) -> str:
        """The peer's name, for the log."""
        if not self._peer:
            return str(self.source)
        return f"shard of member {self.member}" if self.member else "shard"

    @property
    def source(self) -> Source:
        """The address that the connection comes from."""
        return Source.of(self.transport.get_extra_info("peername"))

    # Answers

    def answer(self, stream: int, opcode: int, message: Struct) -> None:
        """Answer a request of maitred's protocol."""
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
        """Answer with an error; the connection stays open."""
        self.shard.requests += 1
        self.shard.count_error(problem.code)
        if self._peer and problem.code == NotOwner.code:
            self.tell_view()  # first, so that the other shard finds the owner by it
        if not self.closing:
            self.send(0, stream, Opcode.ERROR, encode_error(problem))

    def pass_answer(self, flags: int, stream: int, opcode: int, body: bytes) -> None:
        """Answer with another shard's answer."""
        self.shard.requests += 1
        self.send(flags, stream, opcode, body)

    def pass_error(self, stream: int, body: bytes) -> None:
        """Answer with another shard's error."""
        self.shard.requests += 1
        self.shard.count_error(decode_error(body).code)
        self.send(0, stream, Opcode.ERROR, body)

    def blame_ourselves(self, stream: int, problem: BaseException) -> None:
        """Log a fault of the node, and answer that the node failed at the request."""
        self.shard.log.error("request failed", peer=self.peer_name, exc_info=problem)
        self.refuse(stream, node_fault())

    # Requests in flight

    def work_begins(self, stream: int, work: Work, size: int) -> None:
        """Register a request that is not answered at once, and count its body."""
        self.under_way[stream] = work
        self.shard.under_way_bytes += size

    def work_ends(self, stream: int, work: Work, size: int) -> bool:
        """Remove a request that has ended; return False if it was removed before."""
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

    def members_died(self, dead: set[str]) -> None:
        """End the connection if it comes from a shard of a member that the cluster has declared
        dead."""
        if self._peer and self.member in dead and not self.closing:
            died = ConnectionLost("The cluster has declared the other node dead.")
            self._part(Farewell(died, heard=False))

    def tell_view(self) -> None:
        """Send the shard's view of the cluster, unless it was sent before."""
        shard = self.shard
        if self._view_told < shard.view_version and not self.closing:
            self._view_told = shard.view_version
            self.send(0, EVENT_STREAM, Opcode.EVENT, shard.view_event)

    def announce_drain(self) -> None:
        """Tell a peer that registered for it that the node is stopping, by our event or by
        CQL's."""
        if cql.DRAINING in self.events:
            self.send(0, EVENT_STREAM, Opcode.EVENT, cql.encode_draining())
        if cql.STATUS_CHANGE in self.events:
            address, _ = self.transport.get_extra_info("sockname")[:2]
            event = cql.encode_status_change("DOWN", address, self.shard.place.port)
            self.send(0, EVENT_STREAM, Opcode.EVENT, event)
