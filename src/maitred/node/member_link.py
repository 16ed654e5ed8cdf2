"""The links of a node's supervisor to the supervisors of the members that it watches.

A link stays open, so that the death of the other process is noticed at once. Then the observer
dials once more: a refused connection is evidence of a death, everything else is not.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from maitred.membership.member_effects import ProbeOutcome
from maitred.node.member_lines import (
    MEMBER_ROLE,
    LinkChallenge,
    LinkHello,
    LinkProof,
    MemberLines,
    ProbeAnswer,
    ProbeRequest,
    ReachAnswer,
    ReachRequest,
    decode_for_dialler,
)
from maitred.security.cluster_proof import NONCE_BYTES, cluster_proof, is_proof

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection

    from maitred.membership.view import ClusterMember
    from maitred.node.member_lines import MemberRequest

_Answer = TypeVar("_Answer", ProbeAnswer, ReachAnswer)

DIAL_SECONDS: Final = 2.0
"""The longest time for a connection with its handshake: two retransmissions of a lost packet."""

ANSWER_SECONDS: Final = 2.0
"""The longest time for the answer to a probe."""

REACH_SECONDS: Final = 8.0
"""The longest time for the answer of a member that connects to this node: it dials once, and then
connects to `REACH_AT_ONCE` ports at a time."""

REACH_AT_ONCE: Final = 64
"""How many connections a member makes at the same time to the ports of a joining one."""


class ProbeFailure(NamedTuple):
    """Why a member was not reached."""

    outcome: ProbeOutcome
    detail: str
    """The reason in words, as the end of a sentence."""


class MemberLink(MemberLines):
    """The dialling end of a link to one member."""

    def __init__(self, key: LinkKey, expected: str, lost: Callable[[MemberLink], None]) -> None:
        super().__init__(decode_for_dialler)
        loop = asyncio.get_running_loop()
        self._key = key
        self._member = expected
        self._lost = lost
        self._nonce = key.random_bytes(NONCE_BYTES)
        self._waiting: asyncio.Future[Any] = loop.create_future()
        self._proved = False

    @property
    def open(self) -> bool:
        """Whether the other end has proved itself and the connection is there."""
        return self._proved and self._transport is not None and not self._transport.is_closing()

    async def proved(self) -> ProbeFailure | None:
        """Wait until the other end has proved that it is the expected member; return why not."""
        self.send(LinkHello(self._nonce))
        challenge = await self._answer(LinkChallenge)
        if challenge is None:
            return ProbeFailure(ProbeOutcome.NO_ANSWER, "the connection was closed")
        nonce, shown = challenge.nonce, challenge.proof
        if not is_proof(shown, self._proof("listener", nonce, self._member)):
            for other in self._key.known_members():
                if is_proof(shown, self._proof("listener", nonce, other)):
                    return ProbeFailure(
                        ProbeOutcome.WRONG_MEMBER, "another member of the cluster answers there"
                    )
            return ProbeFailure(
                ProbeOutcome.STRANGER,
                "the process there does not prove that it belongs to this cluster",
            )
        self.send(LinkProof(self._proof("dialler", nonce, self._member)))
        self._proved = True
        return None

    async def ask(self, request: MemberRequest, kind: type[_Answer]) -> _Answer | None:
        """Send a request, and return its answer; None if the link broke. One at a time."""
        self._waiting = asyncio.get_running_loop().create_future()
        self.send(request)
        answer: _Answer | None = await self._answer(kind)
        return answer

    async def _answer(self, kind: type[Any]) -> Any:  # noqa: ANN401 - of that type, or None
        if self._transport is None or self._transport.is_closing():
            return None
        message = await self._waiting
        return message if isinstance(message, kind) else None

    def received(self, message: Any) -> None:  # noqa: ANN401 - as decoded
        if self._waiting.done():
            self.fail("it sent an answer without a request")
        else:
            self._waiting.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it is dialled again
        if not self._waiting.done():
            self._waiting.set_result(None)
        if self._proved:
            self._lost(self)

    def _proof(self, direction: Any, listener_nonce: bytes, listener: str) -> bytes:  # noqa: ANN401
        return cluster_proof(
            self._key.cluster_secret,
            direction,
            dialler_nonce=self._nonce,
            listener_nonce=listener_nonce,
            role=MEMBER_ROLE,
            listener=listener,
        )


class LinkKey(NamedTuple):
    """With what a supervisor dials others."""

    cluster_secret: bytes
    random_bytes: Callable[[int], bytes]
    known_members: Callable[[], Collection[str]]
    """Returns the ids of all members in the view, to tell another member from a stranger."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the context for a new connection; None without TLS."""


