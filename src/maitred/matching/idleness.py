"""How long partitions have been in the store alone, to decide which queues to forget.

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
        """Note a row whose partition no shard has in memory; return for how many seconds."""
        known = self._before.get(key)
        if known is None or known[0] != range_id:
            known = (range_id, now)
        self._now[key] = known
        return now - known[1]

    def pass_ends(self) -> None:
        """Forget the rows that were not seen in this pass."""
        self._before, self._now = self._now, {}
        self.waiting = bool(self._before)


def is_as_new(counts: PartitionCounts | None, settings: Queue) -> bool:
    """Return whether a new queue would have the same counts, so that deleting the row changes
    nothing.

    Counts that an operator or the load has changed stay until an operator deletes the queue.
    """
    return counts is None or counts.read == counts.write == settings.partitions
