"""Measurements of a partition: rates that follow the load, and how long tasks wait."""

from __future__ import annotations

from math import frexp
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.metrics.histogram import Histogram

BUCKET_SECONDS = 1.0
KEPT = 0.8
"""Weight of the old rate in each bucket: after ten seconds, nine tenths of a change show."""

WAITS_DECAY_AT = 10_000
"""After so many waits, all counts are halved, so that old waits count less."""

_SMALLEST = 2.0**-20
"""Shorter durations, a microsecond, count as this one."""

_OCTAVES = 64
"""Doublings of the shortest duration that the histogram tells apart: up to half a million years."""


class Rate:
    """A moving average of events per second."""

    __slots__ = ("_bucket_began", "_in_bucket", "_per_second", "total")

    def __init__(self, now: float) -> None:
        self.total = 0
        self._in_bucket = 0
        self._bucket_began = now
        self._per_second = 0.0

    def count(self, events: int, now: float) -> None:
        if now - self._bucket_began >= BUCKET_SECONDS:
            self._roll(now)
        self.total += events
        self._in_bucket += events

    def per_second(self, now: float) -> float:
        """Return the average of the seconds that have passed completely."""
        self._roll(now)
        return self._per_second

    def _roll(self, now: float) -> None:
        passed = now - self._bucket_began
        buckets = int(passed / BUCKET_SECONDS)
        if buckets < 1:
            return
        # All events belong to the first of these buckets; the others had none.
        self._per_second = KEPT * self._per_second + (1 - KEPT) * self._in_bucket / BUCKET_SECONDS
        self._per_second *= KEPT ** min(buckets - 1, 200)
        self._in_bucket = 0
        self._bucket_began += buckets * BUCKET_SECONDS


class Waits:
    """A histogram of the last durations with four buckets per doubling: its error is at most 19 %.
    They are also counted in another histogram, which forgets none."""

    __slots__ = ("_all", "_counts", "_total")

    def __init__(self, all_waits: Histogram) -> None:
        self._all = all_waits
        self._counts = [0] * (_OCTAVES * 4)
        self._total = 0

    def count(self, seconds: float, tasks: int = 1) -> None:
        """Count `tasks` tasks, each of which waited for `seconds`."""
        self._all.add(seconds, tasks)
        # This runs for nearly every task; a comparison costs a third of a call of `max`.
        mantissa, exponent = frexp(seconds if seconds > _SMALLEST else _SMALLEST)  # noqa: FURB136
        # The mantissa is at least a half: the same as (exponent + 20) * 4 + (mantissa - 0.5) * 8.
        self._counts[4 * exponent + int(8 * mantissa) + 76] += tasks
        self._total += tasks
        if self._total >= WAITS_DECAY_AT:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)

    def quantile(self, share: float) -> float:
        """Return the duration that this share of the waits does not exceed; 0 if there are none."""
        if not self._total:
            return 0.0
        wanted = share * self._total
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                exponent, quarter = divmod(bucket, 4)
                return float((0.5 + (quarter + 1) / 8) * 2.0 ** (exponent - 20))
        return 0.0
