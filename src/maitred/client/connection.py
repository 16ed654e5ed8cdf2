"""One connection to one shard: its handshake, its requests, and its liveness probes.

Requests beyond the limit in flight wait in a line, first come first served, and are sent as answers
make room. A connection that has been silent for a while, in either direction, is probed with
OPTIONS, as CQL's drivers do; if the probe is not answered, the connection is closed. Views of the
cluster that the node pushes do not replace the probe: the node closes a connection on which it
hears nothing. It is probed sooner if nothing has
arrived since a request was sent, and at once if that request expired: the network is broken, or the
node hangs. A long poll causes one such probe.

In a cluster the other members take over the partitions of a node that does not answer. There a
connection is probed within half a second, and while a probe is unanswered the connection is
*stalled*: requests stay in its line, because the outcome of a request that is sent to a frozen node
is unknown, and one that was not sent can go to the next owner. Whatever arrives ends this.
"""

from __future__ import annotations

import os
import ssl
from collections import OrderedDict
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from maitred import __version__
from maitred.client.credentials import ClusterLogin
from maitred.client.statistics import ShardCounts
from maitred.errors import (
    ConnectionLost,
    InvalidArgument,
    MaitredError,
    PayloadTooLarge,
    ProtocolViolation,
    Unauthenticated,
)
from maitred.protocol import cluster, cql
from maitred.protocol.description import CQL_VERSION, VERSIONS, Description, agree
from maitred.protocol.frames import HANDSHAKE_FRAME_BYTES, STREAMS_MAX, Frame, Opcode
from maitred.protocol.messages import encode
from maitred.protocol.notation import Reader
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS
from maitred.wire.caller import Caller, error_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from maitred.client.call import Call
    from maitred.client.credentials import AnyCredentials, Credentials, TokenFile
    from maitred.client.waiting_room import WaitingRoom
    from maitred.membership.view import ClusterView
    from maitred.settings import ClientSettings

IDLE_SHARE: Final = 1 / 3
"""Share of the node's idle timeout between two probes: two of them may get lost."""

OWN_STREAMS: Final = 3
"""Streams that calls may not use: one for the probe, two for the registration for views. A node
answers these at once and does not count them."""

_LONGEST: Final = TIMEOUT_MAX_MILLISECONDS

FAREWELL_SECONDS: Final = 2.0
"""Seconds in which the node has to close its end after the client closed its own."""

MEMBER_SILENCE_SECONDS: Final = 0.5
"""A connection to a member of a cluster, of which other members are connected, gets a probe if it
owes an answer and was silent for this long. Answers to tasks take milliseconds, so that only long
polls cause such probes, one each."""

STALL_SECONDS: Final = 0.25
"""A connection to such a member is stalled when a probe is unanswered for this long. The node
answers a probe in the turn of its loop in which it arrives. A node that is only late loses nothing:
the requests that wait are sent with the first bytes that come from it."""

LEFT_SECONDS: Final = 1.0
"""A connection to a node that left the cluster is closed if requests are in flight and nothing
arrives for this long although the node was probed: the others have declared it dead. A node that
was drained has answered everything before it left."""


class ConnectionOwner(Protocol):
    """Uses a connection after its handshake, and is told what happens to it."""

    def draining(self, connection: Connection) -> None:
        """Replace a connection whose shard accepts no more requests."""

    def ended(self, connection: Connection, problem: Exception | None) -> None:
        """Replace a connection that has ended."""

    def viewed(self, view: ClusterView) -> None:
        """Take over a view of the cluster, unless a newer one is known. Raise `ProtocolViolation`
        if it makes no sense."""

    def asked_for_view(self) -> None:
        """Note that the node has sent its view, or has none."""

    def stalls(self, connection: Connection) -> None:
        """Note that the connection does not answer a probe."""

    @property
    def has_deputies(self) -> bool:
        """Whether other members of the cluster are connected, which take over the partitions of
        this node if it does not answer."""


