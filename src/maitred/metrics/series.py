"""The last hour of a shard's queues, in bounded memory. Pure.

The shard samples its queues once a step: `begin`, `add` for each queue that has something to tell,
`end`. Each namespace has a series, which is the sum of all its queues, and so has the shard. Of
the queues the busiest have series of their own, as long as they stay among the busiest; a queue
that gets one has no past.

Rejected: series of the rest, as Prometheus gets them. There the sum of the named queues and of the
rest is a matter of the reader. Here the sum of a namespace would be that of hundreds of series for
each page that shows it.

A series is a ring of `STEPS` points. Each number of a point has a column, which takes 1.4 KiB and
is made when the number is not 0 for the first time: most queues wait in two or three of the 15
buckets. With all columns a series takes 33 KiB, and all series of a shard take 10 MiB at most; with
8 columns each they take 3 MiB. What happened lately to other queues is a number for each, of 20,000
at most, which is 3 MiB more.
"""

from __future__ import annotations

from array import array
from heapq import nlargest
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maitred.metrics.busiest import busiest
from maitred.metrics.points import BUCKETS, GAUGES, STEPS, WIDTH, Points

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

QUEUES_MAX: Final = 200
"""Most queues of a shard with series of their own."""

NAMESPACES_MAX: Final = 100
"""Most namespaces of a shard with series."""

CHOOSE_STEPS: Final = 6
"""The busiest are chosen once a minute: a series that is replaced loses its past."""

KEPT_ACTIVITY: Final = 0.95
"""Share of a queue's activity that still counts a minute later. Half of it counts after 14 minutes,
so that a queue with a burst every few minutes stays among the busiest between two bursts."""

ACTIVITY_MAX: Final = 20_000
"""Most queues whose activity is remembered: as many as have meters."""

LEAST_ACTIVITY: Final = 0.01
"""Less activity is forgotten: a single event counts for an hour and a half."""

BACK_STEPS: Final = 6
"""A clock that was set back by up to so many steps is waited for; after a larger step back the
series begin anew."""

ROWS_AT_ONCE: Final = 256
"""Queues of a namespace whose counts are summed together."""

HIGHEST: Final = 2**32 - 1
"""The highest number of a column."""

Key = TypeVar("Key", bound="Hashable")


def is_left_out(step: int, last: int) -> bool:
    """Return whether a step is not sampled because the clock was set back a little: `last` is the
    last step that was. What happens meanwhile belongs to the next step that is sampled."""
    return last - BACK_STEPS <= step <= last


GAUGES_FROM: Final = WIDTH - len(GAUGES)
"""Where the gauges stand in a point."""

NO_GAUGES: Final = (0,) * len(GAUGES)

_EMPTY: Final = bytes(4 * STEPS)


class Series:
    """The last hour of one queue, or of several that are summed."""

    __slots__ = ("_columns", "active", "since", "written")

    def __init__(self, since: int) -> None:
        self.since = since
        """The first step that it can know."""
        self.active = since
        """The last step in which something happened."""
        self.written = since - 1
        """The last step that was written."""
        self._columns: list[array[int] | None] = [None] * WIDTH

    def write(self, step: int, counts: Sequence[int] | None, gauges: Sequence[int]) -> None:
        """Write the point of a step: its counts with the waits by bucket (None: all are 0), and its
        gauges."""
        self.written = step
        slot, columns = step % STEPS, self._columns
        if counts is None:
            for column in columns[:GAUGES_FROM]:
                if column is not None:
                    column[slot] = 0
        else:
            self._write(0, slot, counts)
        self._write(GAUGES_FROM, slot, gauges)

    def _write(self, place: int, slot: int, values: Sequence[int]) -> None:
        columns = self._columns
        for value in values:
            column = columns[place]
            if column is not None or value:
                if column is None:
                    column = columns[place] = array("I", _EMPTY)
                try:
                    column[slot] = value
                except OverflowError:
                    column[slot] = min(max(value, 0), HIGHEST)
            place += 1

    def columns(self, slots: Sequence[int]) -> list[list[int] | None]:
        """Return the numbers in these slots, by column; None: it has only zeros."""
        return [
            None if column is None else [column[slot] for slot in slots] for column in self._columns
        ]


class _BusiestSeries(Generic[Key]):
    """The series of the busiest keys."""

    def __init__(self, most: int) -> None:
        self.series: dict[Key, Series] = {}
        self._most = most
        self._activity: dict[Key, float] = {}
        """What happened lately to each key, those without a series included."""

    def write(
        self,
        key: Key,
        step: int,
        counts: Sequence[int] | None,
        gauges: Sequence[int],
        activity: int,
    ) -> None:
        """Write a point of a key, if the key has a series or there is room for one more."""
        if activity:
            self._activity[key] = self._activity.get(key, 0.0) + activity
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= self._most:
                return
            series = self.series[key] = Series(step)
        series.write(step, counts, gauges)
        series.active = step

    def end(self, step: int) -> None:
        """Write zeros for all that have no point of this step."""
        for series in self.series.values():
            if series.written < step:
                series.write(step, None, NO_GAUGES)

    def choose(self, step: int) -> None:
        """Forget the series of keys that others are busier than and, if there is no room left, of
        those to which nothing happened for an hour."""
        if len(self.series) >= self._most:
            for key, one in list(self.series.items()):
                if step - one.active >= STEPS:
                    del self.series[key]
        aged = ((key, KEPT_ACTIVITY * one) for key, one in self._activity.items())
        self._activity = {key: one for key, one in aged if one > LEAST_ACTIVITY}
        if len(self._activity) > ACTIVITY_MAX:
            self._activity = dict(nlargest(ACTIVITY_MAX, self._activity.items(), key=_activity))
        activity = dict.fromkeys(self.series, 0.0) | self._activity
        if len(activity) > self._most:
            named = busiest(activity, self.series, self._most)
            for key in self.series.keys() - named:
                del self.series[key]
            for key in named - self.series.keys():
                self.series[key] = Series(step + 1)


