"""Detect a worker that fails more than the others, and limit what it gets until it recovers. Pure.

A worker that fails each query in a millisecond has its slots free again sooner than a worker that
does the work, and would attract the queries of a queue. But callers cause errors, too, and what
fails at every worker is no worker's fault. So the share of a worker's answers that were good is
compared with the best share among the *others*: a worker that is alone, or no worse than the
others, is never held back.

A clearly worse worker is **sick**. It gets no query for as long as a good query takes, then a
single one as a trial. Each failed trial doubles the pause, up to a second, for the whole worker:
even with a thousand slots it fails only one query a second. Each good answer makes room for one
more, so the number in flight may double with every round, and a worker that recovered has its slots
back after half a dozen rounds. When its share is close to the others', the worker is well again.
"""

from __future__ import annotations

from math import inf

GOOD_WEIGHT = 0.02
"""The weight of one answer in the share of good ones, a moving average of about a hundred answers:
if half of a worker's queries fail at random, it is accurate to 0.05 (one standard deviation)."""
WORSE_BY = 0.3
"""A worker whose share is this much below the best of the others is sick: four standard deviations
of the difference between two equal workers. (Of a hundred that all fail more than half of their
queries, one or two at a time are held back, wrongly and for a moment.) A worker that fails every
query is detected after eighteen answers, if the others fail none."""
WELL_WITHIN = 0.2
"""A sick worker is well again when its share is at most this much below the best of the others. It
is less than `WORSE_BY`, so that the state does not change with every answer."""
NOTABLE = 0.1
"""A share that has changed by this much since it was last reported is reported again."""
TELL_SECONDS = 0.1
"""A share is reported at most once in this time."""
MEAN_WEIGHT = 0.02
PAUSE_SECONDS = 0.05
"""The first pause while it is not known how long a good query takes."""
PAUSE_SECONDS_MAX = 1.0
"""The longest pause: a worker that fails every query is tried this often, and may be idle for this
long after it recovered."""
DOUBLINGS_MAX = 10


def after(good: float, *, done: bool) -> float:
    """Return the share of good answers after one more answer; `done` says whether it was good."""
    if not done:
        return good - GOOD_WEIGHT * good
    good += GOOD_WEIGHT * (1.0 - good)
    return good if good < 0.999 else 1.0


def pause_seconds(mean_seconds: float, failed: int) -> float:
    """Return the pause after `failed` failures in a row; `mean_seconds` is 0 if unknown."""
    pause = (mean_seconds or PAUSE_SECONDS) * 2.0 ** min(failed, DOUBLINGS_MAX)
    return min(pause, PAUSE_SECONDS_MAX)


def standing(good: float, best: float) -> int:
    """Compare a share with the best of the others: 0 is well, 2 sick, 1 the same as before."""
    return (good < best - WELL_WITHIN) + (good < best - WORSE_BY)


class Health:
    """Tracks the share of good answers of one worker at one queue."""

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
        """The share of the worker's answers that were good. A new worker starts with the best
        share: it gets the queries that others do not get, and they show how it does."""
        self.mean_seconds = 0.0
        """The mean duration of good queries, in seconds; 0 until there was one."""
        self.best = 0.0
        """The best share among the other workers; 0 if there is none, or it is unknown."""
        self.sick = False
        self.allowed = inf
        """How many queries may be in flight; infinite while the worker is not sick."""
        self.paused_until = -inf
        self.tries = 0
        """How many trials failed in a row while the worker was sick."""
        self.told = 1.0
        """The share that was last reported."""
        self.told_at = -inf

    def done(self, seconds: float, now: float) -> None:
        """Count a good answer, which took this many seconds."""
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
        """Count a failure that, as far as is known, the caller did not cause."""
        self.good = after(self.good, done=False)
        if not self.sick:
            self.compare(self.best, now)
        elif now >= self.paused_until:  # else the query was sent before the pause, with others
            self._pause(now)

    def compare(self, best: float, now: float) -> None:
        """Set the best share among the other workers, and update whether this one is sick."""
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
        """Return how many more queries of this queue the worker may get."""
        if not self.sick:
            return inf
        return 0 if now < self.paused_until else max(0, self.allowed - under_way)

    # Reports to others

    @property
    def tell_at(self) -> float:
        """When to report the share next; infinite if it changed by less than `NOTABLE`."""
        return inf if abs(self.good - self.told) < NOTABLE else self.told_at + TELL_SECONDS

    def tell(self, now: float) -> float:
        """Return the share, and record that it is reported now."""
        self.told, self.told_at = self.good, now
        return self.good