class Connection(Caller):
    """A connection of a client, made by `connect`, which also does the handshake."""

    __slots__ = (
        "_heartbeat",
        "_heartbeat_seconds",
        "_inquiries",
        "_probed_at",
        "_probing",
        "_settings",
        "asked_at",
        "calls_max",
        "counts",
        "credentials_ignored",
        "description",
        "draining",
        "has_ended",
        "heard",
        "hung",
        "last_words",
        "line",
        "number",
        "payload_bytes",
        "pool",
        "retired",
        "shard",
        "stalled",
    )

    description: Description

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: ClientSettings) -> None:
        frame_bytes = min(HANDSHAKE_FRAME_BYTES, settings.frame_bytes)
        super().__init__(loop, frame_bytes, settings.in_flight + OWN_STREAMS)
        self._settings = settings
        self._heartbeat: asyncio.TimerHandle | None = None
        self._heartbeat_seconds = settings.heartbeat_seconds
        self._probing = False
        self._probed_at = loop.time()
        """When the last probe was sent; before the first one, when the connection was made."""
        self._inquiries = 0
        """Unanswered requests of its own, for views. They take no stream from the calls."""
        self.credentials_ignored = False
        """Whether the node has no users, and did not ask for the client's credentials."""
        self.asked_at = -inf
        """When the last call was sent."""
        self.hung = False
        """Whether it was closed because the node did not answer a probe."""
        self.calls_max = settings.in_flight
        self.payload_bytes = 0
        self.line: OrderedDict[Call, None] = OrderedDict()
        """Calls that wait for their turn."""
        self.pool: ConnectionOwner | None = None
        """The pool that uses the connection; None during the handshake."""
        self.number = -1
        self.shard = -1
        self.counts = ShardCounts()
        self.draining = False
        self.has_ended = False
        """Whether the connection is gone."""
        self.heard = False
        """Whether the node sent anything in the handshake."""
        self.retired = False
        """Whether it gets no new calls, and closes when the last one is answered."""
        self.last_words: MaitredError | None = None
        self.stalled = False
        """Whether calls stay in the line: the node has not answered a probe, and other members of
        the cluster will take over its partitions if it does not come back."""

    def __repr__(self) -> str:
        shard = self.shard if self.shard >= 0 else "?"
        state = "closed" if self.closing else "retired" if self.retired else "open"
        return f"<Connection {self.number} to shard {shard}, {state}, {self.in_flight} in flight>"

    # Handshake

    async def shake_hands(
        self,
        credentials: AnyCredentials | None,
        versions: Sequence[int] = VERSIONS,
        member: str = "",
    ) -> None:
        """Do the handshake, from OPTIONS to the answer to REGISTER; raises typed errors. `member`
        is the id of the member of the cluster that has to prove itself."""
        supported = await self._exchange(Opcode.OPTIONS, b"", Opcode.SUPPORTED)
        description = _described(supported.body)
        version = agree(versions, description.versions)
        login: dict[str, str] = {}
        if isinstance(credentials, ClusterLogin):
            login[cql.ROLE] = credentials.role
        elif credentials is not None:
            login[cql.LOGIN] = "1"
        startup = cql.encode_startup(
            {
                **login,
                "CQL_VERSION": CQL_VERSION,
                "MAITRED_VERSION": str(version),
                "DRIVER_NAME": "maitred",
                "DRIVER_VERSION": __version__,
            }
        )
        answer = await self._exchange(Opcode.STARTUP, startup, Opcode.READY, Opcode.AUTHENTICATE)
        if isinstance(credentials, ClusterLogin):
            await self._prove(answer, credentials, member)
        elif answer.opcode == Opcode.AUTHENTICATE:
            await self._authenticate(credentials)
        else:
            self.credentials_ignored = credentials is not None
        await self._exchange(Opcode.REGISTER, cql.encode_register([cql.DRAINING]), Opcode.READY)
        self._settle(description)

    async def _prove(self, answer: Frame, credentials: ClusterLogin, member: str) -> None:
        """Exchange proofs that both ends know the cluster's secret."""
        asked = answer.opcode == Opcode.AUTHENTICATE and Reader(answer.body).string()
        if asked != cql.CLUSTER_AUTHENTICATOR:
            raise Unauthenticated("The node does not ask for the proof of a cluster.")
        proof = credentials.begin(member)
        response, asked_next = cql.encode_token(proof.nonce), Opcode.AUTH_CHALLENGE
        frame = await self._exchange(Opcode.AUTH_RESPONSE, response, asked_next)
        shown = proof.answer(cql.decode_token(frame.body))
        await self._exchange(Opcode.AUTH_RESPONSE, cql.encode_token(shown), Opcode.AUTH_SUCCESS)

    async def _authenticate(self, credentials: Credentials | TokenFile | None) -> None:
        if credentials is None:
            raise Unauthenticated(
                "The node requires authentication.",
                remedy="Put user:secret@ before the host in the address, or give a token.",
            )
        response = cql.encode_credentials(*credentials.shown())
        await self._exchange(Opcode.AUTH_RESPONSE, response, Opcode.AUTH_SUCCESS)

    async def _exchange(self, opcode: Opcode, body: bytes, *expected: Opcode) -> Frame:
        reply = _Reply(self.loop)
        self.ask(opcode, body, reply, inf)
        frame = await reply.future
        self.heard = True
        if frame.opcode == Opcode.ERROR:
            raise error_of(frame)
        if frame.opcode not in expected:
            raise ProtocolViolation(
                f"The node answered {opcode.name} with the opcode 0x{frame.opcode:02x}."
            )
        return frame

    def _settle(self, description: Description) -> None:
        self.decoder.max_body_bytes = self._settings.frame_bytes
        self.description = description
        self.shard = description.shard
        self.calls_max = min(self._settings.in_flight, description.in_flight)
        self.most_in_flight = min(STREAMS_MAX, self.calls_max + OWN_STREAMS)
        self.payload_bytes = description.payload_bytes
        self._heartbeat_seconds = min(
            self._settings.heartbeat_seconds, description.idle_seconds * IDLE_SHARE
        )
        first = min(self._heartbeat_seconds, self._settings.silence_seconds)
        self._heartbeat = self.loop.call_later(first, self._look_at_silence)

    # Calls

    def join(self, pool: ConnectionOwner, number: int, counts: ShardCounts) -> None:
        """Tell this pool from now on what happens to the connection."""
        self.pool, self.number, self.counts = pool, number, counts

    def submit(self, call: Call, now: float, room: WaitingRoom) -> None:
        """Send the call, or queue it."""
        if self.line or self.stalled or len(self.pending) >= self.calls_max:
            call.wait_in(self.line, room)
        else:
            self.send_call(call, now)

    def send_call(self, call: Call, now: float) -> None:
        """Send the call with its remaining time; raises if it can never be sent."""
        message = call.message
        # At least 1 ms: a call in its grace has a negative remaining time.
        left = max(1, int((call.deadline - now) * 1000))
        message.timeout_milliseconds = min(_LONGEST, left)
        try:
            body = encode(message)
        except (TypeError, ValueError, OverflowError) as problem:
            raise InvalidArgument(f"The request cannot be written: {problem}.") from None
        if len(body) > self.payload_bytes:
            self._check_size(message, body)
        call.stream = self.ask(message.opcode, body, call, call.deadline + call.grace_seconds)
        call.connection = self
        call.sent_at = self.asked_at = now
        self.counts.requests += 1
        if call.shard != self.shard and call.pool is not None:
            call.pool.counts(call.shard).fallbacks += 1

    def take_back(self, call: Call) -> None:
        """Tell the node to answer now; the answer still goes to the call."""
        if self.pending.get(call.stream) is call and not self.closing:
            self.send(0, call.stream, Opcode.CANCEL, b"")

    def _check_size(self, message: object, body: bytes) -> None:
        """Raise `PayloadTooLarge` if the payload, or the whole body, is beyond its limit."""
        payload = getattr(message, "payload", b"")
        limit = self.payload_bytes
        if len(payload) <= limit:
            payload, limit = body, self.description.frame_bytes
        if len(payload) > limit:
            raise PayloadTooLarge(
                f"A payload of {len(payload):,} bytes is more than the {limit:,} that "
                "the node allows.",
                remedy="Put it into a store and send a reference, or raise limits.payload_bytes.",
            )

    def frames_received(self, frames: list[Frame], now: float) -> None:
        if self.pool is None:
            frames = self._without_last_words(frames)
        self.stalled = False
        super().frames_received(frames, now)
        if self.line:
            self._serve_line()
        if self.retired and not self.pending:
            self.finish()

    def _serve_line(self) -> None:
        now = self.loop.time()
        while self.line and len(self.pending) < self.calls_max and not self.closing:
            call, _ = self.line.popitem(last=False)
            call.leave()
            try:
                self.send_call(call, now)
            except MaitredError as problem:
                call.fail(problem)

    def retire(self) -> None:
        """Accept no more calls, and close when the last one is answered."""
        self.retired = True
        if not self.pending:
            self.finish()

    def leave(self) -> None:
        """Accept no more calls: the node is not in the cluster any more. Wait for the answers that
        it owes only if it still answers."""
        self.retire()
        if self.closing:
            return
        if self.stalled:
            self._abandon_node()
        else:
            self.probe()
            self.loop.call_later(LEFT_SECONDS, self._look_after_leaving, self.arrived_at)

    def _look_after_leaving(self, arrived_at: float) -> None:
        if self.arrived_at <= arrived_at and not self.closing:
            self._abandon_node()

    def _abandon_node(self) -> None:
        self.hung = True
        self.fail(ConnectionLost("it is silent, and the cluster has declared the node dead"))

    def finish(self) -> None:
        """Send an end of file; abort if the node does not close its end, too."""
        if self.closing:
            return
        super().finish()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = self.loop.call_later(FAREWELL_SECONDS, self.abort)

    # Events from the node

    def follow_views(self) -> None:
        """Register for the node's views of the cluster.

        The current view comes right after the answer, before that to the OPTIONS which follows. An
        older node refuses the registration, and sends no views.
        """
        self._inquiries += 2
        self.calls_max += 2
        self.ask(Opcode.REGISTER, cql.encode_register([cql.VIEW]), _Registration(self), inf)
        self.ask(Opcode.OPTIONS, b"", _ViewInquiry(self), inf)

    def inquired(self) -> None:
        """Note that a request for views was answered."""
        self._inquiries -= 1
        self.calls_max -= 1

    @property
    def in_flight(self) -> int:
        return len(self.pending) - self._inquiries

    def pushed(self, frame: Frame) -> None:
        if frame.opcode == Opcode.ERROR:
            self.heard = True
            self.last_words = error_of(frame)
        elif frame.opcode == Opcode.EVENT:
            try:
                event = cql.decode_event(frame.body)
            except ProtocolViolation as problem:
                self.fail(problem)
                return
            if event == cql.DRAINING and not self.draining:
                self.draining = True
                if self.pool is not None:
                    self.pool.draining(self)
            elif event == cql.VIEW and self.pool is not None:
                self._take_view(self.pool, frame.body)

    def _take_view(self, pool: ConnectionOwner, body: bytes) -> None:
        try:
            pool.viewed(cluster.decode_view(cql.decode_view(body)))
        except ProtocolViolation:
            # The last view stays: nodes forward what is sent to a wrong one.
            self.counts.violations += 1

    def _without_last_words(self, frames: list[Frame]) -> list[Frame]:
        """Take out errors without a request: a node may refuse a client before its handshake."""
        expected = []
        for frame in frames:
            if frame.opcode == Opcode.ERROR and frame.stream not in self.pending:
                self.pushed(frame)
            else:
                expected.append(frame)
        return expected

    def ended(self, problem: Exception | None) -> None:
        self.has_ended = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if isinstance(problem, ProtocolViolation):
            self.counts.violations += 1
        if self.pool is not None:
            self.pool.ended(self, problem)

    def why_lost(self, problem: Exception | None) -> str:
        """Return the reason for the end, without a full stop."""
        reason = self.last_words or problem
        if reason is None:
            return "the node closed the connection"
        return spelled(reason)

    # Liveness

    def _look_at_silence(self) -> None:
        self._heartbeat = None
        now = self.loop.time()
        silence = self._settings.silence_seconds
        if self.pool is not None and self.pool.has_deputies:
            silence = min(silence, MEMBER_SILENCE_SECONDS)
        spoke_at = max(self.asked_at, self._probed_at)
        due = min(self.arrived_at, spoke_at) + self._heartbeat_seconds
        owes = self.asked_at >= self.arrived_at and self.in_flight
        look_at = now + silence
        if now >= due or (owes and now >= self.arrived_at + silence):
            self.probe()
            due = now + self._heartbeat_seconds
        elif owes:
            look_at = self.arrived_at + silence
        if not self.closing:
            self._heartbeat = self.loop.call_at(min(due, look_at), self._look_at_silence)

    def probe(self) -> None:
        """Send OPTIONS; without an answer in time, `_Probe` closes the connection."""
        if self._probing or self.closing:
            return
        self._probing = True
        self._probed_at = now = self.loop.time()
        deadline = now + self._settings.heartbeat_timeout_seconds
        self.ask(Opcode.OPTIONS, b"", _Probe(self), deadline)
        if self.pool is not None and self.pool.has_deputies:
            self.loop.call_later(STALL_SECONDS, self._look_at_probe, now)

    def _look_at_probe(self, probed_at: float) -> None:
        """Stall if nothing has arrived since the probe was sent."""
        if self._probing and self.arrived_at <= probed_at and not self.closing:
            self.stalled = True
            if self.pool is not None:
                self.pool.stalls(self)

    def probed(self) -> None:
        """Note that a probe was answered."""
        self._probing = False


