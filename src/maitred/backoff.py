"""Exponential backoff with 50 % jitter: how long to wait before the next try.

The wait doubles with each failure up to a limit, and a random half of it is left out. Clients that
failed at the same moment then come back spread over half of the wait, and none comes back sooner
than after the other half. Full jitter (from zero) would spread them wider, but lets some of them
try again at once, which is what backoff is to prevent.
"""

from __future__ import annotations

from typing import Final, Protocol

DOUBLINGS_MAX: Final = 60
"""Further doublings change nothing: the first wait times 2**60 is beyond every limit, and a float
still holds it."""


class Chance(Protocol):
    """The source of the jitter; `random.Random` is one."""

    def random(self) -> float:
        """Return a number from 0 to 1."""
        ...


def backoff_seconds(failures: int, first: float, longest: float, chance: Chance) -> float:
    """Return the seconds to wait after this many failures in a row: after the first one between
    half of `first` and all of it, and later never more than `longest`."""
    doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
    return min(first * 2.0**doublings, longest) * (0.5 + 0.5 * chance.random())