async def dial(
    key: LinkKey, member: ClusterMember, lost: Callable[[MemberLink], None]
) -> MemberLink | ProbeFailure:
    """Connect to the supervisor of a member, and prove each other; return the link, or why there is
    none."""
    link: MemberLink | None = None
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            tls = None if key.tls is None else key.tls()
            found = await _connect(
                member.host, member.member_port, lambda: MemberLink(key, member.id, lost), tls
            )
            if isinstance(found, ProbeFailure):
                return found
            link = found
            failure = await link.proved()
    except TimeoutError:
        failure = ProbeFailure(ProbeOutcome.NO_ANSWER, f"no answer within {DIAL_SECONDS:g} seconds")
    if failure is None and link is not None:
        return link
    if link is not None:
        link.abort()
    return failure or ProbeFailure(ProbeOutcome.NO_ANSWER, "the connection was closed")


async def _connect(
    host: str, port: int, make: Callable[[], MemberLink], tls: ssl.SSLContext | None
) -> MemberLink | ProbeFailure:
    """Try the addresses of the host in order. The port is refused only if all of them refuse it."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as problem:
        return ProbeFailure(ProbeOutcome.NO_ANSWER, f"its name {host} is not known ({problem})")
    problems: list[OSError] = []
    server_hostname = host if tls is not None else None
    for address in dict.fromkeys(info[4][0] for info in found):
        try:
            _, link = await loop.create_connection(
                make, str(address), port, ssl=tls, server_hostname=server_hostname
            )
        except OSError as problem:  # time-outs and certificate errors are of this kind, too
            problems.append(problem)
        else:
            return link
    refused = all(isinstance(problem, ConnectionRefusedError) for problem in problems)
    outcome = ProbeOutcome.REFUSED if refused and problems else ProbeOutcome.NO_ANSWER
    why = "the port refuses connections" if refused else str(problems[0] if problems else host)
    return ProbeFailure(outcome, why)


class MemberLinks:
    """All links of one supervisor, by the id of the member at the other end."""

    def __init__(self, key: LinkKey, lost: Callable[[str], None]) -> None:
        """`lost` is called with the id of a member whose link broke by itself."""
        self._key = key
        self._lost = lost
        self._links: dict[str, MemberLink] = {}

    async def probe(self, member: ClusterMember) -> ProbeFailure | None:
        """Ask the member whether it is there, over its link or a new one; return why not."""
        link = self._links.get(member.id)
        if link is None:
            dialled = await dial(self._key, member, lambda one: self._link_lost(member.id, one))
            if isinstance(dialled, ProbeFailure):
                return dialled
            if not dialled.open:
                return ProbeFailure(ProbeOutcome.NO_ANSWER, "the connection was closed")
            link = self._links[member.id] = dialled
        answer = await self._ask(member.id, link, ProbeRequest(), ProbeAnswer, ANSWER_SECONDS)
        if answer is None or answer.member != member.id:
            return ProbeFailure(ProbeOutcome.NO_ANSWER, "its link broke or is silent")
        return None

    async def unreached_by(self, member: ClusterMember, own_id: str) -> tuple[int, ...] | None:
        """Ask a member that was just probed to connect to all ports of this node; return those that
        it cannot reach, or None if it does not know this node yet."""
        link = self._links.get(member.id)
        if link is None:
            return None
        request = ReachRequest(own_id)
        answer = await self._ask(member.id, link, request, ReachAnswer, REACH_SECONDS)
        return tuple(answer.unreached) if answer is not None and answer.known else None

    def keep(self, ids: Collection[str]) -> None:
        """Close the links to all other members."""
        for id_ in [id_ for id_ in self._links if id_ not in ids]:
            self._links.pop(id_).abort()

    def close(self) -> None:
        """Close all links."""
        self.keep(())

    async def _ask(
        self,
        id_: str,
        link: MemberLink,
        request: MemberRequest,
        kind: type[_Answer],
        seconds: float,
    ) -> _Answer | None:
        answer: _Answer | None = None
        try:
            async with asyncio.timeout(seconds):
                answer = await link.ask(request, kind)
        except TimeoutError:
            pass  # a silent link is as good as none, and is closed here
        if answer is None and self._links.get(id_) is link:
            del self._links[id_]
            link.abort()
        return answer

    def _link_lost(self, id_: str, link: MemberLink) -> None:
        if self._links.get(id_) is link:
            del self._links[id_]
            self._lost(id_)


async def unreached_ports(key: LinkKey, member: ClusterMember) -> list[int]:
    """Connect to all ports of a joining member, as the table has them; return those that cannot be
    reached. Only the supervisor's port proves who is there."""
    at_once = asyncio.Semaphore(REACH_AT_ONCE)

    async def reaches(port: int) -> bool:
        async with at_once:
            return await _connects(member.host, port)

    own = await dial(key, member, _ignored)
    if isinstance(own, ProbeFailure):
        return [member.member_port]
    own.abort()
    ports = list(dict.fromkeys((member.port, *member.shard_ports)))
    reached = await asyncio.gather(*map(reaches, ports))
    return [port for port, reaches_it in zip(ports, reached, strict=True) if not reaches_it]


def _ignored(link: MemberLink) -> None:
    """Ignore the end of a link that was only made to see whether it can be made."""


async def _connects(host: str, port: int) -> bool:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except OSError:  # a TimeoutError is one
        return False
    transport.abort()
    return True
