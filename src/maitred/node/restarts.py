"""Decides when a process that died is started again, and when that is pointless.

The pause before a restart doubles each time, so that a process that cannot live leaves the CPU to
the others. Deaths count by the time that the process *ran*: pauses are left out, so a process that
dies at once is given up however long its pauses are, and one that ran for a whole window starts
from nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.settings import Restarts


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The decision not to start the process again."""

    reason: str


class RestartPolicy:
    """The deaths of one shard or gateway, and the decisions about them."""

    def __init__(self, settings: Restarts, now: float) -> None:
        self._settings = settings
        self._started_at = now
        self._lived_seconds = 0.0
        self._deaths: deque[float] = deque()
        """The deaths within the window, each as the time that the process had run in all."""

    def died(self, now: float) -> float | GiveUp:
        """Note that the process has died, which was started at the time of the last decision;
        return when to start it again, or why not to."""
        settings = self._settings
        self._lived_seconds += max(0.0, now - self._started_at)
        while self._deaths and self._lived_seconds - self._deaths[0] >= settings.window_seconds:
            self._deaths.popleft()
        self._deaths.append(self._lived_seconds)
        deaths = len(self._deaths)
        if deaths >= settings.give_up_after:
            return GiveUp(f"it died {deaths} times within {self._span()} of running")
        self._started_at = now + self._pause(deaths)
        return self._started_at

    def _pause(self, deaths: int) -> float:
        """Return the pause after so many deaths; the exponent is bounded because 2.0 ** 1024
        overflows."""
        settings = self._settings
        return min(settings.longest_seconds, settings.first_seconds * 2.0 ** min(deaths - 1, 64))

    def _span(self) -> str:
        seconds = self._deaths[-1] - self._deaths[0]
        return f"{seconds:.1f} s" if seconds >= 0.1 else "moments"
