"""The model's store: a group commit takes its time, one at a time per host; so does a read."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from studies.matching.clock import Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.matching.records import Changes, Later, PartitionKey
    from maitred.node.owned import Owned
    from maitred.simulation.disk import Contents
    from maitred.store.interface import SegmentRead
    from studies.matching.clock import Clock


class SlowStore:
    """Answers the reads of partitions after the time that a commit takes."""

    def __init__(self, contents: Contents, seconds: float) -> None:
        self._contents = contents
        self._seconds = seconds

    async def segments(
        self, key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        await Pause(self._seconds)
        return self._contents.segments(key, priority, after, tasks, most_bytes)

    async def later(
        self, key: PartitionKey, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        await Pause(self._seconds)
        return self._contents.later(key, before, most, most_bytes)


class ModelWriter:
    """Commits the changes of the partitions of one host, as a shard's writer does."""

    def __init__(
        self,
        clock: Clock,
        contents: Contents,
        commit_seconds: float,
        committed: Callable[[Owned], None],
    ) -> None:
        self._clock = clock
        self._contents = contents
        self._seconds = commit_seconds
        self._committed = committed
        self._wanting: dict[Owned, float] = {}
        self._busy = False
        self._wake_at = inf
        self.commits = 0
        self.written: Counter[int] = Counter()
        """Tasks that were written, by partition."""

    def look_at(self, owned: Owned, now: float) -> None:
        """Commit the partition's changes when they are due, if it has some."""
        partition = owned.partition
        at = partition.ledger.wanted_at(partition.settings.finish_seconds)
        if at == inf:
            self._wanting.pop(owned, None)
            return
        self._wanting[owned] = at
        self._wake(max(at, now))

    def _wake(self, at: float) -> None:
        at = max(at, self._clock.now)
        if not self._busy and at < self._wake_at:
            self._wake_at = at
            self._clock.call_at(at, self._begin, at)

    def _begin(self, set_for: float) -> None:
        if set_for != self._wake_at:
            return  # there was an earlier one
        self._wake_at = inf
        if self._busy:
            return
        now = self._clock.now
        group: list[tuple[Owned, Changes]] = []
        for owned in [owned for owned, at in self._wanting.items() if at <= now]:
            del self._wanting[owned]
            batch = owned.partition.ledger.take(now)
            if batch is not None:
                tasks = sum(segment.tasks for segment in batch.changes.segments)
                self.written[owned.key.partition] += tasks + len(batch.changes.later)
                group.append((owned, batch.changes))
        if group:
            self._busy = True
            self._clock.call_at(now + self._seconds, self._end, group)
        elif self._wanting:
            self._wake(min(self._wanting.values()))

    def _end(self, group: list[tuple[Owned, Changes]]) -> None:
        self.commits += 1
        self._busy = False
        self._contents.commit([changes for _, changes in group])
        for owned, _ in group:
            owned.partition.store_replies.committed(self._clock.now)
            self._committed(owned)
        if self._wanting:
            self._wake(min(self._wanting.values()))
