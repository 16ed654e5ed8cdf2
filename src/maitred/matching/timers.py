"""The timers of one partition: one heap for everything that waits there for an answer."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TIMERS_SWEPT_AT = 1_000
"""So many timers that may have nobody waiting are kept before they are looked through."""


class Timers:
    """What waits, by the moment when its time is up. A part registers the kinds that it sets."""

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
        """Call `ring` when the time of something of this kind is up. `waits` tells whether it still
        waits; if it does not, its timer may be dropped unrung."""
        self._ring[kind] = ring
        self._waits[kind] = waits

    def set(self, at: float, waiting: object) -> None:
        """Ring then. A timer is not taken back: whoever is rung looks whether it still matters."""
        self._count += 1
        heappush(self._heap, (at, self._count, waiting))
        if len(self._heap) > self._swept_at:
            # Most who wait are served long before: their timers go in bulk.
            self._heap = [one for one in self._heap if self._waits[type(one[2])](one[2])]
            heapify(self._heap)
            self._swept_at = 2 * len(self._heap) + TIMERS_SWEPT_AT

    def ring(self, now: float) -> None:
        """Ring all that are due."""
        while self._heap and self._heap[0][0] <= now:
            waiting = heappop(self._heap)[2]
            self._ring[type(waiting)](waiting, now)

    def waiting(self, kind: type) -> list[Any]:
        """Return everything of this kind that has a timer, in no order; some may wait no more."""
        return [waiting for _, _, waiting in self._heap if type(waiting) is kind]

    def next_at(self) -> float:
        """When the next one rings; infinity if there is none. Most who wait are served before their
        time: their timers are dropped here, so that nobody is woken for them."""
        heap = self._heap
        while heap:
            at, _, waiting = heap[0]
            if self._waits[type(waiting)](waiting):
                return at
            heappop(heap)
        return inf
