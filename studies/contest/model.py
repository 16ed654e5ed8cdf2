"""The contest as a discrete-event simulation: virtual time, one heap, no tasks, no sockets.

The gateways run the product's queue dispatcher, with its policies, its line and its retry budget;
the providers run the real estimator. Half the delay lies before a provider and half behind it;
clients and their gateway are in one place. A connection that was refused asks again after the
delay, so a refusal is never free.

A query whose client ran out of time is stopped at its provider, half the delay later. Until its
provider says so it is in flight: a gateway counts a worker as busy until the worker says that it is
not, and one that hangs does not say so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from maitred.balancing.workers import QueryOutcome
from maitred.errors import AtCapacity
from maitred.protocol.query_link import QueryEnd, encode_query_end
from maitred.protocol.tasks import DONE, FAILED, STOPPED
from studies.contest.faults import (
    ERROR_SECONDS,
    FAULTS,
    LAG_SECONDS,
    NOTHING,
    clock,
)
from studies.contest.gateway import Gateway, Query, load_of
from studies.contest.measures import BUCKET_SECONDS, ContestMeasures, Tally, measures
from studies.contest.provider import Provider
from studies.contest.settings import OURS, ContestModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.workers import LoadReport
    from maitred.protocol.queries import Allocation

_HOWS = {QueryOutcome.DONE: DONE, QueryOutcome.FAILED: FAILED, QueryOutcome.CANCELLED: STOPPED}

LOW_PRIORITY = 3
TICK_SECONDS = 0.005
"""How often timeouts and piles are looked for."""


class Alarm:
    """A call that is due later, unless it was cancelled."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[float], None]) -> None:
        self._act: Callable[[float], None] | None = act

    def cancel(self) -> None:
        self._act = None

    def ring(self, now: float) -> None:
        if self._act is not None:
            self._act(now)


