"""Group commit on a disk of virtual time, as a shard does it: one commit at a time a host."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.matching.records import Changes
    from maitred.simulation.disk import Contents
    from studies.matching.clock import Clock
    from studies.matching.place import Place


class Writer:
    """Of one host."""

    def __init__(self, clock: Clock, contents: Contents, commit_seconds: float) -> None:
        self._clock = clock
        self._contents = contents
        self._seconds = commit_seconds
        self._wanting: dict[Place, float] = {}
        self._busy = False
        self._wake_at = inf
        self.commits = 0

    def look_at(self, place: Place) -> None:
        """Something happened to the partition: does it want to write?"""
        partition = place.partition
        at = partition.ledger.wanted_at(partition.settings.finish_seconds)
        if at == inf:
            self._wanting.pop(place, None)
            return
        self._wanting[place] = at
        self._wake(at)

    def _wake(self, at: float) -> None:
        at = max(at, self._clock.now)
        if not self._busy and at < self._wake_at:
            self._wake_at = at
            self._clock.at(at, self._begin, at)

    def _begin(self, set_for: float) -> None:
        if set_for != self._wake_at:
            return  # there was an earlier one
        self._wake_at = inf
        if self._busy:
            return
        now = self._clock.now
        group: list[tuple[Place, Changes]] = []
        for place in [place for place, at in self._wanting.items() if at <= now]:
            del self._wanting[place]
            batch = place.partition.ledger.take(now)
            if batch is not None:
                place.written += sum(segment.tasks for segment in batch.changes.segments)
                place.written += len(batch.changes.later)
                group.append((place, batch.changes))
        if group:
            self._busy = True
            self._clock.at(now + self._seconds, self._end, group)
        elif self._wanting:
            self._wake(min(self._wanting.values()))

    def _end(self, group: list[tuple[Place, Changes]]) -> None:
        self.commits += 1
        self._busy = False
        self._contents.commit([changes for _, changes in group])
        for place, _ in group:
            place.partition.store_replies.committed(self._clock.now)
            place.touch()
        if self._wanting:
            self._wake(min(self._wanting.values()))
