"""Round robin: one worker after the other, busy or not. For comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import CountingPolicy
from maitred.balancing.workers.interface import PolicyWorker

if TYPE_CHECKING:
    from collections.abc import Collection


class RoundRobinPolicy(CountingPolicy[PolicyWorker]):
    """Picks the workers in turn; the position is all it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = -1

    def _new(self, name: str, slots: int, now: float) -> PolicyWorker:
        return PolicyWorker(name, slots)

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        workers = self._candidates(without)
        if not workers:
            return None
        # The remainder is taken at each pick, so workers may join and leave between picks.
        self._turn = (self._turn + 1) % len(workers)
        return workers[self._turn].name
