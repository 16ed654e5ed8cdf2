"""Weighted least connections: the worker whose slots are least used, in proportion. For comparison.

This is HAProxy's leastconn with weights. A worker without slots is never picked; one whose slots
are all taken may be, because this rule has no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import CountingPolicy
from maitred.balancing.workers.interface import PolicyWorker

if TYPE_CHECKING:
    from collections.abc import Collection


class WeightedLeastConnections(CountingPolicy[PolicyWorker]):
    """Picks the worker with the lowest ratio of queries in flight to announced slots."""

    def _new(self, name: str, slots: int, now: float) -> PolicyWorker:
        return PolicyWorker(name, slots)

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
