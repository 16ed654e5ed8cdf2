"""A limit of events a second, fractional ones too: a bucket that fills with time."""

from __future__ import annotations

from math import inf


class Limiter:
    """At most `rate` a second, `burst` at once."""

    __slots__ = ("_at", "_filled", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = max(1.0, burst)
        self._filled = self.burst
        self._at = now

    def change(self, rate: float, burst: float, now: float) -> None:
        """Another rate from now on; what was saved up stays, as far as the burst allows."""
        self._fill(now)
        self.rate = rate
        self.burst = max(1.0, burst)
        self._filled = min(self._filled, self.burst)

    def allows(self, now: float) -> bool:
        """Whether one may happen now."""
        return self.next_at(now) <= now

    def count(self) -> None:
        """One happens."""
        self._filled -= 1.0

    def give_back(self) -> None:
        """One that was counted did not happen after all."""
        self._filled = min(self.burst, self._filled + 1.0)

    def next_at(self, now: float) -> float:
        """When the next one may happen.

        What is missing may be too little to be told from nothing on the clock: then it is nothing,
        or adding up fractions would make a whole one late for ever.
        """
        self._fill(now)
        missing = 1.0 - self._filled
        if missing <= 1e-9:
            return now
        return now + missing / self.rate if self.rate > 0 else inf

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._filled = min(self.burst, self._filled + (now - self._at) * self.rate)
        self._at = max(self._at, now)
