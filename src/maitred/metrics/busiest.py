"""Which of many queues have series of their own, so that ten thousand queues do not have as many.

Each process names a limited number of queues, the busiest, and sums the others under one label.
The sums have to stay counters: they must not fall when a queue gets a name. So the counts of a
queue are divided between its own series and the sum by *when* they were counted: `SummedCounts`
adds to the sum only what is counted while the queue has no name.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

REST: Final = ":rest"
"""The label of everything that is summed. No namespace and no queue can have this name, because
their names have no colon."""

STAY_FACTOR: Final = 2.0
"""A queue that has a name keeps it unless another one is busier than twice as busy: series that
come and go are of little use, and cost Prometheus more than those that stay."""

Key = TypeVar("Key", bound="Hashable")


def busiest(activity: Mapping[Key, float], named: Collection[Key], most: int) -> set[Key]:
    """Return which keys are to have series of their own: at most `most`, the busiest first. Those
    that are named already are preferred."""
    if len(activity) <= most:
        return set(activity)

    def rank(key: Key) -> tuple[float, bool]:
        stays = key in named
        return activity[key] * (STAY_FACTOR if stays else 1.0), stays

    return set(nlargest(most, activity, key=rank))


class SummedCounts:
    """The counts of one queue, divided into those of its own series and those of the sum."""

    __slots__ = ("_elsewhere", "_seen")

    def __init__(self, size: int) -> None:
        self._seen: list[float] = [0.0] * size
        """The counts at the last look."""
        self._elsewhere: list[float] = [0.0] * size
        """What was added to the sum."""

    def look(self, counts: Sequence[float], total: list[float] | None) -> list[float]:
        """Add what is new in the counts to the total, unless the queue has a name (None); return
        the counts that are the queue's own."""
        seen = self._seen
        if total is not None:
            elsewhere = self._elsewhere
            for index, value in enumerate(counts):
                more = value - seen[index]
                if more:
                    total[index] += more
                    elsewhere[index] += more
        self._seen = list(counts)
        return [value - away for value, away in zip(counts, self._elsewhere, strict=True)]
