"""Compares the shares of good answers that the workers of a queue report.

Each worker decides itself whether it is worse than the others (`balancing.workers.health`). For
that it is told the best share of good answers among the others, and told at once when a new best
share changes its verdict.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from maitred.balancing.workers.health import WELL_WITHIN, standing

if TYPE_CHECKING:
    from maitred.matching.attendance import Attendance


class Shares:
    """The shares of good answers of all workers that serve."""

    def __init__(self) -> None:
        self._of: dict[bytes, float] = {}
        self._low: dict[bytes, Attendance] = {}
        """Workers whose shares are low enough to be far below the best."""
        self._best: list[tuple[float, bytes]] | None = []
        """The best two shares; None: they have to be computed again. Even with ten thousand workers
        whose shares change all the time that is rare."""
        self.news = False
        """Whether the best may have changed since `to_tell`."""

    def told(self, one: Attendance) -> None:
        """Take over the share that a serving worker reports."""
        session, good = one.session, one.good
        if self._of.get(session) != good:
            self._of[session] = good
            self._changes(session, good)
        if good < 1.0 - WELL_WITHIN:
            self._low[session] = one
        else:
            self._low.pop(session, None)

    def left(self, session: bytes) -> None:
        """Forget the share of a worker that does not serve any more."""
        if self._of.pop(session, None) is not None:
            self._changes(session, 0.0)
        self._low.pop(session, None)

    def _changes(self, session: bytes, good: float) -> None:
        best = self._best
        if (
            best is None
            or len(best) < 2
            or good > best[1][0]
            or session in (best[0][1], best[1][1])
        ):
            self._best = None
            self.news = True

    def best_beside(self, session: bytes) -> float:
        """Return the largest share among the other workers; 0 if there are none."""
        best = self._best
        if best is None:
            pairs = ((good, session) for session, good in self._of.items())
            best = self._best = nlargest(2, pairs)
        return next((good for good, other in best if other != session), 0.0)

    def is_news(self, one: Attendance) -> bool:
        """Return whether the worker would judge itself differently if it knew the best share."""
        best = self.best_beside(one.session)
        return standing(one.good, best) != standing(one.good, one.told_best)

    def to_tell(self) -> list[Attendance]:
        """Return the workers whose verdict would change and whose long polls wait."""
        self.news = False
        return [one for one in self._low.values() if one.token is not None and self.is_news(one)]
