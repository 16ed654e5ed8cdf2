"""Simple policies, for comparison: random, round robin, least active, weighted least connections.

None of them has a limit: a worker whose slots are all taken may be picked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import PlainPolicy

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource
    from maitred.balancing.workers.interface import PolicyWorker


class UniformPolicy(PlainPolicy):
    """Picks any known worker at random, whatever is in flight to it."""

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        workers = self._candidates(without)
        return workers[self._random.randrange(len(workers))].name if workers else None


class RoundRobinPolicy(PlainPolicy):
    """Picks the workers in turn, busy or not; the position is all it remembers."""

    def __init__(self, random: RandomSource) -> None:
        super().__init__(random)
        self._turn = -1

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        workers = self._candidates(without)
        if not workers:
            return None
        # The remainder is taken at each pick, so workers may join and leave between picks.
        self._turn = (self._turn + 1) % len(workers)
        return workers[self._turn].name


class LeastActive(PlainPolicy):
    """Picks the worker to which this gateway has the fewest queries in flight, ties at random.

    This is Dubbo's and nginx's rule. A worker that refuses at once has nothing in flight, so it
    gets every query: the study shows how bad that is.
    """

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        best: PolicyWorker | None = None
        ties = 1
        for worker in self._candidates(without):
            if best is None or worker.in_flight < best.in_flight:
                best, ties = worker, 1
            elif worker.in_flight == best.in_flight:
                ties += 1
                if self._random.randrange(ties) == 0:
                    best = worker
        return None if best is None else best.name


class WeightedLeastConnections(PlainPolicy):
    """Picks the worker with the lowest ratio of queries in flight to announced slots; never one
    without slots. This is HAProxy's leastconn with weights."""

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        best: PolicyWorker | None = None
        lowest = 0.0
        for worker in self._candidates(without):
            if not worker.slots:
                continue
            use = (worker.in_flight + 1) / worker.slots
            if best is None or use < lowest:
                best, lowest = worker, use
        return None if best is None else best.name
