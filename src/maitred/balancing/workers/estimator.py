"""A worker measures its own limit: how many queries may be in flight to it.

A worker can tell queries that are being **served** from those that **wait** inside it: for a
thread, a permit, a process, its event loop. The estimate needs nothing else. Latency alone would
not do: where service times are exponential, the fastest answer says nothing about the queue.

While queries wait, the number being served is all that can run in parallel: that is the capacity,
measured. While none waits, the capacity may be higher, and the only way to know is to admit more.
So, for each window of a few milliseconds, weighted by time:

- no query waited and the limit was used: the limit grows, by one, then two, four, eight, up to a
  tenth (or 4), until a query waits;
- a query waited now and then: the limit is right, for a worker that never has a query waiting idles
  while the next one is on the network. Up to `waiting_target` wait on average;
- more than that waited: the limit falls by exactly the surplus, but not below what ran in parallel.
  Then it stays for some windows before it grows again, twice as many each time the result is the
  same. That matters for a worker of ten: one more in flight is one that waits, and trying every
  other window would keep half a query waiting. While gateways have queued queries, it never stays;
- the limit was not used: it falls to a little above what was used, but not below what once ran in
  parallel. An untested limit is a guess, and a burst could overload the worker.

So the limit counts what the gateways count, from sending to the answer: it includes the queries on
the network, and no process has to know how long the network takes. The limit falls within a window
or two, since the surplus is measured and not guessed. It recovers from the floor because a used
limit grows.

The mean service time is the time that was spent serving, divided by the number of queries that
ended. The mean over ended queries would be wrong whenever the load changes: after a start the short
queries end first, and when a worker gets no more queries, only the long ones are left.

A late event loop is a queue as well, one that cannot be counted: from `lag_target_seconds` on, the
limit falls by a tenth a window. Only lateness that the worker itself causes may be reported: a loop
without CPU time because other processes have it says nothing about the worker, and fewer queries at
a time would not help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

LimitCause = Literal["slots", "waiting", "late", "unused", "knee"]
"""Why a limit is not higher: `slots`, it is at its ceiling; `waiting`, more queries would wait
inside the worker; `late`, the event loop was late; `unused`, no gateway sent more; `knee`, more at
a time did not raise the throughput."""

LIMIT_MAX = 100_000
GROWTH = 0.1
"""The most that the limit changes in one window, as a share: a worker that became twice as fast is
used fully after a dozen windows."""
GROWTH_MIN = 4.0
"""The limit may always grow by this many queries: where little runs in parallel, windows last long,
and growing by a tenth from the floor would take seconds."""
FIRST_STEP_SHARE = 0.03
"""The first step up as a share of the limit, if no query waited at all: at a full worker a query
waits now and then, so this worker became faster."""
SPARE_SHARE = 0.02
SPARE_MIN = 4
"""An unused limit keeps the larger of this share and this many above the peak, as room for random
variation."""
SATURATED_SHARE = 0.15
"""If queries waited for less than this share of a window, that is random variation, and says little
about the capacity."""
PRESSED_TARGET = 0.5
"""While gateways have queued queries, this many more may wait, times the root of what runs in
parallel: those queries would wait anyway, and the number on the network varies by about that."""
PATIENCE_MAX = 16
"""The most windows for which a confirmed limit does not grow, unless a gateway has queued queries:
each confirmation makes a query wait. The pause doubles up to this, about a third of a second."""
BUSY_SHARE = 0.9
"""If a worker served less than this share of what it can run in parallel, it idles while queries
are on the network, and its limit does not pause."""
USED_SHARE = 0.97
"""A limit of which less than this share was used was not tested, so it does not grow."""
UNUSED_SECONDS = 2.0
"""The cause of a limit becomes `unused` after this time without use, without waiting queries and
without a late loop. Single windows of a busy worker look unused as well."""
MEAN_ENDS = 400
"""The moving average of the service time spans about this many ended queries: that of exponential
times is accurate to 5 %."""


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """The settings of a `LimitEstimator`."""

    window_seconds: float = 0.01
    """The shortest window: short compared with service times of tens of milliseconds, long enough
    for some queries to end in it."""
    ends_min: int = 8
    """A window lasts until this many queries ended in it, or ten times `window_seconds` passed."""
    waiting_target: float = 0.25
    """How many queries may wait on average when the worker is full. Each of them could run on
    another worker; with none at all the worker would idle now and then."""
    floor: int = 1
    """The lowest limit; a limit of 0 could never be tested again."""
    lag_target_seconds: float = 0.05


class LimitEstimator:
    """Estimates a worker's limit from how many of its queries are served and how many wait."""

    __slots__ = (
        "_began",
        "_bound_at",
        "_ceiling",
        "_ends",
        "_lag",
        "_limit",
        "_patience",
        "_pause",
        "_peak",
        "_pressed",
        "_saturated",
        "_served_ends",
        "_served_seconds",
        "_serving",
        "_serving_area",
        "_serving_while_saturated",
        "_settings",
        "_since",
        "_step",
        "_waiting",
        "_waiting_area",
        "cause",
        "mean_service_seconds",
        "parallel",
    )

    def __init__(
        self, first: int, ceiling: int, now: float, settings: EstimatorSettings | None = None
    ) -> None:
        self._settings = settings or EstimatorSettings()
        self._ceiling = max(self._settings.floor, min(ceiling, LIMIT_MAX))
        self._limit = float(max(self._settings.floor, min(first, self._ceiling)))
        self.cause: LimitCause = "slots"
        """The reason why the limit is not higher; `slots` at the ceiling."""
        self._bound_at = now
        """When queries last waited, or the event loop was last late."""
        self._serving = 0
        self._waiting = 0
        self._since = now
        self._step = 1.0
        self._patience = 1
        self._pause = 0
        self._served_seconds = 0.0
        self._served_ends = 0.0
        self.mean_service_seconds = 0.0
        """The mean time that a query is served, without its waiting; 0 until a query ended."""
        self.parallel: float | None = None
        """How many ran in parallel when queries last waited; None until that happened."""
        self._restart(now)

    def _restart(self, now: float) -> None:
        self._began = now
        self._saturated = 0.0
        self._serving_area = 0.0
        self._serving_while_saturated = 0.0
        self._waiting_area = 0.0
        self._peak = self._serving + self._waiting
        self._ends = 0
        self._lag = 0.0
        self._pressed = False

    def observe(self, serving: int, waiting: int, now: float) -> None:
        """Record that this many queries are served and this many wait, at every change."""
        if now != self._since:  # tasks of one answer begin at the same time
            self._pass_time(now)
        # This runs twice per task, and comparisons cost a third of what calls of `max` do.
        self._serving = serving if serving > 0 else 0  # noqa: FURB136 - `max` is slow
        self._waiting = waiting if waiting > 0 else 0  # noqa: FURB136 - `max` is slow
        if serving + waiting > self._peak:
            self._peak = serving + waiting

    def _pass_time(self, now: float) -> None:
        """Count what was served and what waited since the last change."""
        elapsed = now - self._since
        self._since = now
        if elapsed < 0.0:  # the clock was set back: restart the window
            self._restart(now)
            return
        if self._waiting:
            self._saturated += elapsed
            self._serving_while_saturated += elapsed * self._serving
            self._waiting_area += elapsed * self._waiting
        self._serving_area += elapsed * self._serving

    def claimed(self, in_flight: int, *, pressed: bool = False) -> None:
        """Record how many queries the gateways count in flight, those on the network included.

        Without this, only the queries inside the worker would count as use; with a slow network a
        limit would look unused however many queries the gateways have. `pressed` says that queries
        are queued at the gateway because the worker has no room.
        """
        if pressed:
            self._pressed = True
        if in_flight > self._peak:
            self._peak = min(in_flight, LIMIT_MAX)

    def ended(self) -> None:
        """Count a query that ended well; of a failed query only the time it took counts."""
        self._ends += 1

    def observe_end(self, serving: int, waiting: int, now: float, *, good: bool) -> int:
        """Do `observe`, then `ended` if `good`, and return `limit`, with fewer calls."""
        if now == self._since and serving + waiting <= self._peak:
            self._serving = serving if serving > 0 else 0  # noqa: FURB136 - `max` is slow
            self._waiting = waiting if waiting > 0 else 0  # noqa: FURB136 - `max` is slow
        else:
            self.observe(serving, waiting, now)
        if good:
            self._ends += 1
        if now - self._began >= self._settings.window_seconds:
            return self.limit(now)
        return int(self._limit + 0.5)

    def lagged(self, seconds: float) -> None:
        """Record that the event loop was late by this many seconds, caused by the worker itself."""
        self._lag = max(self._lag, seconds)

    def limit(self, now: float) -> int:
        """Return how many queries may be in flight to this worker; close a window that is over."""
        settings = self._settings
        length = now - self._began
        if length >= settings.window_seconds and (
            self._ends >= settings.ends_min or length >= 10 * settings.window_seconds
        ):
            self.observe(self._serving, self._waiting, now)
            self._close(length)
            self._restart(now)
        return int(self._limit + 0.5)

    def _close(self, length: float) -> None:
        settings = self._settings
        kept = math.exp(-self._ends / MEAN_ENDS)
        self._served_seconds = kept * self._served_seconds + self._serving_area
        self._served_ends = kept * self._served_ends + self._ends
        if self._served_ends > 0.0:
            self.mean_service_seconds = self._served_seconds / self._served_ends
        waiting = self._waiting_area / length
        limit = self._limit
        # Gateways see the limit rounded to a whole number: below 1.5 they can use no more than 1.
        used = self._peak >= USED_SHARE * min(limit, int(limit + 0.5))
        step, self._step = self._step, 1.0
        if self._lag > settings.lag_target_seconds:
            limit *= 1.0 - GROWTH
            self.cause, self._bound_at = "late", self._since
        elif self._saturated > SATURATED_SHARE * length:
            self.cause, self._bound_at = "waiting", self._since
            self.parallel = self._serving_while_saturated / self._saturated
            surplus = waiting - settings.waiting_target
            if self._pressed:
                surplus -= PRESSED_TARGET * math.sqrt(self.parallel)
            if surplus > 0.0:
                # If the limit was not used, measure the surplus from the peak that was.
                reached = limit if used else min(limit, float(self._peak))
                limit = max(min(limit, self.parallel), reached - surplus)
                self._patience = min(2 * self._patience, PATIENCE_MAX)
            elif used:
                limit -= surplus
            self._pause = self._patience
        elif used and self._pause and not self._pressed and self._busy(length):
            self._pause -= 1
        elif used:
            if step > 1.0:  # the second step in a row: the capacity rose, so do not pause
                self._patience = 1
            if not self._saturated:
                step = max(step, FIRST_STEP_SHARE * limit)
            limit += step
            self._step = min(2.0 * step, max(GROWTH_MIN, GROWTH * limit))
        else:
            spare = self._peak + max(SPARE_MIN, SPARE_SHARE * self._peak)
            enough = max(spare, self.parallel or limit)
            limit = min(limit, (limit + enough) / 2)
            if self._since - self._bound_at > UNUSED_SECONDS:
                self.cause = "unused"
        self._limit = min(max(limit, float(settings.floor)), float(self._ceiling))
        if int(self._limit + 0.5) >= self._ceiling:
            self.cause = "slots"

    def _busy(self, length: float) -> bool:
        """Return whether the worker served nearly as many queries as it can run in parallel."""
        return self._serving_area >= BUSY_SHARE * length * (self.parallel or 0.0)

    def __repr__(self) -> str:
        return (
            f"<LimitEstimator, limit {self._limit:.1f}, serving {self._serving}, "
            f"waiting {self._waiting}>"
        )
