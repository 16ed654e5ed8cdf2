"""Power of two choices by peak-sensitive mean latency, as Finagle and linkerd do. For comparison.

Of two workers drawn at random, the policy picks the one with the lower latency x (in flight + 1).
The mean jumps to the latency of a slow answer at once and decays over ten seconds. As in the
originals every answer counts, so fast refusals look like a fast worker; the study shows the effect.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import CountingPolicy
from maitred.balancing.workers.interface import Dispatch, PolicyWorker, QueryOutcome

if TYPE_CHECKING:
    from collections.abc import Collection

DECAY_SECONDS = 10.0
"""The time constant with which the mean latency decays; Finagle's default."""


class MeasuredWorker(PolicyWorker):
    """A worker with the moving average of its latencies."""

    __slots__ = ("mean_seconds", "updated_at")

    def __init__(self, name: str, slots: int, now: float) -> None:
        super().__init__(name, slots)
        self.mean_seconds = 0.0
        self.updated_at = now

    def answered(self, seconds: float, now: float) -> None:
        if seconds > self.mean_seconds:
            self.mean_seconds = seconds
        else:
            kept = math.exp(-max(0.0, now - self.updated_at) / DECAY_SECONDS)
            self.mean_seconds = self.mean_seconds * kept + seconds * (1.0 - kept)
        self.updated_at = now


class PeakEwma(CountingPolicy[MeasuredWorker]):
    """Draws two workers at random and picks the one with the lower cost."""

    def _new(self, name: str, slots: int, now: float) -> MeasuredWorker:
        return MeasuredWorker(name, slots, now)

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        workers = self._candidates(without)
        if len(workers) < 2:
            return workers[0].name if workers else None
        first = self._random.randrange(len(workers))
        second = self._random.randrange(len(workers) - 1)
        if second >= first:
            second += 1
        one, other = workers[first], workers[second]
        cheaper = one if _cost(one) <= _cost(other) else other
        return cheaper.name

    def ended(
        self, dispatch: Dispatch, outcome: QueryOutcome, now: float, limit: int | None = None
    ) -> None:
        worker = dispatch.worker
        said = outcome is not QueryOutcome.CANCELLED
        if dispatch.open and said and isinstance(worker, MeasuredWorker):
            worker.answered(max(0.0, now - dispatch.sent_at), now)
        super().ended(dispatch, outcome, now, limit)


def _cost(worker: MeasuredWorker) -> float:
    return worker.mean_seconds * (worker.in_flight + 1)
