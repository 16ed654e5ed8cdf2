"""One timer for many deadlines.

Most requests are answered long before their deadlines, and setting and cancelling a timer for each
would cost more than running a quick query. So there is one timer, set to the earliest deadline;
when it fires, its owner handles what is due, and returns the next deadline.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TIMER_SLACK_SECONDS: Final = 0.001
"""Timers of some event loops count whole milliseconds and fire up to one millisecond early."""


class Alarm:
    """A timer for the earliest of many moments. When it fires it calls `look` with the loop's time,
    which returns the next moment; None or infinity if there is none."""

    __slots__ = ("_look", "_loop", "_timer", "at")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, look: Callable[[float], float | None]
    ) -> None:
        self._loop = loop
        self._look = look
        self._timer: asyncio.TimerHandle | None = None
        self.at = inf
        """The earliest moment that was named, in the loop's time; `by` with a later one has no
        effect."""

    def by(self, moment: float) -> None:
        """Fire no later than at this moment of the loop's time."""
        if moment < self.at:
            if self._timer is not None:
                self._timer.cancel()
            self.at = moment
            self._timer = self._loop.call_at(moment, self._ring)

    def stop(self) -> None:
        """Cancel the timer; `by` sets it again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.at = inf

    def _ring(self) -> None:
        self._timer = None
        self.at = inf
        following = self._look(self._loop.time() + TIMER_SLACK_SECONDS)
        if following is not None:
            self.by(following)
