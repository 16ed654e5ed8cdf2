"""The ways to know how many a worker can take at a time. Pure.

`measured`: by what is served and what waits, which the worker sees (`LimitEstimator`). `knee`: for
a worker that only passes on what it gets, and cannot see what waits behind: by what comes out
(`KneeProber`). `slots`: as many as there are slots, whatever happens. docs/capacity.md explains.
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
    """Observes every change of what a worker serves, and tells how many it can take at a time."""

    @property
    def mean_service_seconds(self) -> float:
        """Mean time that the handlers themselves took; 0 until one has ended."""

    @property
    def cause(self) -> LimitCause:
        """Why the limit is not higher."""

    def begun(self, serving: int, waiting: int, now: float) -> None:
        """One more is served; like `observe`."""

    def observe(self, serving: int, waiting: int, now: float) -> None: ...
    def claimed(self, in_flight: int, *, pressed: bool = False) -> None: ...
    def lagged(self, seconds: float) -> None: ...
    def ended(self, serving: int, waiting: int, now: float, *, good: bool) -> int:
        """One has ended; like `observe` and `limit`."""

    def limit(self, now: float) -> int: ...


class MeasuredGauge:
    """Finds the limit by what is served and what waits inside of the worker."""

    __slots__ = ("_estimator", "begun", "claimed", "ended", "lagged", "limit", "observe")

    def __init__(self, slots: int, now: float) -> None:
        self._estimator = LimitEstimator(slots, slots, now)
        self.begun = self.observe = self._estimator.observe
        self.claimed = self._estimator.claimed
        self.lagged = self._estimator.lagged
        self.limit = self._estimator.limit
        self.ended = self._estimator.observe_end

    @property
    def mean_service_seconds(self) -> float:
        return self._estimator.mean_service_seconds

    @property
    def cause(self) -> LimitCause:
        return self._estimator.cause


class Fixed:
    """Takes the number of slots for the limit; it measures the mean service time all the same."""

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

    def begun(self, serving: int, waiting: int, now: float) -> None:
        self.observe(serving, waiting, now)

    def observe(self, serving: int, waiting: int, now: float) -> None:  # noqa: ARG002
        self._seconds += self._serving * max(0.0, now - self._since)
        self._since = now
        self._serving = serving

    def claimed(self, in_flight: int, *, pressed: bool = False) -> None:
        """Nothing follows from it."""

    def lagged(self, seconds: float) -> None:
        """Nothing follows from it."""

    def ended(self, serving: int, waiting: int, now: float, *, good: bool) -> int:
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

    __slots__ = ("_prober",)

    def __init__(self, slots: int, now: float) -> None:
        super().__init__(slots, now)
        first = min(slots, KneeSettings().first)
        self._prober = KneeProber(now, KneeSettings(first=first, ceiling=slots))

    @property
    def cause(self) -> LimitCause:
        return "knee" if self._prober.limit < self._slots else "slots"

    def begun(self, serving: int, waiting: int, now: float) -> None:
        self._prober.started()
        self.observe(serving, waiting, now)

    def claimed(self, in_flight: int, *, pressed: bool = False) -> None:  # noqa: ARG002
        self._prober.claimed(in_flight)

    def ended(self, serving: int, waiting: int, now: float, *, good: bool) -> int:
        super().ended(serving, waiting, now, good=good)
        self._prober.ended(now, good=good)
        return self.limit(now)

    def limit(self, now: float) -> int:  # noqa: ARG002
        return min(self._slots, self._prober.limit)


def gauge(settings: WorkerSettings, now: float) -> Gauge:
    """Return the gauge that the settings name."""
    kinds: dict[str, type[MeasuredGauge | Fixed]] = {
        "measured": MeasuredGauge,
        "knee": Knee,
        "slots": Fixed,
    }
    return kinds[settings.limit](settings.slots, now)
