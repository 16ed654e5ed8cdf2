"""When the worker's loop last had a turn, and what time it is by the loop's clock.

A timer stamps the time on the loop. Another thread reads the stamp and so detects a blocked loop.
When the loop goes on, it knows from the gap how old the messages that it now reads may be: a task
whose lease began while the message lay in the socket may be another worker's by now.

The loop's own time is no help: uvloop's stands still during a turn, however long the turn takes.
`Pulse.time` is on the same scale and is read anew each time, from any thread.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

PULSE_SECONDS: Final = 0.25
"""Seconds between two stamps: short compared with a lease, and only four wake-ups a second."""

LATE_SECONDS: Final = 2 * PULSE_SECONDS
"""A stamp that comes later than this after the one before it was late."""


class Pulse:
    """The stamps of one loop. Until it is started, the loop counts as always in time."""

    __slots__ = ("_before", "_late", "_loop", "_timer", "at", "clock", "in_time_until", "offset")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] | None = None
    ) -> None:
        self._loop = loop
        self.clock = clock or loop.time
        """A monotonic clock, whose zero may differ from the loop's."""
        self.offset = loop.time() - self.clock()
        """Add this to `clock` to get the loop's time."""
        self.at = loop.time()
        """The last stamp."""
        self._before = self.at
        """The stamp before the last one."""
        self._late = False
        """Whether the last stamp was late, so that messages read in its turn may be old."""
        self._timer: asyncio.TimerHandle | None = None
        self.in_time_until = inf
        """`behind` is 0 until then, so that it need not be called for each message."""

    def time(self) -> float:
        """Return the loop's time at this moment, not at the beginning of its turn."""
        return self.clock() + self.offset

    def start(self) -> None:
        """Begin to stamp."""
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
        """Note that the loop has a turn."""
        now = self._loop.time()
        self.offset = now - self.clock()
        self._before, self.at = self.at, now
        self._late = now - self._before > LATE_SECONDS
        self.in_time_until = -inf if self._late else now + LATE_SECONDS
        self._timer = self._loop.call_later(PULSE_SECONDS, self.stamp)

    def behind(self, now: float) -> float:
        """Return by how many seconds the messages read in this turn may be older than they seem: 0
        unless the loop was blocked. A loop may stamp before it reads or after it, so a block counts
        until the second stamp after it.
        """
        if self._timer is None:
            return 0.0
        if now - self.at > LATE_SECONDS:
            return now - self.at
        return now - self._before if self._late else 0.0


class Sighting(Enum):
    """The result of one look at the loop."""

    NOTHING = auto()
    BLOCKED = auto()
    """The loop has had no turn for too long; found once for each block."""
    FREED = auto()
    """The loop that was blocked has had a turn."""


class BlockDetector:
    """Compares the loop's last stamp with the time, and the time with the moment for which the
    watching thread had set its own timer.

    A thread that comes late was kept from running itself: a handler holds the GIL, the process was
    stopped, or the machine has no CPU time for it. Then the loop was blocked for as long, even if
    it has stamped since.
    """

    __slots__ = ("_blocked_seconds", "lasted", "since")

    def __init__(self, blocked_seconds: float) -> None:
        self._blocked_seconds = blocked_seconds
        self.since: float | None = None
        """The last stamp before the block that lasts; None if none does."""
        self.lasted = 0.0
        """Seconds of the block that was found last, as far as is known."""

    def look(self, now: float, stamped_at: float, overslept: float) -> Sighting:
        """Return whether a block has begun or ended since the last look. `overslept` is by how many
        seconds the watching thread woke too late."""
        if self.since is None:
            held = overslept >= self._blocked_seconds
            if not held and now - stamped_at < self._blocked_seconds:
                return Sighting.NOTHING
            self.since = min(stamped_at, now - overslept) if held else stamped_at
            self.lasted = now - self.since
            return Sighting.BLOCKED
        if stamped_at > self.since:
            self.lasted = stamped_at - self.since
            self.since = None
            return Sighting.FREED
        self.lasted = now - self.since
        return Sighting.NOTHING
