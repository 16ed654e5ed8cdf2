"""How long partitions that are in the store alone have been so: which queues to forget. Pure.

The store does not say when a partition was last used. The shard that owns it looks at the rows from
time to time. A row whose range id is the same as before was not used in between. After a restart
the time starts anew: a queue is forgotten later then, never too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.matching.records import PartitionKey
    from maitred.routing.counts import PartitionCounts
    from maitred.settings import Queue


class Idleness:
    """Remembers since when rows have had their range ids. A pass looks at every row once."""

    def __init__(self) -> None:
        self._before: dict[PartitionKey, tuple[int, float]] = {}
        self._now: dict[PartitionKey, tuple[int, float]] = {}
        self.waiting = True
        """Whether the last pass saw rows that no shard has in memory, or one was let go since."""

    def seen(self, key: PartitionKey, range_id: int, now: float) -> float:
        """The row is there and nobody has it in memory; return for how many seconds so far."""
        known = self._before.get(key)
        if known is None or known[0] != range_id:
            known = (range_id, now)
        self._now[key] = known
        return now - known[1]

    def pass_ends(self) -> None:
        """Forget those that were not seen in this pass."""
        self._before, self._now = self._now, {}
        self.waiting = bool(self._before)


def is_as_new(counts: PartitionCounts | None, settings: Queue) -> bool:
    """Whether a new queue would have the same counts, so that deleting its row changes nothing.

    What a person or the load has changed stays until a person deletes the queue.
    """
    return counts is None or counts.read == counts.write == settings.partitions
