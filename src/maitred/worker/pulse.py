"""When the worker's loop last had a turn, and what time it is by the loop's clock.

A timer stamps the time on the loop. Another thread reads the stamp and sees a loop that is blocked.
The loop itself, when it goes on, knows from the gap how old whatever it now reads may be: a task
whose lease began while the message lay in the socket may be another worker's by now.

A loop's own time does not tell what is late: uvloop's stands still during a turn, however long that
takes. `Pulse.time` is on the same scale and is read anew each time, from any thread.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

PULSE_SECONDS: Final = 0.25
"""Between two stamps: short beside a lease, and no more than four wake-ups a second."""

LATE_SECONDS: Final = 2 * PULSE_SECONDS
"""A stamp that comes so long after the one before it came late."""


class Pulse:
    """The stamps of one loop. Unless started, the loop counts as always in time."""

    __slots__ = ("_before", "_late", "_loop", "_timer", "at", "clock", "in_time_until", "offset")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] | None = None
    ) -> None:
        self._loop = loop
        self.clock = clock or loop.time
        """Monotonic; its zero may be another one than the loop's."""
        self.offset = loop.time() - self.clock()
        """What `clock` is short of the loop's time."""
        self.at = loop.time()
        """The last stamp."""
        self._before = self.at
        """The one before it."""
        self._late = False
        """Whether the last stamp came so late that what is read in its turn may be old."""
        self._timer: asyncio.TimerHandle | None = None
        self.in_time_until = inf
        """Up to then `behind` is 0, so that nobody needs to ask for each message."""

    def time(self) -> float:
        """The loop's time at this moment, not at the beginning of its turn."""
        return self.clock() + self.offset

    def start(self) -> None:
        """Stamp now, and from now on."""
        self.offset = self._loop.time() - self.clock()
        self.at = self._before = self._loop.time()
        self.in_time_until = self.at + LATE_SECONDS
        self._timer = self._loop.call_later(PULSE_SECONDS, self.stamp)

    def stop(self) -> None:
        """Stop stamping."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.in_time_until = inf

    def stamp(self) -> None:
        """The loop has a turn."""
        now = self._loop.time()
        self.offset = now - self.clock()
        self._before, self.at = self.at, now
        self._late = now - self._before > LATE_SECONDS
        self.in_time_until = -inf if self._late else now + LATE_SECONDS
        self._timer = self._loop.call_later(PULSE_SECONDS, self.stamp)

    def behind(self, now: float) -> float:
        """By how many seconds what the loop reads in this turn may be older than it seems.

        None, unless the loop was blocked. A loop may stamp before it reads or after it, so the
        stamp that ends a block does not count until the next one.
        """
        if self._timer is None:
            return 0.0
        if now - self.at > LATE_SECONDS:
            return now - self.at
        return now - self._before if self._late else 0.0
