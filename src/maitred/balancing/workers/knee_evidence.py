"""Where the knee of a back end may be, by what pairs of windows at two limits brought. Pure.

Below the knee the throughput is in proportion to the limit, above it the limit does not matter. So
if the knee is at k, two limits bring throughputs that are to each other as min(limit, k). Each pair
of windows, one at each of two limits, says how likely that makes the answers that were counted, for
every k. Nobody has to know how fast the back end is: a pair says only what share of its answers
belongs to which of its windows, so one that got slower since the last pair changes nothing.

The logarithms of the likelihoods add up, and older pairs count for less. Where few answers come,
many places for the knee are plausible; that says how far from each other the next limits have to
be, and that it is too early to move.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

APART = 1.06
"""How far the places are from each other that are looked at: closer than any evidence is exact."""

PLAUSIBLE = 2.0
"""A place is plausible if the best one is no more than e^2 times likelier: two standard errors."""

CAUTIOUS = 0.5
"""The highest place of those that are within one standard error. A limit that is too low costs
throughput, one that is too high only latency."""

CHANCE = 1.3
"""Answers are counted as if so many of them were one: service times vary more than by chance."""

VOTE_MOST = 8.0
"""No pair speaks against a place with more than this: one window full of errors does not outvote
all the others."""

KEPT_SAME = 0.9
KEPT_OTHER = 0.98
"""What a pair counts for, compared with before, when there is another one of its direction, and of
the other one. Downwards is tried rarely, and what was learnt there holds as long as there is no
alarm; a back end that can do more shows that upwards only."""

PAIRS_MAX = 10
"""Of each direction: the next one would count for a third of the latest."""

SURPRISE = 3.0
RECENT = 4
"""If the latest pairs, this many at most, and those before them are e^3 times likelier with two
knees than with one, the knee moved between them, and those before it are forgotten."""


class Window(NamedTuple):
    """What came out at a limit."""

    limit: int
    ends: float
    seconds: float


class Knees(NamedTuple):
    """Where the knee may be."""

    least: float
    """The lowest plausible place; 0 if lower limits were never seen to bring less."""
    likely: float
    cautious: float


class Pair(NamedTuple):
    """Two windows soon after each other."""

    low: Window
    high: Window
    up: bool
    """Whether it was the higher limit that was tried."""

    def likelihood(self, knee: float) -> float:
        """The logarithm of how likely these answers are, but for a constant."""
        low, high = self.low, self.high
        more = min(high.limit, knee) / min(low.limit, knee)
        ends = low.ends + high.ends
        return (high.ends * log(more) - ends * log(low.seconds + more * high.seconds)) / CHANCE

    def votes(self, places: list[float], weight: float) -> list[float]:
        """How much speaks against each place; 0 is nothing."""
        logs = [self.likelihood(place) for place in places]
        best = max(logs)
        return [weight * max(one - best, -VOTE_MOST) for one in logs]


class Evidence:
    """The pairs that count."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: list[tuple[float, Pair]] = []
        """Each with its weight, the latest last."""

    def clear(self) -> None:
        """The back end is another one now."""
        self._pairs.clear()

    def add(self, pair: Pair) -> None:
        """One more; it may show that the knee moved."""
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
        """Between the lowest limit of all and the highest; beyond them nothing is known."""
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
        """What all of them say together; nothing without any."""
        if not self._pairs:
            return None
        places = self._places()
        sums = [sum(column) for column in zip(*self._votes(places), strict=True)]
        best = max(sums)
        least = next(n for n, one in enumerate(sums) if one >= best - PLAUSIBLE)
        cautious = max(n for n, one in enumerate(sums) if one >= best - CAUTIOUS)
        return Knees(places[least] if least else 0.0, places[sums.index(best)], places[cautious])
