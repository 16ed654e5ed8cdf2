"""Results in memory, for callers that ask soon: bounded, the oldest are dropped first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from maitred.matching.task_ends import Ended


class Outcomes:
    """The last results of a partition, by task."""

    __slots__ = ("_bytes", "_ended", "_most", "_most_bytes")

    def __init__(self, most: int, most_bytes: int) -> None:
        # An ordinary dictionary becomes slow when the oldest key is taken out again and again.
        self._ended: OrderedDict[int, Ended] = OrderedDict()
        self._bytes = 0
        self._most = most
        self._most_bytes = most_bytes

    def put(self, sequence: int, ended: Ended) -> None:
        kept = self._ended
        if sequence in kept:
            self.forget(sequence)
        kept[sequence] = ended
        self._bytes += len(ended.body)
        while len(kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= len(kept.popitem(last=False)[1].body)

    def get(self, sequence: int, now: float) -> Ended | None:
        ended = self._ended.get(sequence)
        if ended is None or now < ended.until:
            return ended
        self._bytes -= len(self._ended.pop(sequence).body)
        return None

    def forget_expired(self, now: float) -> None:
        """Forget expired results at the front, so that a queue at rest needs no memory for them."""
        kept = self._ended
        while kept:
            oldest = next(iter(kept))
            if kept[oldest].until > now:
                return
            self._bytes -= len(kept.pop(oldest).body)

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
