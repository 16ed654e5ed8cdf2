"""The two-phase rule of the seed: random while a worker is idle, then the most capacity first.

A worker's capacity is its slots less its queries in flight. While some worker has more than 40 % of
its slots free, one of those is drawn, in proportion to its capacity. Otherwise the worker with the
most capacity gets the query. If no worker has any, the policy picks none.

Its weakness: the slots are the size of a thread pool, not what really runs in parallel, so under
load it settles at a fixed split whatever the workers can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import PlainPolicy

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.workers.interface import PolicyWorker

IDLE_SHARE = 0.4
"""A worker with more than this share of its slots free counts as idle; the number is the seed's."""


class TwoPhase(PlainPolicy):
    """Draws among idle workers in proportion to capacity, else picks the most capacity."""

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        most: PolicyWorker | None = None
        most_free = 0
        idle: list[tuple[int, PolicyWorker]] = []
        idle_total = 0
        for worker in self._candidates(without):
            free = worker.slots - worker.in_flight
            if free > most_free:
                most, most_free = worker, free
            if free > IDLE_SHARE * worker.slots:
                idle.append((free, worker))
                idle_total += free
        if idle:
            point = self._random.randrange(idle_total)
            for free, worker in idle:
                if point < free:
                    return worker.name
                point -= free
        return None if most is None else most.name
