"""A request that waits at the node for something to happen: an offer, a heartbeat.

It may be taken back while its answer is on the way. An ordinary request that is given up drops
whatever comes; here that could be a task that was given to us, and that nobody would run until its
lease is over. So taking back only tells the node to hurry: either it says `Cancelled`, and there
was nothing, or the answer came first and counts. For the same reason we wait a little longer than
the node was told to: an answer in the last moment must find somebody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.client.call import AwaitedCall
from maitred.errors import Cancelled, MaitredError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from maitred.protocol.frames import Frame
    from maitred.protocol.messages import AnyRequest

GRACE_SECONDS: Final = 5.0
"""For an answer that the node gave in the last moment; as long as a connection has to show that it
lives."""


class HeldCall(AwaitedCall):
    """A call that outlives its deadline by a grace."""

    __slots__ = ("grace_seconds", "patient")

    def __init__(
        self,
        message: AnyRequest,
        deadline: float,
        future: asyncio.Future[Frame],
        grace_seconds: float,
        *,
        patient: bool,
    ) -> None:
        super().__init__(message, deadline, future)
        self.grace_seconds = grace_seconds
        self.patient = patient


class LongPoll:
    """Made by `AsyncClient.hold`. Await `answer`, once, or have it told."""

    __slots__ = ("_call", "_read", "_taken_back")

    def __init__(self, call: AwaitedCall, read: Callable[[AwaitedCall, Frame], Any]) -> None:
        self._taken_back = False
        self._call = call
        self._read = read

    async def answer(self) -> Any:  # noqa: ANN401 - the message says which
        """The answer to the message, or why there is none; `Cancelled` if it was taken back."""
        call = self._call
        try:
            outcome = self._read(call, await call.future)
        except asyncio.CancelledError:
            call.give_up()
            raise
        if isinstance(outcome, MaitredError):
            raise outcome
        return outcome

    def tell(self, told: Callable[[Any], None]) -> None:
        """Instead of awaiting it: have the answer, or the error, told when it is there."""
        call = self._call

        def done(future: asyncio.Future[Frame]) -> None:
            if future.cancelled():
                return  # the loop is ending, and nobody is left to tell
            problem = future.exception()
            if problem is None:
                told(self._read(call, future.result()))
            elif isinstance(problem, MaitredError):
                told(problem)
            else:
                raise problem

        call.future.add_done_callback(done)

    @property
    def was_sent(self) -> bool:
        """Whether it left the line of those that wait for a connection. If the answer is
        `Cancelled` then, the node has had the message."""
        return self._call.connection is not None

    def take_back(self) -> None:
        """The node need not go on."""
        if self._taken_back:
            return
        self._taken_back = True
        call = self._call
        if call.line is not None:
            call.stop_waiting()
            call.fail(Cancelled("The request was taken back before it was sent."))
        elif call.connection is not None:
            call.connection.take_back(call)
