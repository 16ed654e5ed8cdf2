"""Points of ten seconds each: what happened to a queue in the last hour, and how points are summed.

A step is a number: the unix time at which it begins, divided by `STEP_SECONDS`. All shards of all
nodes cut the time at the same moments, so that the points of several shards are added step by step.
Waits are counted by bucket, because quantiles cannot be added.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from maitred.metrics.histogram import WORK_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Value = TypeVar("Value")

STEP_SECONDS: Final = 10
"""Length of a step: an hour is 360 points, about as many as a chart has room for."""

STEPS: Final = 360
"""Steps that are kept: an hour."""

COUNTS: Final = ("added", "ended", "failed", "dead", "retried")
"""What is counted within a step: tasks that were added, tasks that are over, attempts that failed,
timed out or were lost, tasks that became dead letters, and attempts that are repeated."""

GAUGES: Final = ("backlog", "running", "slots_free")
"""What is measured at the end of a step."""

BUCKETS: Final = len(WORK_BOUNDS) + 1
"""Buckets of the waits."""

WIDTH: Final = len(COUNTS) + BUCKETS + len(GAUGES)
"""Numbers of a point: the counts, the waits by bucket, the gauges."""

WAITS: Final = slice(len(COUNTS), len(COUNTS) + BUCKETS)
"""Where the waits stand in a point."""

NAMES: Final = (*COUNTS, *GAUGES)

_PLACES: Final = {
    name: place if place < len(COUNTS) else place + BUCKETS for place, name in enumerate(NAMES)
}
"""Where each of the other numbers stands."""


class Points(NamedTuple):
    """The points of one series, from the earliest step to the last."""

    last: int
    """Number of the last step."""
    known: Sequence[bool]
    """Whether each step was measured."""
    columns: Mapping[str, Sequence[int]]
    """The numbers of all steps, by name; a name that is absent was 0 in all of them. The number of
    a step that is not known means nothing."""
    waits: Sequence[Sequence[int]]
    """How many tasks waited how long, for each bucket of `WORK_BOUNDS`; a bucket without numbers
    was empty in all steps."""

    @classmethod
    def of(
        cls, last: int, known: Sequence[bool], columns: Sequence[Sequence[int] | None]
    ) -> Points:
        """Put together the points of columns, `WIDTH` of them; None was 0 in all steps."""
        named = {name: columns[place] for name, place in _PLACES.items()}
        return cls(
            last,
            known,
            {name: column for name, column in named.items() if column is not None},
            [column or () for column in columns[WAITS]],
        )


class PointSum:
    """Adds up the points of several series: a step is known if one of them knows it."""

    def __init__(self, last: int, steps: int) -> None:
        """Sum the `steps` steps up to `last`."""
        self.last = last
        self.known = [False] * steps
        self.columns: dict[str, list[int]] = {}
        self.waits: list[list[int]] = [[] for _ in range(BUCKETS)]

    def add(self, points: Points) -> None:
        """Add a series. Columns without a number for each step are left out."""
        steps, behind = len(self.known), self.last - points.last
        known = aligned(points.known, steps, behind, nothing=False)
        self.known = [bool(mine or one) for mine, one in zip(self.known, known, strict=True)]
        sums: list[tuple[list[int], Sequence[int]]] = [
            (self.columns.setdefault(name, []), column)
            for name, column in points.columns.items()
            if name in _PLACES
        ]
        sums += zip(self.waits, points.waits, strict=False)
        for mine, column in sums:
            if len(column) == len(points.known):
                numbers = [
                    value if one else 0
                    for value, one in zip(aligned(column, steps, behind, 0), known, strict=True)
                ]
                mine[:] = map(add, mine, numbers) if mine else numbers

    def points(self) -> Points:
        """Return the points of all series that were added, step by step."""
        columns = {name: column for name, column in self.columns.items() if column}
        return Points(self.last, self.known, columns, self.waits)


def aligned(values: Sequence[Value], steps: int, behind: int, nothing: Value) -> list[Value]:
    """Return the values of `steps` steps, the last of which is `behind` steps after that of the
    values; `nothing` for steps without one."""
    missing = min(max(behind, 0), steps)
    end = len(values) + behind - missing
    found = list(values[max(end - (steps - missing), 0) : max(end, 0)])
    return [nothing] * (steps - missing - len(found)) + found + [nothing] * missing


def last_of(ends: Iterable[int]) -> int:
    """Return the last step that all shards have measured, from the last step of each; -1: none. A
    shard may be about to measure the newest step; one that is further behind is left out."""
    known = list(ends)
    newest = max(known, default=-1)
    return min((one for one in known if one >= newest - 1), default=-1)


def charted(points: Points) -> dict[str, list[float | None]]:
    """Return the points by name, as charts show them: waits as their median and their 99th
    percentile in seconds. None where nothing is known, and for waits also where no task began."""
    found: dict[str, list[float | None]] = {}
    nothing = [0] * len(points.known)
    for name in NAMES:
        column = points.columns.get(name, nothing)
        found[name] = [
            value if known else None for value, known in zip(column, points.known, strict=True)
        ]
    buckets = [waits or nothing for waits in points.waits]
    steps = list(zip(*buckets, strict=True))
    for name, share in (("wait_p50", 0.5), ("wait_p99", 0.99)):
        found[name] = [
            quantile(counts, share) if known else None
            for counts, known in zip(steps, points.known, strict=True)
        ]
    return found


def quantile(
    counts: Sequence[int], share: float, bounds: Sequence[float] = WORK_BOUNDS
) -> float | None:
    """Return the value that this share of the values does not exceed, as if the values of a bucket
    were spread evenly over it; None without values. Values beyond the last bound count as that."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    lower = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and wanted <= count:
            return lower + (bound - lower) * wanted / count
        wanted -= count
        lower = bound
    return lower