class _Reply:
    """Receives one answer of the handshake."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Frame] = loop.create_future()

    def answered(self, frame: Frame) -> None:
        if not self.future.done():
            self.future.set_result(frame)

    def expired(self) -> None:
        """Never called: it has no deadline of its own."""

    def lost(self, problem: Exception | None) -> None:
        if not self.future.done():
            reason = problem or ConnectionResetError("the node closed the connection")
            self.future.set_exception(reason)


class _Probe:
    """Receives the answer to a probe; any answer will do, even an error."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def answered(self, frame: Frame) -> None:  # noqa: ARG002
        self._connection.probed()

    def expired(self) -> None:
        self._connection.hung = True
        self._connection.fail(ConnectionLost("it has been silent for too long"))

    def lost(self, problem: Exception | None) -> None:
        """Do nothing: the connection has ended."""


class _Registration:
    """Receives the answer to the registration for views; a refusal does no harm."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def answered(self, frame: Frame) -> None:  # noqa: ARG002
        self._connection.inquired()

    def expired(self) -> None:
        """Never called: it has no deadline."""

    def lost(self, problem: Exception | None) -> None:
        """Do nothing: the connection has ended."""


class _ViewInquiry(_Registration):
    """Receives the answer to the OPTIONS behind REGISTER. If no view came before it, the node
    belongs to no cluster."""

    __slots__ = ()

    def answered(self, frame: Frame) -> None:
        super().answered(frame)
        if self._connection.pool is not None:
            self._connection.pool.asked_for_view()


@lru_cache(maxsize=64)
def _described(body: bytes) -> Description:
    """Decode the body of SUPPORTED. A shard sends the same one to each connection, and decoding it
    is half of what a handshake costs a client."""
    return Description.from_supported(cql.decode_supported(body))


def spelled(problem: BaseException) -> str:
    """Return the text of an error without a full stop, to be used inside a sentence."""
    if isinstance(problem, MaitredError):
        return problem.sentence.rstrip(".")
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return f"TLS failed: {(problem.reason or str(problem)).replace('_', ' ').lower()}"
    if isinstance(problem, OSError) and problem.errno:
        # The system's text is enough; asyncio's has addresses and numbers of calls.
        words = os.strerror(problem.errno) if problem.errno > 0 else problem.strerror
        return (words or str(problem)).lower()
    return str(problem).rstrip(".") or type(problem).__name__
