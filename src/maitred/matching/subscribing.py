"""What gateways that pick workers themselves ask of the root: who is there, and how to get in.

A subscription is held until the workers are others than the gateway knows, or its time is up. Each
worker hears of the passes in the answer to the request with which it attends.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.errors import Cancelled, Draining, Overloaded
from maitred.matching.core import Core
from maitred.matching.effects import AnswerAttend, AnswerSubscribe, RefuseSubscribe
from maitred.matching.rosters import (
    GATHER_SECONDS,
    SETTLE_SECONDS,
    TELL_AGAIN_SECONDS,
    Subscriber,
)

if TYPE_CHECKING:
    from maitred.matching.presence import Attendance, Order
    from maitred.matching.rosters import Pass
    from maitred.matching.task import Token

TOKENS_AT_ONCE = 64
TOKEN_BYTES = 16


class Subscribing(Core):
    """For gateways that hold a roster."""

    def subscribe(
        self, session: bytes, user: str, version: int, token: Token, until: float, now: float
    ) -> None:
        """A gateway wants to know who is there; its token hears when that is something else than in
        the roster of that version, or shortly before `until`.

        Who has none, or passes that somebody does not know, says version 0 and is answered at once;
        the workers are told of its passes again. Raises `Overloaded` if too many subscribe.
        """
        rosters, presence = self.presence.rosters, self.presence
        one = rosters.subscribers.get((session, user))
        was_away = one is not None and not one.is_here(now)
        if one is None:
            most = self.settings.queries.subscribers
            if len(rosters.subscribers) >= most:
                raise Overloaded(
                    f"{most:,} gateways subscribe to this queue already.",
                    remedy="Ask for slots instead, or raise `queries.subscribers` of the queue.",
                    retry_after=rosters.pass_seconds,
                )
            presence.version += 1
            one = Subscriber(session, user, version, presence.version)
            if version:
                # It has one of an earlier owner, which is better than what we know yet.
                one.not_before = presence.began + SETTLE_SECONDS
            rosters.subscribers[one.key] = one
        elif one.token is not None:
            self.effects.append(
                RefuseSubscribe(one.token, Cancelled("This gateway subscribed once more."))
            )
        if not version or was_away:
            self._tell_all_again(one, now)
        one.version, one.token, one.seen = version, token, now
        one.deadline = min(until, now + rosters.held_seconds)
        presence.news = True
        self._set_subscriber_timer(one)

    def subscribe_no_more(self, session: bytes, user: str, token: Token, now: float) -> None:
        """Its connection is lost, or it has taken its request back."""
        one = self.presence.rosters.subscribers.get((session, user))
        if one is not None and one.token is token:
            self._subscription_over(one, now)

    def _subscription_over(self, one: Subscriber, now: float) -> Token:
        token, one.token = one.token, None
        one.seen = now
        one.deadline = now + self.presence.rosters.pass_seconds
        self._set_subscriber_timer(one)
        return token

    def _tell_all_again(self, one: Subscriber, now: float) -> None:
        """It may have been away for longer than its passes are good, or somebody missed them."""
        for session, made in one.passes.items():
            made.tell_at = min(made.tell_at, max(now, made.told_at + TELL_AGAIN_SECONDS))
            self.presence.rosters.untold[self.presence.workers[session]] = None

    def _set_subscriber_timer(self, one: Subscriber) -> None:
        if one.deadline < one.timer_at:
            one.timer_at = one.deadline
            self._set_timer(one.deadline, one)

    def _subscriber_rings(self, one: Subscriber, now: float) -> None:
        if now < one.timer_at:
            return  # it has another timer
        one.timer_at = inf
        if now < one.deadline:
            self._set_subscriber_timer(one)
        elif one.token is None:
            self.presence.rosters.forget(one, self.presence.workers)
        else:
            self._answer_subscriber(one, now)

    # At the end of a turn

    def _tell_rosters(self, now: float) -> None:
        """Answer those whose roster is old, and tell the workers of what that brought about."""
        presence = self.presence
        rosters = presence.rosters
        if presence.news or now >= self._rosters_at:
            presence.news = False
            self._rosters_at = inf
            for one in rosters.held:
                if max(one.since, presence.changed) <= one.version <= presence.version:
                    continue
                if now < one.not_before:
                    self._rosters_at = min(self._rosters_at, one.not_before)
                else:
                    self._answer_subscriber(one, now)
        if rosters.untold:
            untold, rosters.untold = rosters.untold, {}
            for worker in untold:
                self._tell_of_passes(worker, now)

    def _answer_subscriber(self, one: Subscriber, now: float) -> None:
        presence = self.presence
        rosters = presence.rosters
        members = []
        for worker in presence.serving():
            made = one.passes.get(worker.session)
            if made is None:
                if rosters.passes >= self.settings.queries.passes:
                    continue  # there are others
                rosters.pass_for(one, worker, self._new_token(), now)
                made = one.passes[worker.session]
            if made.tell_at <= now or worker.tell_at == inf:
                rosters.untold[worker] = None
            members.append((worker, made.token))
        one.version = presence.version
        one.not_before = now + GATHER_SECONDS
        token = self._subscription_over(one, now)
        self.effects.append(AnswerSubscribe(token, one.user, one.version, members))

    def _tell_of_passes(self, worker: Attendance, now: float) -> None:
        """Of passes that it has not heard of, or not lately, if it is there to listen."""
        if worker.token is not None:
            passes = self.presence.rosters.to_tell(worker, now)
            if passes:
                self._answer_attend(worker, "", now, passes)
        self._set_tell_timer(worker, now)

    def _answer_attend(
        self, worker: Attendance, order: Order, now: float, passes: list[Pass] | None = None
    ) -> None:
        if passes is None:
            passes = self.presence.rosters.told(worker, now)
        token = self.presence.answered(worker, now)
        worker.told_best = self.presence.shares.best_beside(worker.session)
        self.effects.append(AnswerAttend(token, order, passes, worker.told_best))
        self._set_timer(worker.deadline, worker)
        self._set_tell_timer(worker, now)

    def _set_tell_timer(self, worker: Attendance, now: float) -> None:
        at = self.presence.rosters.next_for(worker, now)
        if at < worker.tell_at:
            worker.tell_at = at
            self._set_timer(at, worker)

    def _tell_timer_rings(self, worker: Attendance, now: float) -> None:
        if now >= worker.tell_at:
            worker.tell_at = inf
            if self.presence.workers.get(worker.session) is worker:
                self.presence.rosters.untold[worker] = None

    def _new_token(self) -> bytes:
        if not self._tokens:
            fresh = self.secret(TOKENS_AT_ONCE * TOKEN_BYTES)
            self._tokens = [
                fresh[at : at + TOKEN_BYTES] for at in range(0, len(fresh), TOKEN_BYTES)
            ]
        return self._tokens.pop()

    def _stop_subscriptions(self) -> None:
        problem = Draining("The node is stopping.", remedy="Keep the roster and ask again later.")
        for one in self.presence.rosters.held:
            token, one.token = one.token, None
            self.effects.append(RefuseSubscribe(token, problem))
