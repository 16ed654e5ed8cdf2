"""Decides how many partitions a queue should have: follows the load with hysteresis.

The number grows when the writable partitions have taken in more than they should for long enough.
It shrinks when fewer would do with room to spare, for longer. Growing changes both counts at once.
Shrinking lowers `write` first; `read` follows, from the highest partition down, for partitions that
have confirmed that they are drained, after the time that shrinking takes: so counts that an
operator set are not undone at once.
"""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.routing.counts import PartitionCounts
    from maitred.settings import Scaling


class Scaler:
    """Decides the partition counts of one queue, at its root."""

    __slots__ = ("_few_since", "_many_since", "_spare_since", "_version")

    def __init__(self) -> None:
        self._many_since = inf
        self._few_since = inf
        self._spare_since = inf
        self._version = -1

    def wanted(
        self,
        counts: PartitionCounts,
        tasks_per_second: float,
        drained: Mapping[int, int],
        settings: Scaling,
        now: float,
    ) -> tuple[int, int] | None:
        """Return the new counts (read, write), or None to leave them.

        `drained` has the version of the counts at which each partition confirmed that it is
        read-only and empty.
        """
        if not settings.adaptive:
            return None
        read, write = counts.read, self._write_wanted(counts, tasks_per_second, settings, now)
        if write > counts.write:
            return max(read, write), write
        if write < counts.write:
            return read, write
        if counts.version != self._version:
            self._version = counts.version
            self._spare_since = now
        if now - self._spare_since < settings.down_after_seconds:
            return None
        while read > write and drained.get(read - 1) == counts.version:
            read -= 1
        return (read, write) if read != counts.read else None

    def _write_wanted(
        self, counts: PartitionCounts, rate: float, settings: Scaling, now: float
    ) -> int:
        write, each = counts.write, settings.tasks_per_second
        target = max(1, ceil(rate / each))
        if rate > write * each and write < settings.partitions_max:
            self._few_since = inf
            self._many_since = min(self._many_since, now)
            if now - self._many_since >= settings.up_after_seconds:
                self._many_since = inf
                return min(target, settings.partitions_max)
        elif write > 1 and rate < (write - 1) * each * settings.down_share:
            self._many_since = inf
            self._few_since = min(self._few_since, now)
            if now - self._few_since >= settings.down_after_seconds:
                self._few_since = inf
                return max(1, min(write - 1, ceil(rate / (each * settings.down_share))))
        else:
            self._many_since = self._few_since = inf
        return write
