"""The tree: passes tasks and offers on to the parent, and takes in those of the children."""

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
from maitred.matching.limits import Limiter
from maitred.matching.task import (
    AWAY,
    ON_CLAIM,
    ON_END,
    ON_PASS_ON,
    ON_TAKE,
    OVER,
    READY,
    WAITING,
    QueueTask,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.matching.allocator import Allocator
    from maitred.matching.heartbeats import Heartbeats
    from maitred.matching.matcher import Matcher
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.slots import WaitingOffer
    from maitred.matching.task import Token
    from maitred.matching.task_transitions import OwnTasks

VISIT_SECONDS = 1.0
"""How long a task waits at the parent for an offer before it returns home."""

REST_SECONDS = 0.05
"""How long nothing is passed on after the parent was not reached, or had nothing for an offer."""


class TreeForwarding:
    """Passes offers and tasks on to the parent, and takes those of the children in."""

    def __init__(
        self,
        state: PartitionState,
        *,
        own_tasks: OwnTasks,
        matcher: Matcher,
        allocator: Allocator,
        heartbeats: Heartbeats,
    ) -> None:
        self._limits = limits = state.settings.forwarding
        self.parent = state.parent
        self._readable = state.counts.readable(state.key.partition)
        self._rate_limit = state.rate_limit
        self._hand_out = state.hand_out
        self._pass_limit = Limiter(
            limits.tasks_per_second,
            max(limits.tasks, limits.tasks_per_second / 10),
            state.loaded_at,
        )
        self._own_tasks = own_tasks
        self._matcher = matcher
        self._requests = allocator.lines
        self._backlog = state.backlog
        self._offers = state.offers
        self._away = state.away
        self._heartbeats = heartbeats
        self._waits = state.waits
        self._timers = state.timers
        self._effects = state.effects
        self._meter = state.meter
        self.offers_away = 0
        self.tasks_away = 0
        """Tasks at the parent, including those of children."""
        self._visitors_away: dict[int, QueueTask] = {}
        """Tasks of children that are at the parent, by their identity: the time of their visit here
        may be up."""
        self._offers_rest_until = -inf
        """Until then no offer is passed on: the parent had nothing for one."""
        self.passed_tasks = self.passed_offers = 0
        state.timers.register(QueueTask, ring=self._visit_rings, waits=_visits)

    def set_readable(self, *, readable: bool) -> None:
        """Set whether workers offer to this partition. No worker offers to a partition that was
        removed, so its tasks go to the parent in any case."""
        self._readable = readable

    def limit_to(self, limit: Limiter | None) -> None:
        """Pass tasks on no faster than this limit allows."""
        self._rate_limit = limit

    def offer_answered(
        self, offer: WaitingOffer, found: list[Foreign], now: float, reserved: Sequence[Any] = ()
    ) -> None:
        """Answer an offer that was passed on with what the parent gave it: nothing, if the parent
        was not reached. If the offer was answered meanwhile, the tasks are returned."""
        self.offers_away -= 1
        was_away, offer.away = offer.away, False
        if not found and not reserved:
            if was_away and offer.is_open and offer.untouched:
                self._offers_rest_until = now + REST_SECONDS
            return
        if was_away and offer.is_open and offer.untouched:
            self._offers.close(offer)
            self._effects.append(Give(offer, [], found, (), reserved))
            return
        # Reservations are dropped: the worker refuses those queries, and the gateways repeat them.
        for task in found:
            self._effects.append(GiveBack(task, offer.session, offer.user))

    def task_answered(self, task: QueueTask, holder: bytes, worker: str, now: float) -> None:
        """Note which worker took a task that was passed on; none, if the holder is empty."""
        self.tasks_away -= 1
        if task.origin >= 0:
            self._visitors_away.pop(id(task), None)
            self._visitor_answered(task, holder, worker)
            return
        is_of_another = self._away.was_of_another(task, holder)
        back = self._away.answered(task)
        if holder and is_of_another and (task.state is READY or task.state is WAITING):
            self._take_again(task, holder, worker, now)
        elif holder and task.state is AWAY and not back:
            self._waits.count(now - task.ready)
            task.state = ON_TAKE[task.state]
            task.forwarded = True
            self._own_tasks.lease(task, holder, b"", worker, now)
            if task.revoked:
                self._heartbeats.tell_revoked(task)
        elif task.state is AWAY:
            if self._rate_limit is not None:
                self._rate_limit.give_back()
            if task.revoked:
                self._own_tasks.end(task, "cancelled", b"", None, now)
            else:
                self._own_tasks.come_back(task, now)
        self._matcher.match(now)

    def _take_again(self, task: QueueTask, holder: bytes, worker: str, now: float) -> None:
        """Lease a task to the worker that took it at the parent, although the failure of an attempt
        with the same number was reported meanwhile: an earlier owner had given that one out. The
        worker runs the task now, so that no other may be given the next attempt."""
        if task.state is READY:
            self._backlog.left(task)
        task.state = ON_CLAIM[task.state]
        task.attempt -= 1
        task.reported = task.attempt
        self._own_tasks.lease(task, holder, b"", worker, now)

    def parent_away(self, now: float) -> None:
        """Pass no tasks on for a moment: the parent could not be reached."""
        self._away.rest(now + REST_SECONDS)

    def task_lost(self, task: QueueTask, now: float) -> None:
        """Lease a task to an unknown worker: the parent may have given it out, and did not answer.
        A worker that has it will report."""
        self.tasks_away -= 1
        if task.origin >= 0:
            self._visitors_away.pop(id(task), None)
            if task.state is AWAY:
                task.state = ON_END[task.state]
                self._effects.append(VisitorLost(task))
        elif self._away.answered(task):
            self._own_tasks.come_back(task, now)
            self._matcher.match(now)
        elif task.state is AWAY:
            task.state = ON_TAKE[task.state]
            task.forwarded = True
            self._own_tasks.lease(task, b"", b"", "", now)

    def visit(self, task: QueueTask, until: float, now: float) -> None:
        """Queue a child's task; effect `VisitorTaken` or `VisitorUnwanted` answers the child."""
        self._backlog.push(task)
        self._timers.set(until, task)
        self._matcher.match(now)

    def visit_recalled(self, task: QueueTask) -> None:
        """Return a task that its child calls back, unless an offer here or further up has it."""
        if task.state is READY:
            self._visit_ends(task)
        elif task.state is AWAY:
            self._effects.append(RecallTask(task))

    def visit_no_more(self, task: QueueTask) -> None:
        """Forget a visitor whose child has given up, or is gone."""
        if task.state is READY:
            self._backlog.left(task)
        if task.state is not OVER:
            task.state = ON_END[task.state]

    def _visit_rings(self, task: QueueTask, _now: float) -> None:
        if task.state is READY:
            self._visit_ends(task)

    def _visit_ends(self, task: QueueTask) -> None:
        """Send a visitor back that found no offer."""
        self._backlog.left(task)
        task.state = ON_END[task.state]
        self._effects.append(VisitorUnwanted(task))

    def call_all_back(self) -> None:
        """Send the visitors back, and call back all tasks that are at the parent."""
        for visitor in self._visitors():
            self.visit_recalled(visitor)
        for task in self._away.tasks.values():
            if not task.called:
                task.called = True
                self._effects.append(RecallTask(task))

    def lose_all_away(self, now: float) -> None:
        """Treat all tasks at the parent as lost there: it did not answer in time, and may have
        given them out."""
        for visitor in list(self._visitors_away.values()):
            self.task_lost(visitor, now)
        for task in list(self._away.tasks.values()):
            self.task_lost(task, now)

    def leave(self) -> list[Token]:
        """Forget the visitors; return the tokens of their children's requests."""
        visitors = self._visitors()
        tokens = [visitor.visit[0] for visitor in visitors if visitor.state is not OVER]
        for visitor in visitors:
            visitor.visit = None
        return tokens

    def _visitors(self) -> list[QueueTask]:
        """Return the tasks of children that are here or at the parent; some may be over."""
        waiting = {id(task): task for task in self._timers.waiting(QueueTask)}
        return list((waiting | self._visitors_away).values())

    def _visitor_answered(self, task: QueueTask, holder: bytes, worker: str) -> None:
        if task.state is not AWAY:
            return
        task.state = ON_END[task.state]
        if holder:
            self._effects.append(VisitorTaken(task, holder, worker))
        else:
            # Its visit here ended while it was further up.
            self._effects.append(VisitorUnwanted(task))

    def pass_on(self, now: float) -> float:
        """Pass offers and tasks on that waited long enough; return when the next ones will have."""
        queries = self._requests.slots_away
        if self._hand_out.is_leaving:
            return inf
        if self.parent is None or (self._own_tasks.recovering and not queries):
            return inf
        limits = self._limits
        if self._offers.slots:
            if self._backlog.ready and not queries and not self._hand_out.is_paused:
                return inf  # the rate limit holds tasks up, at the parent as well
            if now < self._offers_rest_until:
                return self._offers_rest_until
            if self._away.tasks and now < self._away.home_by and not queries:
                return self._away.home_by  # tasks are on their way home
            wait = 0.0 if queries else limits.offer_wait_seconds
            for offer in self._offers.waiting():
                if offer.away or not offer.untouched:
                    continue
                if self.offers_away >= limits.offers + queries:
                    return inf
                if now < offer.since + wait and not offer.hops:
                    return offer.since + wait
                offer.away = True
                self.offers_away += 1
                self.passed_offers += 1
                self._meter.forwarded_offers += 1
                self._effects.append(PassOffer(offer))
            return inf
        if self._own_tasks.recovering or self._hand_out.is_paused:
            return inf
        if self._backlog.ready and self._offers.any_free:
            return inf  # the rate limit, or tasks on their way home, hold tasks up
        if self._away.tasks and now < self._away.home_by:
            return self._away.home_by  # so that all go up again in their order
        most = limits.tasks if self._readable else max(1, limits.tasks)
        while self.tasks_away < most:
            task = self._backlog.first()
            if task is None:
                return inf
            if task.origin < 0 and task.sequence in self._away.tasks:
                return inf  # it failed before the parent told who took it: that word comes first
            if not self._hand_out.allows(task):
                return inf  # the shell looks when the lease is renewed
            if task.expires and now >= task.expires:
                self._own_tasks.expire(task, now)
                continue
            may_go = max(task.ready + limits.task_wait_seconds, self._away.rest_until)
            if now < may_go:
                return may_go
            if not self._pass_limit.allows(now):
                return self._pass_limit.next_at(now)
            if self._rate_limit is not None and task.origin < 0:
                if not self._rate_limit.allows(now):
                    return self._rate_limit.next_at(now)
                self._rate_limit.count()
            self._pass_limit.count()
            self._backlog.pop()
            task.state = ON_PASS_ON[task.state]
            task.called = False
            if task.origin < 0:
                self._away.went(task)
            else:
                self._visitors_away[id(task)] = task
            self.tasks_away += 1
            self.passed_tasks += 1
            self._meter.forwarded_tasks += 1
            self._effects.append(PassTask(task))
        return inf


def _visits(task: QueueTask) -> bool:
    return task.state is not OVER
