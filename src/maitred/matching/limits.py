"""A token bucket: a limit of events per second, which may be a fraction."""

from __future__ import annotations

from math import inf


class Limiter:
    """Allows at most `rate` events per second, and `burst` at once."""

    __slots__ = ("_at", "_filled", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = max(1.0, burst)
        self._filled = self.burst
        self._at = now

    def change(self, rate: float, burst: float, now: float) -> None:
        """Set another rate; tokens that were saved up stay, as far as the burst allows."""
        self._fill(now)
        self.rate = rate
        self.burst = max(1.0, burst)
        self._filled = min(self._filled, self.burst)

    def allows(self, now: float) -> bool:
        """Return whether an event may happen now."""
        return self.next_at(now) <= now

    def count(self) -> None:
        """Take a token: an event happens."""
        self._filled -= 1.0

    def give_back(self) -> None:
        """Return a token: an event that was counted did not happen."""
        self._filled = min(self.burst, self._filled + 1.0)

    def next_at(self, now: float) -> float:
        """Return when the next event may happen.

        A missing fraction of a token that is too small for the clock counts as none. Otherwise
        rounding could delay an event for ever.
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
