"""A worker measures its own limit: how many queries may be in flight to it.

A worker can tell queries that are being **served** from those that **wait** inside it: for a
thread, a permit, a process, its event loop. That difference is all it takes. Latency alone would
not do: where service times are exponential the fastest answer says nothing about the queue.

While somebody waits, those being served are all that run in parallel: that number is the capacity,
measured. While nobody waits, there may be more, and the only way to know is to let more in. So, for
each window of a few milliseconds, weighted by time:

- nobody waited and the limit was used: the limit grows, by one, then two, four, eight, up to a
  tenth (or 4), until somebody waits;
- somebody waited now and then: this is where it should be, for a worker that never has anybody
  waiting idles while its next query is still under way. Up to `waiting_target` wait on average;
- more than that waited: the limit falls by just so many, but not below what ran in parallel. Then
  it rests for some windows before it tries to grow again, twice as many each time it finds the
  same. For a worker of ten that is what counts: one more in flight is one that waits, and trying
  every other time would keep half a query waiting. While senders have a line it never rests;
- the limit was not used: it comes down to a little above what was, but not below what once ran in
  parallel. A limit that nobody tested is a guess, and a burst would find out the hard way.

So the limit counts what the senders count, from sending to the answer: it contains what is under
way, without anybody having to know how long that takes. It falls within a window or two, since the
surplus is measured and not guessed, and it recovers from the floor because a used limit grows.

The mean service time is the time that was spent serving, divided by the queries that ended. The
mean of those that ended would be wrong whenever the load changes: after a start the short ones end
first, and when a worker gets nothing more only the long ones are left.

An event loop that is late is a queue as well, one that cannot be counted: from `lag_target_seconds`
on the limit falls by a tenth a window. Only lateness that is the worker's own doing may be told: a
loop that has no CPU time because other processes have it says nothing about the worker, and fewer
queries at a time would not help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

LimitCause = Literal["slots", "waiting", "late", "unused", "knee"]
"""Why a limit is not higher: `slots`, it cannot be; `waiting`, more would wait inside of the
worker; `late`, the event loop was late; `unused`, nobody wanted more; `knee`, more at a time
brought no more done."""

LIMIT_MAX = 100_000
GROWTH = 0.1
"""The most in a window: what got twice as fast is used fully after a dozen of them."""
GROWTH_MIN = 4.0
"""But so many in any case: where little runs in parallel windows last long, and the way up from the
floor would take seconds by a tenth each time."""
FIRST_STEP_SHARE = 0.03
"""The first step, if nobody waited at all: at a full worker somebody does, now and then, so this
one got faster."""
SPARE_SHARE = 0.02
SPARE_MIN = 4
"""What an unused limit keeps above what was used: room for chance."""
SATURATED_SHARE = 0.15
"""Waiting for less of a window than this is chance, and says little about the capacity."""
PRESSED_TARGET = 0.5
"""More that may wait, in roots of what runs in parallel, while the senders have a line: what waits
here could be nowhere else then, and what is under way varies by about that much."""
PATIENCE_MAX = 16
"""Windows for which a limit that was found right does not grow, unless somebody has a line: each
time it is found anew, a query waits. The pause doubles up to this, a third of a second or so."""
BUSY_SHARE = 0.9
"""With less than this of its parallel served, a worker idles while queries are under way to it, and
its limit does not rest."""
USED_SHARE = 0.97
"""A limit of which less was used was not tested, so it does not grow."""
UNUSED_SECONDS = 2.0
"""The cause of a limit becomes `unused` after this time without use, without waiting queries and
without a late loop. Single windows of a busy worker look unused as well."""
MEAN_ENDS = 400
"""How many ends the mean service time remembers: that of exponential times is right to 5 %."""


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """What can be set about the estimate."""

    window_seconds: float = 0.01
    """Short beside service times of tens of milliseconds, long enough for some ends in it."""
    ends_min: int = 8
    """A window lasts until so many queries ended in it, for slow services; ten windows at most."""
    waiting_target: float = 0.25
    """Queries that may wait on average when the worker is full. Each is a query that could be
    elsewhere; none at all would leave the worker idle now and then."""
    floor: int = 1
    """A limit of 0 could never be tested again."""
    lag_target_seconds: float = 0.05


class LimitEstimator:
    """Told of every change of what is served and what waits; knows the limit."""

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
        "served_share",
    )

    def __init__(
        self, first: int, ceiling: int, now: float, settings: EstimatorSettings | None = None
    ) -> None:
        self._settings = settings or EstimatorSettings()
        self._ceiling = max(self._settings.floor, min(ceiling, LIMIT_MAX))
        self._limit = float(max(self._settings.floor, min(first, self._ceiling)))
        self.cause: LimitCause = "slots"
        """What bounded the limit the last time that anything did; `slots` at the ceiling."""
        self._bound_at = now
        """When somebody last waited, or the loop was late."""
        self._serving = 0
        self._waiting = 0
        self._since = now
        self._step = 1.0
        self._patience = 1
        self._pause = 0
        self._served_seconds = 0.0
        self._served_ends = 0.0
        self.mean_service_seconds = 0.0
        """Of the work itself, without what was waited for; 0 until something ended."""
        self.parallel: float | None = None
        """What was served at a time when last somebody waited; None until that happened."""
        self.served_share = 1.0
        """Of the queries inside, in the last window: how many were served rather than waiting."""
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
        """From now on so many are served and so many wait; to be called at every change."""
        elapsed = now - self._since
        if elapsed > 0.0:
            if self._waiting:
                self._saturated += elapsed
                self._serving_while_saturated += elapsed * self._serving
                self._waiting_area += elapsed * self._waiting
            self._serving_area += elapsed * self._serving
            self._since = now
        elif elapsed < 0.0:  # the clock was set back: the window begins anew
            self._since = now
            self._restart(now)
        # Twice a task: comparisons cost a third of what calls of `max` do.
        self._serving = serving if serving > 0 else 0  # noqa: FURB136 - `max` is slow
        self._waiting = waiting if waiting > 0 else 0  # noqa: FURB136 - `max` is slow
        if serving + waiting > self._peak:
            self._peak = serving + waiting

    def claimed(self, in_flight: int, *, pressed: bool = False) -> None:
        """Senders count so many in flight to this worker, what is under way included.

        Without this word only what is inside counts as used; with a long way between, a limit
        would look unused however much the senders want it. `pressed` says that queries wait at the
        sender for want of room.
        """
        if pressed:
            self._pressed = True
        if in_flight > self._peak:
            self._peak = min(in_flight, LIMIT_MAX)

    def ended(self) -> None:
        """The work of a query ended well; of one that failed only the time it took counts."""
        self._ends += 1

    def observe_end(self, serving: int, waiting: int, now: float, *, good: bool) -> int:
        """The same as `observe`, `ended` if it ended well, and `limit`, with fewer calls."""
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
        """The event loop was late by so much, by the worker's own doing."""
        self._lag = max(self._lag, seconds)

    def limit(self, now: float) -> int:
        """How many may be in flight to this worker."""
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
        inside = self._serving_area + self._waiting_area
        self.served_share = self._serving_area / inside if inside > 0.0 else 1.0
        kept = math.exp(-self._ends / MEAN_ENDS)
        self._served_seconds = kept * self._served_seconds + self._serving_area
        self._served_ends = kept * self._served_ends + self._ends
        if self._served_ends > 0.0:
            self.mean_service_seconds = self._served_seconds / self._served_ends
        waiting = self._waiting_area / length
        limit = self._limit
        # Senders know a whole number: one below 1.3 can use no more than 1.
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
                # A limit that was not even used is too high by what was not used as well.
                reached = limit if used else min(limit, float(self._peak))
                limit = max(min(limit, self.parallel), reached - surplus)
                self._patience = min(2 * self._patience, PATIENCE_MAX)
            elif used:
                limit -= surplus
            self._pause = self._patience
        elif used and self._pause and not self._pressed and self._busy(length):
            self._pause -= 1
        elif used:
            if step > 1.0:  # the second step in a row: it can do more than was found
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
        """Whether nearly as many were served as run in parallel at all."""
        return self._serving_area >= BUSY_SHARE * length * (self.parallel or 0.0)

    def __repr__(self) -> str:
        return (
            f"<LimitEstimator, limit {self._limit:.1f}, serving {self._serving}, "
            f"waiting {self._waiting}>"
        )
