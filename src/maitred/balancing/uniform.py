"""Random selection: every partition is as likely as any other. The selector keeps no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.interface import Poll, RandomSource
from maitred.routing.keys import check_partitions

if TYPE_CHECKING:
    from maitred.routing.names import QueueId


class Uniform:
    """Picks the partition of each read and each write uniformly at random."""

    def __init__(self, random: RandomSource) -> None:
        self._random = random

    def write(self, queue: QueueId, partitions: int, now: float) -> int:
        check_partitions(partitions)
        return self._random.randrange(partitions)

    def read(self, queue: QueueId, partitions: int, now: float) -> Poll:
        return Poll(queue, self.write(queue, partitions, now))

    @property
    def entries(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "<Uniform>"
