"""Requests of a shard to another shard; see `Shard.ask`."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import Cancelled, ConnectionLost, DeadlineExceeded, MaitredError, Unavailable
from maitred.node.deferred_reply import HeldHere
from maitred.node.dispatched import Dispatched, DispatchingShard
from maitred.protocol.frames import Frame, Opcode
from maitred.protocol.messages import decode_answer, encode
from maitred.wire.caller import error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from maitred.node.peer_link import PeerLink
    from maitred.node.request_table import Holder
    from maitred.protocol.messages import AnyRequest

    Done = Callable[[Struct | MaitredError], None]
    """Called once, with the answer or the error."""

ASK_SECONDS: Final = 5.0
"""Deadline of a request that its owner answers at once."""

OFFER_GRACE_SECONDS: Final = 5.0
"""How much longer a shard waits for the answer to an offer than the parent was told to take: the
parent may give a task in the last moment, and the answer may come from further up the tree. A task
in an answer that the shard does not wait for would be lost until its lease ends."""


class ShardQuestion(Protocol):
    """A request to the owner of a partition that is not answered yet."""

    def give_up(self) -> None:
        """Stop waiting for the answer; `done` is not called."""

    def recall(self) -> None:
        """Ask the owner to answer at once; `done` is called with what it had given, or an error."""


class CallingShard(DispatchingShard, Protocol):
    """The shard that asks other shards."""

    @property
    def holders(self) -> dict[int, Holder]:
        """Serve requests that are answered through a deferred reply, by opcode."""

    def owner_name(self, owner: int) -> str:
        """Return the name of a shard for people, by its owner number."""


class PeerCall(Dispatched):
    """A request of this shard to another shard; receives the answer."""

    __slots__ = ("_addressed", "_done", "_here", "_link", "_opcode", "_shard", "_stream", "_told")

    def __init__(
        self, shard: CallingShard, owner: int, opcode: int, done: Done, *, addressed: bool = False
    ) -> None:
        """`addressed`: the request is for this very shard, and not for the owner of a partition."""
        self.owner = owner
        self._retry_until = 0.0
        self._shard = shard
        self._addressed = addressed
        self._told = False
        self._opcode = opcode
        self._done = done
        self._link: PeerLink | None = None
        self._stream = -1
        self._here: HeldHere | None = None
        """The reply to the request if this shard owns the partition by now, and serves it."""

    @property
    def over(self) -> bool:
        return self._told

    @property
    def addressed(self) -> bool:
        return self._addressed

    def ask(self, link: PeerLink, message: AnyRequest, deadline: float) -> None:
        self._link = link
        self._message = message
        self._deadline = deadline
        self._version = link.told
        left = deadline - link.loop.time()
        message.timeout_milliseconds = max(0, ceil(left * 1000))
        if self._opcode == Opcode.OFFER:
            deadline += OFFER_GRACE_SECONDS
        try:
            self._stream = link.ask(self._opcode, encode(message), self, deadline)
        except MaitredError as problem:
            self.stop(problem)

    def serve(self, message: AnyRequest, deadline: float) -> None:  # noqa: ARG002 - its caller waits
        hold = self._shard.holders[self._opcode]
        here = HeldHere(self._shard.loop, lambda: hold(message, here), self._end)
        self._here = here

    def give_up(self) -> None:
        self._told = True
        if self._here is not None:
            self._here.give_up()
        elif self._link is not None and self._stream >= 0:
            self._link.give_up(self._stream, self)

    def recall(self) -> None:
        if self.over:
            return
        if self._here is not None:
            self._here.recall()
        elif self._link is None:
            self._end(Cancelled("The caller took the request back."))
        elif self._stream >= 0 and not self._link.closing:
            self._link.send(0, self._stream, Opcode.CANCEL, b"")
            self._deadline = 0.0  # whatever the owner answers, the request is not sent again

    def stop(self, reason: MaitredError | None) -> None:
        """End the request; its caller is told in a later turn of the loop, because the request may
        have been made in this one."""
        problem = reason or Unavailable(f"{self._name} cannot be asked.")
        self._shard.loop.call_soon(self._end, problem)

    def answered(self, frame: Frame) -> None:
        if frame.opcode == Opcode.ERROR:
            problem = error_of(frame)
            if not self.over and not self._moved(self._shard, problem.code):
                self._end(problem)
            return
        try:
            self._end(decode_answer(self._opcode, frame.body))
        except MaitredError as problem:
            self._end(problem)

    def expired(self) -> None:
        self._end(DeadlineExceeded(f"{self._name} did not answer in time."))

    def lost(self, problem: Exception | None) -> None:  # noqa: ARG002 - the shard is gone
        self._end(ConnectionLost(f"{self._name} was lost while it had the request."))

    def unreachable(self) -> None:
        self.stop(Unavailable(f"{self._name} cannot be reached."))

    def _unsent(self) -> None:
        self._link = None
        self._stream = -1

    @property
    def _name(self) -> str:
        return self._shard.owner_name(self.owner)

    def _end(self, outcome: Struct | MaitredError) -> None:
        if not self._told:
            self._told = True
            self._done(outcome)
