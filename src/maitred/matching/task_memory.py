"""The memory that waiting tasks of all partitions of a shard share.

Each partition keeps the front of its lines in memory, up to `buffer_bytes` a line. With many queues
that adds up: a thousand queues with a backlog would take a thousand times as much. So there is a
budget for all of them. While it is used up, a line gets no more than `FLOOR_BYTES`, and the rest of
it waits in the store; nobody else's backlog keeps a queue from that much.
"""

from __future__ import annotations

from math import inf
from typing import Final

FLOOR_BYTES: Final = 64 * 1024
"""What every line may have in memory whatever the others have: some hundred small tasks."""


class TaskMemory:
    """The budget of one shard, and how much of it is used."""

    __slots__ = ("most", "used")

    def __init__(self, most: float = inf) -> None:
        self.most = most
        self.used = 0
        """Payloads of tasks that wait in memory, for a worker or for their time."""

    def refuses(self, mine: int) -> bool:
        """Whether a line that has `mine` may have no more."""
        return self.used >= self.most and mine >= FLOOR_BYTES

    def share(self, wanted: int, mine: int) -> int:
        """How much a line may have that wants so much and has `mine`: that and what is left."""
        return int(min(wanted, max(FLOOR_BYTES, mine + self.most - self.used)))
