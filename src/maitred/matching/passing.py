"""The tree: what a partition passes on to its parent, and what its children pass on to it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from maitred.matching.effects import (
    Foreign,
    Give,
    GiveBack,
    PassOffer,
    PassTask,
    RecallTask,
    VisitorLost,
    VisitorTaken,
    VisitorUnwanted,
)
from maitred.matching.task import (
    AWAY,
    ON_END,
    ON_PASS_ON,
    ON_TAKE,
    OVER,
    READY,
    Task,
)
from maitred.matching.working import Working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.matching.offers import Offer

VISIT_SECONDS = 1.0
"""How long a task waits at the parent for an offer before it is asked again where it is at home."""

REST_SECONDS = 0.05
"""After the parent could not be asked, or had nothing for an offer until its time was up."""


class Passing(Working):
    """To the parent and from the children."""

    def offer_answered(
        self, offer: Offer, found: list[Foreign], now: float, reserved: Sequence[Any] = ()
    ) -> None:
        """What the parent had for an offer that was passed on; nothing, if it was not reached."""
        self.offers_away -= 1
        was_away, offer.away = offer.away, False
        if not found and not reserved:
            if was_away and offer.is_open and offer.untouched:
                self._offers_rest_until = now + REST_SECONDS
            return
        if was_away and offer.is_open and offer.untouched:
            self.offers.close(offer)
            self.effects.append(Give(offer, [], found, (), reserved))
            return
        # Reservations are dropped: the worker refuses those queries, and they are asked again.
        for task in found:
            self.effects.append(GiveBack(task, offer.session, offer.user))

    def task_answered(self, task: Task, holder: bytes, worker: str, now: float) -> None:
        """Which worker has a task that was passed on; none, if the holder is empty."""
        self.tasks_away -= 1
        if task.origin >= 0:
            self._visitor_answered(task, holder, worker)
            return
        self._no_more_away(task)
        back = task.sequence in self._back_early
        self._back_early.discard(task.sequence)
        if holder and task.state is AWAY and not back:
            self.waits.count(now - task.ready)
            task.state = ON_TAKE[task.state]
            self._lease(task, holder, b"", worker, now)
            if task.revoked:
                self._tell_worker(task)
        elif task.state is AWAY:
            if self._limit is not None:
                self._limit.give_back()
            if task.revoked:
                self._end(task, "cancelled", b"", None, now)
            else:
                self._come_back(task, now)
        self._seat(now)

    def _no_more_away(self, task: Task) -> None:
        self.away.pop(task.sequence, None)
        if task.called and not any(other.called for other in self.away.values()):
            self._home_by = -inf  # there is nobody left to wait for

    def parent_away(self, now: float) -> None:
        """It could not be reached: tasks are not passed on for a moment."""
        self._tasks_rest_until = now + REST_SECONDS

    def task_lost(self, task: Task, now: float) -> None:
        """Nobody knows whether the parent gave it to somebody: whoever has it will say so."""
        self.tasks_away -= 1
        self._no_more_away(task)
        if task.origin >= 0:
            if task.state is AWAY:
                task.state = ON_END[task.state]
                self.effects.append(VisitorLost(task))
        elif task.sequence in self._back_early:
            self._back_early.discard(task.sequence)
            self._come_back(task, now)
            self._seat(now)
        elif task.state is AWAY:
            task.state = ON_TAKE[task.state]
            self._lease(task, b"", b"", "", now)

    def visit(self, task: Task, until: float, now: float) -> None:
        """A child's task looks for an offer here; it hears `VisitorTaken` or `VisitorUnwanted`."""
        self.backlog.push(task)
        self._set_timer(until, task)
        self._seat(now)

    def visit_recalled(self, task: Task) -> None:
        """The child wants it back, and hears what became of it: at once, if nobody has it yet."""
        if task.state is READY:
            self.backlog.left(task)
            task.state = ON_END[task.state]
            self.effects.append(VisitorUnwanted(task))
        elif task.state is AWAY:
            self.effects.append(RecallTask(task))

    def visit_no_more(self, task: Task) -> None:
        """The child has given up, or is gone."""
        if task.state is READY:
            self.backlog.left(task)
        if task.state is not OVER:
            task.state = ON_END[task.state]

    def _visitor_answered(self, task: Task, holder: bytes, worker: str) -> None:
        if task.state is not AWAY:
            return
        task.state = ON_END[task.state]
        if holder:
            self.effects.append(VisitorTaken(task, holder, worker))
        else:
            # Its time here was up while it was further up.
            self.effects.append(VisitorUnwanted(task))

    def _pass_on(self, now: float) -> float:
        """What waited long enough goes up the tree; returns when more will have."""
        queries = self.wanted.slots_away
        if self.parent is None or (self.recovering and not queries):
            return inf
        limits = self.settings.forwarding
        if self.offers.slots:
            if self.backlog.ready and not queries:
                return inf  # held up by the rate limit, at home as anywhere
            if now < self._offers_rest_until:
                return self._offers_rest_until
            if self.away and now < self._home_by and not queries:
                return self._home_by  # they are on their way home
            wait = 0.0 if queries else limits.offer_wait_seconds
            for offer in self.offers.waiting():
                if offer.away or not offer.untouched:
                    continue
                if self.offers_away >= limits.offers + queries:
                    return inf
                if now < offer.since + wait and not offer.hops:
                    return offer.since + wait
                offer.away = True
                self.offers_away += 1
                self.passed_offers += 1
                self.effects.append(PassOffer(offer))
            return inf
        if self.recovering:
            return inf
        if self.backlog.ready and self.offers.any_free:
            return inf  # held up by the rate limit, or by those that are on their way home
        if self.away and now < self._home_by:
            return self._home_by  # so that they go up again in their order
        # Nobody asks a partition that was removed: what is found there goes up in any case.
        most = limits.tasks if self.counts.readable(self.key.partition) else max(1, limits.tasks)
        while self.tasks_away < most:
            task = self.backlog.first()
            if task is None:
                return inf
            if task.expires and now >= task.expires:
                self._expire(task, now)
                continue
            may_go = max(task.ready + limits.task_wait_seconds, self._tasks_rest_until)
            if now < may_go:
                return may_go
            if not self._pass_limit.allows(now):
                return self._pass_limit.next_at(now)
            if self._limit is not None and task.origin < 0:
                if not self._limit.allows(now):
                    return self._limit.next_at(now)
                self._limit.count()
            self._pass_limit.count()
            self.backlog.pop()
            task.state = ON_PASS_ON[task.state]
            task.called = False
            if task.origin < 0:
                self.away[task.sequence] = task
            self.tasks_away += 1
            self.passed_tasks += 1
            self.effects.append(PassTask(task))
        return inf
