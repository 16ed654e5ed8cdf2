"""A request that is not answered in the loop turn in which it arrived, and its forwarding.

A deferred reply (`deferred_reply.py`) answers it here, or another shard does. Whatever happens (an
answer, an error, the deadline, a cancellation, the end of the shard), the caller gets exactly one
answer: the first one takes the request out of the connection's table, and later ones find nothing
to answer.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Protocol

from maitred.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    Draining,
    MaitredError,
    Unavailable,
)
from maitred.node.dispatched import Dispatched, DispatchingShard
from maitred.protocol.frames import ANSWER, CUSTOM_PAYLOAD, Frame, Opcode
from maitred.protocol.messages import encode
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS
from maitred.wire.caller import error_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from maitred.node.peer_link import PeerLink
    from maitred.protocol.messages import AnyRequest


class Work(Protocol):
    """A request in a connection's table of requests in flight."""

    def stop(self, reason: MaitredError | None) -> None:
        """End the request, and tell its caller the reason, unless the caller has left."""


class WorkConnection(Protocol):
    """The connection that has a request in its table of requests in flight."""

    @property
    def under_way(self) -> dict[int, Work]:
        """Requests that are not answered yet, by stream."""

    def work_begins(self, stream: int, work: Work, size: int) -> None:
        """Register a request that is not answered at once, and count its body."""

    def work_ends(self, stream: int, work: Work, size: int) -> bool:
        """Remove a request that has ended; return False if it was removed before."""

    def refuse(self, stream: int, problem: MaitredError) -> None:
        """Answer with an error; the connection stays open."""


class ForwardingShard(DispatchingShard, Protocol):
    """The shard that forwards a request, as the forwarded request sees it."""

    @property
    def homes_told(self) -> Sequence[bytes]:
        """The bytes before a forwarded answer, which name the owner, by the owner's number."""

    @property
    def draining(self) -> bool:
        """Whether the shard is stopping."""

    def owner_name(self, owner: int) -> str:
        """Return the name of a shard for people, by its owner number."""

    def is_here(self, owner: int) -> bool:
        """Whether the shard with this owner number belongs to this node."""


class ForwardingConnection(WorkConnection, Protocol):
    """The connection that passes another shard's answer on."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Measures the time until the deadline."""

    @property
    def shard(self) -> ForwardingShard:
        """The shard of the connection."""

    def pass_answer(self, flags: int, stream: int, opcode: int, body: bytes) -> None:
        """Answer with another shard's answer."""

    def pass_error(self, stream: int, body: bytes) -> None:
        """Answer with another shard's error."""

    def serve(self, message: AnyRequest, stream: int, size: int, deadline: float) -> None:
        """Serve a request that had been forwarded, and that this shard owns by now."""


def expired() -> DeadlineExceeded:
    """Return the error for a request whose deadline passed."""
    return DeadlineExceeded("The request's deadline passed.")


class ForwardedWork(Dispatched):
    """A request that was forwarded to the shard that owns it, and receives that shard's answer."""

    __slots__ = ("_asked", "_connection", "_link", "_opcode", "_size", "_stream")

    def __init__(
        self, connection: ForwardingConnection, stream: int, opcode: int, size: int, owner: int
    ) -> None:
        self.owner = owner
        self._retry_until = 0.0
        self._connection = connection
        self._stream = stream
        self._opcode = opcode
        self._size = size
        self._link: PeerLink | None = None
        self._asked = -1
        connection.work_begins(stream, self, size)

    @property
    def over(self) -> bool:
        return self._connection.under_way.get(self._stream) is not self

    def ask(self, link: PeerLink, message: AnyRequest, deadline: float) -> None:
        self._link = link
        self._message = message
        self._deadline = deadline
        self._version = link.told
        left = deadline - self._connection.loop.time()
        # Rounding up must not exceed the longest timeout of a request.
        message.timeout_milliseconds = min(max(0, ceil(left * 1000)), TIMEOUT_MAX_MILLISECONDS)
        try:
            self._asked = link.ask(self._opcode, encode(message), self, deadline)
        except MaitredError as problem:
            self.stop(problem)

    def serve(self, message: AnyRequest, deadline: float) -> None:
        if self._end():
            self._connection.serve(message, self._stream, self._size, deadline)

    def stop(self, reason: MaitredError | None) -> None:
        link = self._link
        if link is not None and self._asked >= 0:
            if isinstance(reason, Cancelled) and link.pending.get(self._asked) is self:
                # The owner's answer may be on its way, with tasks for a worker. They would be lost
                # if the caller got another answer first, so the owner answers the cancellation.
                link.send(0, self._asked, Opcode.CANCEL, b"")
                self._deadline = 0.0  # whatever the owner answers, the request is not sent again
                return
            link.give_up(self._asked, self)
        if self._end() and reason is not None:
            self._connection.refuse(self._stream, reason)

    # Called by the link to the other shard

    def answered(self, frame: Frame) -> None:
        if frame.opcode == Opcode.ERROR:
            if self.over or self._moved(self._connection.shard, error_of(frame).code):
                return
            self._end()
            self._connection.pass_error(self._stream, frame.body)
        elif self._end():
            self._connection.pass_answer(
                CUSTOM_PAYLOAD,
                self._stream,
                self._opcode + ANSWER,
                self._connection.shard.homes_told[self.owner] + frame.body,
            )

    def expired(self) -> None:
        if self._end():
            self._connection.refuse(self._stream, expired())

    def lost(self, problem: Exception | None) -> None:  # noqa: ARG002 - the shard is gone
        if self._end():
            shard = self._connection.shard
            self._connection.refuse(
                self._stream,
                ConnectionLost(
                    f"{shard.owner_name(self.owner)} was lost while it had the request.",
                    remedy=_back_soon(shard, self.owner),
                ),
            )

    def unreachable(self) -> None:
        if not self._end():
            return
        shard = self._connection.shard
        name = shard.owner_name(self.owner)
        problem = (
            Draining(f"The node is stopping, and {_inside(name)}, which owns this, has stopped.")
            if shard.draining and shard.is_here(self.owner)
            else Unavailable(
                f"{name}, which owns this, cannot be reached.",
                remedy=f"{_back_soon(shard, self.owner)[:-1]}; try later.",
            )
        )
        self._connection.refuse(self._stream, problem)

    def _unsent(self) -> None:
        self._link = None
        self._asked = -1

    def _end(self) -> bool:
        return self._connection.work_ends(self._stream, self, self._size)


def _inside(name: str) -> str:
    """Return the name of a shard as it is written inside a sentence."""
    return name[0].lower() + name[1:]


def _back_soon(shard: ForwardingShard, owner: int) -> str:
    return (
        "It is being started again."
        if shard.is_here(owner)
        else "If its node does not come back, another one takes its partitions over."
    )
