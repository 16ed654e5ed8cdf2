"""The links to the other shards of the node, which forward requests to them.

Shards talk through Unix stream sockets in a directory that only their user may enter: no other
program can reach them, so the owner need not check the permission of a forwarded request again. The
frames are those of the protocol. docs/architecture.md has the measurements against loopback TCP.
`remote_peer.py` has the links to the shards of other nodes.

A link is made when it is first needed, and requests wait while it is being made. If the other shard
does not listen, they are refused at once, because a connection to a local socket fails at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from maitred.errors import MaitredError, Overloaded
from maitred.node.peer_link import PeerLink

if TYPE_CHECKING:
    import asyncio

    from maitred.membership.view import ClusterView
    from maitred.node.dispatched import Dispatched
    from maitred.node.owners import Owners
    from maitred.protocol.messages import AnyRequest
    from maitred.settings import Limits

WAITING_MAX: Final = 20_000
"""Requests that may wait for one link: as many as a busy shard gets in some seconds."""


class PeerShard(Protocol):
    """The shard that has links to other shards."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the shard."""

    @property
    def limits(self) -> Limits:
        """The limits of the node."""

    @property
    def owners(self) -> Owners:
        """Has the newest view of the cluster that the shard has adopted."""

    def adopt(self, view: ClusterView) -> None:
        """Place partitions by this view, if it is newer than the present one."""

    def owner_name(self, owner: int) -> str:
        """Return the name of a shard for people, by its owner number."""


class WaitingForLink(NamedTuple):
    """A request that waits for a link."""

    work: Dispatched
    message: AnyRequest
    deadline: float
    since: float
    """When it began to wait, in the loop's time."""


class Peer:
    """Another shard of this node."""

    def __init__(self, shard: PeerShard, owner: int, number: int, path: str) -> None:
        """`owner` is the shard's owner number here, `number` its number in its node."""
        self.owner = owner
        self.number = number
        self._shard = shard
        self._owners = shard.owners
        self._loop = shard.loop
        self._path = path
        self._limits = shard.limits
        self._link: PeerLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[WaitingForLink] = []

    def forward(self, work: Dispatched, message: AnyRequest, deadline: float) -> None:
        """Forward the request, now or when there is a link."""
        link = self._link
        if link is not None:
            self._pass_on(link, work, message, deadline)
            return
        if len(self._waiting) >= WAITING_MAX:
            work.stop(self._overloaded())
            return
        self._waiting.append(WaitingForLink(work, message, deadline, self._loop.time()))
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    def _pass_on(
        self, link: PeerLink, work: Dispatched, message: AnyRequest, deadline: float
    ) -> None:
        """Send a request, or refuse it if too much is unsent: requests that waited for the link may
        together exceed the limit as well. The other shard is told the view first."""
        if link.unsent_bytes > self._limits.forward_buffer_bytes:
            work.stop(self._overloaded())
            return
        view = self._owners.view
        if view is not None and link.told < view.version:
            try:
                link.tell(view, self.number)
            except MaitredError as problem:  # it has no stream left
                work.stop(problem)
                return
        work.ask(link, message, deadline)

    def _overloaded(self) -> Overloaded:
        name = self._shard.owner_name(self.owner)
        return Overloaded(f"{name}, which owns this, does not keep up.")

    def take_waiting(self) -> list[WaitingForLink]:
        """Return the requests that wait for the link, and stop having them wait."""
        waiting, self._waiting = self._waiting, []
        return [one for one in waiting if not one.work.over]

    def look(self, now: float) -> None:
        """End what has waited too long; called about once a second."""

    def link_ended(self, link: PeerLink) -> None:
        """Forget a lost link; the next request tries to connect again."""
        if self._link is link:
            self._link = None

    def view_heard(self, view: ClusterView) -> None:
        """Adopt the view that the other shard has, if it is newer."""
        self._shard.adopt(view)

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
            for one in self.take_waiting():
                if link is None:
                    one.work.unreachable()
                else:
                    self._pass_on(link, one.work, one.message, one.deadline)
