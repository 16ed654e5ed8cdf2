"""What can go wrong with workers in the contest: as data, and what becomes of their reports.

A fault lasts for the second third of a run, so that the first shows what is normal, and the last
how soon it is so again. Who differs in his clock does so from the beginning; in the second third
the clock is set anew as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maitred.balancing.workers import LoadReport

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from studies.contest.measures import Tally
    from studies.contest.settings import ContestModel

ERROR_SECONDS = 0.001
"""How soon a worker answers with an error that can do nothing else."""
LAG_SECONDS = 0.2
"""How late an event loop is that drives its worker's limit to the floor."""
CLOCK_HOURS = 12.0
CLOCK_DRIFT = 0.01
"""The most that a worker's clock is off, either way, and that it is too fast or too slow."""
RECOVERED_SHARE = 0.8
RECOVERED_BUCKETS = 3
"""Back to normal: so much of what it did before the fault, over so many tenths of a second."""
SHARE_KEPT = 0.5
"""Or of what it does in the end, if that is at least so much of what it did before."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. Times in seconds."""

    sentence: str
    everybody: bool = False
    """Whether it strikes all workers; else the one that the model names."""
    useless: bool = False
    """Whether those that it strikes can do nothing meanwhile, or say that they cannot."""
    says: int | None = None
    """What the worker announces and reports of itself instead of the truth."""
    greedy: bool = False
    """Whether it refuses nothing, however much waits inside."""
    silent: bool = False
    """Nothing is reported, while answers come as ever."""
    late_seconds: float = 0.0
    """Each report comes later than its answer by up to so much, by chance."""
    jumps: float = 1.0
    """Each limit and time in a report is multiplied by chance, by up to so much either way."""
    clocks: bool = False
    refuses: bool = False
    errors: float = 0.0
    """This share of the queries fails within a millisecond, by chance."""
    lags: bool = False
    permits: int | None = None
    """All that are left."""

    @property
    def matters_to_all(self) -> bool:
        """Whether it concerns policies too that hear no reports."""
        mute = self.silent or self.late_seconds or self.jumps > 1.0 or self.clocks or self.lags
        return not mute

    def report(self, report: LoadReport, random: Random) -> LoadReport | None:
        """What is heard of a worker that meant to say this."""
        if self.silent:
            return None
        if self.says is not None:
            return lie(report, self.says)
        if self.jumps > 1.0:
            limit = max(1, round(report.limit * self._factor(random)))
            service = report.mean_service_seconds * self._factor(random)
            return report._replace(limit=limit, mean_service_seconds=service)
        return report

    def _factor(self, random: Random) -> float:
        return float(self.jumps ** random.uniform(-1.0, 1.0))


def lie(report: LoadReport, says: int) -> LoadReport:
    """Nothing of it is true but the number; who boasts says that he is idle and very fast."""
    if says > 0:
        return LoadReport(report.number, says, 0, 0, 1e-9, 0, 1)
    return LoadReport(report.number, says, says, says, float(says), says, says)


def clock(random: Random) -> tuple[float, float]:
    """By how much a worker's clock is ahead, and how fast it runs."""
    return (
        3600.0 * random.uniform(-CLOCK_HOURS, CLOCK_HOURS),
        1.0 + random.uniform(-CLOCK_DRIFT, CLOCK_DRIFT),
    )


NOTHING = Fault("nothing happens")

FAULTS: Mapping[str, Fault] = {
    "none": NOTHING,
    "hung": Fault("one hangs: it takes queries, and says and answers nothing", useless=True),
    "vanished": Fault("one dies, and comes back", useless=True),
    "liar-zero": Fault("one says that it can do nothing", useless=True, says=0),
    "liar-negative": Fault(
        "all that one says of itself is far below zero", useless=True, says=-(10**6)
    ),
    "liar-huge": Fault("one says that it can do everything, at once", says=10**9),
    "liar-greedy": Fault(
        "one says so and takes everything: only how long that takes gives it away",
        says=10**9,
        greedy=True,
    ),
    "reports-stop": Fault("nobody reports any more", everybody=True, silent=True),
    "reports-out-of-order": Fault(
        "reports are late by up to 0.3 s, by chance, so that new ones overtake old ones",
        everybody=True,
        late_seconds=0.3,
    ),
    "reports-jump": Fault(
        "all limits and times in reports are wrong by a factor of 0.1 to 10",
        everybody=True,
        jumps=10.0,
    ),
    "clocks-differ": Fault(
        "clocks are off by hours, run up to 1 % too fast or slow, and are set anew",
        everybody=True,
        clocks=True,
    ),
    "all-refuse": Fault("everybody refuses everything", everybody=True, useless=True, refuses=True),
    "fast-errors": Fault("one answers errors in a millisecond", useless=True, errors=1.0),
    "half-errors": Fault(
        "one answers every other query with an error, as fast", useless=True, errors=0.5
    ),
    "callers-fault": Fault(
        "three in ten queries fail in a millisecond, wherever they go",
        everybody=True,
        errors=0.3,
    ),
    "floor": Fault(
        "event loops are so late that limits fall to the floor",
        everybody=True,
        useless=True,
        lags=True,
    ),
    "one-permit": Fault(
        "everybody can do one thing at a time", everybody=True, useless=True, permits=1
    ),
}
"""By the name that a model gives."""


@dataclass(frozen=True, slots=True)
class FaultMeasures:
    """What a fault did to a run."""

    honest_per_second: float
    """What was asked while it lasted, or what the others could do if that is less."""
    during_per_second: float
    """Good answers while it lasted."""
    during_timeouts: int
    share_before: float
    """Of all that was sent, what went to those whom it would strike."""
    share_first: float
    """The same in the first half of the fault."""
    share_last: float
    """And in its second half."""
    recovered_seconds: float
    """After its end, until they did about as much as before; at most a third of the run."""
    after_failures: int
    """In the second half of what was left of the run."""

    @property
    def during_share(self) -> float:
        """Of what could be done; 0 if nobody could do anything."""
        honest = self.honest_per_second
        return self.during_per_second / honest if honest else 0.0


def fault_measures(model: ContestModel, tally: Tally) -> FaultMeasures | None:
    """None if there was no fault."""
    if model.fault == "none":
        return None
    third = tally.count // 3
    half = third // 2
    seconds = max(third * tally.bucket_seconds, 1e-9)
    before, during, after = third - half, third, 2 * third
    normal = sum(tally.struck_done[before:third]) / max(1, half)
    # How workers share what they could all do is partly chance: it may be another share afterwards.
    at_the_end = sum(tally.struck_done[after + half : after + third]) / max(1, third - half)
    normal = max(min(normal, at_the_end), SHARE_KEPT * normal)
    wait = 0
    for wait in range(third):
        seen = tally.struck_done[after + wait : after + wait + RECOVERED_BUCKETS]
        if sum(seen) >= RECOVERED_SHARE * normal * max(1, len(seen)):
            break
    return FaultMeasures(
        honest_per_second=model.honest_per_second(sum(tally.came[during:after]) / seconds),
        during_per_second=sum(tally.buckets[during:after]) / seconds,
        during_timeouts=sum(tally.timeouts[during:after]),
        share_before=tally.share_sent(before, third),
        share_first=tally.share_sent(during, during + half),
        share_last=tally.share_sent(during + half, after),
        recovered_seconds=wait * tally.bucket_seconds,
        after_failures=sum(tally.failed[after + half : after + third]),
    )
