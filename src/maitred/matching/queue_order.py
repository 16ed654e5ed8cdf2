"""Queues in an order, of which lists are told a page at a time. Pure.

A page is found by bisection, so that it costs the same wherever it is. Putting ten thousand queues
in order takes some ten milliseconds, so it is done in portions.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from maitred.matching.queue_meters import QueueName

QueuePlace = tuple[float, str, str]
"""The place of a queue in an order; the lowest place comes first. Its parts: the number by which
the queues are ordered, with the opposite sign, so that the highest comes first (0 in an order by
name); the namespace; the name."""

PORTION: Final = 1_000
"""Places that are made and sorted in one portion: half a millisecond. The last portion merges all
of them, which takes two or three milliseconds for ten thousand."""


class QueueFilter(NamedTuple):
    """Which queues a list is about."""

    namespace: str = ""
    """Empty: all."""
    match: str = ""
    """A part of the name; upper and lower case are alike."""
    within: Collection[str] | None = None
    """Namespaces that may be told; None: all."""

    def passing(self, places: Sequence[QueuePlace]) -> Sequence[QueuePlace]:
        """Return the places of the queues that pass, in the same order."""
        if self.namespace:
            places = [place for place in places if place[1] == self.namespace]
        if self.within is not None:
            within = frozenset(self.within)
            places = [place for place in places if place[1] in within]
        if self.match:
            part = self.match.lower()
            places = [place for place in places if part in place[2].lower()]
        return places


class QueuePage(NamedTuple):
    """A page of an order."""

    places: Sequence[QueuePlace]
    more: bool
    """Whether there are more after the last one."""
    total: int
    """How many queues pass the filter."""


class QueueOrder:
    """Queues by a number, the highest first, and those with the same number by name."""

    def __init__(self) -> None:
        self._places: list[QueuePlace] = []
        self._values: Mapping[QueueName, float] = {}

    def __len__(self) -> int:
        return len(self._places)

    def update(self, values: Mapping[QueueName, float]) -> Iterator[None]:
        """Put these queues in order, in place of the earlier ones: in portions, one for each item
        of the iterator. Until its end the order is the earlier one."""
        if values == self._values:  # as the names are nearly always
            return
        yield
        places: list[QueuePlace] = []
        items = iter(values.items())
        while portion := [(-value, *name) for name, value in islice(items, PORTION)]:
            portion.sort()
            places += portion
            yield
        places.sort()  # runs that are sorted are merged
        self._places, self._values = places, values

    def page(self, after: QueuePlace | None, most: int, wanted: QueueFilter) -> QueuePage:
        """Return the first `most` places after this one, None meaning the beginning."""
        places = wanted.passing(self._places)
        begin = 0 if after is None else bisect_right(places, after)
        return QueuePage(places[begin : begin + most], begin + most < len(places), len(places))
