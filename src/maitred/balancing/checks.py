"""Checks of numbers that come from outside, where a type alone promises nothing."""

from __future__ import annotations

import math

from maitred.errors import InvalidPartition


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


def check_partitions(partitions: int) -> None:
    """Raise `InvalidPartition` unless there is a partition to pick."""
    if not is_whole(partitions, 1):
        raise InvalidPartition(
            f"A queue has one partition or more, not {partitions!r}.",
            remedy="Partition 0, the root, always exists: ask for 1 or more.",
        )


def check_partition(partition: int) -> None:
    """Raise `InvalidPartition` unless it can be the number of a partition."""
    if not is_whole(partition, 0):
        raise InvalidPartition(f"The partition {partition!r} is not a whole number from 0.")