def _activity(item: tuple[object, float]) -> float:
    return item[1]


class _Sum:
    """The point of several queues together."""

    __slots__ = ("_rows", "activity", "backlog", "running", "slots")

    def __init__(self) -> None:
        self.backlog = self.running = self.slots = self.activity = 0
        self._rows: list[Sequence[int]] = []
        """Counts that are not summed yet: adding many rows at once costs half."""

    @property
    def gauges(self) -> tuple[int, int, int]:
        return self.backlog, self.running, self.slots

    def add(self, counts: Sequence[int]) -> None:
        rows = self._rows
        rows.append(counts)
        if len(rows) >= ROWS_AT_ONCE:
            self._rows = [_summed(rows)]

    @property
    def counts(self) -> Sequence[int] | None:
        """The sum of the counts; None: nothing was counted."""
        return _summed(self._rows) if self._rows else None


def _summed(rows: Sequence[Sequence[int]]) -> Sequence[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


class SeriesTable:
    """The series of one shard."""

    def __init__(self, queues_max: int = QUEUES_MAX, namespaces_max: int = NAMESPACES_MAX) -> None:
        self._queues_max, self._namespaces_max = queues_max, namespaces_max
        self._sums: dict[str, _Sum] = {}
        """The points of the namespaces that are being put together."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._queues = _BusiestSeries[tuple[str, str]](self._queues_max)
        self._namespaces = _BusiestSeries[str](self._namespaces_max)
        self._all: Series | None = None
        self._steps = array("q", [-1]) * STEPS
        """The step whose point is in each slot."""
        self._last = -1
        self.step = -1
        """The step that is being sampled, or was last."""

    @property
    def last(self) -> int:
        """The last step that was sampled; -1: none."""
        return self._last

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that have a series."""
        return list(self._namespaces.series)

    def statistics(self) -> dict[str, int]:
        """Return how many series there are, by kind."""
        return {"queues": len(self._queues.series), "namespaces": len(self._namespaces.series)}

    # Sampling

    def begin(self, step: int) -> bool:
        """Begin to sample a step that is over; return False if it is left out."""
        if is_left_out(step, self._last):
            return False
        if step < self._last:
            self._begin_anew()
        self.step = step
        self._steps[step % STEPS] = -1
        self._sums = {}
        if self._all is None:
            self._all = Series(step)
        return True

    def add(
        self,
        queue: tuple[str, str],
        counts: Sequence[int] | None,
        gauges: tuple[int, int, int],
        slots_own: int,
    ) -> None:
        """Add what happened to a queue since the step before, `COUNTS` and waits by bucket (None:
        nothing), and its gauges. Of the free slots `slots_own` are offered to this queue alone; the
        others are offered to several queues, and `end` adds them to the sum once."""
        backlog, running, _ = gauges
        activity = 1 if backlog or running else 0
        if counts is not None:
            activity += counts[0] + counts[1] + counts[2]
        self._queues.write(queue, self.step, counts, gauges, activity)
        sums = self._sums.get(queue[0])
        if sums is None:
            sums = self._sums[queue[0]] = _Sum()
        sums.backlog += backlog
        sums.running += running
        sums.slots += slots_own
        sums.activity += activity
        if counts is not None:
            sums.add(counts)

    def end(self, slots_shared: Mapping[str, int]) -> None:
        """End the step, with the free slots of each namespace that are offered to several of its
        queues together."""
        step, whole = self.step, _Sum()
        for namespace, slots in slots_shared.items():
            self._sums.setdefault(namespace, _Sum()).slots += slots
        for namespace, one in self._sums.items():
            whole.backlog += one.backlog
            whole.running += one.running
            whole.slots += one.slots
            counts = one.counts
            if counts is not None:
                whole.add(counts)
            self._namespaces.write(namespace, step, counts, one.gauges, one.activity)
        if self._all is not None:
            self._all.write(step, whole.counts, whole.gauges)
        self._queues.end(step)
        self._namespaces.end(step)
        self._steps[step % STEPS] = self._last = step
        if step % CHOOSE_STEPS == 0:
            self._queues.choose(step)
            self._namespaces.choose(step)

    # Reading

    def of_queue(self, queue: tuple[str, str], steps: int) -> Points:
        """Return the last steps of a queue; nothing is known of one without a series."""
        return self._points(self._queues.series.get(queue), steps)

    def of_namespace(self, namespace: str, steps: int) -> Points:
        """Return the last steps of all queues of a namespace together."""
        return self._points(self._namespaces.series.get(namespace), steps)

    def of_all(self, steps: int) -> Points:
        """Return the last steps of all queues together."""
        return self._points(self._all, steps)

    def _points(self, series: Series | None, steps: int) -> Points:
        last = self._last
        numbers = range(last - min(steps, STEPS) + 1, last + 1)
        if series is None:
            return Points(last, [False] * len(numbers), {}, [()] * BUCKETS)
        slots = [number % STEPS for number in numbers]
        since, sampled = series.since, self._steps
        known = [
            number >= since and sampled[slot] == number
            for number, slot in zip(numbers, slots, strict=True)
        ]
        return Points.of(last, known, series.columns(slots))
