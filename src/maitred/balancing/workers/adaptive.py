"""Adaptive: the gateway fills each worker up to its measured capacity, the fastest first.

Workers measure how many queries may be in flight to them (`estimator`) and report that limit with
each answer and about every 100 ms. A gateway has room at a worker up to that limit, less its own
queries in flight, less those of other gateways. Among workers with room, the policy picks the one
with the shortest service time; where times are about equal, the one with the largest share of its
limit free. One query in 64 goes to the worker with the largest free share whatever its service
time: a worker that gets no queries cannot update its service time, and the last queries that it
measured were the longest ones.

**Several gateways** see the same free slot. A worker's report counts the queries of other gateways,
exactly at the time of the report. Until the next report each gateway takes only its part of the
free room, rounded at random, so the gateways do not all send at once. A gateway that connects to a
full worker may always use the limit divided by the number of gateways; the other gateways see more
in flight than the limit, and send less.

**Missing reports**: when the gateway has heard nothing from a worker for half a second, the last
limit halves with each further half second, down to one query, whose answer restores it.

**Refusals and errors never count as fast successes.** A worker that fails clearly more than the
others gets one query at a time until it recovers (`health`); failures that all workers share count
against none of them. The slot of a refused or lost query stays taken for as long as the work would
have taken, and twice as long with each further one in a row. A query is lost at its deadline, even
while the worker still has it: a worker that hung has its pauses behind it when it answers again. A
refusal lowers the limit to the one that the worker states. Whatever the worker states, it had no
room for one more than this gateway had in flight: that bound holds until the worker reports a limit
below it. The bound doubles with time, more slowly the more often the worker refused at about the
same number.

At least one query may always be in flight to every worker, so every worker is tried again.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from maitred.balancing.workers import trust
from maitred.balancing.workers.counting import CountingPolicy
from maitred.balancing.workers.health import DOUBLINGS_MAX, Health, pause_seconds
from maitred.balancing.workers.interface import Dispatch, LoadReport, PolicyWorker, QueryOutcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource

STALE_SECONDS = 0.5
"""When the gateway has heard nothing from a worker for this long, which is five reports, the
worker's limit begins to halve."""
HALVING_SECONDS = 0.5
ABOUT_EQUAL = 0.9
"""Two service times are about equal if the shorter is at least this share of the longer: the means
are accurate to a few per cent."""
PATIENCE_SECONDS = 0.1
"""The bound that a refusal sets doubles in this time, so a worker that refused everything for a
moment is used again within about a second."""
PATIENCE_SECONDS_MAX = 6.4
"""The longest doubling time, for a worker that reports room but keeps refusing: it then gets about
one query in a hundred as a trial."""
EXPLORE_EVERY = 64
"""One pick in this many goes to the worker with the largest free share. It costs at most 1.5 % of
the queries the difference between a slow and a fast worker."""


class Seen(PolicyWorker):
    """A worker with what it reported and what this gateway measured about it."""

    __slots__ = (
        "ceiling",
        "ceiling_at",
        "health",
        "heard_at",
        "held",
        "limit",
        "limit_at",
        "number",
        "others",
        "patience",
        "reported",
        "room",
        "senders",
        "service",
        "shown",
        "streak",
        "told_at",
    )

    def __init__(self, name: str, slots: int, now: float) -> None:
        super().__init__(name, slots)
        self.limit = float(min(slots, trust.FIRST_TRUST))
        self.limit_at = now
        self.heard_at = now
        self.told_at = now
        """When the policy last accepted a report of this worker."""
        self.ceiling = math.inf
        """The queries of this gateway in flight when the worker refused one more; the bound grows
        with time."""
        self.ceiling_at = now
        self.patience = PATIENCE_SECONDS
        self.number = -1
        self.reported = False
        self.others = 0
        self.senders = 1
        self.service = 0.0
        """The mean service time in seconds; 0 if unknown."""
        self.shown = 0
        """The most queries that were in flight when a good answer came."""
        self.health = Health()
        """Compares the worker's share of good answers at this gateway with those of the others."""
        self.streak = 0
        """How many queries in a row were refused or lost."""
        self.held: deque[float] = deque()
        """The times at which the slots of refused and lost queries become free again."""
        self.room = 0.0


