"""One timer for many moments.

Most of what has a deadline is over long before it, and setting and cancelling a timer for each
would cost more than running a quick query. So there is one, set to the earliest moment that anybody
named; when it rings, whoever it belongs to looks at what is due, and names the next moment.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SLACK_SECONDS: Final = 0.001
"""Timers of some loops count whole milliseconds and ring up to one early."""


class Alarm:
    """Rings at the earliest moment; `look` gets the time, and returns the next moment or None."""

    __slots__ = ("_look", "_loop", "_timer", "at")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, look: Callable[[float], float | None]
    ) -> None:
        self._loop = loop
        self._look = look
        self._timer: asyncio.TimerHandle | None = None
        self.at = inf
        """The earliest moment that was named; `by` with a later one has no effect."""

    def by(self, moment: float) -> None:
        """Ring no later than this."""
        if moment < self.at:
            if self._timer is not None:
                self._timer.cancel()
            self.at = moment
            self._timer = self._loop.call_at(moment, self._ring)

    def stop(self) -> None:
        """Never again, unless somebody names a moment."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.at = inf

    def _ring(self) -> None:
        self._timer = None
        self.at = inf
        following = self._look(self._loop.time() + SLACK_SECONDS)
        if following is not None:
            self.by(following)
