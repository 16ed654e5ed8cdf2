"""This shard's end of the connection to another shard, on which it forwards requests."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import ProtocolViolation
from maitred.protocol import cql
from maitred.protocol.cluster import TellView, decode_view
from maitred.protocol.frames import STREAMS_MAX, Frame, Opcode
from maitred.protocol.messages import encode
from maitred.wire.caller import Caller

if TYPE_CHECKING:
    import asyncio

    from maitred.membership.view import ClusterView

TELL_MILLISECONDS: Final = 5_000
"""Timeout of TELL_VIEW, which the receiver serves in the loop turn in which it arrives."""


class LinkOwner(Protocol):
    """Uses a link to another shard, and is told what happens to it."""

    def link_ended(self, link: PeerLink) -> None:
        """Forget a lost link."""

    def view_heard(self, view: ClusterView) -> None:
        """Adopt the view that the other shard has, if it is newer."""


class _Dropped:
    """Drops the answer to TELL_VIEW: a receiver that knows a newer view sends it when it refuses a
    request."""

    def answered(self, frame: Frame) -> None:
        pass

    def expired(self) -> None:
        pass

    def lost(self, problem: Exception | None) -> None:
        pass


_DROPPED: Final = _Dropped()


class PeerLink(Caller):
    """This shard's end of the connection to another shard."""

    __slots__ = ("_peer", "told")

    def __init__(
        self, peer: LinkOwner, loop: asyncio.AbstractEventLoop, max_body_bytes: int
    ) -> None:
        super().__init__(loop, max_body_bytes, STREAMS_MAX)
        self._peer = peer
        self.told = 0
        """The version of the newest view that the other shard was told, or told itself, on this
        link."""

    def tell(self, view: ClusterView, shard: int) -> None:
        """Tell the other shard this view before it gets a request that was placed by it."""
        body = encode(TellView(shard, TELL_MILLISECONDS, view))
        self.ask(Opcode.TELL_VIEW, body, _DROPPED, inf)
        self.told = view.version

    def pushed(self, frame: Frame) -> None:
        if frame.opcode != Opcode.EVENT:
            return
        try:
            if cql.decode_event(frame.body) != cql.VIEW:
                return
            view = decode_view(cql.decode_view(frame.body))
        except ProtocolViolation as problem:
            self.fail(problem)
            return
        self.told = max(self.told, view.version)
        self._peer.view_heard(view)

    def ended(self, problem: Exception | None) -> None:  # noqa: ARG002 - the other shard is gone
        self._peer.link_ended(self)
