"""How fast tasks may be forwarded, and how fast they come."""

from __future__ import annotations


class RateLimit:
    """A bucket of forwards: filled at a rate, holding at most a second's worth."""

    def __init__(self, rate_per_second: float) -> None:
        self._rate_per_second = rate_per_second
        self._most = max(1.0, rate_per_second) if rate_per_second else 0.0
        self._left = self._most
        self._at = 0.0

    def allows(self, now: float) -> bool:
        self._left = min(self._most, self._left + (now - self._at) * self._rate_per_second)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


RATE_BUCKET_SECONDS = 10.0
RATE_ALPHA = 0.5


class RateTracker:
    """Tasks a second: a moving average over buckets of 10 s, each new one counting half."""

    def __init__(self) -> None:
        self._average: float | None = None
        self._count = 0
        self._began_at = 0.0

    def add(self, now: float) -> None:
        self._roll(now)
        self._count += 1

    def per_second(self, now: float) -> float:
        self._roll(now)
        return self._average or 0.0

    def _roll(self, now: float) -> None:
        buckets = int((now - self._began_at) / RATE_BUCKET_SECONDS)
        if buckets < 1:
            return
        rate = self._count / RATE_BUCKET_SECONDS
        average = rate if self._average is None else _blend(self._average, rate)
        # The further buckets were empty.
        self._average = average * (1 - RATE_ALPHA) ** (buckets - 1)
        self._count = 0
        self._began_at += buckets * RATE_BUCKET_SECONDS


def _blend(average: float, rate: float) -> float:
    return RATE_ALPHA * rate + (1 - RATE_ALPHA) * average
