"""The meters of all queues of a shard, and which of the queues have series of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.matching.queue_meter import COUNTERS, END_STATUSES, QueueMeter
from maitred.metrics.busiest import SummedCounts, busiest
from maitred.metrics.histogram import WORK_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from maitred.matching.task_ends import EndStatus

METERS_MAX: Final = 20_000
"""Most meters, some 3 KiB each: as many as a node has queues by default (`limits.queues`). Beyond
it, the meters of queues that are not loaded are added to the sum and forgotten."""

QueueName = tuple[str, str]
"""The namespace and the name of a queue."""

_BUCKETS: Final = len(WORK_BOUNDS) + 1
_SIZE: Final = len(COUNTERS) + len(END_STATUSES) + 2 * (_BUCKETS + 1)


class QueueCounts(NamedTuple):
    """Everything that only grows of one queue, or of several that are summed."""

    counters: dict[str, float]
    """By the names of a meter's attributes."""
    ends: dict[EndStatus, float]
    wait_counts: Sequence[float]
    wait_seconds: float
    run_counts: Sequence[float]
    run_seconds: float

    @classmethod
    def of(cls, values: Sequence[float]) -> QueueCounts:
        """Take apart what `QueueMeter.counts` returned."""
        first = len(COUNTERS)
        second = first + len(END_STATUSES)
        third = second + _BUCKETS
        return cls(
            dict(zip(COUNTERS, values[:first], strict=True)),
            dict(zip(END_STATUSES, values[first:second], strict=True)),
            values[second:third],
            values[third],
            values[third + 1 : -1],
            values[-1],
        )


class _Entry:
    __slots__ = ("changes", "events", "meter", "summed")

    def __init__(self) -> None:
        self.meter = QueueMeter()
        self.summed = SummedCounts(_SIZE)
        self.events = 0
        """The meter's events at the last look."""
        self.changes = 0


class QueueMeters:
    """One meter for each queue that had a partition here."""

    def __init__(
        self, loaded: Callable[[], Collection[QueueName]], meters_max: int = METERS_MAX
    ) -> None:
        """`loaded` returns the queues that have a partition here now."""
        self._loaded = loaded
        self._meters_max = meters_max
        self._entries: dict[QueueName, _Entry] = {}
        self._named: set[QueueName] = set()
        self._rest: list[float] = [0.0] * _SIZE

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, name: QueueName) -> QueueMeter:
        """Return the meter of the queue."""
        entry = self._entries.get(name)
        if entry is None:
            if len(self._entries) >= self._meters_max:
                self._forget_unloaded()
            entry = self._entries[name] = _Entry()
        return entry.meter

    def _forget_unloaded(self) -> None:
        loaded = self._loaded()
        for name in [name for name in self._entries if name not in loaded]:
            entry = self._entries.pop(name)
            entry.summed.look(entry.meter.counts(), self._rest)
            self._named.discard(name)

    def choose(self, present: Mapping[QueueName, float], most: int) -> set[QueueName]:
        """Choose the queues that have series of their own until the next call, and return them.
        `present` says how much waits and runs of each queue that is loaded; what happened to a
        queue since the last call counts as well."""
        activity = {}
        for name, entry in self._entries.items():
            events = entry.meter.events
            activity[name] = events - entry.events + present.get(name, 0.0)
            entry.events = events
        self._named = busiest(activity, self._named, most)
        return self._named

    def names(self) -> list[QueueName]:
        """Return all queues that have a meter."""
        return list(self._entries)

    def all(self) -> list[tuple[QueueName, QueueMeter]]:
        """Return all queues with their meters."""
        return [(name, entry.meter) for name, entry in self._entries.items()]

    def known(self, name: QueueName) -> QueueMeter | None:
        """Return the meter of the queue, if it has one."""
        entry = self._entries.get(name)
        return None if entry is None else entry.meter

    def look(self, name: QueueName) -> QueueCounts | None:
        """Return the counts of a queue that has series of its own; add those of another queue to
        the sum, and return None."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        if name in self._named:
            return QueueCounts.of(entry.summed.look(entry.meter.counts(), None))
        changes = entry.meter.changes
        if changes != entry.changes:  # most of ten thousand queues have none
            entry.changes = changes
            entry.summed.look(entry.meter.counts(), self._rest)
        return None

    def rest(self) -> QueueCounts:
        """Return the sum of the queues that have no series of their own."""
        return QueueCounts.of(self._rest)
