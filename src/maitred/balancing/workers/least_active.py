"""Least active: the worker with the fewest queries in flight, ties at random. For comparison.

This is Dubbo's and nginx's rule. A worker that refuses at once has nothing in flight, so it gets
every query: the study shows how bad that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import CountingPolicy
from maitred.balancing.workers.interface import PolicyWorker

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource


class LeastActive(CountingPolicy[PolicyWorker]):
    """Picks by the queries that this gateway has in flight to each worker, and nothing else."""

    def __init__(self, random: RandomSource) -> None:
        super().__init__()
        self._random = random

    def _new(self, name: str, slots: int, now: float) -> PolicyWorker:
        return PolicyWorker(name, slots)

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
