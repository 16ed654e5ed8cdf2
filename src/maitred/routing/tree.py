"""The tree in which partitions forward to their parents.

Partition 0 is the root; with degree d its children are 1 to d, those of 1 are d + 1 to 2d, and so
on: parent(p) = ceil(p / d) - 1. The shape depends on nothing but the degree, so a queue that grows
or shrinks changes no parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import InvalidPartition
from maitred.routing.keys import check_partition, check_partitions

if TYPE_CHECKING:
    from collections.abc import Iterator

DEGREE = 20
"""The most children of a partition, Cadence's default: one level below the root has 20 partitions,
two have 420."""


def parent(partition: int, degree: int = DEGREE) -> int | None:
    """Return the partition that this one forwards to; None for the root."""
    check_partition(partition)
    check_degree(degree)
    # ceil(p / d) - 1 without floating point.
    return (partition - 1) // degree if partition else None


def children(partition: int, partitions: int, degree: int = DEGREE) -> range:
    """Return the partitions that forward to this one, in a queue of `partitions`."""
    check_partitions(partitions)
    check_degree(degree)
    if not 0 <= partition < partitions:
        raise InvalidPartition(f"Partition {partition} does not exist; there are {partitions}.")
    first = partition * degree + 1
    return range(min(first, partitions), min(first + degree, partitions))


def path_to_root(partition: int, degree: int = DEGREE) -> Iterator[int]:
    """Yield the partition itself, its parent, and so on to 0."""
    at: int | None = partition
    while at is not None:
        up = parent(at, degree)
        yield at
        at = up


def depth(partition: int, degree: int = DEGREE) -> int:
    """Return how many forwards it takes to the root."""
    return sum(1 for _ in path_to_root(partition, degree)) - 1


def check_degree(degree: int) -> int:
    """Return the degree if a tree can have it, else raise `InvalidPartition`."""
    if type(degree) is not int or degree < 1:
        raise InvalidPartition(f"A node of the tree needs at least 1 child, not {degree!r}.")
    return degree
