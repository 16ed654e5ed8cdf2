"""Round robin: one partition after the other, with separate positions for reads and for writes.

The first pick of a queue is partition 0. The positions lie in a bounded memory; once that has
evicted a queue, an unknown queue starts at a random partition instead. Otherwise, with more queues
in use than the memory holds, every pick would be a first pick, and partition 0 would get all tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.interface import Poll, RandomSource
from maitred.balancing.recent import Recent
from maitred.balancing.settings import SelectorSettings
from maitred.routing.keys import check_partitions

if TYPE_CHECKING:
    from maitred.routing.names import QueueId


class RoundRobin:
    """Picks the partitions of each queue in turn."""

    def __init__(self, random: RandomSource, settings: SelectorSettings | None = None) -> None:
        settings = settings or SelectorSettings()
        self._reads = Turns(random, settings.queues_max)
        self._writes = Turns(random, settings.queues_max)

    def write(self, queue: QueueId, partitions: int, now: float) -> int:
        check_partitions(partitions)
        return self._writes.next(queue, partitions)

    def read(self, queue: QueueId, partitions: int, now: float) -> Poll:
        check_partitions(partitions)
        return Poll(queue, self._reads.next(queue, partitions))

    @property
    def entries(self) -> int:
        return len(self._reads) + len(self._writes)

    def __repr__(self) -> str:
        return f"<RoundRobin, {self.entries} positions>"


class Turns:
    """Holds the partition picked last for each of the `queues_max` queues used most recently."""

    __slots__ = ("_last", "_random")

    def __init__(self, random: RandomSource, queues_max: int) -> None:
        self._random = random
        self._last: Recent[QueueId, int] = Recent(queues_max)

    def next(self, queue: QueueId, partitions: int) -> int:
        last = self._last.get(queue)
        if last is None:
            last = first_turn(self._last.forgot, partitions, self._random) - 1
        # The remainder is taken at each pick, so the partition count may change between picks.
        turn = (last + 1) % partitions
        self._last.put(queue, turn)
        return turn

    def __len__(self) -> int:
        return len(self._last)


def first_turn(forgot: bool, partitions: int, random: RandomSource) -> int:
    """Return the first partition of an unknown queue: 0 if it is surely new, else a random one."""
    return random.randrange(partitions) if forgot else 0
