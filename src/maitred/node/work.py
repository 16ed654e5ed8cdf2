"""A request that is not answered in the turn in which it arrived.

It either runs here, as a task, or was passed on to the shard that owns it. Whatever happens (an
answer, an error, the deadline, a cancellation, the end of the shard), the caller gets exactly one
answer: the first that comes takes the request out of the connection's table, and whoever is late
finds nothing to answer.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

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
    from collections.abc import Coroutine

    from msgspec import Struct

    from maitred.node.accepted import Accepted
    from maitred.protocol.messages import AnyRequest
    from maitred.wire.caller import Caller


class Work(Protocol):
    """What a connection's table of requests under way holds."""

    def stop(self, reason: MaitredError | None) -> None:
        """End the request, and tell its caller the reason, unless the caller has left."""


def expired() -> DeadlineExceeded:
    """The error for a request whose time is over."""
    return DeadlineExceeded("The time that the request was given is over.")


class LocalWork:
    """A request that runs on this shard."""

    __slots__ = ("_connection", "_opcode", "_size", "_stream", "_task", "_timer")

    def __init__(
        self,
        connection: Accepted,
        stream: int,
        opcode: int,
        size: int,
        running: Coroutine[Any, Any, Struct],
        deadline: float,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._opcode = opcode
        self._size = size
        loop = connection.loop
        self._task = loop.create_task(running)
        self._task.add_done_callback(self._done)
        self._timer = loop.call_at(deadline, self._expire)
        connection.work_begins(stream, self, size)  # last: what cannot run must not stay there

    def stop(self, reason: MaitredError | None) -> None:
        self._end()
        self._task.cancel()
        if reason is not None:
            self._connection.refuse(self._stream, reason)

    def _expire(self) -> None:
        self.stop(expired())

    def _done(self, task: asyncio.Task[Struct]) -> None:
        if not self._end():
            if not task.cancelled():
                task.exception()  # too late for anybody; but asyncio wants it looked at
            return
        try:
            self._connection.answer(self._stream, self._opcode, task.result())
        except MaitredError as problem:
            self._connection.refuse(self._stream, problem)
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - nobody waits for ever
            # Cancelled, but not by us: who cancels has taken it out of the table before.
            self._connection.blame_ourselves(self._stream, problem)

    def _end(self) -> bool:
        """Leave the table; return False if the request was ended before."""
        self._timer.cancel()
        return self._connection.work_ends(self._stream, self, self._size)


class ForwardedWork:
    """A request that another shard answers. It receives that shard's answer."""

    __slots__ = ("_asked", "_connection", "_link", "_opcode", "_size", "_stream", "owner")

    def __init__(
        self, connection: Accepted, stream: int, opcode: int, size: int, owner: int
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._opcode = opcode
        self._size = size
        self.owner = owner
        """The shard that it belongs to."""
        self._link: Caller | None = None
        self._asked = -1
        connection.work_begins(stream, self, size)

    @property
    def over(self) -> bool:
        """Whether the caller has been told something already."""
        return self._connection.under_way.get(self._stream) is not self

    def ask(self, link: Caller, message: AnyRequest, deadline: float) -> None:
        """Pass it on, with what is left of its time."""
        self._link = link
        left = deadline - self._connection.loop.time()
        # Rounding may add a little to what is left; the longest time must not become too long.
        message.timeout_milliseconds = min(max(0, ceil(left * 1000)), TIMEOUT_MAX_MILLISECONDS)
        try:
            self._asked = link.ask(self._opcode, encode(message), self, deadline)
        except MaitredError as problem:
            self.stop(problem)

    def stop(self, reason: MaitredError | None) -> None:
        link = self._link
        if link is not None and self._asked >= 0:
            if isinstance(reason, Cancelled) and link.pending.get(self._asked) is self:
                # The owner has the last word: its answer may be on its way, with tasks that a
                # worker took, and would be lost if the caller heard of something else first.
                link.send(0, self._asked, Opcode.CANCEL, b"")
                return
            link.give_up(self._asked, self)
        if self._end() and reason is not None:
            self._connection.refuse(self._stream, reason)

    # What becomes of it at the other shard

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

    def lost(self, problem: Exception | None) -> None:  # noqa: ARG002 - its process is gone
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
