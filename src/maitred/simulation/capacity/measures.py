"""The measures of a run: waits, how busy the slots were, and what was refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.simulation.capacity.run import CapacityRun

WARM_SHARE: Final = 0.1
"""Share of the arrivals that are not measured: the first ones find an empty queue."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Lengths of time of many tasks or queries, in seconds."""

    mean: float
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spans | None:
        """Return None for fewer than two values, which have no percentiles."""
        if len(seconds) < 2:
            return None
        hundredths = quantiles(seconds, n=100, method="inclusive")
        return cls(fmean(seconds), hundredths[49], hundredths[98], max(seconds))


@dataclass(frozen=True, slots=True)
class CapacityMeasures:
    """Measures of one run; times are in seconds."""

    workers: int
    slots: int
    """Slots of all workers together."""
    load: float
    """Work that arrives, over what all workers together can do."""
    load_left: float | None
    """Work that arrives, over what the workers that are never lost can do; None without any."""
    busy: float
    """Share of the slots' time in which a handler ran, until the last arrival. The time of a lost
    worker counts until it is lost."""
    waits: Spans | None
    """From the call until the handler began."""
    totals: Spans | None
    """From the call until the handler returned, or until the answer of a query was there."""
    measured: int
    done: int
    refused: dict[str, int]
    """Number of calls that ended with an error, by the code of the error."""
    unfinished: int
    """Tasks that were never done, because no worker was left."""
    points: tuple[tuple[float, float], ...]
    """Arrival time and wait of every task or query that began."""

    @property
    def workers_in_words(self) -> str:
        """The number of workers in words, such as "3 workers"."""
        return "1 worker" if self.workers == 1 else f"{self.workers} workers"


def measures(run: CapacityRun) -> CapacityMeasures:
    """Measure a run from the end of its warm-up to its last arrival."""
    settings, jobs = run.settings, run.jobs
    measured = jobs[round(WARM_SHARE * len(jobs)) :]
    begin, end = measured[0].arrived_at, measured[-1].arrived_at

    def within(first: float, last: float | None) -> float:
        return max(0.0, min(end, inf if last is None else last) - max(begin, first))

    there = sum(settings.slots * within(0.0, one.lost_after_seconds) for one in settings.workers)
    busy = sum(within(one.began_at, one.ended_at) for one in run.services)
    waited = [
        (job.arrived_at, job.started_at - job.arrived_at)
        for job in measured
        if job.started_at is not None
    ]
    done = [job.ended_at - job.arrived_at for job in measured if job.ended_at is not None]
    refused = Counter(job.refusal for job in measured if job.refusal is not None)
    return CapacityMeasures(
        workers=len(settings.workers),
        slots=settings.slots * len(settings.workers),
        load=settings.load,
        load_left=settings.load_left if isfinite(settings.load_left) else None,
        busy=busy / there if there else 0.0,
        waits=Spans.of([wait for _, wait in waited]),
        totals=Spans.of(done),
        measured=len(measured),
        done=len(done),
        refused=dict(sorted(refused.items())),
        unfinished=sum(job.ended_at is None and job.refusal is None for job in measured),
        points=tuple(waited),
    )
