"""Weighted selection: poll where the backlog is.

The answer to a poll tells the backlog of the partition and the rate of its new tasks. Once every
partition has reported and one of them weighs more than the threshold, reads are drawn at random in
proportion to the weights; until then, and for every write, the turn goes round.

Weights alone have two flaws. The last report stays true for ever, although the backlog drained
since: so weights halve with time. And a partition that reported nothing to do is never asked
again, so it can never report that this changed: so every tenth read takes its turn regardless,
which polls each of N partitions at least once in 10 x N reads, whatever was reported.

Reports outlive a reduced number of partitions: if it grows again, they count for what time has
left of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from maitred.balancing.interface import Poll, RandomSource
from maitred.balancing.recent import Recent
from maitred.balancing.round_robin import Turns, first_turn
from maitred.balancing.settings import SelectorSettings
from maitred.routing.keys import check_partitions

if TYPE_CHECKING:
    from maitred.balancing.hints import BacklogHint
    from maitred.routing.names import QueueId

RATE_WEIGHT_SECONDS = 0.01
"""What a rate adds to the weight: the tasks on their way through a partition, by Little's law with
the 10 ms that a match takes on average. A rate below 0.01 a second counts as none."""


FADED_HALF_LIVES = 16
"""After so many half-lives a report is 65,536 times lighter, and forgotten if its partition is no
more."""


class Weighted:
    """Reads follow the backlog, writes take turns."""

    def __init__(self, random: RandomSource, settings: SelectorSettings | None = None) -> None:
        self._settings = settings or SelectorSettings()
        self._random = random
        self._writes = Turns(random, self._settings.queues_max)
        self._reads: Recent[QueueId, _Reads] = Recent(self._settings.queues_max)

    def write(self, queue: QueueId, partitions: int, now: float) -> int:
        check_partitions(partitions)
        return self._writes.next(queue, partitions)

    def read(self, queue: QueueId, partitions: int, now: float) -> Poll:
        check_partitions(partitions)
        reads = self._reads.get(queue)
        if reads is None:
            reads = _Reads(first_turn(self._reads.forgot, partitions, self._random) - 1)
            self._reads.put(queue, reads)
        reads.count += 1
        partition = None
        if reads.count % self._settings.round_robin_every:
            weights = reads.weights(partitions, now, self._settings.weight_half_life_seconds)
            if weights is not None and max(weights) > self._settings.weight_threshold:
                partition = proportional(weights, self._random)
        if partition is None:
            partition = reads.last = (reads.last + 1) % partitions
        return Poll(queue, partition, self)

    def finished(
        self, queue: QueueId, partition: int, now: float, hint: BacklogHint | None
    ) -> None:
        # A queue that was forgotten while it was polled stays forgotten: an answer is no reason
        # to push out a queue that is being read.
        reads = self._reads.get(queue)
        if hint is not None and reads is not None:
            reads.reports[partition] = (weight_of(hint), now)

    def abandoned(self, queue: QueueId, partition: int) -> None:
        """Nothing was learned, and nothing is counted."""

    @property
    def entries(self) -> int:
        reports = sum(len(reads.reports) for reads in self._reads.values())
        return reports + len(self._reads) + len(self._writes)

    def __repr__(self) -> str:
        return f"<Weighted, {len(self._reads)} queues>"


class _Reads:
    """What is known for reading one queue: the reports, and the turn."""

    __slots__ = ("count", "last", "reports")

    def __init__(self, last: int) -> None:
        self.count = 0
        self.last = last
        self.reports: dict[int, tuple[float, float]] = {}
        """By partition: the weight reported, and when."""

    def weights(self, partitions: int, now: float, half_life_seconds: float) -> list[float] | None:
        """What the reports weigh by now; None unless every partition has reported."""
        if len(self.reports) < partitions:
            return None
        if len(self.reports) > partitions:
            self._forget_faded(partitions, now, half_life_seconds)
        weights = []
        for partition in range(partitions):
            report = self.reports.get(partition)
            if report is None:
                return None
            weight, reported_at = report
            if now < reported_at:
                # The clock was set back: the report is as old as can be told, and fades from here.
                self.reports[partition] = (weight, now)
            weights.append(faded(weight, now - reported_at, half_life_seconds))
        return weights

    def _forget_faded(self, partitions: int, now: float, half_life_seconds: float) -> None:
        """Drop old reports of partitions that are no more."""
        oldest = now - FADED_HALF_LIVES * half_life_seconds
        self.reports = {
            partition: report
            for partition, report in self.reports.items()
            if partition < partitions or report[1] > oldest
        }


def faded(weight: float, age_seconds: float, half_life_seconds: float) -> float:
    """What is left of a weight; a report from the future has not begun to fade."""
    return weight * math.exp2(-max(0.0, age_seconds) / half_life_seconds)


def weight_of(hint: BacklogHint) -> float:
    """The tasks of a partition: those in its backlog, and those on their way through it."""
    weight = float(hint.backlog)
    if hint.rate_per_second > RATE_WEIGHT_SECONDS:
        weight += math.ceil(RATE_WEIGHT_SECONDS * hint.rate_per_second)
    return weight


def proportional(weights: list[float], random: RandomSource) -> int:
    """An index, each as likely as its share of the weights; some weight has to be above 0."""
    point = random.random() * math.fsum(weights)
    heaviest = 0
    for index, weight in enumerate(weights):
        if point < weight:
            return index
        point -= weight
        if weight > weights[heaviest]:
            heaviest = index
    # Rounding can leave the point a hair beyond the end; the heaviest is a safe place for it.
    return heaviest
