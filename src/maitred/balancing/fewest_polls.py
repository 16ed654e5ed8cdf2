"""Fewest polls: read where the fewest of this client's polls are waiting, write anywhere.

The selector scans forward from a random partition; a strictly smaller count wins, so a tie goes to
the first partition scanned, and a partition without polls ends the scan. Counts are kept by
partition number. They include partitions beyond a reduced partition count whose polls are still
outstanding, so they stay right when the partition count grows back. A count of 0 is not stored, so
the number of outstanding polls bounds the memory.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from maitred.balancing.interface import Poll, RandomSource
from maitred.routing.keys import check_partitions

if TYPE_CHECKING:
    from maitred.balancing.hints import BacklogHint
    from maitred.routing.names import QueueId


class FewestPolls:
    """Spreads the outstanding polls of one client evenly over the partitions."""

    def __init__(self, random: RandomSource) -> None:
        self._random = random
        self._outstanding: dict[QueueId, dict[int, int]] = {}
        self._abandoned: deque[tuple[QueueId, int]] = deque()

    def write(self, queue: QueueId, partitions: int, now: float) -> int:
        check_partitions(partitions)
        return self._random.randrange(partitions)

    def read(self, queue: QueueId, partitions: int, now: float) -> Poll:
        check_partitions(partitions)
        self._settle()
        counts = self._outstanding.setdefault(queue, {})
        partition = self._fewest(counts, partitions)
        counts[partition] = counts.get(partition, 0) + 1
        return Poll(queue, partition, self)

    def outstanding(self, queue: QueueId, partition: int) -> int:
        """Return how many polls of this client are waiting at a partition."""
        self._settle()
        return self._outstanding.get(queue, {}).get(partition, 0)

    def finished(
        self,
        queue: QueueId,
        partition: int,
        now: float,
        hint: BacklogHint | None,
    ) -> None:
        self._release(queue, partition)

    def abandoned(self, queue: QueueId, partition: int) -> None:
        # The garbage collector may call this in the middle of `read`, so only record it here.
        self._abandoned.append((queue, partition))

    @property
    def entries(self) -> int:
        self._settle()
        return sum(len(counts) for counts in self._outstanding.values())

    def __repr__(self) -> str:
        return f"<FewestPolls, polls at {self.entries} partitions>"

    def _fewest(self, counts: dict[int, int], partitions: int) -> int:
        start = self._random.randrange(partitions)
        best = start
        fewest = counts.get(start, 0)
        for step in range(1, partitions):
            if fewest == 0:
                break
            partition = (start + step) % partitions
            count = counts.get(partition, 0)
            if count < fewest:
                best, fewest = partition, count
        return best

    def _settle(self) -> None:
        while self._abandoned:
            self._release(*self._abandoned.popleft())

    def _release(self, queue: QueueId, partition: int) -> None:
        counts = self._outstanding[queue]
        counts[partition] -= 1
        if not counts[partition]:
            del counts[partition]
            if not counts:
                del self._outstanding[queue]
