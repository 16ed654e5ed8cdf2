"""Queues whose policy lets gateways pick the worker.

The gateway learns the policy of a queue from the first answer to a slot request
(`Allocated.policy`). It then subscribes to the queue's roster, and queries go straight to a worker
that the policy picks. A query that cannot go so (there is no roster yet, no worker on it can be
reached, or there are too many users) asks the node for a slot, as at every other queue. So a policy
never makes a query worse off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from maitred.balancing.workers import WORKER_POLICIES
from maitred.dispatch.dispatch_attempt import DispatchedQuery, DispatchTotals
from maitred.dispatch.known_workers import KnownWorkers
from maitred.dispatch.queue_dispatcher import QueueDispatcher
from maitred.dispatch.roster_subscription import UNUSED_SECONDS, RosterSubscription

if TYPE_CHECKING:
    from maitred.balancing.interface import RandomSource
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.dispatch_attempt import DispatchAttempt
    from maitred.dispatch.effects import Effects
    from maitred.protocol.query_link import Load

    Place = tuple[str, str]
    """The namespace and the name of a queue."""

SUBSCRIPTIONS_MAX: Final = 256
"""Subscriptions of a gateway, one per queue and user; each is a long poll at the node. Queries of
further queues and users ask for slots."""


class RoutedQuery(DispatchedQuery, Protocol):
    """A query whose queue and user decide whether the gateway picks its worker."""

    @property
    def ask(self) -> Ask:
        """The query with its caller's wishes."""


class DispatchedQueues:
    """The queues of one gateway whose workers it picks."""

    def __init__(
        self,
        *,
        effects: Effects,
        session: bytes,
        random: RandomSource,
        backoff: tuple[float, float],
        unreachable_seconds: float,
    ) -> None:
        self.by_place: dict[Place, QueueDispatcher] = {}
        self.totals = DispatchTotals()
        self._effects = effects
        self._session = session
        self._random = random
        self._backoff = backoff
        self._unreachable_seconds = unreachable_seconds
        self._workers = KnownWorkers()
        self._subscriptions = 0
        self._closed = False

    @property
    def queued(self) -> int:
        """The number of queries that wait for room at a worker."""
        return sum(len(queue.line) for queue in self.by_place.values())

    # Queries

    def takes(self, query: RoutedQuery, now: float) -> bool:
        """Send the query to a worker, queue it or refuse it; False if it has to ask for a slot."""
        ask = query.ask
        queue = self.by_place.get((ask.namespace, ask.queue))
        if queue is None:
            return False
        subscription = queue.subscriptions.get(ask.user)
        if subscription is None:
            self._subscribe(queue, ask.user, now)
            return False
        if not subscription.passes:
            if not subscription.over:
                subscription.used_at = now
            elif now - subscription.used_at >= UNUSED_SECONDS:
                self._forget(queue, ask.user, now)
            return False
        if not queue.works or query.deadline <= now:
            return False
        if query.attempt is not None and query.attempt.queue is not queue:
            query.attempt = None
        queue.enter(query, subscription, now)
        return True

    def retries(self, query: RoutedQuery, now: float) -> bool:
        """Send a query to another worker at once if the last one had no room; False otherwise."""
        attempt = query.attempt
        if attempt is None or not attempt.was_full:
            return False
        queue = self._open_queue(attempt)
        if queue is not None:
            queue.retry(attempt, now)
        else:
            query.ask_node(now)
        return True

    def resume(self, query: RoutedQuery, attempt: DispatchAttempt, now: float) -> None:
        """Queue a query for which the node has no free slot either."""
        queue = self._open_queue(attempt)
        if queue is not None:
            query.attempt = attempt
            queue.queue(attempt, now)
        else:
            query.ask_node(now)

    def _open_queue(self, attempt: DispatchAttempt) -> QueueDispatcher | None:
        """Return the attempt's queue; None if it was closed, or has no worker."""
        queue = self.by_place.get(attempt.queue.place)
        return queue if queue is attempt.queue and queue.works else None

    # Events from nodes and workers

    def learned(self, place: Place, user: str, policy: str, now: float) -> None:
        """Subscribe to a queue whose policy the node has told, if the gateway picks its workers."""
        if self._closed or policy not in WORKER_POLICIES:
            return  # `idle`, or a policy of a later version
        queue = self.by_place.get(place)
        if queue is None:
            if self._subscriptions >= SUBSCRIPTIONS_MAX:
                return
            queue = self.by_place[place] = QueueDispatcher(
                place,
                policy,
                random=self._random,
                effects=self._effects,
                workers=self._workers,
                totals=self.totals,
                unreachable_seconds=self._unreachable_seconds,
                now=now,
            )
        if user not in queue.subscriptions:
            self._subscribe(queue, user, now)

    def _subscribe(self, queue: QueueDispatcher, user: str, now: float) -> None:
        if self._closed or self._subscriptions >= SUBSCRIPTIONS_MAX:
            return
        self._subscriptions += 1
        subscription = queue.subscriptions[user] = RosterSubscription(
            (*queue.place, user),
            effects=self._effects,
            session=self._session,
            random=self._random,
            backoff=self._backoff,
            keep_seconds=self._unreachable_seconds,
            told=self._told,
            now=now,
        )
        subscription.ask(now)

    def _told(self, subscription: RosterSubscription, now: float) -> None:
        namespace, name, user = subscription.place
        queue = self.by_place.get((namespace, name))
        if queue is None or queue.subscriptions.get(user) is not subscription:
            return
        roster = subscription.roster
        if roster is not None and roster.policy not in WORKER_POLICIES:
            self._is_idle(queue, subscription, now)
        elif roster is not None:
            queue.learn(roster, now)
        elif subscription.over:
            self._forget(queue, user, now)

    def _forget(self, queue: QueueDispatcher, user: str, now: float) -> None:
        del queue.subscriptions[user]
        self._subscriptions -= 1
        if queue.is_over:
            self._close(queue, now)

    def _is_idle(
        self, queue: QueueDispatcher, subscription: RosterSubscription, now: float
    ) -> None:
        """End a subscription because the node picks the workers of the queue, or of this user's
        queries. It is remembered, so that not every query of the user subscribes again."""
        subscription.give_up()
        if queue.is_over:
            self._close(queue, now)
        elif queue.line:
            queue.serve(now)

    def _close(self, queue: QueueDispatcher, now: float) -> None:
        del self.by_place[queue.place]
        self._subscriptions -= len(queue.subscriptions)
        for subscription in queue.subscriptions.values():
            subscription.stop()
        queue.subscriptions.clear()
        queue.close(now)

    def reported(self, session: bytes, load: Load, now: float) -> None:
        """Tell the queues of a worker the load that it reported."""
        worker = self._workers.get(session)
        if worker is not None:
            worker.reported(load, now)

    def unreachable(self, session: bytes, now: float, *, for_long: bool) -> None:
        """Avoid a worker that cannot be dialled, that hangs, or whose link ended; for a short while
        unless `for_long`."""
        worker = self._workers.get(session)
        if worker is not None:
            worker.away(now, self._unreachable_seconds if for_long else None)

    def close(self, now: float) -> None:
        """End every subscription; every query is over."""
        self._closed = True
        for queue in list(self.by_place.values()):
            self._close(queue, now)
