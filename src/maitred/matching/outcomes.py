"""Results in memory, for callers that ask soon: bounded, the oldest are dropped first."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

if TYPE_CHECKING:
    from maitred.matching.task_ends import Ended

SPARE_SHARE: Final = 64
"""If there is no room for a result, the oldest are dropped until this fraction (1/64) of the room
is free. A dictionary becomes slow when its oldest key is taken out again and again, and an ordered
one takes twice as long for each result."""

LOOKED_AT: Final = 1_000
"""Results that are looked at together when the oldest are dropped."""


class Outcomes:
    """The last results of a partition, by task."""

    __slots__ = ("_bytes", "_ended", "_most", "_most_bytes")

    def __init__(self, most: int, most_bytes: int) -> None:
        self._ended: dict[int, Ended] = {}
        """The results in the order of their ends."""
        self._bytes = 0
        self._most = most
        self._most_bytes = most_bytes

    def put(self, sequence: int, ended: Ended) -> None:
        kept = self._ended
        if sequence in kept:
            self.forget(sequence)
        kept[sequence] = ended
        self._bytes += len(ended.body)
        if len(kept) > self._most or self._bytes > self._most_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest results."""
        kept = self._ended
        most = self._most - self._most // SPARE_SHARE
        most_bytes = self._most_bytes - self._most_bytes // SPARE_SHARE
        while len(kept) > most or self._bytes > most_bytes:
            for oldest in list(islice(kept, LOOKED_AT)):
                if len(kept) <= most and self._bytes <= most_bytes:
                    return
                self.forget(oldest)

    def get(self, sequence: int, now: float) -> Ended | None:
        ended = self._ended.get(sequence)
        if ended is None or now < ended.until:
            return ended
        self._bytes -= len(self._ended.pop(sequence).body)
        return None

    def forget_expired(self, now: float) -> None:
        """Forget expired results at the front, so that a queue at rest needs no memory for them."""
        kept = self._ended
        for oldest in [*takewhile(lambda one: kept[one].until <= now, kept)]:
            self.forget(oldest)

    def in_memory_only(self, now: float) -> list[tuple[int, Ended]]:
        """Return the results that have not expired and are not in the store, in the order of their
        ends."""
        return [
            (sequence, ended)
            for sequence, ended in self._ended.items()
            if not ended.stored and ended.until > now
        ]

    def handed_to_store(self, sequence: int, ended: Ended) -> None:
        """Note that the result is written to the store with the next commit."""
        self._ended[sequence] = replace(ended, stored=True)

    def forget(self, sequence: int) -> None:
        """Forget the result of a task that runs again."""
        ended = self._ended.pop(sequence, None)
        if ended is not None:
            self._bytes -= len(ended.body)

    def __len__(self) -> int:
        return len(self._ended)
