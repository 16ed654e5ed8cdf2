"""Weighted selection: poll where the backlog is.

The answer to a poll carries the backlog of the partition and the rate of its new tasks. Once every
partition has reported and one of them weighs more than the threshold, each read draws a partition
at random in proportion to the weights; until then, and for every write, the selector goes round
robin.

Weights alone have two flaws. A report would hold for ever although the backlog has drained since,
so weights decay with a half-life. A partition that reported an empty backlog would never be polled
again and could not report a change, so every tenth read goes round robin. That polls each of N
partitions at least once in 10 x N reads, whatever the partitions reported.

The selector keeps the reports of partitions beyond a reduced partition count: if the count grows
again, they still count with their decayed weight.
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
"""The rate times this many seconds is added to the weight: the tasks on their way through a
partition, by Little's law with a mean match of 10 ms. A rate up to 0.01 a second adds nothing."""


FADED_HALF_LIVES = 16
"""After this many half-lives a report weighs 65,536 times less, and is dropped if its partition no
longer exists."""


class Weighted:
    """Picks partitions to read in proportion to their backlog, and partitions to write in turn."""

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
        # A queue that was evicted during its poll stays evicted: an answer must not evict a queue
        # that is being read.
        reads = self._reads.get(queue)
        if hint is not None and reads is not None:
            reads.reports[partition] = (weight_of(hint), now)

    def abandoned(self, queue: QueueId, partition: int) -> None:
        """Do nothing: an abandoned poll carries no report, and this selector counts no polls."""

    @property
    def entries(self) -> int:
        reports = sum(len(reads.reports) for reads in self._reads.values())
        return reports + len(self._reads) + len(self._writes)

    def __repr__(self) -> str:
        return f"<Weighted, {len(self._reads)} queues>"


class _Reads:
    """Holds the reports of one queue's partitions, and its round-robin position for reads."""

    __slots__ = ("count", "last", "reports")

    def __init__(self, last: int) -> None:
        self.count = 0
        self.last = last
        self.reports: dict[int, tuple[float, float]] = {}
        """Maps a partition to the weight it reported and the time of the report."""

    def weights(self, partitions: int, now: float, half_life_seconds: float) -> list[float] | None:
        """Return the decayed weight of each partition; None unless every partition has reported."""
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
                # The clock was set back: the age is unknown, so the report decays from now on.
                self.reports[partition] = (weight, now)
            weights.append(faded(weight, now - reported_at, half_life_seconds))
        return weights

    def _forget_faded(self, partitions: int, now: float, half_life_seconds: float) -> None:
        """Drop old reports of partitions that no longer exist."""
        oldest = now - FADED_HALF_LIVES * half_life_seconds
        self.reports = {
            partition: report
            for partition, report in self.reports.items()
            if partition < partitions or report[1] > oldest
        }


def faded(weight: float, age_seconds: float, half_life_seconds: float) -> float:
    """Return the decayed weight; a report from the future (a negative age) has not decayed."""
    return weight * math.exp2(-max(0.0, age_seconds) / half_life_seconds)


def weight_of(hint: BacklogHint) -> float:
    """Return the tasks of a partition: those in its backlog and those on their way through it."""
    weight = float(hint.backlog)
    if hint.rate_per_second > RATE_WEIGHT_SECONDS:
        weight += math.ceil(RATE_WEIGHT_SECONDS * hint.rate_per_second)
    return weight


def proportional(weights: list[float], random: RandomSource) -> int:
    """Draw an index with a probability equal to its share; some weight has to be above 0."""
    point = random.random() * math.fsum(weights)
    heaviest = 0
    for index, weight in enumerate(weights):
        if point < weight:
            return index
        point -= weight
        if weight > weights[heaviest]:
            heaviest = index
    # Rounding can leave the point slightly beyond the end; then the heaviest index is a safe pick.
    return heaviest
