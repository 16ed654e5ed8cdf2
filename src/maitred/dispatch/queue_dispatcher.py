"""A queue whose workers the gateway picks: its policy, its queued queries, its retry budget.

Every query that the gateway sends to a picked worker has a *dispatch attempt*
(`dispatch_attempt.py`). Queued queries are sent when an attempt ends, when a worker reports that it
can do more, and when a worker joins.

A query for which no worker has room is queued or refused at once, as `SheddingLine` decides. A
query that a worker refused goes to another worker, within the retry budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.balancing.workers import (
    LoadReport,
    QueryOutcome,
    RetryBudget,
    Shed,
    SheddingLine,
    SheddingSettings,
    worker_policy,
)
from maitred.dispatch.dispatch_attempt import DispatchAttempt
from maitred.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from maitred.balancing.interface import RandomSource
    from maitred.balancing.workers import Dispatch, WorkerPolicy
    from maitred.dispatch.dispatch_attempt import DispatchedQuery, DispatchTotals
    from maitred.dispatch.effects import Act, Wakeup
    from maitred.dispatch.known_workers import KnownWorker, KnownWorkers
    from maitred.dispatch.roster_subscription import RosterSubscription
    from maitred.protocol.queries import Roster, SheddingTerms
    from maitred.protocol.query_link import Load

    class Clockwork(Protocol):
        """The effect that a queue dispatcher needs."""

        def wake_at(self, moment: float, act: Act) -> Wakeup: ...


LOOK_SECONDS: Final = 0.02
"""Seconds between two checks of the queued queries: some room comes back with time alone."""

AWAY_FIRST_SECONDS: Final = 0.1
"""Seconds for which a worker whose link broke is avoided; doubled with each further time."""


class QueueDispatcher:
    """Dispatches the queries of one queue. Its policy knows workers by their sessions, in
    hexadecimal."""

    def __init__(
        self,
        place: tuple[str, str],
        policy: str,
        *,
        random: RandomSource,
        effects: Clockwork,
        workers: KnownWorkers,
        totals: DispatchTotals,
        unreachable_seconds: float,
        now: float,
        new_policy: Callable[[str, RandomSource], WorkerPolicy] | None = None,
    ) -> None:
        self.place = place
        """The namespace and the name of the queue."""
        self.subscriptions: dict[str, RosterSubscription] = {}
        """The subscriptions to the queue's roster, by user."""
        self.policy_name = policy
        self._new_policy = new_policy or worker_policy
        self.policy = self._new_policy(policy, random)
        self.totals = totals
        self.workers: dict[str, KnownWorker] = {}
        """The workers that the last roster names with an address, by name."""
        self._slots: dict[str, int] = {}
        self._members = 0
        """Number of workers on the last roster, including those without an address."""
        self._random = random
        self._effects = effects
        self._known = workers
        self._unreachable_seconds = unreachable_seconds
        self._shedding: SheddingTerms | None = None
        settings = SheddingSettings()
        self.line: SheddingLine[DispatchAttempt] = SheddingLine(now, settings)
        self.budget = RetryBudget(now, settings)
        self._away: dict[str, tuple[Wakeup, float]] = {}
        """Workers that are avoided, and until when."""
        self._broken: dict[str, int] = {}
        """How often in a row the link of a worker broke."""
        self._alarm: Wakeup | None = None
        self._serving = False

    def __repr__(self) -> str:
        return f"<QueueDispatcher {'/'.join(self.place)}, {self.policy!r}, {len(self.line)} queued>"

    @property
    def is_over(self) -> bool:
        """Whether every subscription has ended."""
        return all(one.over for one in self.subscriptions.values())

    @property
    def works(self) -> bool:
        """Whether the policy has any worker."""
        return bool(self.policy.workers)

    # Queries

    def enter(self, query: DispatchedQuery, subscription: RosterSubscription, now: float) -> None:
        """Send the query to a worker, queue it, or refuse it."""
        subscription.used_at = now
        attempt = query.attempt
        if attempt is None:
            attempt = query.attempt = DispatchAttempt(self, query, subscription)
            self.budget.admitted()
        else:
            attempt.subscription = subscription
        self._place(attempt, now)

    def retry(self, attempt: DispatchAttempt, now: float) -> None:
        """Send a query for which a worker had no room to another one, if the budget allows it."""
        query = attempt.query
        if query.deadline <= now:
            query.expired(now)
        elif set(self.policy.workers) <= set(attempt.refused_by):
            if not self._asks_node(attempt, now):
                self._shed(attempt, "Every worker of {} has as much as it can do.", now)
        elif not self.budget.spend(now):
            self._shed(attempt, "Workers of {} have as much as they can do.", now)
        else:
            self._place(attempt, now, first=True)

    def leave(self, attempt: DispatchAttempt, now: float) -> None:
        """Drop a query that is over. If its worker still has it, the attempt ends with the worker's
        last word."""
        if attempt.queued:
            attempt.queued = False
            self.line.remove(attempt)
        if not attempt.sent:
            attempt.end(QueryOutcome.CANCELLED, now)

    def _place(self, attempt: DispatchAttempt, now: float, *, first: bool = False) -> None:
        """Send the query, or queue it; with `first`, before the queued queries."""
        line = self.line
        if line and not first:
            self.serve(now)
        if first or not line:
            name = self._pick(attempt, now)
            if name is not None:
                if not line:
                    line.passed(now)
                self._send(attempt, name, now)
                return
        if not self._asks_node(attempt, now):
            self.queue(attempt, now, again=first)

    def _asks_node(self, attempt: DispatchAttempt, now: float) -> bool:
        """Ask the node, once, for a slot that is free now, if it knows of more workers.

        The roster may name workers that only the node can reach. Without this they would be idle
        while queries are queued or refused here.
        """
        if attempt.asked_node or self._members <= len(self.policy.workers):
            return False
        attempt.asked_node = True
        attempt.query.ask_node_at_once(now)
        return True

    def queue(self, attempt: DispatchAttempt, now: float, *, again: bool = False) -> None:
        """Queue the query, or refuse it."""
        attempt.refused_by = ()
        query = attempt.query
        why = self.line.offer(
            attempt,
            now,
            deadline=query.deadline,
            priority=query.priority,
            do_not_queue=query.do_not_queue,
            again=again,
        )
        if why is None:
            attempt.queued = True
            if self._alarm is None:
                self._alarm = self._effects.wake_at(now + LOOK_SECONDS, self._look)
        elif why is Shed.DO_NOT_QUEUE:
            self._shed(attempt, "No worker of {} has room, and the query was not to wait.", now)
        else:
            self._shed(attempt, "No worker of {} has room, and the line is long.", now)

    def _pick(self, attempt: DispatchAttempt, now: float) -> str | None:
        without: tuple[str, ...] | frozenset[str] = attempt.refused_by
        subscription = attempt.subscription
        if subscription.missing:
            without = subscription.missing.union(without)
        name = self.policy.pick(now, without)
        return name if name in subscription.passes else None

    def _send(self, attempt: DispatchAttempt, name: str, now: float) -> None:
        attempt.policy = self.policy
        attempt.worker = self.workers[name]
        attempt.dispatch = self.policy.sent(name, now)
        attempt.sent = False
        attempt.leaving = QueryOutcome.CANCELLED
        attempt.was_full = False
        attempt.query.allocated(attempt.subscription.passes[name], now)

    def _shed(self, attempt: DispatchAttempt, why: str, now: float) -> None:
        self.totals.shed += 1
        attempt.query.refused_by_node(
            Overloaded(
                why.format("/".join(self.place)),
                remedy="Come back later, ask for less, or start more workers.",
                retry_after=self.line.retry_after_seconds(now),
            ),
            now,
        )

    # Queued queries

    def ended(
        self,
        attempt: DispatchAttempt,
        dispatch: Dispatch,
        outcome: QueryOutcome,
        now: float,
        limit: int | None,
        load: Load | None = None,
    ) -> None:
        """Count an attempt that ended; the worker may have reported its load with the answer."""
        name = dispatch.worker.name
        attempt.policy.ended(dispatch, outcome, now, limit)
        if load is not None and attempt.worker is not None:
            attempt.worker.reported(load, now)
        if attempt.sent and outcome is not QueryOutcome.REFUSED:
            self.line.freed(now)
            if outcome is QueryOutcome.DONE and self._broken:
                self._broken.pop(name, None)
        if self.line:
            self.serve(now)

    def reported(self, name: str, load: Load, elsewhere: int, now: float) -> None:
        """Tell the policy a worker's load; `elsewhere` of this gateway's queries there are of other
        queues."""
        report = LoadReport(
            load.number,
            load.limit,
            load.serving,
            load.waiting,
            load.mean_service_seconds,
            max(0, load.yours - elsewhere),
            load.senders,
        )
        self.policy.reported(name, report, now)
        if self.line:
            self.serve(now)

    def serve(self, now: float) -> None:
        """Send queued queries while any worker has room."""
        if self._serving:
            return
        self._serving = True
        try:
            line = self.line
            while line:
                if self.policy.pick(now) is None:
                    return
                attempt = self._take(line, now)
                if attempt is None:
                    return
                name = self._pick(attempt, now)
                if name is not None:
                    self._send(attempt, name, now)
                else:  # the workers with room do not know this user's pass yet
                    attempt.query.ask_node(now)
        finally:
            self._serving = False

    def _take(self, line: SheddingLine[DispatchAttempt], now: float) -> DispatchAttempt | None:
        """Return the next queued attempt, and end those whose deadline has passed."""
        attempt, late = line.take(now)
        for one in late:
            one.queued = False
            one.query.expired(now)
        if attempt is not None:
            attempt.queued = False
        return attempt

    def _look(self, now: float) -> None:
        self._alarm = None
        if self.line:
            self.serve(now)
        for attempt in self.line.hopeless(now):
            attempt.queued = False
            self._shed(attempt, "No worker of {} will have room before the deadline.", now)
        if self.line and self._alarm is None:
            self._alarm = self._effects.wake_at(now + LOOK_SECONDS, self._look)

    def give_back(self, now: float) -> None:
        """Have every queued query ask the node for a slot instead."""
        line = self.line
        while line:
            attempt = self._take(line, now)
            if attempt is not None:
                attempt.query.ask_node(now)

    # Workers

    def learn(self, roster: Roster, now: float) -> None:
        """Apply a roster. The last one counts for every user, whichever user subscribed to it."""
        if roster.policy != self.policy_name:
            self.policy_name = roster.policy
            self.policy = self._new_policy(roster.policy, self._random)
            self._forget(tuple(self.workers))
        self._members = len(roster.members)
        # A worker without an address is reached through the node only, with a slot.
        slots = {one.session.hex(): one.slots for one in roster.members if one.address}
        gone = [name for name in self.workers if name not in slots]
        self._forget(gone)
        for name in gone:
            self._come_back(name)
            self._broken.pop(name, None)
            self.policy.left(name, now)
        self._slots = slots
        for one in roster.members:
            if one.address:
                worker = self._known.joined(one.session, self)
                self.workers[worker.name] = worker
        for name, count in slots.items():
            if name not in self._away:
                self.policy.joined(name, count, now)
        names = frozenset(slots)
        for subscription in self.subscriptions.values():
            subscription.missing = names.difference(subscription.passes)
        if not self.works:
            self.give_back(now)
        if roster.shedding != self._shedding:
            self._shedding = roster.shedding
            self.configure(settings_of(roster.shedding), now)
        if self.line:
            self.serve(now)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._known.left(self.workers.pop(name), self)

    def configure(self, settings: SheddingSettings, now: float) -> None:
        """Apply other settings for shedding and retries; queued queries enter anew."""
        old = self.line
        self.line = SheddingLine(now, settings)
        self.budget = RetryBudget(now, settings)
        while old:
            attempt = self._take(old, now)
            if attempt is not None:
                self._place(attempt, now)

    def away(self, name: str, now: float, seconds: float | None = None) -> None:
        """Avoid this worker for a while; without `seconds`, for longer each time in a row that its
        link broke."""
        if name not in self.workers:
            return
        if seconds is None:
            times = self._broken.get(name, 0)
            self._broken[name] = times + 1
            seconds = AWAY_FIRST_SECONDS * 2 ** min(times, 30)
            seconds = min(seconds, self._unreachable_seconds)
        until = now + seconds
        known = self._away.get(name)
        if known is not None:
            if known[1] >= until:
                return
            known[0].cancel()

        def back(now: float) -> None:
            self._back(name, now)

        self._away[name] = (self._effects.wake_at(until, back), until)
        self.policy.left(name, now)
        if not self.works:
            self.give_back(now)

    def _back(self, name: str, now: float) -> None:
        self._away.pop(name, None)
        slots = self._slots.get(name)
        if slots is not None:
            self.policy.joined(name, slots, now)
            if self.line:
                self.serve(now)

    def _come_back(self, name: str) -> None:
        known = self._away.pop(name, None)
        if known is not None:
            known[0].cancel()

    def close(self, now: float) -> None:
        """Send no more queries to workers; the queued ones ask the node."""
        for name in list(self._away):
            self._come_back(name)
        self._forget(tuple(self.workers))
        self._slots = {}
        self.give_back(now)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def settings_of(shedding: SheddingTerms) -> SheddingSettings:
    """Return the queue's settings, brought into their valid ranges."""
    return SheddingSettings(
        wait_target_seconds=max(0.0001, shedding.wait_target_seconds),
        length_max=max(1, shedding.length),
        holdback=min(max(0.0, shedding.holdback), 0.24),
        retry_share=max(0.0, shedding.retry_share),
        retries_per_second=max(0.0, shedding.retries_per_second),
    )
