"""A provider of the contest: threads that wait for a permit, sleep, and answer.

A query takes a thread of the pool, or is refused at once if there is none, then a permit, then
sleeps for a whole number of milliseconds. The contest's semaphore is not fair, which only changes
who waits, not how many; here the first that waits is the first that gets a permit. If the permits
are cut, running work ends as it would have.

A provider that measures itself tells serving from waiting and keeps a limit by it, with the real
estimator, and refuses what is far beyond it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from maitred.balancing.workers import LimitEstimator, LoadReport
from studies.contest.faults import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from studies.contest.gateway import Query
    from studies.contest.phases import Ability

UNBOUNDED_TIMES = 10
"""How many times the pool a provider may allow itself that has no bound."""


class Provider:
    """One of them. `start` is called with each query that begins to sleep, and for how long."""

    def __init__(
        self,
        number: int,
        pool: int,
        random: Random,
        start: Callable[[Provider, Query, float], None],
        *,
        bounded: bool,
        measured: bool,
        gateways: int,
        clock: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.number = number
        self.name = f"provider-{number}"
        self.session = number.to_bytes(16)
        """By which gateways know it."""
        self.pool = pool
        self.bounded = bounded
        self._random = random
        self._start = start
        self.permits = 0
        self.average_ms = 1.0
        self.serving = 0
        self.waiting: deque[Query] = deque()
        self.hung = False
        self.gone = False
        self.fault = NOTHING
        """What is wrong with it right now."""
        self.struck = False
        """Whether something is, was or will be."""
        self.life = 0
        """Counts up when it vanishes; what was started before does not end."""
        self._number = 0
        self._claims = [0] * gateways
        """How many each gateway had in flight here when it sent last."""
        self._present = [0] * gateways
        """How many inside came from each gateway."""
        ceiling = pool if bounded else UNBOUNDED_TIMES * pool
        self.ahead, self._pace = clock
        """By how much its clock is ahead, and how fast it runs."""
        self.estimator = LimitEstimator(pool, ceiling, self._own(0.0)) if measured else None

    def _own(self, now: float) -> float:
        """What its own clock says."""
        return self.ahead + now * self._pace

    def change(self, ability: Ability, now: float) -> None:
        self.permits = ability.permits
        self.average_ms = ability.average_ms
        self._serve(now)

    @property
    def full(self) -> bool:
        return self.bounded and self.serving + len(self.waiting) >= self.pool

    def arrive(self, query: Query, now: float) -> bool:
        """Whether there is room; if so the query begins, or waits for a permit."""
        inside = self.serving + len(self.waiting)
        greedy = self.fault.greedy
        if self.bounded and inside >= self.pool and not greedy:
            return False
        estimator = self.estimator
        if estimator is not None:
            self._claims[query.gateway.number] = query.claim
            estimator.claimed(sum(self._claims), pressed=query.pressed)
            limit = estimator.limit(self._own(now))
            if inside >= limit + max(16, limit // 2) and not greedy:
                return False
        self._present[query.gateway.number] += 1
        query.life = self.life
        if self.serving < self.permits and not self.waiting and not self.hung:
            self._begin(query, now)
        else:
            self.waiting.append(query)
        if estimator is not None:
            estimator.observe(self.serving, len(self.waiting), self._own(now))
        return True

    def stop(self, query: Query, now: float) -> bool:
        """Stop a query whose client left; False if it is over, or nothing can be stopped now."""
        if query.life != self.life or self.hung or self.gone:
            return False
        if query in self.waiting:
            self.waiting.remove(query)
            self.serving += 1  # for `finish`, which takes it away again
        self.finish(query, now)
        return True

    def finish(self, query: Query, now: float) -> None:
        """A query has slept, or was stopped; its permit goes to whoever waits."""
        query.life = -1
        self.serving -= 1
        self._present[query.gateway.number] -= 1
        if self.waiting:
            self._serve(now)
        estimator = self.estimator
        if estimator is not None:
            estimator.observe(self.serving, len(self.waiting), self._own(now))
            estimator.ended()

    def report(self, gateway: int, now: float) -> LoadReport | None:
        """What it tells a gateway, if it measures anything."""
        estimator = self.estimator
        if estimator is None:
            return None
        self._number += 1
        report = LoadReport(
            self._number,
            estimator.limit(self._own(now)),
            self.serving,
            len(self.waiting),
            estimator.mean_service_seconds,
            self._present[gateway],
            len(self._present),
        )
        return report if self.fault is NOTHING else self.fault.report(report, self._random)

    @property
    def announced(self) -> int:
        """How many slots it says it has."""
        return self.pool if self.fault.says is None else self.fault.says

    def limit(self, now: float) -> int:
        """What it says with a refusal."""
        if self.fault.says is not None or self.estimator is None:
            return self.announced
        return self.estimator.limit(self._own(now))

    def vanish(self, now: float) -> list[Query]:
        """The process dies; whatever was waiting in it is returned, and nothing else ends."""
        self.gone = True
        self.life += 1
        lost = list(self.waiting)
        self.waiting.clear()
        self.serving = 0
        self._present = [0] * len(self._present)
        if self.estimator is not None:
            self.estimator = LimitEstimator(self.pool, self.pool, self._own(now))
        return lost

    def wake(self, now: float) -> list[Query]:
        """It hung and goes on; returns the queries that were to be stopped meanwhile, and are."""
        self.hung = False
        stopped = [query for query in self.waiting if not query.open]
        for query in stopped:
            query.life = -1
            self._present[query.gateway.number] -= 1
        self.waiting = deque(query for query in self.waiting if query.open)
        self._serve(now)
        return stopped

    def _serve(self, now: float) -> None:
        while self.waiting and self.serving < self.permits and not self.hung:
            self._begin(self.waiting.popleft(), now)

    def _begin(self, query: Query, now: float) -> None:
        self.serving += 1
        sleep = math.ceil(-self.average_ms * math.log(1.0 - self._random.random()))
        self._start(self, query, now + (sleep or 1) * 1e-3)
