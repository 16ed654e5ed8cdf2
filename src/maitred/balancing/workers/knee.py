"""The limit of a back end that tells nothing: the knee of its throughput, found by trying.

Behind an HTTP proxy there is only what goes in and what comes out. More in flight raises the
throughput up to a knee; beyond it, only the latency. The usual rule compares latency with the least
ever seen; where service times vary that least is luck, and the limit falls far too low. So this
one looks at throughput alone, and compares instead of trusting a memory: a window at the limit and
a window at a limit a step away, in turn, several times over, so that a load that changes meanwhile
changes both.

- One step **up** brought at least half of what it would bring below the knee: go up.
- One step **down** lost less than a third of what it would lose below the knee: go down.

A decision is made when the difference is clear beside its noise or when the pairs are used up; a
limit that was not used in a window says nothing about it, so that window is left out. Errors and
refusals of the back end are not throughput.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KneeSettings:
    """What can be set about the search."""

    first: int = 16
    floor: int = 1
    ceiling: int = 10_000
    step: float = 0.15
    """How far apart the two limits are that are compared, as a share."""
    window_ends: int = 100
    """A window lasts until as many queries ended as ten times the limit, at least so many."""
    window_seconds_max: float = 1.0
    pairs_min: int = 2
    pairs_max: int = 8


USED_SHARE = 0.9
KEEP_UP = 0.5
KEEP_DOWN = 0.33
CLEAR = 2.0
"""A difference of so many standard errors is no chance."""


class KneeProber:
    """Told of every query that starts and ends at the back end; knows the limit."""

    def __init__(self, now: float, settings: KneeSettings | None = None) -> None:
        self._settings = settings or KneeSettings()
        self._base = float(self._settings.first)
        self._up = True
        """Whether the other limit of the pair lies above."""
        self._other = False
        """Whether this window is the one at the other limit."""
        self._fast = True
        """Until the first step that does not pay, steps double the limit."""
        self._in_flight = 0
        self._pairs: list[float] = []
        """For each pair: the throughput at the other limit, relative to that at the base."""
        self._base_rate = 0.0
        self._settled = False
        self._peak = 0
        self._unsettled = 0
        self._restart(now)

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return max(self._settings.floor, round(self._tried))

    @property
    def knee(self) -> int:
        """Where the search stands, without the step that is being tried."""
        return max(self._settings.floor, round(self._base))

    @property
    def _tried(self) -> float:
        if not self._other:
            return self._base
        return self._beside

    @property
    def _beside(self) -> float:
        settings = self._settings
        if self._up:
            share = 1.0 if self._fast else settings.step
            return min(self._base + max(1.0, share * self._base), float(settings.ceiling))
        return max(self._base - max(1.0, settings.step * self._base), float(settings.floor))

    def started(self) -> None:
        self._in_flight += 1
        if self._in_flight > self._peak:
            self._peak = self._in_flight

    def ended(self, now: float, *, good: bool = True) -> None:
        self._in_flight = max(0, self._in_flight - 1)
        if not self._settled:
            # The first ends after a change still belong to the limit before it.
            self._unsettled -= 1
            if self._unsettled <= 0:
                self._settled = True
                self._began = now
                self._good = 0
            return
        self._good += good
        length = now - self._began
        enough = max(self._settings.window_ends, 10 * self.limit)
        if length > 0.0 and (self._good >= enough or length >= self._settings.window_seconds_max):
            self._close(self._good / length, now)

    def _restart(self, now: float) -> None:
        self._began = now
        self._good = 0
        self._peak = self._in_flight
        self._settled = False
        self._unsettled = max(2, 2 * self.limit)

    def _close(self, rate: float, now: float) -> None:
        if self._peak < USED_SHARE * self.limit:
            # Nobody wanted that much: no evidence about this pair.
            self._other = False
        elif not self._other:
            self._base_rate = rate
            self._other = True
        else:
            if self._base_rate > 0.0:
                self._pairs.append(rate / self._base_rate - 1.0)
            self._other = False
            self._decide()
        self._restart(now)

    def _decide(self) -> None:
        """Move to the other limit, stay, or compare once more."""
        settings = self._settings
        count = len(self._pairs)
        if count < (1 if self._fast else settings.pairs_min):
            return
        mean = math.fsum(self._pairs) / count
        spread = math.sqrt(
            math.fsum((gain - mean) ** 2 for gain in self._pairs) / max(1, count - 1)
        )
        error = spread / math.sqrt(count)
        apart = self._beside / self._base - 1.0
        if apart == 0.0:
            self._turn()
            return
        threshold = apart * (KEEP_UP if self._up else KEEP_DOWN)
        if not self._fast and abs(mean - threshold) < CLEAR * error and count < settings.pairs_max:
            return
        if mean > threshold:
            self._base = self._beside
            self._pairs.clear()
        else:
            self._fast = False
            self._turn()

    def _turn(self) -> None:
        self._up = not self._up
        self._pairs.clear()

    def __repr__(self) -> str:
        return f"<KneeProber, limit {self.limit}, {self._in_flight} in flight>"
