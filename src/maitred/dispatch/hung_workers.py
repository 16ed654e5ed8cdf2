"""Workers that were found to hang: each partition that still gives their slots away is told, once.

A worker offers the same slots at many partitions, and a gateway can tell only the one that it had a
slot of. If another one gives it a slot of that worker, that one hears of it then, and the query
asks again. Once, since the worker may have woken up by then, and has offered the slot anew.
"""

from __future__ import annotations

from typing import Final

Place = tuple[str, str, int]
"""Namespace, queue and partition."""

REMEMBERED_MAX: Final = 1_000
"""Workers; the one that hung longest ago is forgotten first."""


class HungWorkers:
    """All that one gateway has found."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.known: dict[bytes, tuple[float, set[Place]]] = {}
        """By session: until when it counts, and who has heard of it."""

    def found(self, session: bytes, places: set[Place], now: float) -> None:
        """It hangs, and these have heard so."""
        self.known.pop(session, None)
        if len(self.known) >= REMEMBERED_MAX:
            del self.known[next(iter(self.known))]
        self.known[session] = (now + self._seconds, places)

    def is_news(self, session: bytes, place: Place, now: float) -> bool:
        """Whether it hangs and this place has not heard of it; from here on it has."""
        known = self.known.get(session)
        if known is None:
            return False
        until, told = known
        if now >= until:
            del self.known[session]
            return False
        if place in told:
            return False
        told.add(place)
        return True
