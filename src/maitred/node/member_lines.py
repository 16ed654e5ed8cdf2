"""The messages between the supervisors of two nodes: JSON objects, one a line, of bounded length.

    dials    hello (nonce A)
    listens  challenge (nonce B, proof)
    dials    proof, and from then on requests, one at a time
    listens  the answer to each request

The proofs are those of `security/cluster_proof.py`. Before the dialling end has proved that it
knows the cluster's secret, the listening end says nothing but its challenge, which is random to
all who do not know the secret.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import DecodeError, Struct, json

if TYPE_CHECKING:
    from collections.abc import Callable

LINE_MAX_BYTES: Final = 16_384
"""The longest line. The longest answer names 1,026 ports of a node with 1,024 shards."""

MEMBER_ROLE: Final = "member"
"""The role of a supervisor in the proof."""


class LinkHello(Struct, tag="hello"):
    """The first line of the dialling end."""

    nonce: bytes


class LinkChallenge(Struct, tag="challenge"):
    """The answer of the listening end, with its proof."""

    nonce: bytes
    proof: bytes


class LinkProof(Struct, tag="proof"):
    """The proof of the dialling end."""

    proof: bytes


class ProbeRequest(Struct, tag="probe"):
    """Ask whether the member is there."""


class ProbeAnswer(Struct, tag="probed"):
    """The member that answers, its cluster, and the version of its view."""

    member: str
    cluster: str
    version: int


class ReachRequest(Struct, tag="reach"):
    """Ask the member to connect to all ports of a joining member, as the table has them."""

    member: str


class ReachAnswer(Struct, tag="reached"):
    """Which ports of the joining member could not be reached."""

    known: bool
    """Whether the joining member is in the view of the member that answers. Otherwise it has tried
    nothing, and reads the table."""
    unreached: list[int] = []


MemberRequest = ProbeRequest | ReachRequest
MemberAnswer = ProbeAnswer | ReachAnswer

_encode: Final = json.Encoder().encode
decode_for_listener: Final = json.Decoder(
    LinkHello | LinkProof | ProbeRequest | ReachRequest
).decode
decode_for_dialler: Final = json.Decoder(LinkChallenge | ProbeAnswer | ReachAnswer).decode


class MemberLines(asyncio.Protocol):
    """One end of a link between two supervisors: lines in and out."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._unfinished = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            if not self._take(line):
                return
        if len(self._unfinished) > LINE_MAX_BYTES:
            self.fail("it sent a line that is too long")

    def received(self, message: Any) -> None:  # noqa: ANN401 - of the types that `decode` returns
        """Take one message of the other end."""
        raise NotImplementedError

    def send(self, message: Struct) -> None:
        """Send one message, unless the link is closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_encode(message) + b"\n")

    def fail(self, why: str) -> None:
        """Close the link, because the other end did what it must not do."""
        del why
        self.abort()

    def abort(self) -> None:
        """Close the link at once."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, line: bytes) -> bool:
        if self._transport is None or self._transport.is_closing():
            return False
        if len(line) > LINE_MAX_BYTES:
            self.fail("it sent a line that is too long")
            return False
        try:
            message = self._decode(line)
        except (DecodeError, ValueError, RecursionError):
            self.fail("it sent a line that is no message")
            return False
        self.received(message)
        return True
