"""The timers of one partition: one heap for everything that waits there for an answer."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TIMERS_SWEPT_AT = 1_000
"""The heap is swept when it has at least so many timers: most of them are not needed any more."""


class Timers:
    """A heap of waiting objects, ordered by their deadlines. Each part registers the types of the
    objects for which it sets timers."""

    __slots__ = ("_count", "_heap", "_ring", "_swept_at", "_waits")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Any]] = []
        self._count = 0
        self._swept_at = TIMERS_SWEPT_AT
        self._ring: dict[type, Callable[[Any, float], None]] = {}
        self._waits: dict[type, Callable[[Any], bool]] = {}

    def register(
        self, kind: type, *, ring: Callable[[Any, float], None], waits: Callable[[Any], bool]
    ) -> None:
        """Call `ring` with an object of this type when its timer is due. `waits` tells whether the
        object still waits; if not, its timer may be dropped."""
        self._ring[kind] = ring
        self._waits[kind] = waits

    def set(self, at: float, waiting: object) -> None:
        """Set a timer. It cannot be cancelled: `ring` checks whether it still matters."""
        self._count += 1
        heappush(self._heap, (at, self._count, waiting))
        if len(self._heap) > self._swept_at:
            # Most objects are served long before their deadlines: drop their timers together.
            self._heap = [one for one in self._heap if self._waits[type(one[2])](one[2])]
            heapify(self._heap)
            self._swept_at = 2 * len(self._heap) + TIMERS_SWEPT_AT

    def ring(self, now: float) -> None:
        """Ring all timers that are due."""
        while self._heap and self._heap[0][0] <= now:
            waiting = heappop(self._heap)[2]
            self._ring[type(waiting)](waiting, now)

    def waiting(self, kind: type) -> list[Any]:
        """Return the objects of this type that have a timer; some may not wait any more."""
        return [waiting for _, _, waiting in self._heap if type(waiting) is kind]

    def next_at(self) -> float:
        """Return when the next timer rings; infinity if there is none. Timers of objects that do
        not wait any more are dropped, so that the partition is not woken for them."""
        heap = self._heap
        while heap:
            at, _, waiting = heap[0]
            if self._waits[type(waiting)](waiting):
                return at
            heappop(heap)
        return inf
