"""How the workers of a queue do beside each other, by what each says of its answers.

Whether one is worse than the others is for itself to decide (`balancing.workers.health`): it hears
the best share of good answers among the others, and hears of it at once when that makes another
verdict of its own share.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from maitred.balancing.workers.health import WELL_WITHIN, standing

if TYPE_CHECKING:
    from maitred.matching.presence import Attendance


class Shares:
    """Of all workers that serve."""

    def __init__(self) -> None:
        self._of: dict[bytes, float] = {}
        self._low: dict[bytes, Attendance] = {}
        """Those who can be far below somebody."""
        self._best: list[tuple[float, bytes]] | None = []
        """The best two; None: they have to be looked for. With ten thousand workers whose shares
        change all the time that is seldom so."""
        self.news = False
        """Whether the best may be others since the low ones were looked at."""

    def told(self, one: Attendance) -> None:
        """It serves, and says this of itself."""
        session, good = one.session, one.good
        if self._of.get(session) != good:
            self._of[session] = good
            self._changes(session, good)
        if good < 1.0 - WELL_WITHIN:
            self._low[session] = one
        else:
            self._low.pop(session, None)

    def left(self, session: bytes) -> None:
        """It serves no longer."""
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
        """The largest share among the others; 0 if there are none."""
        best = self._best
        if best is None:
            pairs = ((good, session) for session, good in self._of.items())
            best = self._best = nlargest(2, pairs)
        return next((good for good, other in best if other != session), 0.0)

    def is_news(self, one: Attendance) -> bool:
        """Whether it would judge itself otherwise if it knew of the others now."""
        best = self.best_beside(one.session)
        return standing(one.good, best) != standing(one.good, one.told_best)

    def to_tell(self) -> list[Attendance]:
        """Those who would, and are there to listen."""
        self.news = False
        return [one for one in self._low.values() if one.token is not None and self.is_news(one)]
