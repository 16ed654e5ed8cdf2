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
from maitred.protocol.frames import ANSWER, CUSTOM_PAYLOAD, Frame, Opcode
from maitred.protocol.messages import encode
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS

if TYPE_CHECKING:
    import asyncio

    from maitred.protocol.messages import AnyRequest
    from maitred.wire.caller import Caller


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


class ForwardingShard(Protocol):
    """The shard that forwards a request, as the forwarded request sees it."""

    @property
    def homes_told(self) -> tuple[bytes, ...]:
        """The bytes before a forwarded answer, which name the owner, by the owner's number."""

    @property
    def draining(self) -> bool:
        """Whether the shard is stopping."""


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


def expired() -> DeadlineExceeded:
    """Return the error for a request whose deadline passed."""
    return DeadlineExceeded("The request's deadline passed.")


class ForwardedWork:
    """A request that was forwarded to the shard that owns it, and receives that shard's answer."""

    __slots__ = ("_asked", "_connection", "_link", "_opcode", "_size", "_stream", "owner")

    def __init__(
        self, connection: ForwardingConnection, stream: int, opcode: int, size: int, owner: int
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._opcode = opcode
        self._size = size
        self.owner = owner
        """The number of the shard that owns the request's partition."""
        self._link: Caller | None = None
        self._asked = -1
        connection.work_begins(stream, self, size)

    @property
    def over(self) -> bool:
        """Whether the caller has got an answer or an error."""
        return self._connection.under_way.get(self._stream) is not self

    def ask(self, link: Caller, message: AnyRequest, deadline: float) -> None:
        """Forward the request, with the time that is left until its deadline."""
        self._link = link
        left = deadline - self._connection.loop.time()
        # Rounding up must not exceed the longest timeout of a request.
        message.timeout_milliseconds = min(max(0, ceil(left * 1000)), TIMEOUT_MAX_MILLISECONDS)
        try:
            self._asked = link.ask(self._opcode, encode(message), self, deadline)
        except MaitredError as problem:
            self.stop(problem)

    def stop(self, reason: MaitredError | None) -> None:
        link = self._link
        if link is not None and self._asked >= 0:
            if isinstance(reason, Cancelled) and link.pending.get(self._asked) is self:
                # The owner's answer may be on its way, with tasks for a worker. They would be lost
                # if the caller got another answer first, so the owner answers the cancellation.
                link.send(0, self._asked, Opcode.CANCEL, b"")
                return
            link.give_up(self._asked, self)
        if self._end() and reason is not None:
            self._connection.refuse(self._stream, reason)

    # Called by the link to the other shard

    def answered(self, frame: Frame) -> None:
        if not self._end():
            return
        if frame.opcode == Opcode.ERROR:
            self._connection.pass_error(self._stream, frame.body)
        else:
            self._connection.pass_answer(
                CUSTOM_PAYLOAD,
                self._stream,
                self._opcode + ANSWER,
                self._connection.shard.homes_told[self.owner] + frame.body,
            )

    def expired(self) -> None:
        if self._end():
            self._connection.refuse(self._stream, expired())

    def lost(self, problem: Exception | None) -> None:  # noqa: ARG002 - the shard's process ended
        if self._end():
            self._connection.refuse(
                self._stream,
                ConnectionLost(
                    f"Shard {self.owner} was lost while it had the request.",
                    remedy="It is being started again.",
                ),
            )

    def unreachable(self) -> None:
        """Refuse the request: it could not be sent to the other shard."""
        if not self._end():
            return
        shard = self.owner
        problem = (
            Draining(f"The node is stopping, and shard {shard}, which owns this, has stopped.")
            if self._connection.shard.draining
            else Unavailable(
                f"Shard {shard}, which owns this, cannot be reached.",
                remedy="It is being started again; try later.",
            )
        )
        self._connection.refuse(self._stream, problem)

    def _end(self) -> bool:
        return self._connection.work_ends(self._stream, self, self._size)
