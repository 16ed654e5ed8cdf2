"""A request on its way to its owner: it is sent again if the owner turns out to be another shard.

The receiver of a request refuses it with `NotOwner` if it does not own the partition. It has sent
its view before, if that is newer than the sender's. So there are two cases. If the sender has a
newer view now than the one by which it placed the request, it places the request again, at once:
this happens at most once for each new view. Otherwise both have the same view, and the owner is not
ready (it let the partition go a moment ago, or its clock is behind in a gradual change of
placement): the sender asks again after a pause, for a short time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import NotOwner

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError
    from maitred.node.peer_link import PeerLink
    from maitred.protocol.messages import AnyRequest

RETRY_SECONDS: Final = 1.0
"""How long a request is sent again to an owner that has the same view and refuses it. After that
the caller is told, who asks again if it has more time."""

FIRST_PAUSE_SECONDS: Final = 0.01
"""The first pause; each following one is twice as long."""

LONGEST_PAUSE_SECONDS: Final = 0.2


class DispatchingShard(Protocol):
    """The shard that sends requests to their owners."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the shard."""

    @property
    def view_version(self) -> int:
        """The version of the shard's view of the cluster; 0 without a cluster."""

    def dispatch(self, work: Dispatched, message: AnyRequest, deadline: float) -> None:
        """Send a request to the shard that owns it by the present view, or serve it here."""


class Dispatched:
    """A request that was sent to the shard that owns it."""

    __slots__ = ("_deadline", "_message", "_pause", "_retry_until", "_version", "owner")

    owner: int
    """The owner number of the shard that has the request, or gets it next."""
    _message: AnyRequest
    """The request, once it was sent."""
    _deadline: float
    """Its deadline in the loop's time, once it was sent; 0 if it must not be sent again."""
    _version: int
    """The version of the view by which it was placed, once it was sent."""
    _retry_until: float
    """Until when it is sent again to an owner that has the same view; 0 before the first time."""
    _pause: float
    """The pause before the next time."""

    # What a link and its peer do with it

    @property
    def over(self) -> bool:
        """Whether the caller has got an answer or an error."""
        raise NotImplementedError

    @property
    def addressed(self) -> bool:
        """Whether the request is for this very shard, whatever the view says."""
        return False

    def ask(self, link: PeerLink, message: AnyRequest, deadline: float) -> None:
        """Send the request, with the time that is left until its deadline."""
        raise NotImplementedError

    def serve(self, message: AnyRequest, deadline: float) -> None:
        """Serve the request in this shard, which owns it by now."""
        raise NotImplementedError

    def stop(self, reason: MaitredError | None) -> None:
        """End the request for this reason."""
        raise NotImplementedError

    def expired(self) -> None:
        """End the request because its deadline passed."""
        raise NotImplementedError

    def unreachable(self) -> None:
        """End the request, which was not sent, because its owner cannot be reached."""
        raise NotImplementedError

    # For subclasses, which set the attributes themselves: a call would cost as much again

    def _moved(self, shard: DispatchingShard, code: str) -> bool:
        """Dispatch the request again if its receiver refused it because another shard owns it;
        return False if the caller has to be told of the error."""
        version = shard.view_version
        if code != NotOwner.code or not version or self.addressed:
            return False
        now, message = shard.loop.time(), self._message
        if now >= self._deadline:
            return False
        self._unsent()
        if version > self._version:
            self._retry_until = 0.0
            shard.dispatch(self, message, self._deadline)
            return True
        if not self._retry_until:
            self._retry_until = now + RETRY_SECONDS
            self._pause = FIRST_PAUSE_SECONDS
        elif now >= self._retry_until:
            return False
        shard.loop.call_later(self._pause, self._again, shard, message)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        return True

    def _again(self, shard: DispatchingShard, message: AnyRequest) -> None:
        if not self.over:
            shard.dispatch(self, message, self._deadline)

    def _unsent(self) -> None:
        """Forget the link: the request is at no other shard."""
        raise NotImplementedError
