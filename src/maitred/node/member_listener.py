"""The port at which the supervisor of a node answers the probes of other supervisors.

Anyone can connect. A connection has to prove within `HANDSHAKE_SECONDS` that it belongs to the
cluster, and learns nothing before; connections without a proof, and links, are bounded in number.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from maitred.errors import CannotStart
from maitred.node.member_lines import (
    MEMBER_ROLE,
    LinkChallenge,
    LinkHello,
    LinkProof,
    MemberLines,
    ProbeRequest,
    ReachRequest,
    decode_for_listener,
)
from maitred.security.cluster_proof import NONCE_BYTES, cluster_proof, is_proof

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from maitred.node.member_lines import MemberAnswer, MemberRequest

HANDSHAKE_SECONDS: Final = 3.0
"""The longest time until a connection has proved that it belongs to the cluster."""

IDLE_SECONDS: Final = 30.0
"""A link without a request for this long is closed: its other end probes every second."""

STRANGERS_MAX: Final = 64
"""The most connections without a proof. Beyond it the oldest is closed, so that strangers that
occupy all places cannot keep members out for longer than they need to connect again."""

LINKS_MAX: Final = 1_024
"""The most connections with a proof; each member has ten watchers and some that join."""


class MemberDesk(Protocol):
    """Answers the requests of proven links."""

    async def answer(self, request: MemberRequest) -> MemberAnswer:
        """Return the answer."""


class ListenerEnd(MemberLines):
    """The listening end of one link."""

    def __init__(self, listener: MemberListener) -> None:
        super().__init__(decode_for_listener)
        self._listener = listener
        self._expected: bytes | None = None
        self._proved = False
        self._answering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._within(HANDSHAKE_SECONDS)
        self._listener.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it dials again
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()
        self._listener.forget(self)

    def received(self, message: Any) -> None:  # noqa: ANN401 - as decoded
        if self._proved and isinstance(message, ProbeRequest | ReachRequest):
            self._within(IDLE_SECONDS)
            self._begin(message)
        elif isinstance(message, LinkHello) and self._expected is None:
            self._challenge(message.nonce)
        elif isinstance(message, LinkProof) and self._expected is not None and not self._proved:
            self._prove(message.proof)
        else:
            self.fail("it sent a message out of turn")

    def _challenge(self, dialler_nonce: bytes) -> None:
        if len(dialler_nonce) != NONCE_BYTES:
            self.fail("its nonce has another length")
            return
        nonce = self._listener.nonce()
        own = self._listener.proof("listener", dialler_nonce, nonce)
        self._expected = self._listener.proof("dialler", dialler_nonce, nonce)
        self.send(LinkChallenge(nonce, own))

    def _prove(self, proof: bytes) -> None:
        if self._expected is None or not is_proof(proof, self._expected):
            self.fail("its proof is wrong")
            return
        self._proved = True
        self._within(IDLE_SECONDS)
        self._listener.proved(self)

    def _begin(self, request: MemberRequest) -> None:
        if self._answering is not None:
            self.fail("it sent a request before the answer to the last one")
            return
        loop = asyncio.get_running_loop()
        self._answering = loop.create_task(self._answer(request))

    async def _answer(self, request: MemberRequest) -> None:
        answer = await self._listener.desk.answer(request)
        self._answering = None
        self.send(answer)

    def _within(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)


class MemberListener:
    """The listener of one member."""

    def __init__(
        self,
        *,
        member: str,
        cluster_secret: bytes,
        random_bytes: Callable[[int], bytes],
        desk: MemberDesk,
    ) -> None:
        self.desk = desk
        self._member = member
        self._secret = cluster_secret
        self._random_bytes = random_bytes
        self._strangers: dict[ListenerEnd, None] = {}
        self._links: dict[ListenerEnd, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; raise `CannotStart` if the address cannot be used. The supervisor has reserved
        the port with SO_REUSEPORT (`node/held_ports.py`)."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: ListenerEnd(self), host, port, ssl=tls, reuse_port=True
            )
        except OSError as problem:
            raise CannotStart(
                f"The port for other nodes, {host}:{port}, cannot be used: {problem}.",
                remedy="Stop the program that uses it, or give this node other ports.",
            ) from problem

    def close(self) -> None:
        """Stop listening, and close all links."""
        if self._server is not None:
            self._server.close()
        for end in [*self._strangers, *self._links]:
            end.abort()

    def nonce(self) -> bytes:
        """Return a random nonce."""
        return self._random_bytes(NONCE_BYTES)

    def proof(self, direction: Any, dialler_nonce: bytes, nonce: bytes) -> bytes:  # noqa: ANN401
        """Return the proof of one end of a link to this member."""
        return cluster_proof(
            self._secret,
            direction,
            dialler_nonce=dialler_nonce,
            listener_nonce=nonce,
            role=MEMBER_ROLE,
            listener=self._member,
        )

    def connected(self, end: ListenerEnd) -> None:
        """Count a new connection; close the oldest one without a proof if there are too many."""
        self._strangers[end] = None
        if len(self._strangers) > STRANGERS_MAX:
            next(iter(self._strangers)).abort()

    def proved(self, end: ListenerEnd) -> None:
        """Count a connection that has proved itself."""
        self._strangers.pop(end, None)
        self._links[end] = None
        if len(self._links) > LINKS_MAX:
            next(iter(self._links)).abort()

    def forget(self, end: ListenerEnd) -> None:
        """Forget a closed connection."""
        self._strangers.pop(end, None)
        self._links.pop(end, None)
