"""How late an event loop is: the time that everything on it waits for its turn."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from maitred.metrics.histogram import SHORT_BOUNDS, Histogram

if TYPE_CHECKING:
    import asyncio

LOOK_SECONDS: Final = 0.25
"""Seconds between two measurements: a stall that happens often is seen within a minute, and four
wake-ups a second cost nothing."""


class LoopLag:
    """Sets a timer again and again, and counts by how much it is late."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds = Histogram(SHORT_BOUNDS)
        self._loop = loop
        self._due = loop.time() + LOOK_SECONDS
        self._timer = loop.call_at(self._due, self._look)
        self.turned_at = monotonic()
        """When the loop last had a turn, by the monotonic clock, for other threads."""

    def stop(self) -> None:
        """Stop the timer that measures the lag."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self.turned_at = monotonic()
        self.seconds.add(max(0.0, now - self._due))
        self._due = now + LOOK_SECONDS
        self._timer = self._loop.call_at(self._due, self._look)
