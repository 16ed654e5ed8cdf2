"""The ways to find how many attempts a worker can serve at a time. Pure.

`measured` observes what is served and what waits inside of the worker (`LimitEstimator`). `knee` is
for a worker that passes its queries on and cannot see what waits behind it: it observes how many
end (`KneeProber`). `slots` takes the number of slots, whatever happens. docs/capacity.md explains.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Final, Protocol

from maitred.balancing.workers.estimator import LimitEstimator
from maitred.balancing.workers.knee import KneeProber, KneeSettings

if TYPE_CHECKING:
    from maitred.balancing.workers.estimator import LimitCause
    from maitred.settings import WorkerSettings

MEAN_ENDS: Final = 400
"""How many ends the mean service time remembers, where the estimator does not tell it."""


class Gauge(Protocol):
    """Observes every change of what a worker serves, and tells how many it can take at a time;
    `LimitEstimator` describes the methods."""

    @property
    def mean_service_seconds(self) -> float: ...
    @property
    def cause(self) -> LimitCause: ...
    def observe(self, serving: int, waiting: int, now: float) -> None: ...
    def observe_end(self, serving: int, waiting: int, now: float, *, good: bool) -> int: ...
    def claimed(self, in_flight: int, *, pressed: bool = False) -> None: ...
    def lagged(self, seconds: float) -> None: ...
    def limit(self, now: float) -> int: ...


class Fixed:
    """Takes the number of slots for the limit; measures the mean service time all the same."""

    __slots__ = ("_ends", "_seconds", "_serving", "_since", "_slots")

    def __init__(self, slots: int, now: float) -> None:
        self._slots = slots
        self._serving = 0
        self._since = now
        self._seconds = 0.0
        self._ends = 0.0

    @property
    def mean_service_seconds(self) -> float:
        """The time that was spent serving, divided by the ends: docs/capacity.md says why."""
        return self._seconds / self._ends if self._ends else 0.0

    @property
    def cause(self) -> LimitCause:
        return "slots"

    def observe(self, serving: int, waiting: int, now: float) -> None:  # noqa: ARG002
        self._seconds += self._serving * max(0.0, now - self._since)
        self._since = now
        self._serving = serving

    def claimed(self, in_flight: int, *, pressed: bool = False) -> None:
        """Do nothing: the limit is fixed."""

    def lagged(self, seconds: float) -> None:
        """Do nothing: the limit is fixed."""

    def observe_end(self, serving: int, waiting: int, now: float, *, good: bool) -> int:
        self.observe(serving, waiting, now)
        if good:
            self._ends += 1
            if self._ends > 2 * MEAN_ENDS:
                kept = exp(-1.0)
                self._ends *= kept
                self._seconds *= kept
        return self._slots

    def limit(self, now: float) -> int:  # noqa: ARG002
        return self._slots


class Knee(Fixed):
    """Finds the limit by how much gets done with how many at a time."""

    __slots__ = ("_inside", "_prober")

    def __init__(self, slots: int, now: float) -> None:
        super().__init__(slots, now)
        self._inside = 0
        first = min(slots, KneeSettings().first)
        self._prober = KneeProber(now, KneeSettings(first=first, ceiling=slots))

    @property
    def cause(self) -> LimitCause:
        return "knee" if self._prober.limit < self._slots else "slots"

    def observe(self, serving: int, waiting: int, now: float) -> None:
        if serving + waiting > self._inside:
            self._prober.started()
        self._inside = serving + waiting
        super().observe(serving, waiting, now)

    def claimed(self, in_flight: int, *, pressed: bool = False) -> None:  # noqa: ARG002
        self._prober.claimed(in_flight)

    def observe_end(self, serving: int, waiting: int, now: float, *, good: bool) -> int:
        super().observe_end(serving, waiting, now, good=good)
        self._prober.ended(now, good=good)
        return self.limit(now)

    def limit(self, now: float) -> int:  # noqa: ARG002
        return min(self._slots, self._prober.limit)


def gauge(settings: WorkerSettings, now: float) -> Gauge:
    """Return the gauge that the settings name."""
    slots = settings.slots
    if settings.limit == "measured":
        return LimitEstimator(slots, slots, now)
    return (Knee if settings.limit == "knee" else Fixed)(slots, now)
