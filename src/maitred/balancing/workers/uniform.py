"""Random: every worker is as likely as any other, busy or not. For comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import CountingPolicy
from maitred.balancing.workers.interface import PolicyWorker

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource


class UniformPolicy(CountingPolicy[PolicyWorker]):
    """Picks any known worker at random, whatever is in flight to it."""

    def __init__(self, random: RandomSource) -> None:
        super().__init__()
        self._random = random

    def _new(self, name: str, slots: int, now: float) -> PolicyWorker:
        return PolicyWorker(name, slots)

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        workers = self._candidates(without)
        return workers[self._random.randrange(len(workers))].name if workers else None