class Adaptive(CountingPolicy[Seen]):
    """Picks the fastest worker that has room below its measured limit."""

    def __init__(self, random: RandomSource) -> None:
        super().__init__(random)
        self._picks = 0

    def _new(self, name: str, slots: int, now: float) -> Seen:
        seen = Seen(name, slots, now)
        seen.room = max(1.0, seen.limit)
        return seen

    # Events that the gateway reports

    def joined(self, worker: str, slots: int, now: float) -> None:
        super().joined(worker, slots, now)
        seen = self._known[worker]
        if not seen.reported:  # the announced slots are all that is known
            seen.limit = float(min(seen.slots, trust.FIRST_TRUST))
            self._reckon(seen, now)

    def left(self, worker: str, now: float) -> None:
        super().left(worker, now)
        self._compare(now)

    def reported(self, worker: str, report: LoadReport, now: float) -> None:
        seen = self._known.get(worker)
        if seen is None:
            return
        if report.number <= seen.number and now - seen.told_at < STALE_SECONDS:
            return  # overtaken; after a long silence the worker may count its reports anew
        seen.number = report.number
        serving, waiting = trust.count(report.serving), trust.count(report.waiting)
        said = trust.count(report.limit)
        if waiting > 4 and 2 * waiting > serving:
            # Many queries wait inside the worker, so believe only the number that it serves.
            said = min(said, serving + serving // 4 + 1)
        if seen.ceiling < math.inf and said <= _grown(seen, now):
            seen.ceiling, seen.patience = math.inf, PATIENCE_SECONDS
        if seen.reported:
            seen.limit = trust.limit(said, seen.limit, seen.shown, now - seen.limit_at)
        else:
            seen.limit = float(min(said, max(trust.FIRST_TRUST, 2 * seen.shown)))
            seen.reported = True
        seen.limit_at = seen.heard_at = seen.told_at = now
        yours = report.yours
        mine = seen.in_flight if yours is None else trust.count(yours)
        seen.others = max(0, serving + waiting - mine)
        seen.senders = trust.senders(report.senders)
        seen.service = trust.service(
            trust.seconds(report.mean_service_seconds), seen.health.mean_seconds
        )
        self._reckon(seen, now)

    def sent(self, worker: str, now: float) -> Dispatch:
        seen = self._known.get(worker)
        if seen is not None:
            seen.room -= 1.0
        return super().sent(worker, now)

    def overdue(self, dispatch: Dispatch, now: float) -> None:
        seen = dispatch.worker
        if dispatch.open and dispatch.held_until is None and isinstance(seen, Seen):
            dispatch.held_until = self._pause(seen, now)
            if self._failed(seen, now):
                self._reckon(seen, now)

    def ended(
        self, dispatch: Dispatch, outcome: QueryOutcome, now: float, limit: int | None = None
    ) -> None:
        if not dispatch.open:
            return
        seen = dispatch.worker
        if not isinstance(seen, Seen):
            super().ended(dispatch, outcome, now, limit)
            return
        if outcome is QueryOutcome.DONE:
            changed = self._succeeded(seen, now - dispatch.sent_at, now)
        elif outcome is QueryOutcome.CANCELLED:
            changed = False
            seen.room += 1.0
        elif outcome is QueryOutcome.FAILED:
            seen.room += 1.0
            changed = self._failed(seen, now)
        elif outcome is QueryOutcome.REFUSED:
            changed = True
            self._refused(seen, dispatch.sent_at, now, limit)
            self._hold(seen, self._pause(seen, now))
        elif dispatch.held_until is not None:
            changed = False  # the loss was counted when it became overdue
            if dispatch.held_until > now:
                self._hold(seen, dispatch.held_until)
            else:
                seen.room += 1.0
        else:
            changed = self._failed(seen, now)
            self._hold(seen, self._pause(seen, now))
        super().ended(dispatch, outcome, now, limit)
        if changed:
            self._reckon(seen, now)

    def _succeeded(self, seen: Seen, latency: float, now: float) -> bool:
        """Record a good answer; return whether the worker's room has to be computed anew."""
        if seen.in_flight > seen.shown:
            seen.shown = seen.in_flight
        seen.streak = 0
        health = seen.health
        changed, was = health.sick, health.good
        health.done(latency, now)
        if health.good != was:
            self._compare(now)
        seen.heard_at = now
        seen.room += 1.0
        if seen.limit < seen.in_flight + 1 and now - seen.limit_at > STALE_SECONDS:
            # The worker sends no reports but answered all it was given: allow one more.
            seen.limit = min(seen.limit + 1.0, float(seen.slots))
            return True
        return changed

    def _failed(self, seen: Seen, now: float) -> bool:
        """Record a failure; return whether the worker is sick, so its room is computed anew."""
        seen.health.failed(now)
        self._compare(now)
        return seen.health.sick

    def _refused(self, seen: Seen, sent_at: float, now: float, limit: int | None) -> None:
        had = seen.in_flight - 1
        seen.limit = min(seen.limit, float(trust.count(had if limit is None else limit)))
        seen.limit_at = now
        if 2.0 * had < seen.ceiling:
            seen.patience = PATIENCE_SECONDS
        elif sent_at > seen.ceiling_at and not seen.streak:
            # The worker did others in between, and this query was sent when the bound was known.
            seen.patience = min(2.0 * seen.patience, PATIENCE_SECONDS_MAX)
        seen.ceiling, seen.ceiling_at = max(1.0, float(had)), now

    def _pause(self, seen: Seen, now: float) -> float:
        """Return until when the slot of a query that is refused or lost now stays taken."""
        until = now + pause_seconds(seen.service, seen.streak)
        seen.streak += 1
        return until

    def _hold(self, seen: Seen, until: float) -> None:
        """Keep the slot of a query that ended taken until then."""
        if seen.held and seen.held[-1] > until:
            until = seen.held[-1]
        seen.held.append(until)

    def _compare(self, now: float) -> None:
        """Compare each worker's share of good answers with the best share among the others."""
        first = second = 0.0
        for seen in self._list:
            share = seen.health.good
            if share > first:
                first, second = share, first
            elif share > second:
                second = share
        for seen in self._list:
            health = seen.health
            was = health.sick
            # If several workers share the best value, each has another one as good.
            health.compare(second if health.good == first else first, now)
            if health.sick != was:
                self._reckon(seen, now)

    # Questions that the gateway asks

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        best: Seen | None = None
        self._picks += 1
        explores = self._picks % EXPLORE_EVERY == 0
        for seen in self._candidates(without):
            held = seen.held
            if held and held[0] <= now:
                while held and held[0] <= now:
                    held.popleft()
                    seen.room += 1.0
            if now - seen.heard_at > STALE_SECONDS:
                self._reckon(seen, now)
            if seen.health.sick and now < seen.health.paused_until:
                continue
            if seen.room < 1.0 and (seen.in_flight or held):
                continue
            if best is None or (_emptier if explores else _better)(seen, best):
                best = seen
        return None if best is None else best.name

    def _reckon(self, seen: Seen, now: float) -> None:
        """Compute how many more queries the worker may get, after a report or a long silence."""
        limit = seen.limit
        if seen.health.sick:
            limit = min(limit, seen.health.allowed)
        silence = now - seen.heard_at - STALE_SECONDS
        if silence > 0.0:
            limit *= math.exp2(-silence / HALVING_SECONDS)
        mine = limit = max(1.0, limit)
        alone = seen.senders == 1 and not seen.others
        if not alone:
            mine = max(1.0, limit - seen.others, limit / seen.senders)
        if seen.ceiling < math.inf:
            mine = min(mine, _grown(seen, now))
        room = mine - seen.in_flight - len(seen.held)
        if room > 0.0 and not alone:
            room = math.floor(room / seen.senders + self._random.random())
        seen.room = room


def _grown(seen: Seen, now: float) -> float:
    """Return the bound that a refusal set, grown by the time since then."""
    doublings = (now - seen.ceiling_at) / seen.patience
    return seen.ceiling * math.exp2(min(doublings, DOUBLINGS_MAX))


def _better(one: Seen, other: Seen) -> bool:
    """Return whether `one` is faster, or about as fast with a larger free share of its limit."""
    if one.service < ABOUT_EQUAL * other.service:
        return True
    if other.service < ABOUT_EQUAL * one.service:
        return False
    return _emptier(one, other)


def _emptier(one: Seen, other: Seen) -> bool:
    return one.room * max(1.0, other.limit) > other.room * max(1.0, one.limit)
