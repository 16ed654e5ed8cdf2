"""Matches offers with queries and then with tasks, each in their order."""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from maitred.matching.effects import Foreign, Give, GiveBack, NothingFor, RecallOffer, VisitorTaken
from maitred.matching.records import PRIORITIES
from maitred.matching.slots import WaitingOffer
from maitred.matching.task import GIVEN, ON_END, ON_GIVE

if TYPE_CHECKING:
    from maitred.matching.allocator import Allocator
    from maitred.matching.limits import Limiter
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.task_transitions import OwnTasks


class Matcher:
    """Gives the slots of offers to queries and then to tasks."""

    def __init__(self, state: PartitionState, allocator: Allocator, own_tasks: OwnTasks) -> None:
        self.key = state.key
        self._is_root = state.is_root
        self._limit = state.rate_limit
        self._hand_out = state.hand_out
        self._proofs = state.proofs
        self._backlog = state.backlog
        self._offers = state.offers
        self._allocator = allocator
        self._requests = allocator.lines
        self._own_tasks = own_tasks
        self._away = state.away
        self._presence = state.presence
        self._worker_sightings = state.worker_sightings
        self._waits = state.waits
        self._timers = state.timers
        self._effects = state.effects
        self._meter = state.meter
        state.timers.register(WaitingOffer, ring=self._offer_rings, waits=attrgetter("is_open"))

    def limit_to(self, limit: Limiter | None) -> None:
        """Hand tasks out no faster than this limit allows."""
        self._limit = limit

    # Offers

    def offer(self, offer: WaitingOffer, until: float, now: float) -> None:
        """Queue an offer of a worker's free slots. It is answered with tasks and reservations, or
        with nothing at `until`."""
        self._worker_sightings.heard(offer.session, offer.worker, now)
        self._offers.add(offer)
        self._meter.offers += 1
        self._timers.set(until, offer)
        self.match(now)

    def only_reserved(self, offer: WaitingOffer) -> bool:
        """Return whether an offer that was just made met at most queries and cannot go to a parent:
        then the partition need not be looked at for it."""
        waits = offer.given or self._backlog.ready or self._away.tasks or self._offers.aside
        return not waits and self._is_root

    def withdraw(self, offer: WaitingOffer, now: float) -> None:
        """Close an offer whose worker no longer waits, and take back the tasks it was given."""
        if not self._offers.close(offer):
            self._return_gifts_of_the_parent(offer)
            return
        if offer.away:
            self._effects.append(RecallOffer(offer))
        for task in offer.given:
            self._own_tasks.come_back(task, now)
        offer.given = []
        self._allocator.reservations_fall(offer.reserved, now)
        offer.reserved = []
        self._presence.noticed(now)
        self.match(now)

    def _return_gifts_of_the_parent(self, offer: WaitingOffer) -> None:
        """Give the parent's tasks back if its answer came earlier in this turn: the caller does not
        wait for it any more, and the tasks' owners have leased them to the worker. Reservations of
        the parent lapse.
        """
        effects = self._effects
        for at, effect in enumerate(effects):
            if isinstance(effect, Give) and effect.offer is offer:
                effects[at : at + 1] = [
                    GiveBack(task, offer.session, offer.user) for task in effect.foreign
                ]
                return

    def answer_without_tasks(self, offer: WaitingOffer) -> None:
        """Answer an offer with nothing, if it was given nothing yet."""
        if offer.is_open and offer.untouched:
            self._offers.close(offer)
            if offer.away:
                self._effects.append(RecallOffer(offer))
            self._effects.append(NothingFor(offer))

    def answer_offers_of(self, session: bytes) -> int:
        """Answer all offers of a worker that were given nothing; return how many there were."""
        waiting = self._offers.unanswered()
        found = [one for one in waiting if one.session == session and one.untouched]
        for offer in found:
            self.answer_without_tasks(offer)
        return len(found)

    def stop(self) -> None:
        """Answer all offers that were given nothing."""
        for offer in self._offers.unanswered():
            if offer.untouched:
                self.answer_without_tasks(offer)

    def _offer_rings(self, offer: WaitingOffer, now: float) -> None:
        self._presence.noticed(now)
        self.answer_without_tasks(offer)

    # Matching

    def match(self, now: float, most: float = inf) -> float:
        """Match queries and then tasks with offers, in the order of both, but no more than `most`;
        return how many of `most` are left."""
        backlog, offers, requests = self._backlog, self._offers, self._requests
        if requests.slots and (offers.slots or offers.aside or offers.sets):
            most = self._allocator.allocate(now, most)
        own_tasks, away = self._own_tasks, self._away
        if not (backlog.ready or away.tasks) or own_tasks.recovering:
            return most
        if not offers.slots and not offers.any_free:
            return most
        out = self._hand_out
        if out.is_paused:
            return most
        if requests.slots_away and now < self._allocator.tasks_may_be_matched_at():
            return most
        if away.tasks and away.must_be_awaited(now):
            return most
        if out.is_leaving:
            return most
        only_new = not out.is_trusted()
        away.stay(now)
        limit = self._limit
        issue, lease = self._proofs.issue, own_tasks.lease
        # Tasks in a row that became ready at the same time are counted together.
        since, alike = 0.0, 0
        while backlog.ready and most > 0 and (offers.slots or offers.any_free):
            if limit is not None and not limit.allows(now):
                break
            task = backlog.pop()
            if task.expires and now >= task.expires:
                backlog.push_back(task)
                own_tasks.expire(task, now)
                continue
            if only_new and not out.allows(task):
                backlog.push_back(task)
                break
            offer = offers.take(task)
            task.state = ON_GIVE[task.state]
            most -= 1
            if task.origin >= 0:
                continue  # its owner hears of it when the offer is answered
            if limit is not None:
                limit.count()
            if task.ready != since:
                if alike:
                    self._waits.count(now - since, alike)
                since, alike = task.ready, 0
            alike += 1
            holder = offer.holder
            proof = issue(task.sequence, task.attempt + 1, holder)
            lease(task, holder, proof, offer.worker, now)
        if alike:
            self._waits.count(now - since, alike)
        return most

    def urgency(self) -> int | None:
        """Return how urgently the partition needs a slot: see `SharedSupplies`."""
        requests = self._requests
        if requests.slots and not requests.slots_away:
            first = requests.first()
            if first is not None:
                return first.priority
        if self._is_held_up():
            return None
        if self._backlog.ready and not self._own_tasks.recovering:
            for priority, line in enumerate(self._backlog.lines):
                if line.waiting:
                    return PRIORITIES + priority
        return None

    def match_some(self, most: int, now: float) -> int:
        """Match at most so many queries and tasks, since slots became free; return how many."""
        return most - int(self.match(now, most))

    def next_at(self, now: float) -> float:
        """Return when tasks may be matched that may not be matched now."""
        at = inf
        if self._is_held_up():
            return at  # the shell looks when the lease is renewed, or the queue is resumed
        if self._own_tasks.recovering:
            at = self._own_tasks.recovering_until
        elif self._away.tasks and now < self._away.home_by and self._offers.any_free:
            at = self._away.home_by
        elif self._limit is not None and self._backlog.ready and self._offers.any_free:
            at = self._limit.next_at(now)
        if self._requests.slots_away and self._offers.slots and self._backlog.ready:
            first = self._allocator.tasks_may_be_matched_at()
            at = min(at, first if first > now else inf)
        return at

    def _is_held_up(self) -> bool:
        """Return whether the first task that waits may not be handed out now, whatever is on
        offer."""
        out = self._hand_out
        if not self._backlog.ready or not (out.is_paused or out.withholds):
            return False
        first = self._backlog.first()
        return first is not None and not self._hand_out.allows(first)

    # At the end of a turn

    def flush(self, now: float) -> None:
        """Answer the offers that were given something. This happens once a turn, so that each
        offer has one answer."""
        for offer in self._offers.answerable():
            if self._offers.close(offer):
                if offer.away:
                    self._effects.append(RecallOffer(offer))
                if offer.given:
                    self._give(offer, now)
                else:
                    self._effects.append(Give(offer, [], [], offer.reserved))
                    offer.reserved = []
        self._allocator.flush(now)  # last: the worker should know before the query arrives

    def _give(self, offer: WaitingOffer, now: float) -> None:
        ours = [task for task in offer.given if task.origin < 0]
        foreign = []
        for task in offer.given:
            if task.origin < 0 or task.state is not GIVEN:
                continue  # an own task, or a visitor whose owner has given up
            self._effects.append(VisitorTaken(task, offer.holder, offer.worker))
            task.state = ON_END[task.state]
            proof = self._proofs.issue_for_visitor(
                task.origin, task.sequence, task.attempt, offer.holder
            )
            foreign.append(
                Foreign(
                    task.origin,
                    task.sequence,
                    task.attempt,
                    proof,
                    task.terms.timeout,
                    task.payload,
                    now - task.ready,
                    task.trace,
                )
            )
        self._effects.append(Give(offer, ours, foreign, offer.reserved))
        offer.given = []  # the offer's timer keeps the offer for a while, but not the tasks
        offer.reserved = []
