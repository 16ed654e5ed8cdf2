"""What happened to the tasks of one queue at this shard, counted for operators.

All partitions of the queue that a shard owns share one meter. It outlives them: a partition that is
idle leaves memory, and a counter that forgot it would seem to have started anew.
"""

from __future__ import annotations

from operator import sub
from typing import TYPE_CHECKING, Final, get_args

from maitred.matching.task_ends import EndStatus
from maitred.metrics.histogram import Histogram
from maitred.metrics.points import BUCKETS
from maitred.metrics.points import COUNTS as STEP_COUNTS

if TYPE_CHECKING:
    from collections.abc import Sequence

END_STATUSES: Final[tuple[EndStatus, ...]] = get_args(EndStatus)

COUNTERS: Final = (
    *("added", "failed", "timed_out", "lost", "retried", "dead", "returned"),
    *("forwarded_tasks", "forwarded_offers", "offers", "allocated"),
)
"""The plain counters of a meter, by the names of their attributes."""

STEP_SIZE: Final = len(STEP_COUNTS) + BUCKETS
"""Numbers that `QueueMeter.step` returns."""

LEAST_SECONDS: Final = 0.0005
"""The least mean service time. Loops tell the time in milliseconds, so that a short task may seem
to take no time, and 0 means that the time is unknown."""

RECENT_STEPS: Final = 30
"""Steps after which `turn` begins a new half of what is recent: five minutes, so that operators see
the attempts of the last five to ten."""

MEAN_RUNS: Final = 50
"""Ends of which the mean service time is the mean, at least: fewer would make it jump."""


_NO_RUNS: Final = (0,) * (BUCKETS + 1)


class QueueMeter:
    """Counts for one queue at one shard, since the shard began."""

    __slots__ = (
        *COUNTERS,
        *("_mean", "_runs", "_seen_runs", "_seen_seconds"),
        *("_older", "_newer"),
        *("_stepped", "alike", "alike_seconds", "ends", "waits"),
    )

    def __init__(self) -> None:
        self.added = 0
        """Tasks that were added."""
        self.failed = self.timed_out = self.lost = 0
        """Attempts whose handler raised, that took longer than their timeout, and whose worker was
        not heard of any more."""
        self.retried = 0
        """Attempts that did not succeed and are repeated."""
        self.dead = 0
        """Tasks that became dead letters."""
        self.returned = 0
        """Tasks that a worker returned before it began them."""
        self.forwarded_tasks = self.forwarded_offers = 0
        """Tasks and offers that were passed on to a parent partition."""
        self.offers = 0
        """Offers of free slots, without those to many queues together."""
        self.allocated = 0
        """Slots that were reserved for queries."""
        self.ends: dict[EndStatus, int] = dict.fromkeys(END_STATUSES, 0)
        """Tasks that are over, by how they ended."""
        self.waits = Histogram()
        """Seconds from when a task could be run until a worker was given it."""
        self._runs = Histogram()
        self.alike_seconds = -1.0
        """How long the last attempts ran, which are not in `runs` yet."""
        self.alike = 0
        """How many attempts in a row ran for exactly so long. Loops tell the time in milliseconds,
        so that most short tasks run alike, and cost an addition instead of a call."""
        self._seen_runs, self._seen_seconds, self._mean = 0, 0.0, 0.0
        self._stepped = [0] * STEP_SIZE
        """The counts of `step` at its last call."""
        self._older: Sequence[int] = _NO_RUNS
        self._newer: Sequence[int] = _NO_RUNS
        """Runs by bucket and failed attempts at the last two calls of `turn`, the older first."""

    @property
    def runs(self) -> Histogram:
        """Seconds from giving a task to a worker until its end was reported."""
        if self.alike:
            self._runs.add(self.alike_seconds, self.alike)
            self.alike = 0
        return self._runs

    @property
    def service_seconds(self) -> float:
        """The mean of these, of the last tasks; 0: none has ended."""
        runs = self.runs
        count = runs.count
        new = count - self._seen_runs
        if new >= MEAN_RUNS or (new and not self._seen_runs):
            self._mean = max(LEAST_SECONDS, (runs.total - self._seen_seconds) / new)
            if new >= MEAN_RUNS:
                self._seen_runs, self._seen_seconds = count, runs.total
        return self._mean

    def ran(self, seconds: float) -> None:
        """Note an attempt that has ended."""
        if seconds != self.alike_seconds:
            if self.alike:
                self._runs.add(self.alike_seconds, self.alike)
            self.alike_seconds = seconds
            self.alike = 0
        self.alike += 1

    def turn(self) -> None:
        """Begin a new half of what is recent, and forget the older half."""
        self._older = self._newer
        counts = (*self.runs.counts, self.failed_attempts)
        if counts != self._newer:  # an idle queue keeps one object
            self._newer = counts

    def recent(self) -> tuple[list[int], int]:
        """Return how many of the attempts of the last minutes ran how long, by bucket, and how many
        attempts failed; no buckets if none has ended."""
        *runs, failed = map(sub, (*self.runs.counts, self.failed_attempts), self._older)
        return (runs if any(runs) else []), failed

    @property
    def failed_attempts(self) -> int:
        """Attempts that failed, timed out or whose worker was lost."""
        return self.failed + self.timed_out + self.lost

    @property
    def events(self) -> int:
        """How much happened to the queue, to compare it with other queues."""
        return self.added + self.allocated + sum(self.ends.values())

    @property
    def changes(self) -> int:
        """A number that changes with nearly every change of `counts`, and is found faster."""
        counters: list[int] = [getattr(self, name) for name in COUNTERS]
        return sum(counters) + sum(self.ends.values())

    def step(self) -> Sequence[int] | None:
        """Return what happened since the last call, in the order of a point of a series: tasks that
        were added, tasks that are over, attempts that failed, dead letters, attempts that are
        repeated, and waits by bucket. None: nothing happened."""
        counts = [
            self.added,
            sum(self.ends.values()),
            self.failed_attempts,
            self.dead,
            self.retried,
            *self.waits.counts,
        ]
        before = self._stepped
        if counts == before:
            return None
        self._stepped = counts
        return list(map(sub, counts, before))

    def counts(self) -> Sequence[float]:
        """Return everything that only grows, in the order of `COUNTERS`, `END_STATUSES`, then both
        histograms with their sums."""
        runs = self.runs
        return [
            *(getattr(self, name) for name in COUNTERS),
            *self.ends.values(),
            *self.waits.counts,
            self.waits.total,
            *runs.counts,
            runs.total,
        ]
