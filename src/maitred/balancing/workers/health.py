"""Whether a worker fails more than the others, and what it may still be given then. Pure.

An error is quickly made: whoever fails each query in a millisecond has its slots free again sooner
than anybody who works, and would draw the queries of a queue to itself. But errors may as well be
the fault of those who ask, and what fails everywhere is nobody's. So what counts is the share of a
worker's answers that were good, beside the best share among the *others*: whoever is alone, or no
worse than they are, is never held back.

One that is clearly worse is **sick**. It gets nothing for a moment, as long as a good query takes,
then a single query to try. Each that fails doubles the pause, up to a second, for the whole worker:
with a thousand slots it still fails one query a second. Each that is good makes room for one more,
so what may be under way doubles with every round, and a worker that can work again has its slots
back after half a dozen of them. When its share is about the others', it is well.
"""

from __future__ import annotations

from math import inf

GOOD_WEIGHT = 0.02
"""Of one answer in the share of good ones. It remembers the last hundred or so: the share of a
worker of whose queries half fail, by chance, is then right to 0.05 (one standard deviation)."""
WORSE_BY = 0.3
"""Sick is whose share is so much below the best of the others: four standard deviations of the
difference between two workers to which the same happens. (Of a hundred that all fail more than half
of their queries, one or two are held back at a time, wrongly and for a moment.) Of a worker that
fails everything, eighteen answers tell, if the others fail nothing."""
WELL_WITHIN = 0.2
"""Well is whose share is no further below than this: less than `WORSE_BY`, so that it does not
change with every answer."""
NOTABLE = 0.1
"""A share that has changed by so much is told."""
TELL_SECONDS = 0.1
"""At most once in this time."""
MEAN_WEIGHT = 0.02
PAUSE_SECONDS = 0.05
"""The first pause, if nobody knows yet how long a good query takes."""
PAUSE_SECONDS_MAX = 1.0
"""So often a worker is tried that fails everything, and so long it may be idle when it can work
again."""
DOUBLINGS_MAX = 10


def after(good: float, *, done: bool) -> float:
    """The share of good answers after one more."""
    if not done:
        return good - GOOD_WEIGHT * good
    good += GOOD_WEIGHT * (1.0 - good)
    return good if good < 0.999 else 1.0


def pause_seconds(mean_seconds: float, failed: int) -> float:
    """After so many attempts that failed in a row, if a good query takes that long."""
    pause = (mean_seconds or PAUSE_SECONDS) * 2.0 ** min(failed, DOUBLINGS_MAX)
    return min(pause, PAUSE_SECONDS_MAX)


def standing(good: float, best: float) -> int:
    """Beside the best of the others: 0 well, 2 sick, 1 whatever it was before."""
    return (good < best - WELL_WITHIN) + (good < best - WORSE_BY)


class Health:
    """Of one worker, at one queue."""

    __slots__ = (
        "allowed",
        "best",
        "good",
        "mean_seconds",
        "paused_until",
        "sick",
        "told",
        "told_at",
        "tries",
    )

    def __init__(self) -> None:
        self.good = 1.0
        """The share of its answers that were good. Of whom nobody asked anything yet the best is
        believed: what others do not get goes there, and it shows."""
        self.mean_seconds = 0.0
        """How long good ones took; 0 until there was one."""
        self.best = 0.0
        """The share of the best of the others; 0: there is none, or nobody knows."""
        self.sick = False
        self.allowed = inf
        """How many may be under way."""
        self.paused_until = -inf
        self.tries = 0
        """Attempts that failed in a row while it was sick."""
        self.told = 1.0
        """The share that was told last."""
        self.told_at = -inf

    def done(self, seconds: float, now: float) -> None:
        """A query was answered well; it took so long."""
        if seconds >= 0.0:  # else the clock was set back
            mean = self.mean_seconds
            self.mean_seconds = mean + MEAN_WEIGHT * (seconds - mean) if mean else seconds
        if self.good < 1.0:
            self.good = after(self.good, done=True)
        if self.sick:
            self.tries = 0
            self.allowed += 1
            self.compare(self.best, now)

    def failed(self, now: float) -> None:
        """A query failed, as far as is known not because of whoever asked it."""
        self.good = after(self.good, done=False)
        if not self.sick:
            self.compare(self.best, now)
        elif now >= self.paused_until:  # else it was begun before, with others
            self._pause(now)

    def compare(self, best: float, now: float) -> None:
        """This is the best share of the others."""
        self.best = best
        level = standing(self.good, best)
        if self.sick:
            if level == 0:
                self.sick = False
                self.allowed = inf
                self.paused_until = -inf
        elif level == 2:
            self.sick = True
            self.tries = 0
            self._pause(now)

    def _pause(self, now: float) -> None:
        self.paused_until = now + pause_seconds(self.mean_seconds, self.tries)
        self.allowed = 1
        self.tries += 1

    def room(self, under_way: int, now: float) -> float:
        """How many more it may be given, of this queue."""
        if not self.sick:
            return inf
        return 0 if now < self.paused_until else max(0, self.allowed - under_way)

    # What others are told

    @property
    def tell_at(self) -> float:
        """When others are to hear of the share as it is now; never, if it has hardly changed."""
        return inf if abs(self.good - self.told) < NOTABLE else self.told_at + TELL_SECONDS

    def tell(self, now: float) -> float:
        """The share, which is told now."""
        self.told, self.told_at = self.good, now
        return self.good