class Contest:
    """One run."""

    def __init__(self, model: ContestModel, seed: int) -> None:
        self.model = model
        self.random = Random(f"contest {seed}")
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.now = 0.0
        self._half = model.delay_seconds / 2
        self._way: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()
        """What is under way between gateways and providers: it all takes as long."""
        self._timeouts: deque[tuple[float, Query]] = deque()
        self.tally = Tally(model.seconds, model.timeout_seconds)
        ours = model.policy in OURS
        # The line in the middle is one, however many gateways ask it.
        count = 1 if model.policy == "idle" else model.gateways
        self.gateways = [
            Gateway(
                number,
                model.policy,
                Random(f"policy {number} {self.random.random()}"),
                self,
                queues=ours,
            )
            for number in range(count)
        ]
        self._fault = FAULTS[model.fault]
        self._luck = Random(f"fault {seed}")
        """By which faults strike; so a run without one does not depend on it."""
        self.providers = [
            Provider(
                number,
                model.pools[number % len(model.pools)],
                Random(f"provider {number} {seed}"),
                self._started,
                bounded=model.bounded,
                measured=ours,
                gateways=count,
                clock=clock(self._luck) if self._fault.clocks else (0.0, 1.0),
            )
            for number in range(len(model.phases[0]))
        ]
        self._struck: list[Provider] = []
        if model.fault != "none":
            self._struck = (
                self.providers if self._fault.everybody else [self.providers[model.victim]]
            )
        for provider in self._struck:
            provider.struck = True
        self._phase = model.phases[0]
        self._arrivals_per_second = model.arrivals_per_second(self._phase)
        changes = zip(self.providers, *model.phases[:2], strict=True) if model.phases[1:] else ()
        self._cut = [
            provider for provider, before, after in changes if after.permits < before.permits
        ]
        """Those that lose permits in the second phase: how soon does nobody pile up there?"""

    def run(self) -> ContestMeasures:
        model = self.model
        self._announce(0.0)
        for number, phase in enumerate(model.phases):
            self._at(number * model.phase_seconds, self._change, phase)
        for provider in self._struck:
            self._at(model.seconds / 3, self._break, provider)
            self._at(2 * model.seconds / 3, self._mend, provider)
        self._at(TICK_SECONDS, self._tick, TICK_SECONDS)
        for number, provider in enumerate(self.providers):
            first = model.report_seconds * (number + 1) / len(self.providers)
            self._at(first, self._push, provider)
        if model.open_loop:
            self._at(0.0, self._arrival)
        else:
            for connection in range(model.connections):
                self._at(0.0, self._ask, connection % len(self.gateways))
        heap, way, end = self._heap, self._way, model.seconds
        while True:
            # The heap is never empty: the next tick is always in it.
            if way and way[0][0] <= heap[0][0]:
                now, handler, arguments = way.popleft()
            else:
                now, _, handler, arguments = heappop(heap)
            if now >= end:
                return measures(model, self.tally)
            self.now = now
            handler(now, *arguments)

    def _at(self, time: float, handler: Callable[..., None], *arguments: object) -> None:
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, handler, arguments))

    def wake_at(self, moment: float, act: Callable[[float], None]) -> Alarm:
        """For the queue dispatchers."""
        alarm = Alarm(act)
        self._at(moment, alarm.ring)
        return alarm

    # Clients

    def _arrival(self, now: float) -> None:
        self._at(now + self.random.expovariate(self._arrivals_per_second), self._arrival)
        self._ask(now, self.random.randrange(len(self.gateways)))

    def _ask(self, now: float, number: int) -> None:
        share = self.model.high_share
        low = share < 1.0 and self.random.random() >= share
        self.tally.came[int(now / BUCKET_SECONDS)] += 1
        gateway = self.gateways[number]
        deadline = now + self.model.timeout_seconds
        query = Query(self, gateway, now, priority=LOW_PRIORITY if low else 0, deadline=deadline)
        if now >= self.model.warm_seconds:
            self.tally.asked[1 if low else 0] += 1
        self._timeouts.append((deadline, query))
        gateway.queue.enter(query, gateway.subscription, now)

    def _over(self, query: Query, now: float, cause: str | None) -> None:
        """The client has its answer; a closed connection asks again."""
        query.open = False
        warm = self.model.warm_seconds
        if now < warm:
            pass
        elif cause is None:
            if query.asked_at >= warm:
                self.tally.done_by[1 if query.priority else 0] += 1
            self.tally.succeeded(now - query.asked_at, now)
        else:
            self.tally.failures[cause] += 1
            bucket = int(now / BUCKET_SECONDS)
            self.tally.failed[bucket] += 1
            if cause == "timeout":
                self.tally.timeouts[bucket] += 1
        if not self.model.open_loop:
            pause = self.model.delay_seconds if cause == "gateway" else 0.0
            self._at(now + pause, self._ask, query.gateway.number)

    # What the queue dispatchers decide

    def send(self, query: Query, allocation: Allocation, now: float) -> None:
        """A query goes to a provider."""
        attempt = query.attempt
        if attempt is None:
            return
        attempt.sent = True
        self.tally.attempts += 1
        self.tally.retries += query.attempts > 0
        query.attempts += 1
        query.claim = attempt.in_flight
        query.pressed = bool(attempt.queue.line)
        provider = self.providers[allocation.partition]
        if self._struck:
            bucket = int(now / BUCKET_SECONDS)
            self.tally.sent[bucket] += 1
            self.tally.struck_sent[bucket] += provider.struck
        self._way.append((now + self._half, self._reached, (query, provider)))

    def refuse(self, query: Query, now: float) -> None:
        """A query is refused: at once, or because no other worker may be tried."""
        if query.open:
            full = query.attempt is not None and query.attempt.was_full
            self._over(query, now, "worker-full" if full else "gateway")
            self._leave(query, now)

    def expire(self, query: Query, now: float) -> None:
        """A query's deadline passed."""
        if not query.open:
            return
        self._over(query, now, "timeout")
        attempt = query.attempt
        if attempt is not None and attempt.dispatch is not None and attempt.worker is not None:
            provider = self.providers[int.from_bytes(attempt.worker.session)]
            self._way.append((now + self._half, self._stop, (query, provider)))
        self._leave(query, now)

    def _leave(self, query: Query, now: float) -> None:
        attempt = query.attempt
        if attempt is not None:
            attempt.abandon(QueryOutcome.LOST, now)
            attempt.queue.leave(attempt, now)

    # Answers

    def _answered(
        self,
        now: float,
        query: Query,
        provider: Provider,
        outcome: QueryOutcome,
        report: LoadReport | None,
    ) -> None:
        attempt = query.attempt
        if attempt is None:
            return
        if outcome is QueryOutcome.LOST:
            attempt.end(QueryOutcome.LOST, now)
            if query.open:
                self._over(query, now, "lost")
        elif outcome is QueryOutcome.REFUSED:
            attempt.refused(AtCapacity("Full.", limit=provider.limit(now)), now)
            if query.open:
                query.gateway.queue.retry(attempt, now)
        else:
            end = QueryEnd(_HOWS[outcome], b"")
            end.load = None if report is None else load_of(report)
            if not query.open:
                attempt.finished(encode_query_end(end), now)
                return
            attempt.answered(end, now)
            if outcome is QueryOutcome.DONE and provider.struck:
                self.tally.struck_done[int(now / BUCKET_SECONDS)] += 1
            self._over(query, now, None if outcome is QueryOutcome.DONE else "error")

    # Providers

    def _reached(self, now: float, query: Query, provider: Provider) -> None:
        if provider.gone:
            self._reply(now, query, provider, QueryOutcome.LOST)
        elif provider.fault.errors and self._luck.random() < provider.fault.errors:
            self._at(now + ERROR_SECONDS, self._reply, query, provider, QueryOutcome.FAILED)
        elif provider.fault.refuses or not provider.arrive(query, now):
            self._reply(now, query, provider, QueryOutcome.REFUSED)

    def _stop(self, now: float, query: Query, provider: Provider) -> None:
        if provider.stop(query, now):
            self._reply(now, query, provider, QueryOutcome.CANCELLED)

    def _started(self, provider: Provider, query: Query, until: float) -> None:
        self._sequence += 1
        entry = (until, self._sequence, self._served, (query, provider, provider.life))
        heappush(self._heap, entry)

    def _served(self, now: float, query: Query, provider: Provider, life: int) -> None:
        if life != provider.life:
            self._reply(now, query, provider, QueryOutcome.LOST)
        elif query.life != life:
            return  # it was stopped
        elif provider.hung:
            # It goes on sleeping until the provider is mended.
            mended = 2 * self.model.seconds / 3
            self._at(mended, self._served, query, provider, life)
        else:
            provider.finish(query, now)
            self._reply(now, query, provider, QueryOutcome.DONE)

    def _reply(self, now: float, query: Query, provider: Provider, outcome: QueryOutcome) -> None:
        # Refusals carry no report, in the product as here.
        silent = outcome in (QueryOutcome.LOST, QueryOutcome.REFUSED) or provider.hung
        report = None if silent else provider.report(query.gateway.number, now)
        if report is not None and provider.fault.late_seconds:
            self._tell(now, query.gateway, provider, report)
            report = None
        arguments = (query, provider, outcome, report)
        self._way.append((now + self._half, self._answered, arguments))

    def _push(self, now: float, provider: Provider) -> None:
        """The report that does not wait for an answer."""
        self._at(now + self.model.report_seconds, self._push, provider)
        if provider.hung or provider.gone:
            return
        for number, gateway in enumerate(self.gateways):
            report = provider.report(number, now)
            if report is not None:
                self._tell(now, gateway, provider, report)

    def _tell(self, now: float, gateway: Gateway, provider: Provider, report: LoadReport) -> None:
        late = provider.fault.late_seconds
        if late:
            comes = now + self._half + self._luck.uniform(0.0, late)
            self._at(comes, self._told, gateway, provider, report)
        else:
            self._way.append((now + self._half, self._told, (gateway, provider, report)))

    def _told(self, now: float, gateway: Gateway, provider: Provider, report: LoadReport) -> None:
        gateway.told(provider, report, now)

    # What happens by itself

    def _change(self, now: float, phase: tuple[Any, ...]) -> None:
        self._phase = phase
        self._arrivals_per_second = self.model.arrivals_per_second(phase)
        for provider, ability in zip(self.providers, phase, strict=True):
            provider.change(ability, now)

    def _cut_to(self, now: float, provider: Provider) -> None:
        """As many permits as a fault leaves it, or as the phase gives it."""
        left, given = provider.fault.permits, self._phase[self.providers.index(provider)]
        provider.change(given if left is None else replace(given, permits=left), now)

    def _break(self, now: float, provider: Provider) -> None:
        if self.model.fault == "hung":
            provider.hung = True
            return
        if self.model.fault != "vanished":
            provider.fault = self._fault
            self._announced(now, provider)
            return
        for query in provider.vanish(now):
            self._reply(now, query, provider, QueryOutcome.LOST)
        for gateway in self.gateways:
            gateway.link_ended(provider, now)
        self._announce(now)

    def _mend(self, now: float, provider: Provider) -> None:
        if self.model.fault == "hung":
            for query in provider.wake(now):
                self._reply(now, query, provider, QueryOutcome.CANCELLED)
            return
        if self.model.fault != "vanished":
            provider.fault = NOTHING
            self._announced(now, provider)
            return
        provider.gone = False
        self._announce(now)

    def _announced(self, now: float, provider: Provider) -> None:
        """It says anew how many slots it has, if that is part of the fault; or sets its clock."""
        if self._fault.clocks:
            provider.ahead, _ = clock(self._luck)
        if self._fault.permits is not None:
            self._cut_to(now, provider)
        if self._fault.says is not None:
            self._announce(now)

    def _announce(self, now: float) -> None:
        """Every gateway hears of the roster."""
        there = [provider for provider in self.providers if not provider.gone]
        for gateway in self.gateways:
            gateway.learn(there, now)

    def _tick(self, now: float, every: float) -> None:
        self._at(now + every, self._tick, every)
        if self._fault.lags:
            for provider in self._struck:
                if provider.fault.lags and provider.estimator is not None:
                    provider.estimator.lagged(LAG_SECONDS)
        timeouts = self._timeouts
        while timeouts and (timeouts[0][0] <= now or not timeouts[0][1].open):
            _, query = timeouts.popleft()
            self.expire(query, now)
        if self._cut and 1.0 < now / self.model.phase_seconds < 2.0:
            for provider in self._cut:
                if len(provider.waiting) > 0.05 * provider.permits + 5:
                    self.tally.pile_seen_at = now


def run_contest(model: ContestModel, seed: int) -> ContestMeasures:
    """One run, the same for the same seed."""
    return Contest(model, seed).run()
