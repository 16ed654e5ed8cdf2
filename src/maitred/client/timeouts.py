"""Checks the timeouts that callers give."""

from __future__ import annotations

from math import isnan
from typing import Final

from maitred.errors import InvalidArgument

LONGEST_SECONDS: Final = 365 * 86_400.0
"""The longest timeout; beyond it timers of some loops overflow."""


def checked_timeout(seconds: float) -> float:
    """Return the timeout, or raise `InvalidArgument`."""
    try:
        if seconds > 0 and not isnan(seconds):
            return min(float(seconds), LONGEST_SECONDS)
    except TypeError:
        pass  # the sentence below is right
    raise InvalidArgument(f"A timeout is a number of seconds above 0, not {seconds!r}.")
