"""Checks of numbers that come from outside, where a type alone promises nothing."""

from __future__ import annotations

import math


def is_whole(value: object, least: int) -> bool:
    """Return whether the value is an integer of at least `least`; booleans do not count as one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Return whether the value is a number; NaN and integers too large for a float are not."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) < 2**1023
    return isinstance(value, float) and not math.isnan(value)
