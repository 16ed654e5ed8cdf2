"""A request that waits at the node for something to happen: an offer, a heartbeat.

It may be taken back while its answer is on the way. A request that is given up drops whatever
comes; here that could be a task that the worker was given, and that no worker would run until its
lease ends. So taking back only tells the node to hurry: either the node says `Cancelled`, and there
was nothing, or the answer came first and counts. For the same reason the client waits a little
longer than the node was told to: an answer in the last moment is still read.

In a cluster, a node that does not own the partition any more answers that, and when a newer view
names another owner, the client takes the request back by itself. Both times the request is sent to
the new owner, and the caller does not notice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.client.call import Call
from maitred.errors import Cancelled
from maitred.protocol.frames import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from maitred.protocol.frames import Frame
    from maitred.protocol.messages import AnyRequest

GRACE_SECONDS: Final = 5.0
"""For an answer that the node gave in the last moment; as long as a connection has to show that it
lives."""


class LongPoll(Call):
    """Made by `AsyncClient.hold`. Await `answer`, once, or have it told."""

    __slots__ = (
        "_loop",
        "_outcome",
        "_read",
        "_redirect",
        "_told",
        "grace_seconds",
        "moving",
        "patient",
        "taken_back",
    )

    def __init__(
        self,
        message: AnyRequest,
        deadline: float,
        read: Callable[[Call, Frame], Any],
        *,
        loop: asyncio.AbstractEventLoop,
        grace_seconds: float,
        patient: bool,
        told: Callable[[Any], None] | None = None,
        redirect: Callable[[LongPoll, Frame], bool] | None = None,
    ) -> None:
        """With `told`, the answer need not be awaited: see `tell`. `redirect` gets every error, and
        returns whether it has sent the request again."""
        super().__init__(message, deadline)
        self.grace_seconds = grace_seconds
        self.patient = patient
        self._read = read
        self._loop = loop
        self._redirect = redirect
        self.taken_back = False
        """Whether the caller has taken it back."""
        self.moving = False
        """Whether the client has taken it back in order to send it to the partition's new owner."""
        self._outcome: Frame | Exception | None = None
        self._told = told

    async def answer(self) -> Any:  # noqa: ANN401 - the message says which
        """Return the answer to the message, or raise why there is none: `Cancelled` if it was taken
        back."""
        if self._outcome is None:
            future = self._loop.create_future()

            def resolve(outcome: Any) -> None:  # noqa: ANN401
                if not future.done():  # the caller may have been cancelled in this turn
                    future.set_result(outcome)

            self._told = resolve
            try:
                outcome = await future
            except asyncio.CancelledError:
                self._told = None
                self.give_up()
                raise
        else:
            outcome = self._decoded()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def tell(self, told: Callable[[Any], None]) -> None:
        """Instead of awaiting it: have the function called with the answer, in the turn of the loop
        in which it arrives, or with the error, in the next turn."""
        self._told = told
        if self._outcome is not None:
            self._loop.call_soon(self._tell)

    @property
    def was_sent(self) -> bool:
        """Whether it left the line of those that wait for a connection. If the answer is
        `Cancelled` then, the node has had the message."""
        return self.connection is not None

    def take_back(self) -> None:
        """Tell the node that it need not go on."""
        if self.taken_back:
            return
        self.taken_back = True
        if self.line is not None:
            self.stop_waiting()
            self.fail(Cancelled("The request was taken back before it was sent."))
        elif self.connection is not None and not self.moving:
            self.connection.take_back(self)

    def move(self) -> None:
        """Tell the node that it need not go on; the request is then sent to another one."""
        if self.connection is not None and not (self.taken_back or self.moving):
            self.moving = True
            self.connection.take_back(self)

    def prepare_again(self) -> None:
        """Forget the node that answered: the request will be sent to another one."""
        self.moving = False
        self.connection = None
        self.stream = -1

    # How it ends

    @property
    def is_over(self) -> bool:
        return self._outcome is not None

    def answered(self, frame: Frame) -> None:
        if self._outcome is None:
            redirect = self._redirect
            if frame.opcode == Opcode.ERROR and redirect is not None and redirect(self, frame):
                return
            self._outcome = frame
            if self._told is not None:
                self._tell()

    def fail(self, problem: Exception) -> None:
        # In the next turn: a caller may be the cause, by taking it back, and be in the middle of
        # something.
        if self._outcome is None:
            self._outcome = problem
            if self._told is not None:
                self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(self._decoded())

    def _decoded(self) -> Any:  # noqa: ANN401
        outcome = self._outcome
        if outcome is None or isinstance(outcome, Exception):
            return outcome
        return self._read(self, outcome)
