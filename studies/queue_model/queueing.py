"""The yardsticks: the one queue that every worker shares, and how even is even.

No partitioned queue can beat a single one in which nobody idles while a task waits. For Poisson
arrivals and exponential service it is the M/M/c queue, whose waiting time Erlang's C formula gives
exactly: a task waits with probability C, and if so exponentially long with rate c·mu - lambda.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class ErlangC:
    """The waiting time in a stable M/M/c queue."""

    rate_per_second: float
    service_seconds: float
    servers: int

    @property
    def wait_probability(self) -> float:
        """Erlang's C, by the recursion of his B formula, which cannot overflow."""
        load = self.rate_per_second * self.service_seconds
        blocked = 1.0
        for servers in range(1, self.servers + 1):
            blocked = load * blocked / (servers + load * blocked)
        return self.servers * blocked / (self.servers - load * (1.0 - blocked))

    @property
    def mean_seconds(self) -> float:
        return self.wait_probability / self._spare_per_second

    def quantile_seconds(self, share: float) -> float:
        """What the given share of tasks waits at most."""
        waiting = self.wait_probability
        if 1.0 - share >= waiting:
            return 0.0
        return math.log(waiting / (1.0 - share)) / self._spare_per_second

    @property
    def _spare_per_second(self) -> float:
        return self.servers / self.service_seconds - self.rate_per_second


def single_queue_waits(jobs: Iterable[tuple[float, float]], servers: int) -> list[float]:
    """How long each (arrival, service) waits for the first free server, first come first served."""
    free_at = [0.0] * servers
    waits = []
    for arrival, service in jobs:
        start = max(arrival, free_at[0])
        heapq.heapreplace(free_at, start + service)
        waits.append(start - arrival)
    return waits


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which the share of an ordered sample lies, between two by proportion."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def jain_index(counts: Sequence[float]) -> float:
    """1 if all are equal, 1/n if one has everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0


def largest_deviation(counts: Sequence[float]) -> float:
    """How far the share farthest from 1/n is from it."""
    total = sum(counts)
    return max(abs(count / total - 1 / len(counts)) for count in counts) if total else 0.0


def even_p_value(counts: Sequence[float]) -> float:
    """How likely counts at least this uneven are if each pick is uniform (chi-square test)."""
    total = sum(counts)
    if len(counts) < 2 or not total:
        return 1.0
    expected = total / len(counts)
    statistic = sum((count - expected) ** 2 for count in counts) / expected
    return upper_gamma_share((len(counts) - 1) / 2, statistic / 2)


def upper_gamma_share(shape: float, point: float) -> float:
    """The regularized upper incomplete gamma function Q(shape, point)."""
    if point <= 0:
        return 1.0
    front = math.exp(shape * math.log(point) - point - math.lgamma(shape))
    if point < shape + 1:
        # The series for the lower part converges fast here.
        term = total = 1 / shape
        number = shape
        while term > total * 1e-12:
            number += 1
            term *= point / number
            total += term
        return max(0.0, 1.0 - front * total)
    # And here the continued fraction for the upper one, by Lentz's method.
    tiny = 1e-300
    partial = point + 1 - shape
    ratio, fraction = 1 / tiny, 1 / partial
    total = fraction
    for step in range(1, 10_000):
        factor = -step * (step - shape)
        partial += 2
        fraction = 1 / (factor * fraction + partial or tiny)
        ratio = partial + factor / ratio or tiny
        total *= fraction * ratio
        if abs(fraction * ratio - 1) < 1e-12:
            break
    return front * total


STUDENT_95 = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365),
    (8, 2.306), (9, 2.262), (10, 2.228), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000),
)  # fmt: skip
"""Student's t for a two-sided 95 % interval, by degrees of freedom; between two, the wider."""


def interval_95(sample: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean; 0 for a single value, which has none."""
    freedom = len(sample) - 1
    if freedom < 1:
        return 0.0
    mean = math.fsum(sample) / len(sample)
    variance = math.fsum((value - mean) ** 2 for value in sample) / freedom
    student = next(value for limit, value in reversed(STUDENT_95) if freedom >= limit)
    return student * math.sqrt(variance / len(sample))
