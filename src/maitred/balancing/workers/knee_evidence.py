"""Estimate the knee of a back end from the throughput of pairs of windows at two limits. Pure.

Below the knee the throughput is proportional to the limit, above it the limit does not matter. So
if the knee is at k, the throughputs at two limits are in the ratio of their min(limit, k). For each
pair of windows, one at each of two limits, that gives the likelihood of the counted answers for
every k. The speed of the back end does not matter: a pair says only which share of its answers
belongs to which of its windows, so a back end that became slower since the last pair changes
nothing.

The logarithms of the likelihoods add up, and older pairs count for less. Where few answers come,
many places for the knee are plausible; that says how far apart the next limits have to be, and that
it is too early to move.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

APART = 1.06
"""The ratio between neighbouring places that are examined; finer than any evidence is exact."""

PLAUSIBLE = 2.0
"""A place is plausible if the best one is no more than e^2 times likelier: two standard errors."""

CAUTIOUS = 0.5
"""The cautious estimate is the highest place within one standard error, e^0.5 times less likely
than the best. A limit that is too low costs throughput, one that is too high only latency."""

CHANCE = 1.3
"""This many answers count as one, because service times vary more than a Poisson process."""

VOTE_MOST = 8.0
"""The most that one pair counts against a place, so that one window full of errors does not outvote
all the others."""

KEPT_SAME = 0.9
KEPT_OTHER = 0.98
"""A new pair multiplies the weights of earlier pairs of its own direction by `KEPT_SAME`, those of
the other by `KEPT_OTHER`. Steps down are rare, and their evidence holds as long as there is no
alarm; a back end that can do more shows that only in steps up."""

PAIRS_MAX = 10
"""The most pairs kept per direction; an eleventh would count for a third of the latest."""

SURPRISE = 3.0
RECENT = 4
"""If the latest pairs, up to `RECENT`, and those before them are e^3 times likelier with two knees
than with one, the knee moved between them, and the earlier pairs are dropped."""


class Window(NamedTuple):
    """The answers that came at one limit within some seconds."""

    limit: int
    ends: float
    seconds: float


class Knees(NamedTuple):
    """The estimates of the knee: the lowest plausible, the likeliest and the cautious one."""

    least: float
    """The lowest plausible place; 0 if no lower limit was seen to have less throughput."""
    likely: float
    cautious: float


class Pair(NamedTuple):
    """Two consecutive windows at two limits."""

    low: Window
    high: Window
    up: bool
    """Whether the higher limit was the one that was tried."""

    def likelihood(self, knee: float) -> float:
        """Return the logarithm of the likelihood of these answers, up to a constant."""
        low, high = self.low, self.high
        more = min(high.limit, knee) / min(low.limit, knee)
        ends = low.ends + high.ends
        return (high.ends * log(more) - ends * log(low.seconds + more * high.seconds)) / CHANCE

    def votes(self, places: list[float], weight: float) -> list[float]:
        """Return how much this pair counts against each place, as a number of 0 or less."""
        logs = [self.likelihood(place) for place in places]
        best = max(logs)
        return [weight * max(one - best, -VOTE_MOST) for one in logs]


class Evidence:
    """Holds the pairs that still count, and estimates the knee from them."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: list[tuple[float, Pair]] = []
        """The pairs with their weights, the latest last."""

    def clear(self) -> None:
        """Drop all pairs, because the back end's capacity has changed."""
        self._pairs.clear()

    def add(self, pair: Pair) -> None:
        """Add a pair; if it shows that the knee moved, drop the earlier pairs."""
        same = [n for n, (_, old) in enumerate(self._pairs) if old.up == pair.up]
        if len(same) >= PAIRS_MAX:
            del self._pairs[same[0]]
        self._pairs = [
            (weight * (KEPT_SAME if old.up == pair.up else KEPT_OTHER), old)
            for weight, old in self._pairs
        ]
        self._pairs.append((1.0, pair))
        self._notice_a_move()

    def _notice_a_move(self) -> None:
        rows = self._votes(self._places())
        before = [sum(column) for column in zip(*rows, strict=True)]
        together = max(before)
        recent = [0.0] * len(before)
        for count in range(1, min(RECENT, len(rows) - 1) + 1):
            row = rows[-count]
            recent = [one + more for one, more in zip(recent, row, strict=True)]
            before = [one - less for one, less in zip(before, row, strict=True)]
            if max(recent) + max(before) - together > SURPRISE:
                del self._pairs[:-count]
                return

    def _places(self) -> list[float]:
        """Return the places from the lowest to the highest limit that was tried."""
        place = float(min(pair.low.limit for _, pair in self._pairs))
        highest = float(max(pair.high.limit for _, pair in self._pairs))
        places = []
        while place < highest:
            places.append(place)
            place *= APART
        return [*places, highest]

    def _votes(self, places: list[float]) -> list[list[float]]:
        return [pair.votes(places, weight) for weight, pair in self._pairs]

    def knees(self) -> Knees | None:
        """Return the estimates from all pairs; None if there is no pair."""
        if not self._pairs:
            return None
        places = self._places()
        sums = [sum(column) for column in zip(*self._votes(places), strict=True)]
        best = max(sums)
        least = next(n for n, one in enumerate(sums) if one >= best - PLAUSIBLE)
        cautious = max(n for n, one in enumerate(sums) if one >= best - CAUTIOUS)
        return Knees(places[least] if least else 0.0, places[sums.index(best)], places[cautious])
