"""Long polls at the root about the workers of the queue: workers attend, gateways subscribe.

A gateway's subscription waits until the roster of workers differs from the one that the gateway
has, or its deadline passes. A worker is told of the gateways' passes, and of orders, in the answer
to the long poll with which it attends.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.errors import Cancelled, Draining, Overloaded
from maitred.matching.attendance import Attendance
from maitred.matching.effects import (
    AnswerAttend,
    AnswerSubscribe,
    RefuseSubscribe,
    WorkerBack,
    WorkerGone,
)
from maitred.matching.rosters import GATHER_SECONDS, SETTLE_SECONDS, TELL_AGAIN_SECONDS
from maitred.matching.subscribers import Subscriber

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.matching.attendance import Order
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.subscribers import IssuedPass
    from maitred.matching.task import Token


class Subscriptions:
    """Answers workers that attend and gateways that subscribe."""

    def __init__(self, state: PartitionState) -> None:
        self._presence = state.presence
        self._limits = state.settings.queries
        self._tokens = state.tokens
        self._timers = state.timers
        self._effects = state.effects
        self.next_at = inf
        """When a gateway is told of changes that came too soon after the last roster."""
        state.timers.register(Attendance, ring=self._attendance_rings, waits=self._attends)
        state.timers.register(Subscriber, ring=self._subscriber_rings, waits=self._subscribes)

    def _attends(self, one: Attendance) -> bool:
        return self._presence.workers.get(one.session) is one

    def _subscribes(self, one: Subscriber) -> bool:
        return self._presence.rosters.subscribers.get(one.key) is one

    # Gateways

    def subscribe(
        self, session: bytes, user: str, version: int, token: Token, until: float, now: float
    ) -> None:
        """Queue a gateway's subscription. Its token is answered when the roster differs from the
        one of that version, or shortly before `until`.

        A gateway that has no roster, or whose pass a worker refused, sends version 0 and is
        answered at once; the workers are told of its passes again. Raises `Overloaded` if too many
        gateways subscribe.
        """
        rosters, presence = self._presence.rosters, self._presence
        one = rosters.subscribers.get((session, user))
        was_away = one is not None and not one.is_here(now)
        if one is None:
            most = self._limits.subscribers
            if len(rosters.subscribers) >= most:
                raise Overloaded(
                    f"{most:,} gateways subscribe to this queue already.",
                    remedy="Ask for slots instead.",
                    retry_after=rosters.pass_seconds,
                )
            presence.version += 1
            one = Subscriber(session, user, version, presence.version)
            if version:
                # Its roster is of an earlier owner, and better than what this one knows yet.
                one.not_before = presence.began + SETTLE_SECONDS
            rosters.subscribers[one.key] = one
        elif one.token is not None:
            self._effects.append(
                RefuseSubscribe(one.token, Cancelled("This gateway subscribed once more."))
            )
        if not version or was_away:
            self._tell_all_again(one, now)
        one.version, one.token, one.seen = version, token, now
        one.deadline = min(until, now + rosters.held_seconds)
        presence.news = True
        self._set_subscriber_timer(one)

    def subscribe_no_more(self, session: bytes, user: str, token: Token, now: float) -> None:
        """Drop the subscription of a gateway that no longer waits for the answer."""
        one = self._presence.rosters.subscribers.get((session, user))
        if one is not None and one.token is token:
            self._subscription_over(one, now)

    def _subscription_over(self, one: Subscriber, now: float) -> Token:
        token, one.token = one.token, None
        one.seen = now
        one.deadline = now + self._presence.rosters.pass_seconds
        self._set_subscriber_timer(one)
        return token

    def _tell_all_again(self, one: Subscriber, now: float) -> None:
        """Have the workers told of a gateway's passes again: it may have been away for longer than
        they are valid, or a worker may have missed them."""
        for session, made in one.passes.items():
            made.tell_at = min(made.tell_at, max(now, made.told_at + TELL_AGAIN_SECONDS))
            self._presence.rosters.untold[self._presence.workers[session]] = None

    def _set_subscriber_timer(self, one: Subscriber) -> None:
        if one.deadline < one.timer_at:
            one.timer_at = one.deadline
            self._timers.set(one.deadline, one)

    def _subscriber_rings(self, one: Subscriber, now: float) -> None:
        if now < one.timer_at:
            return  # another timer of it rings later
        one.timer_at = inf
        if now < one.deadline:
            self._set_subscriber_timer(one)
        elif one.token is None:
            self._presence.rosters.forget(one, self._presence.workers)
        else:
            self._answer_subscriber(one, now)

    # Workers

    def attend(self, told: Attendance, now: float) -> None:
        """Queue the long poll of a worker that attends. Its token is answered with an order, with
        passes, or at the deadline.

        A new worker is answered at once, and so is one whose verdict of itself depends on a best
        share that it does not know.
        """
        known, earlier = self._presence.attend(told, now)
        if known is told:
            seconds = self._presence.returns(told, now)
            if seconds is not None:
                self._effects.append(WorkerBack(told.session, told.worker, seconds))
        if earlier is not None:
            self._effects.append(AnswerAttend(earlier, ""))
        order = self._presence.order_now(known, now)
        if order or known is told or self._presence.shares.is_news(known):
            self.answer_attend(known, order, now)
        else:
            self._timers.set(known.deadline, known)
            if known.passes:
                self._presence.rosters.untold[known] = None

    def tell_of_the_best(self, now: float) -> None:
        """Tell workers with a low share of good answers the best share, if it changes their
        verdict."""
        shares = self._presence.shares
        if shares.news:
            for one in shares.to_tell():
                self.answer_attend(one, "", now)

    def attend_no_more(self, session: bytes, token: Token, now: float) -> None:
        """Drop the long poll of a worker that no longer waits for the answer."""
        known = self._presence.workers.get(session)
        if known is not None and known.token is token:
            self._presence.answered(known, now)
            self._timers.set(known.deadline, known)

    def _attendance_rings(self, one: Attendance, now: float) -> None:
        self._tell_timer_rings(one, now)
        if now < one.deadline:
            return  # another timer of it rings later
        if one.token is not None:
            self.answer_attend(one, "", now)
        elif self._attends(one):
            self._presence.gives_up(one)
            self._effects.append(WorkerGone(one.session, one.worker, one.state == "draining"))

    def order(self, named: str, order: Order, now: float) -> list[Attendance]:
        """Order workers to go offline or online, for an operator; raises `UnknownWorker`."""
        found = self._presence.find(named)
        for one in found:
            self._presence.order(one, order)
            told = self._presence.order_now(one, now)
            if told:
                self.answer_attend(one, told, now)
        return found

    # At the end of a turn

    def tell_rosters(self, now: float) -> None:
        """Answer the gateways whose roster is old, and tell the workers of new passes."""
        presence = self._presence
        rosters = presence.rosters
        if presence.news or now >= self.next_at:
            presence.news = False
            self.next_at = inf
            for one in rosters.held:
                if max(one.since, presence.changed) <= one.version <= presence.version:
                    continue
                if now < one.not_before:
                    self.next_at = min(self.next_at, one.not_before)
                else:
                    self._answer_subscriber(one, now)
        if rosters.untold:
            untold, rosters.untold = rosters.untold, {}
            for worker in untold:
                self._tell_of_passes(worker, now)

    def _answer_subscriber(self, one: Subscriber, now: float) -> None:
        presence = self._presence
        rosters = presence.rosters
        members = []
        for worker in presence.serving():
            made = one.passes.get(worker.session)
            if made is None:
                if rosters.passes >= self._limits.passes:
                    continue  # the queue has no pass left; the gateway uses other workers
                rosters.pass_for(one, worker, self._tokens.new(), now)
                made = one.passes[worker.session]
            if made.tell_at <= now or worker.tell_at == inf:
                rosters.untold[worker] = None
            members.append((worker, made.token))
        one.version = presence.version
        one.not_before = now + GATHER_SECONDS
        token = self._subscription_over(one, now)
        self._effects.append(AnswerSubscribe(token, one.user, one.version, members))

    def _tell_of_passes(self, worker: Attendance, now: float) -> None:
        """Tell a worker of passes that are new or have to be renewed, if its long poll waits."""
        if worker.token is not None:
            passes = self._presence.rosters.to_tell(worker, now)
            if passes:
                self.answer_attend(worker, "", now, passes)
        self._set_tell_timer(worker, now)

    def answer_attend(
        self, worker: Attendance, order: Order, now: float, passes: list[IssuedPass] | None = None
    ) -> None:
        if passes is None:
            passes = self._presence.rosters.told(worker, now)
        token = self._presence.answered(worker, now)
        worker.told_best = self._presence.shares.best_beside(worker.session)
        self._effects.append(AnswerAttend(token, order, passes, worker.told_best))
        self._timers.set(worker.deadline, worker)
        self._set_tell_timer(worker, now)

    def _set_tell_timer(self, worker: Attendance, now: float) -> None:
        at = self._presence.rosters.next_for(worker, now)
        if at < worker.tell_at:
            worker.tell_at = at
            self._timers.set(at, worker)

    def _tell_timer_rings(self, worker: Attendance, now: float) -> None:
        if now >= worker.tell_at:
            worker.tell_at = inf
            if self._presence.workers.get(worker.session) is worker:
                self._presence.rosters.untold[worker] = None

    def stop(self, problem: MaitredError | None = None) -> None:
        """Answer all long polls, those of gateways with the problem: the node is stopping, unless
        it says otherwise."""
        problem = problem or Draining(
            "The node is stopping.", remedy="Keep the roster and ask again later."
        )
        for subscriber in self._presence.rosters.held:
            token, subscriber.token = subscriber.token, None
            self._effects.append(RefuseSubscribe(token, problem))
        for worker in self._presence.workers.values():
            if worker.token is not None:
                token, worker.token = worker.token, None
                self._effects.append(AnswerAttend(token, ""))

    def tokens(self) -> list[Token]:
        """Return the tokens of all long polls."""
        attending = (one.token for one in self._presence.workers.values())
        subscribed = [one.token for one in self._presence.rosters.held]
        return [*subscribed, *(token for token in attending if token is not None)]
