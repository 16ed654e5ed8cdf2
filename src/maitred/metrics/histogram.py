"""Histograms with fixed bounds, whose counts only grow, as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

WORK_BOUNDS: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 10.0, 60.0, 600.0, 3600.0),
)
"""Bounds in seconds for how long tasks wait and run: from an idle worker's wait to an hour. Each is
a series for each queue that is named, so they are few."""

SHORTEST_WORK: Final = WORK_BOUNDS[0]
"""The first bound in seconds, under which most run times are that are many: where each microsecond
counts, code compares with it before it searches the bounds."""

SHORT_BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Bounds in seconds for commits of the store and for the lag of event loops."""

SIZE_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Bounds for how many rows one commit writes."""


class Histogram:
    """Counts values by the bucket that they fall into."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = WORK_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many values are in each bucket alone; the last bucket has no bound."""
        self.total = 0.0
        """The sum of all values."""

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)
