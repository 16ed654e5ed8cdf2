"""Checks of numbers that come from outside, where a type alone promises nothing."""

from __future__ import annotations

import math


def is_whole(value: object, least: int) -> bool:
    """Whether it is a whole number of at least `least`; True and False are no numbers here."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Whether it is a number that can be calculated with: no NaN, no integer beyond a float."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) < 2**1023
    return isinstance(value, float) and not math.isnan(value)
