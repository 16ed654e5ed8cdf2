"""When is a shard that died started again, and when is that pointless?

A pause before each restart, doubled each time, so that a shard that cannot live does not eat the
core of those that can. What counts is the time that the shard *lived*: pauses are left out, so a
shard that dies at once is given up however long its pauses are, and one that lived for a whole
window has nothing to its name any more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.settings import Restarts


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Start it again at that moment."""

    moment: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start the shard again: it will not heal by itself."""

    reason: str


class RestartPolicy:
    """One shard's deaths, and what to do about them."""

    def __init__(self, settings: Restarts, now: float) -> None:
        self._settings = settings
        self._started_at = now
        self._lived_seconds = 0.0
        self._deaths: deque[float] = deque()
        """Each at the age that the shard had by then, pauses left out."""

    def died(self, now: float) -> RestartAt | GiveUp:
        """The shard, started at the moment that was last decided, has died."""
        settings = self._settings
        self._lived_seconds += max(0.0, now - self._started_at)
        while self._deaths and self._lived_seconds - self._deaths[0] >= settings.window_seconds:
            self._deaths.popleft()
        self._deaths.append(self._lived_seconds)
        deaths = len(self._deaths)
        if deaths >= settings.give_up_after:
            return GiveUp(f"it died {deaths} times within {self._span()} of running")
        self._started_at = now + self._pause(deaths)
        return RestartAt(self._started_at)

    def _pause(self, deaths: int) -> float:
        """The first after one death; the exponent is bounded, since 2.0 ** 1024 is no number."""
        settings = self._settings
        return min(settings.longest_seconds, settings.first_seconds * 2.0 ** min(deaths - 1, 64))

    def _span(self) -> str:
        seconds = self._deaths[-1] - self._deaths[0]
        return f"{seconds:.1f} s" if seconds >= 0.1 else "moments"
