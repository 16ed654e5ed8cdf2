"""Requests that cannot be sent yet: their limit, and their deadlines.

They wait in lines, for their turn on a connection or for a connection to a node. All of them are in
the client's one waiting room, which has a limit and a single timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import Overloaded
from maitred.wire.alarm import Alarm

if TYPE_CHECKING:
    import asyncio

LOOK_SECONDS: Final = 0.005
"""Least time between two checks of all deadlines: with 65,536 calls a check takes some 3 ms."""


class WaitingCall(Protocol):
    """The part of a call that its waiting room uses."""

    @property
    def deadline(self) -> float:
        """The loop's time at which the call has waited too long."""

    def stop_waiting(self) -> None:
        """Leave the waiting room and the line."""

    def waited_too_long(self) -> None:
        """Leave, and fail: the deadline has passed before the call was sent."""

    def fail(self, problem: Exception) -> None:
        """End the call with this error."""


class WaitingRoom:
    """The waiting calls of one client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._limit = limit
        self._calls: dict[WaitingCall, None] = {}
        self._alarm = Alarm(loop, self._look)

    def __len__(self) -> int:
        return len(self._calls)

    def enter(self, call: WaitingCall) -> None:
        """Add a call until its deadline at most; raise `Overloaded` if the room is full."""
        if len(self._calls) >= self._limit:
            raise Overloaded(
                f"{self._limit:,} requests wait already; this one was not sent.",
                remedy="Ask less at once, or raise the client's setting 'waiting'.",
            )
        self._calls[call] = None
        self._alarm.by(call.deadline)

    def leave(self, call: WaitingCall) -> None:
        """Remove a call that is being sent, or was given up."""
        self._calls.pop(call, None)

    def empty(self, problem: Exception) -> None:
        """Fail all calls with this error."""
        for call in list(self._calls):
            call.stop_waiting()
            call.fail(problem)
        self._alarm.stop()

    def _look(self, now: float) -> float | None:
        for call in [one for one in self._calls if one.deadline <= now]:
            call.waited_too_long()
        if not self._calls:
            return None
        return max(min(call.deadline for call in self._calls), now + LOOK_SECONDS)
