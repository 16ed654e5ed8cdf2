"""Adaptive: the gateway fills each worker to what it really can do, the fastest first.

Workers measure how many queries may be in flight to them (`estimator`) and say so with each answer
and about every 100 ms. A gateway has room at a worker up to that limit, less its own queries in
flight, less those of other gateways. Among workers with room the one with the shortest service time
wins; where times are about equal, the one that has the largest share of its limit free. One query
in 64 goes to the one with the most free anyway: the service time of a worker that gets nothing is
an old one, and the last that it measured are those of the longest queries.

**Several gateways** see the same free slot. What a worker holds for others is in its report, exact
when it was made. Each gateway takes only its part of the free room until the next report, rounded
by chance, so they do not all jump. A gateway that came late finds everything taken; it may always
have the limit divided by the number of gateways, and the others, seeing more in flight than the
limit, let go.

**Reports that are not there**: after half a second without a word the last limit is held but halves
with each further half second, down to one query, whose answer brings it back.

**Refusals and errors are never fast successes.** A worker that fails clearly more than the others
is tried with one query at a time, until it can work again (`health`); what fails everywhere is
nobody's fault. The slot of a query that was refused, or was lost, stays taken for as long as the
work would have taken, and doubly as long with each further one in a row. A refusal
lowers the limit to what the worker says. Whatever it says, it had no room for one more than it got
from here: that bound counts until the limit is below it. It doubles with time, and the slower the
more often the worker refused at about the same number.

At least one query may always be in flight to every worker, so whatever happened, it is tried again.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from maitred.balancing.workers import trust
from maitred.balancing.workers.counting import Counting
from maitred.balancing.workers.health import DOUBLINGS_MAX, Health, pause_seconds
from maitred.balancing.workers.interface import Dispatch, Outcome, Report, Worker

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource

STALE_SECONDS = 0.5
"""Five reports missing. Nothing was heard for this long: the limit begins to halve."""
HALVING_SECONDS = 0.5
ABOUT_EQUAL = 0.9
"""Service times that differ by less are the same: their means are right to a few per cent."""
PATIENCE_SECONDS = 0.1
"""In which the bound doubles that a refusal set: a worker that refused everything for a moment is
used again within about a second."""
PATIENCE_SECONDS_MAX = 6.4
"""For one that says it has room and refuses again and again: about one query in a hundred tries."""
EXPLORE_EVERY = 64
"""Costs at most 1.5 % of the queries the difference between a slow and a fast worker."""


class Seen(Worker):
    """A worker with all that was reported by it and measured about it."""

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
        """When a report was believed last."""
        self.ceiling = math.inf
        """What it had from here when it refused one more; it grows with time."""
        self.ceiling_at = now
        self.patience = PATIENCE_SECONDS
        self.number = -1
        self.reported = False
        self.others = 0
        self.senders = 1
        self.service = 0.0
        """The mean service time in seconds; 0 if nothing is known."""
        self.shown = 0
        """The most that was in flight when a good answer came."""
        self.health = Health()
        """How it does beside the others, as seen from here."""
        self.streak = 0
        """Queries in a row that were refused or lost."""
        self.held: deque[float] = deque()
        """When slots of those are free again."""
        self.room = 0.0


class Adaptive(Counting[Seen]):
    """Live capacity decides."""

    def __init__(self, random: RandomSource) -> None:
        super().__init__()
        self._random = random
        self._picks = 0

    def _new(self, name: str, slots: int, now: float) -> Seen:
        seen = Seen(name, slots, now)
        seen.room = max(1.0, seen.limit)
        return seen

    # What is told

    def joined(self, worker: str, slots: int, now: float) -> None:
        super().joined(worker, slots, now)
        seen = self._known[worker]
        if not seen.reported:  # what it announces is all that is known
            seen.limit = float(min(seen.slots, trust.FIRST_TRUST))
            self._reckon(seen, now)

    def left(self, worker: str, now: float) -> None:
        super().left(worker, now)
        self._compare(now)

    def reported(self, worker: str, report: Report, now: float) -> None:
        seen = self._known.get(worker)
        if seen is None:
            return
        if report.number <= seen.number and now - seen.told_at < STALE_SECONDS:
            return  # overtaken; if none was newer for long, the numbers may have begun anew
        seen.number = report.number
        serving, waiting = trust.count(report.serving), trust.count(report.waiting)
        said = trust.count(report.limit)
        if waiting > 4 and 2 * waiting > serving:
            # Far more wait than it admits: only those that are served can be run.
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

    def ended(
        self, dispatch: Dispatch, outcome: Outcome, now: float, limit: int | None = None
    ) -> None:
        if not dispatch.open:
            return
        seen = dispatch.worker
        if not isinstance(seen, Seen):
            super().ended(dispatch, outcome, now, limit)
            return
        if outcome is Outcome.DONE:
            changed = self._succeeded(seen, now - dispatch.sent_at, now)
        elif outcome is Outcome.CANCELLED:
            changed = False
            seen.room += 1.0
        elif outcome is Outcome.FAILED:
            seen.room += 1.0
            changed = self._failed(seen, now)
        elif outcome is Outcome.REFUSED:
            changed = True
            self._refused(seen, dispatch.sent_at, now, limit)
            self._hold(seen, now)
        else:
            changed = self._failed(seen, now)
            self._hold(seen, now)
        super().ended(dispatch, outcome, now, limit)
        if changed:
            self._reckon(seen, now)

    def _succeeded(self, seen: Seen, latency: float, now: float) -> bool:
        """Whether the limit changed by it."""
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
            # It reports nothing, and what it was given it did: one more.
            seen.limit = min(seen.limit + 1.0, float(seen.slots))
            return True
        return changed

    def _failed(self, seen: Seen, now: float) -> bool:
        """Whether it may be given another number by now."""
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
            # It did others in between, and this one was sent when the bound was known.
            seen.patience = min(2.0 * seen.patience, PATIENCE_SECONDS_MAX)
        seen.ceiling, seen.ceiling_at = max(1.0, float(had)), now

    def _hold(self, seen: Seen, now: float) -> None:
        """The slot of a query that was not done well stays taken for a while."""
        until = now + pause_seconds(seen.service, seen.streak)
        seen.streak += 1
        if seen.held and seen.held[-1] > until:
            until = seen.held[-1]
        seen.held.append(until)

    def _compare(self, now: float) -> None:
        """Everybody's share of good answers has another one beside it."""
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
            # Of several that are the best, each has another one as good.
            health.compare(second if health.good == first else first, now)
            if health.sick != was:
                self._reckon(seen, now)

    # What is asked

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
        """What room there is, after a report or for want of one."""
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
    """The bound that a refusal set, after the time that has gone by."""
    doublings = (now - seen.ceiling_at) / seen.patience
    return seen.ceiling * math.exp2(min(doublings, DOUBLINGS_MAX))


def _better(one: Seen, other: Seen) -> bool:
    """Faster, or about as fast and emptier."""
    if one.service < ABOUT_EQUAL * other.service:
        return True
    if other.service < ABOUT_EQUAL * one.service:
        return False
    return _emptier(one, other)


def _emptier(one: Seen, other: Seen) -> bool:
    return one.room * max(1.0, other.limit) > other.room * max(1.0, one.limit)
