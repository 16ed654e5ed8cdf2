"""The links to the other shards of the node, which forward requests to them.

Shards talk through Unix stream sockets in a directory that only their user may enter: no other
program can reach them, so the owner need not check the permission of a forwarded request again. The
frames are those of the protocol. docs/architecture.md has the measurements against loopback TCP.

A link is made when it is first needed, and requests wait while it is being made. If the other shard
does not listen, they are refused at once, because a connection to a local socket fails at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import Overloaded
from maitred.protocol.frames import STREAMS_MAX
from maitred.wire.caller import Caller

if TYPE_CHECKING:
    import asyncio

    from maitred.node.peer_calls import PeerCall
    from maitred.node.work import ForwardedWork
    from maitred.protocol.messages import AnyRequest
    from maitred.settings import Limits


class PeerLink(Caller):
    """This shard's end of the connection to another shard."""

    __slots__ = ("_peer",)

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop, max_body_bytes: int) -> None:
        super().__init__(loop, max_body_bytes, STREAMS_MAX)
        self._peer = peer

    def ended(self, problem: Exception | None) -> None:  # noqa: ARG002 - the shard's process ended
        self._peer.link_ended(self)


class Peer:
    """Another shard of this node."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, number: int, path: str, limits: Limits
    ) -> None:
        self.number = number
        self._loop = loop
        self._path = path
        self._limits = limits
        self._link: PeerLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[tuple[ForwardedWork | PeerCall, AnyRequest, float]] = []

    def forward(self, work: ForwardedWork | PeerCall, message: AnyRequest, deadline: float) -> None:
        """Forward the request, now or when there is a link."""
        link = self._link
        if link is not None:
            self._pass_on(link, work, message, deadline)
            return
        self._waiting.append((work, message, deadline))
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    def _pass_on(
        self,
        link: PeerLink,
        work: ForwardedWork | PeerCall,
        message: AnyRequest,
        deadline: float,
    ) -> None:
        """Send a request, or refuse it if too much is unsent: requests that waited for the link may
        together exceed the limit as well."""
        if link.unsent_bytes > self._limits.forward_buffer_bytes:
            work.stop(Overloaded(f"Shard {self.number}, which owns this, does not keep up."))
        else:
            work.ask(link, message, deadline)

    def link_ended(self, link: PeerLink) -> None:
        """Forget a lost link; the next request tries to connect again."""
        if self._link is link:
            self._link = None

    def close(self) -> None:
        """Close the link, and stop connecting."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.transport.close()

    async def _connect(self) -> None:
        link: PeerLink | None = None
        try:
            _, link = await self._loop.create_unix_connection(
                lambda: PeerLink(self, self._loop, self._limits.frame_bytes), self._path
            )
        except OSError:
            pass  # the shard does not listen; the waiting requests are refused below
        finally:
            self._connecting = None
            if link is not None and link.closing:
                link = None  # it was lost at once
            self._link = link
            waiting, self._waiting = self._waiting, []
            for work, message, deadline in waiting:
                if work.over:
                    continue
                if link is None:
                    work.unreachable()
                else:
                    self._pass_on(link, work, message, deadline)
