"""The settings of a plan: arrivals, work, workers and their faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Final

from maitred.balancing.workers import WORKER_POLICIES
from maitred.errors import InvalidArgument, UnknownAlgorithm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.simulation.capacity.service_times import ServiceTimes

WORK: Final = ("tasks", "queries")
POLICIES: Final = ("idle", *WORKER_POLICIES)

COUNT_MIN: Final = 100
"""With fewer tasks there is no 99th percentile to speak of."""
COUNT_MAX: Final = 100_000
"""Most tasks of one run: each takes about a millisecond of CPU, in each of three runs."""
WORKERS_MAX: Final = 1_000
SLOTS_MAX: Final = 10_000
"""The largest value of a worker's setting `slots`."""
PARTITIONS_MAX: Final = 1_024
"""The largest value of a queue's setting `partitions`."""
RATE_MAX: Final = 1_000_000.0
RUN_SECONDS_MAX: Final = 86_400.0
"""Longest time that the arrivals may take: heartbeats and long polls go on in a quiet queue, and a
day of them takes seconds to simulate."""
SLOW_MAX: Final = 1_000.0
DEADLINE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """One worker and its faults."""

    lost_after_seconds: float | None = None
    """Seconds after the first arrival at which the worker is killed; it is not started again."""
    slowness: float = 1.0
    """Factor by which the worker's service times are longer than those of the others."""

    @property
    def healthy(self) -> bool:
        """Whether the worker has no fault."""
        return self == PlannedWorker()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySettings:
    """One queue, its callers, and the workers that serve it."""

    rate_per_second: float
    """Mean rate of the Poisson arrivals."""
    service: ServiceTimes
    workers: tuple[PlannedWorker, ...]
    slots: int
    """Slots of each worker."""
    work: str = "tasks"
    partitions: int = 1
    policy: str = "idle"
    """How the worker of a query is picked; a queue's setting `queries.policy`."""
    deadline_seconds: float = DEADLINE_SECONDS
    """How long the callers of queries wait for their answer."""
    count: int = 2_000
    """Tasks or queries that are simulated in one run."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.work not in WORK:
            raise UnknownAlgorithm.named("kind of work", self.work, WORK)
        if self.policy not in POLICIES:
            raise UnknownAlgorithm.named("worker policy", self.policy, POLICIES)
        _whole("workers", len(self.workers), 1, WORKERS_MAX)
        _whole("slots", self.slots, 1, SLOTS_MAX)
        _whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        _whole("count", self.count, COUNT_MIN, COUNT_MAX)
        _whole("seed", self.seed, 0, 2**63)
        _number("rate", self.rate_per_second, RATE_MAX)
        _number("deadline", self.deadline_seconds, 86_400.0)
        if self.count / self.rate_per_second > RUN_SECONDS_MAX:
            raise InvalidArgument(
                f"{self.count} {self.work} at {self.rate_per_second:g} a second take "
                f"{self.count / self.rate_per_second / 3_600:,.0f} hours; a run is at most a day.",
                remedy="Lower --count.",
            )
        if self.policy != "idle" and self.work == "tasks":
            raise InvalidArgument(
                f"The policy {self.policy!r} picks workers for queries, and these are tasks.",
                remedy="Add --work queries, or leave the policy out.",
            )

    @property
    def load(self) -> float:
        """Work that arrives, over what all workers together can do; above 1 waits only grow."""
        return self._load_of(self.workers)

    @property
    def load_left(self) -> float:
        """Work that arrives, over what workers that are never lost can do; infinite without any."""
        return self._load_of([one for one in self.workers if one.lost_after_seconds is None])

    def _load_of(self, workers: Sequence[PlannedWorker]) -> float:
        at_once = sum(self.slots / worker.slowness for worker in workers)
        return self.rate_per_second * self.service.mean_seconds / at_once if at_once else inf

    def with_more(self) -> CapacitySettings:
        """Return the same settings with one more healthy worker."""
        return replace(self, workers=(*self.workers, PlannedWorker()))

    def with_fewer(self) -> CapacitySettings | None:
        """Return the settings without the last healthy worker; None if that leaves no worker."""
        if len(self.workers) == 1:
            return None
        healthy = [at for at, worker in enumerate(self.workers) if worker.healthy]
        gone = healthy[-1] if healthy else len(self.workers) - 1
        return replace(self, workers=self.workers[:gone] + self.workers[gone + 1 :])


def planned_workers(
    count: int, lost: tuple[str, ...] = (), slow: tuple[str, ...] = ()
) -> tuple[PlannedWorker, ...]:
    """Return `count` workers with their faults.

    In `lost`, `3:60` kills worker 3 after 60 s; in `slow`, `2:5` makes worker 2 five times
    slower.
    """
    _whole("workers", count, 1, WORKERS_MAX)
    workers = [PlannedWorker()] * count
    for text in lost:
        number, seconds = _fault("--lose", "WORKER:SECONDS", text, count)
        if not 0 <= seconds <= RUN_SECONDS_MAX:
            raise InvalidArgument(
                f"A worker is lost after 0 to {RUN_SECONDS_MAX:,.0f} seconds, not {seconds:g}."
            )
        workers[number - 1] = replace(workers[number - 1], lost_after_seconds=seconds)
    for text in slow:
        number, slowness = _fault("--slow", "WORKER:TIMES", text, count)
        if not 1 <= slowness <= SLOW_MAX:
            raise InvalidArgument(
                f"A slow worker takes 1 to {SLOW_MAX:,.0f} times as long, not {slowness:g}."
            )
        workers[number - 1] = replace(workers[number - 1], slowness=slowness)
    return tuple(workers)


def _fault(option: str, form: str, text: str, workers: int) -> tuple[int, float]:
    first, _, second = text.partition(":")
    try:
        number, value = int(first), float(second)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is no {form}.", remedy=f"Write {option} 1:2.5, say."
        ) from None
    if not 1 <= number <= workers:
        raise InvalidArgument(
            f"There is no worker {number}.", remedy=f"The workers are numbered 1 to {workers}."
        )
    return number, value


def _whole(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(
            f"{name} is {value}.", remedy=f"Give a whole number from {least:,} to {most:,}."
        )


def _number(name: str, value: float, most: float) -> None:
    if not isfinite(value) or not 0 < value <= most:
        raise InvalidArgument(
            f"{name} is {value:g}.", remedy=f"Give a number above 0, up to {most:,.0f}."
        )
