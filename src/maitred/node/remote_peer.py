"""The links to the shards of other nodes of the cluster.

A link is a TCP connection to the shard's own port. It begins with a handshake in which both ends
prove that they know the cluster's secret, and the other end also that it is the very member that
the view has at that address (`security/cluster_proof.py`). From then on it is used like the link to
another shard of this node.

Requests wait for a link for a short time only. A node that does not answer is either being started
again or declared dead soon; the requests that wait are placed again when the view changes.

A network that loses everything closes no connection. So a link on which nothing arrives while
requests are in flight is probed with OPTIONS; if the probe is not answered, the link is closed.

Before a request is sent on a link that has been silent for a moment, the link is probed as well,
and the request waits for a sign of life. A frozen node would otherwise keep the request, and
its outcome would be unknown, although another node owns the partition by the next view. This also
covers a client that has that view sooner than this node.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred import __version__
from maitred.errors import ConnectionLost, MaitredError, ProtocolViolation
from maitred.logs import OccasionalWarning
from maitred.node.peer_link import PeerLink
from maitred.node.peers import WAITING_MAX, Peer, WaitingForLink
from maitred.protocol import cql
from maitred.protocol.description import CQL_VERSION, VERSIONS, agree
from maitred.protocol.frames import HANDSHAKE_FRAME_BYTES, Frame, Opcode
from maitred.security.cluster_proof import NONCE_BYTES, DiallerProof
from maitred.wire.caller import error_of
from maitred.wire.silence import SilenceTimer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from maitred.logs import Logger
    from maitred.membership.view import ClusterMember
    from maitred.node.dispatched import Dispatched
    from maitred.node.peers import PeerShard
    from maitred.protocol.messages import AnyRequest

CONNECT_SECONDS: Final = 2.0
"""How long connecting may take, with the handshake: longer than the kernel waits before it repeats
a lost SYN."""

RECONNECT_SECONDS: Final = 0.1
"""Pause after a failed attempt to connect, while requests wait."""

WAIT_SECONDS: Final = 1.0
"""How long a request waits for a link that cannot be made, before it is refused: as long as it
takes to restart a shard, or to notice that a node has died."""

QUIET_SECONDS: Final = 2.0
"""A link with requests in flight is probed when nothing has arrived for this long. A long poll
causes such probes as well."""

FRESH_SECONDS: Final = 0.5
"""A link on which nothing has arrived for this long gives no sign of life. A request then waits for
one: a round trip, if the other node is well."""

IDLE_SECONDS: Final = 10.0
"""A link without requests in flight is probed at this interval, so that the other end sees that
this one is alive."""

PROBE_SECONDS: Final = 2.0
"""How long the other shard may take to answer a probe. It answers in the loop turn in which the
probe arrives."""

NODE_ROLE: Final = "node"


class ClusterCredentials(NamedTuple):
    """What a shard needs to reach the shards of other nodes."""

    member: str
    """The id of the member of which the shard is a part."""
    secret: bytes
    """The secret of the cluster."""
    draw: Callable[[int], bytes]
    """Returns this many unpredictable bytes."""
    tls: Callable[[], ssl.SSLContext] | None
    """Returns the context for connections to other nodes; None: they are not encrypted."""
    versions: tuple[int, ...] = VERSIONS
    """The versions of maitred's messages that this shard speaks."""


class _HandshakeReply:
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
            self.future.set_exception(problem or ConnectionResetError("the node closed the link"))


