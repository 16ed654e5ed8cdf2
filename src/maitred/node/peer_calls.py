"""Requests of a shard to another shard of its node; see `Shard.ask`."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import Cancelled, ConnectionLost, DeadlineExceeded, MaitredError, Unavailable
from maitred.protocol.frames import Frame, Opcode
from maitred.protocol.messages import decode_answer, encode
from maitred.wire.caller import error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from maitred.protocol.messages import AnyRequest
    from maitred.wire.caller import Caller

    Done = Callable[[Struct | MaitredError], None]
    """Called once, with the answer or the error."""

ASK_SECONDS: Final = 5.0
"""Deadline of a request that its owner answers at once."""


class ShardQuestion(Protocol):
    """A request to the owner of a partition that is not answered yet."""

    def give_up(self) -> None:
        """Stop waiting for the answer; `done` is not called."""

    def recall(self) -> None:
        """Ask the owner to answer at once; `done` is called with what it had given, or an error."""


class PeerCall:
    """A request to another shard; receives the answer."""

    __slots__ = ("_done", "_link", "_opcode", "_stream", "over", "owner")

    def __init__(self, owner: int, opcode: int, done: Done) -> None:
        self.owner = owner
        self.over = False
        self._opcode = opcode
        self._done = done
        self._link: Caller | None = None
        self._stream = -1

    def ask(self, link: Caller, message: AnyRequest, deadline: float) -> None:
        """Send the request; the peer calls this once it is connected."""
        self._link = link
        left = deadline - link.loop.time()
        message.timeout_milliseconds = max(0, ceil(left * 1000))
        try:
            self._stream = link.ask(self._opcode, encode(message), self, deadline)
        except MaitredError as problem:
            link.loop.call_soon(self._end, problem)

    def give_up(self) -> None:
        self.over = True
        if self._link is not None and self._stream >= 0:
            self._link.give_up(self._stream, self)

    def recall(self) -> None:
        if self.over:
            return
        if self._link is None:
            self._end(Cancelled("The caller took the request back."))
        elif self._stream >= 0 and not self._link.closing:
            self._link.send(0, self._stream, Opcode.CANCEL, b"")

    def stop(self, reason: MaitredError | None) -> None:
        """End the request because the peer does not keep up."""
        self._end(reason or Unavailable(f"Shard {self.owner} cannot be asked."))

    def answered(self, frame: Frame) -> None:
        if frame.opcode == Opcode.ERROR:
            self._end(error_of(frame))
            return
        try:
            self._end(decode_answer(self._opcode, frame.body))
        except MaitredError as problem:
            self._end(problem)

    def expired(self) -> None:
        self._end(DeadlineExceeded(f"Shard {self.owner} did not answer in time."))

    def lost(self, problem: Exception | None) -> None:  # noqa: ARG002 - its process is gone
        self._end(ConnectionLost(f"Shard {self.owner} was lost while it had the request."))

    def unreachable(self) -> None:
        self._end(Unavailable(f"Shard {self.owner} cannot be reached."))

    def _end(self, outcome: Struct | MaitredError) -> None:
        if not self.over:
            self.over = True
            self._done(outcome)
