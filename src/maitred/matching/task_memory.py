"""The memory that waiting tasks of all partitions of a shard share.

Each partition keeps the front of its lines in memory, up to `buffer_bytes` per line. A thousand
queues with a backlog would need a thousand times as much, so all of them share one budget. While it
is used up, each line has no more than `FLOOR_BYTES` in memory, and the rest of it waits in the
store; the backlog of other queues never takes that much away.
"""

from __future__ import annotations

from math import inf
from typing import Final

FLOOR_BYTES: Final = 64 * 1024
"""What every line may have in memory in any case: some hundred small tasks."""


class TaskMemory:
    """The budget of one shard, and how much of it is used."""

    __slots__ = ("most", "used")

    def __init__(self, most: float = inf) -> None:
        self.most = most
        self.used = 0
        """Payloads of tasks that wait in memory, for a worker or until they are due."""

    def refuses(self, mine: int) -> bool:
        """Return whether a line that has `mine` bytes may have no more."""
        return self.used >= self.most and mine >= FLOOR_BYTES

    def share(self, wanted: int, mine: int) -> int:
        """Return how many bytes a line may have that wants so many and has `mine`."""
        return int(min(wanted, max(FLOOR_BYTES, mine + self.most - self.used)))