class RemoteLink(PeerLink):
    """The link to a shard of another node."""

    __slots__ = ("_probe", "_proven", "_remote")

    def __init__(self, peer: RemotePeer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(peer, loop, HANDSHAKE_FRAME_BYTES)
        self._remote = peer
        self._proven = False
        self._probe: SilenceTimer | None = None

    async def shake_hands(self, proof: DiallerProof, member: str, version: int) -> None:
        """Prove that this shard belongs to the cluster, and have the other shard prove who it is;
        raise a typed error, or an `OSError`."""
        startup = cql.encode_startup(
            {
                "CQL_VERSION": CQL_VERSION,
                "MAITRED_VERSION": str(version),
                "DRIVER_NAME": "maitred",
                "DRIVER_VERSION": __version__,
                cql.ROLE: NODE_ROLE,
                cql.MEMBER: member,
            }
        )
        await self._exchange(Opcode.STARTUP, startup, Opcode.AUTHENTICATE)
        nonce = cql.encode_token(proof.nonce)
        challenge = await self._exchange(Opcode.AUTH_RESPONSE, nonce, Opcode.AUTH_CHALLENGE)
        answer = proof.answer(cql.decode_token(challenge.body))
        await self._exchange(Opcode.AUTH_RESPONSE, cql.encode_token(answer), Opcode.AUTH_SUCCESS)
        if self.closing:
            raise ConnectionResetError("the node closed the link")

    async def _exchange(self, opcode: Opcode, body: bytes, expected: Opcode) -> Frame:
        reply = _HandshakeReply(self.loop)
        self.ask(opcode, body, reply, inf)
        frame = await reply.future
        if frame.opcode == Opcode.ERROR:
            raise error_of(frame)
        if frame.opcode != expected:
            raise ProtocolViolation(
                f"The node answered {opcode.name} with the opcode 0x{frame.opcode:02x}."
            )
        return frame

    def trust(self, max_body_bytes: int) -> None:
        """Take frames of this size, and events, from the other shard: it has proved who it is."""
        self.decoder.max_body_bytes = max_body_bytes
        self._proven = True

    def pushed(self, frame: Frame) -> None:
        if self._proven:
            super().pushed(frame)

    # Liveness

    def look(self, now: float) -> None:
        """Probe the link if it is silent."""
        quiet = now - self.arrived_at
        if quiet >= (QUIET_SECONDS if self.pending else IDLE_SECONDS):
            self.probe()

    def probe(self) -> bool:
        """Ask for a sign of life; return False if all streams are in use."""
        if self._probe is None:
            try:
                self.ask(Opcode.OPTIONS, b"", self, inf)
            except MaitredError:
                return False
            self._probe = SilenceTimer(self.loop, PROBE_SECONDS, self._hangs)
        return True

    def frames_received(self, frames: list[Frame], now: float) -> None:
        super().frames_received(frames, now)
        if self._proven:
            self._remote.heard(self)

    def _hangs(self) -> None:
        self.fail(ConnectionLost("The shard has been silent for too long."))

    def answered(self, frame: Frame) -> None:  # noqa: ARG002 - any answer will do
        """Note that the probe was answered."""
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def expired(self) -> None:
        """Never called: the probe has a timer of its own."""

    def lost(self, problem: Exception | None) -> None:
        """Do nothing more than `ended` does."""

    def ended(self, problem: Exception | None) -> None:
        if self._probe is not None:
            self._probe.cancel()
        super().ended(problem)


class RemotePeer(Peer):
    """A shard of another node."""

    def __init__(
        self,
        shard: PeerShard,
        owner: int,
        number: int,
        *,
        member: ClusterMember,
        credentials: ClusterCredentials,
        log: Logger,
    ) -> None:
        super().__init__(shard, owner, number, "")
        self._member = member
        self._credentials = credentials
        self._warning = OccasionalWarning(log, "shard of another node not reachable")

    @property
    def connected(self) -> bool:
        """Whether there is a link."""
        return self._link is not None

    def forward(self, work: Dispatched, message: AnyRequest, deadline: float) -> None:
        link, now = self._link, self._loop.time()
        # Behind a request that waits the next one waits as well: they keep their order.
        is_fresh = link is None or (now - link.arrived_at < FRESH_SECONDS and not self._waiting)
        if is_fresh or not isinstance(link, RemoteLink) or not link.probe():
            super().forward(work, message, deadline)
        elif len(self._waiting) >= WAITING_MAX:
            work.stop(self._overloaded())
        else:
            self._waiting.append(WaitingForLink(work, message, deadline, now))

    def heard(self, link: RemoteLink) -> None:
        """Send the requests that wait for a sign of life."""
        if self._waiting and self._link is link and not link.closing:
            for one in self.take_waiting():
                self._pass_on(link, one.work, one.message, one.deadline)

    def link_ended(self, link: PeerLink) -> None:
        super().link_ended(link)
        if self._waiting and self._link is None and self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    def look(self, now: float) -> None:
        if isinstance(self._link, RemoteLink):
            self._link.look(now)
        late = [one for one in self._waiting if one.deadline <= now]
        if late:
            self._waiting = [one for one in self._waiting if one.deadline > now]
            for one in late:
                one.work.expired()

    def cut(self) -> None:
        """End the link and the requests in flight on it: the cluster has declared the node dead."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.fail(ConnectionLost("The cluster has declared the node dead."))

    def close(self) -> None:
        super().close()
        for one in self.take_waiting():
            one.work.unreachable()

    async def _connect(self) -> None:
        try:
            while self._waiting:
                try:
                    link = await self._dial()
                except Exception as problem:  # noqa: BLE001 - the requests that wait must end
                    self._failed(problem)
                    if self._waiting:
                        await asyncio.sleep(RECONNECT_SECONDS)
                    continue
                self._link = link
                for one in self.take_waiting():
                    self._pass_on(link, one.work, one.message, one.deadline)
                return
        finally:
            self._connecting = None

    async def _dial(self) -> RemoteLink:
        """Return a link whose other end has proved to be the member of the view."""
        member, given = self._member, self._credentials
        context = None if given.tls is None else given.tls()
        proof = DiallerProof(given.secret, given.draw(NONCE_BYTES), NODE_ROLE, member.id)
        version = agree(given.versions, member.versions or given.versions)
        link: RemoteLink | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, link = await self._loop.create_connection(
                    lambda: RemoteLink(self, self._loop),
                    member.host,
                    member.shard_ports[self.number],
                    ssl=context,
                    server_hostname=None if context is None else member.host,
                )
                await link.shake_hands(proof, given.member, version)
        except BaseException:
            if link is not None:
                link.abort()
            raise
        link.trust(self._limits.frame_bytes)
        return link

    def _failed(self, problem: Exception) -> None:
        now = self._loop.time()
        self._warning.say(
            now,
            shard=self._shard.owner_name(self.owner),
            error="no answer in time" if isinstance(problem, TimeoutError) else problem,
        )
        tired = [one for one in self._waiting if now - one.since >= WAIT_SECONDS]
        if tired:
            self._waiting = [one for one in self._waiting if now - one.since < WAIT_SECONDS]
            for one in tired:
                if not one.work.over:
                    one.work.unreachable()
