"""Requests that cannot be sent yet: how many there may be, and when their time is over.

They stand in lines (of a connection, for their turn; of a node, for a connection) and all of them
are in this one room, which has a limit and a single timer.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from maitred.errors import Overloaded
from maitred.wire.caller import TIMER_SLACK_SECONDS

if TYPE_CHECKING:
    import asyncio

    from maitred.client.call import Call

LOOK_SECONDS: Final = 0.005
"""Least time between two looks at everybody who waits: with 65,536 of them one takes some 3 ms."""


class WaitingRoom:
    """Everybody who waits, of one client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._calls: dict[Call, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def __len__(self) -> int:
        return len(self._calls)

    def enter(self, call: Call) -> None:
        """Wait until the call's deadline at most; raises `Overloaded` if the room is full."""
        if len(self._calls) >= self._limit:
            raise Overloaded(
                f"{self._limit:,} requests wait already; this one was not sent.",
                remedy="Ask less at once, or raise the client's setting 'waiting'.",
            )
        self._calls[call] = None
        if call.deadline < self._timer_at:
            self._set_timer(call.deadline)

    def leave(self, call: Call) -> None:
        """It is being sent, or was given up."""
        self._calls.pop(call, None)

    def empty(self, problem: Exception) -> None:
        """Everybody is told, and goes."""
        for call in list(self._calls):
            call.stop_waiting()
            call.fail(problem)
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, inf

    def _set_timer(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, inf
        now = self._loop.time()
        for call in [one for one in self._calls if one.deadline <= now + TIMER_SLACK_SECONDS]:
            call.waited_too_long()
        if self._calls:
            earliest = min(call.deadline for call in self._calls)
            self._set_timer(max(earliest, now + LOOK_SECONDS))
