"""Places every partition of a large and of a small cluster by the real routing code, then takes
hosts away and adds some, and counts.

Two things matter and pull against each other. Balance: how much more than the mean does the fullest
host hold, of all partitions and, which is where hot spots come from, of one queue. Movement: which
share of the partitions has another host after one host was lost or added; a partition that moves is
unloaded, fenced and read in again, so each one is a hiccup for its queue.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

from maitred.errors import InvalidArgument, InvalidPartition
from maitred.routing import GradualChange, HashRing, QueueId, own_key, place_all, sharding
from maitred.routing.keys import check_batch_size, check_partitions
from maitred.routing.placement import placement_named
from maitred.routing.tokens import IGNORE_MSB, check_sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = Callable[[int, int, str], None]

HOSTS_MAX = 20_000
PARTITIONS_MAX = 10_000_000
"""Beyond these a study takes gigabytes and hours, which is more likely a slip than a wish."""

GRADUAL_STEPS = 24
"""At so many moments of a gradual change its movement is measured."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many hosts, and so many partitions over all queues."""

    hosts: int
    partitions: int
    changes: int = 2
    """So many times a host is lost, and so many times one is added, each from the full cluster."""

    def __post_init__(self) -> None:
        if self.hosts < 2 or self.partitions < 1:
            raise InvalidArgument(
                f"A cluster of {self} can't be studied: "
                "it takes 2 hosts to lose one, and a partition to place."
            )
        if self.hosts > HOSTS_MAX or self.partitions > PARTITIONS_MAX:
            raise InvalidArgument(
                f"A cluster of {self} is too large to study here: "
                f"at most {HOSTS_MAX:,} hosts and {PARTITIONS_MAX:,} partitions."
            )
        if not 1 <= self.changes <= self.hosts:
            raise InvalidArgument(
                f"Cannot lose {self.changes} of {self.hosts} hosts: at least 1, at most all."
            )

    def __str__(self) -> str:
        return f"{self.hosts:,} hosts, {self.partitions:,} partitions"


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """What to place and what to change."""

    clusters: tuple[Cluster, ...] = (Cluster(1_000, 100_000), Cluster(8, 384, changes=8))
    """The large one shows balance; the small one what happens with fewer hosts than the batch."""

    partitions_per_queue: int = 64
    batch_sizes: tuple[int, ...] = (0, 3, 8, 64)
    placements: tuple[str, ...] = ("wrap", "steady")

    shards: int = 8
    """Cores of a host, to see how many partitions of a queue share one."""

    gradual_batch_size: int = 8
    """The gradual change goes from basic routing to this batch size."""

    seed: int = 1
    """Picks the hosts that are lost."""

    def __post_init__(self) -> None:
        check_partitions(self.partitions_per_queue)
        check_sharding(self.shards, IGNORE_MSB)
        for batch_size in (*self.batch_sizes, self.gradual_batch_size):
            if check_batch_size(batch_size) > self.partitions_per_queue:
                raise InvalidPartition(
                    f"The batch size {batch_size} is more than the {self.partitions_per_queue} "
                    "partitions of a queue: no batch would be full.",
                    remedy=f"Use at most {self.partitions_per_queue}; 0 is basic routing.",
                )
        for placement in self.placements:
            placement_named(placement)
        if not (self.clusters and self.batch_sizes and self.placements):
            raise InvalidArgument("A placement study needs clusters, batch sizes and placements.")


QUICK = PlacementSettings(clusters=(Cluster(100, 6_400, changes=1), Cluster(8, 384, changes=8)))
"""A study that takes about a second."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One placement with one batch size in one cluster."""

    cluster: Cluster
    placement: str
    batch_size: int
    max_over_mean: float
    """Partitions of the fullest host over the mean."""
    p99_over_mean: float
    """Partitions of the host that 99 % of the hosts do not exceed, over the mean."""
    queue_on_host: float
    """Partitions of one queue on its fullest host, mean over the queues."""
    queue_on_core: float
    """The same for its fullest core."""
    moved_by_loss: float
    """Share of the partitions that have another host after one host was lost."""
    moved_by_addition: float
    roots_moved_by_spread: int
    """Roots that stand elsewhere than with basic routing."""


@dataclass(frozen=True, slots=True)
class Gradual:
    """The movement of a gradual change: share moved so far, at equal steps of its time."""

    cluster: Cluster
    placement: str
    batch_size: int
    moved: list[float]


@dataclass(frozen=True, slots=True)
class PlacementStudy:
    """The settings and everything that was measured."""

    settings: PlacementSettings
    measured: list[Measured] = field(default_factory=list)
    gradual: list[Gradual] = field(default_factory=list)

    def table(self) -> list[dict[str, object]]:
        """A row a measurement, ready to print."""
        return [
            {
                "hosts": one.cluster.hosts,
                "partitions": one.cluster.partitions,
                "batch": one.batch_size,
                "placement": one.placement if one.batch_size else "basic",
                "max/mean": round(one.max_over_mean, 2),
                "p99/mean": round(one.p99_over_mean, 2),
                "queue/host": round(one.queue_on_host, 1),
                "queue/core": round(one.queue_on_core, 1),
                "lost moves %": round(100 * one.moved_by_loss, 2),
                "added moves %": round(100 * one.moved_by_addition, 2),
                "a host %": round(100 / one.cluster.hosts, 2),
            }
            for one in self.measured
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "settings": asdict(self.settings),
            "measured": [asdict(one) for one in self.measured],
            "gradual": [asdict(one) for one in self.gradual],
            "findings": self.findings(),
        }

    def findings(self) -> list[str]:
        """What the numbers say, in sentences made from them."""
        return [sentence for cluster in self.settings.clusters for sentence in self._found(cluster)]

    def _found(self, cluster: Cluster) -> Iterator[str]:
        here = [one for one in self.measured if one.cluster == cluster]
        basic = next((one for one in here if not one.batch_size), None)
        if basic:
            yield (
                f"{cluster}: with basic routing the fullest host holds {basic.max_over_mean:.2f} "
                f"times the mean, a queue has {basic.queue_on_host:.1f} of its partitions on one "
                f"host, and losing a host moves {basic.moved_by_loss:.1%}."
            )
        for one in here:
            if one.batch_size and one.placement == "wrap":
                other = next(
                    (
                        candidate
                        for candidate in here
                        if candidate.batch_size == one.batch_size
                        and candidate.placement == "steady"
                    ),
                    None,
                )
                yield (
                    f"{cluster}, batch {one.batch_size}: losing a host moves "
                    f"{one.moved_by_loss:.1%} with wrap"
                    + (f" and {other.moved_by_loss:.1%} with steady" if other else "")
                    + f"; a queue's fullest host holds {one.queue_on_host:.1f}"
                    + (f" and {other.queue_on_host:.1f}" if other else "")
                    + " of its partitions."
                )


def placement_study(settings: PlacementSettings, progress: Progress) -> PlacementStudy:
    """Run the study; `progress(done, total, what)` is told before each step."""
    study = PlacementStudy(settings)
    steps = [
        (cluster, batch_size, placement)
        for cluster in settings.clusters
        for batch_size in settings.batch_sizes
        for placement in (settings.placements if batch_size else settings.placements[:1])
    ]
    total = len(steps) + len(settings.clusters) * len(settings.placements)
    for done, (cluster, batch_size, placement) in enumerate(steps):
        progress(done, total, f"{cluster}: {placement}, batch {batch_size}")
        study.measured.append(_measure(settings, cluster, batch_size, placement))
    done = len(steps)
    for cluster in settings.clusters:
        for placement in settings.placements:
            progress(done, total, f"{cluster}: {placement}, gradual change")
            study.gradual.append(_measure_gradual(settings, cluster, placement))
            done += 1
    progress(total, total, "done")
    return study


def _measure(
    settings: PlacementSettings, cluster: Cluster, batch_size: int, placement: str
) -> Measured:
    hosts = _hosts(cluster.hosts)
    ring = HashRing(hosts)
    queues = list(_queues(settings, cluster))
    placed = [place_all(ring, queue, count, batch_size, placement) for queue, count in queues]
    nodes = [[one.node for one in queue] for queue in placed]
    loads = Counter(node for queue in nodes for node in queue)
    shard_of_key = sharding(settings.shards)
    by_load = sorted(loads[host] for host in hosts)
    mean = cluster.partitions / cluster.hosts

    def share_moved(changed: HashRing) -> float:
        return _share_moved(
            nodes,
            [
                [one.node for one in place_all(changed, queue, count, batch_size, placement)]
                for queue, count in queues
            ],
        )

    lost, added = [], []
    for change, host in enumerate(Random(settings.seed).sample(hosts, cluster.changes)):
        ring.remove(host)
        lost.append(share_moved(ring))
        ring.add(host, newcomer := f"newcomer-{change}:7233")
        added.append(share_moved(ring))
        ring.remove(newcomer)
    return Measured(
        cluster,
        placement,
        batch_size,
        max_over_mean=by_load[-1] / mean,
        p99_over_mean=by_load[min(len(by_load) - 1, int(0.99 * len(by_load)))] / mean,
        queue_on_host=fmean(max(Counter(queue).values()) for queue in nodes),
        queue_on_core=fmean(
            max(Counter((one.node, shard_of_key(one.key.encode())) for one in queue).values())
            for queue in placed
        ),
        moved_by_loss=fmean(lost),
        moved_by_addition=fmean(added),
        roots_moved_by_spread=sum(
            ring.lookup(own_key(queue, 0)) != one[0]
            for (queue, _), one in zip(queues, nodes, strict=True)
        ),
    )


def _measure_gradual(settings: PlacementSettings, cluster: Cluster, placement: str) -> Gradual:
    ring = HashRing(_hosts(cluster.hosts))
    change = GradualChange(0, settings.gradual_batch_size, 0.0, float(GRADUAL_STEPS))
    flips: list[float] = []
    for queue, count in _queues(settings, cluster):
        before = place_all(ring, queue, count, change.old, placement)
        after = place_all(ring, queue, count, change.new, placement)
        for partition in range(count):
            moment = change.when(own_key(queue, partition))
            if moment is not None and before[partition].node != after[partition].node:
                flips.append(moment)
    return Gradual(
        cluster,
        placement,
        settings.gradual_batch_size,
        [
            sum(moment <= step for moment in flips) / cluster.partitions
            for step in range(GRADUAL_STEPS + 1)
        ],
    )


def _hosts(count: int) -> list[str]:
    return [f"10.0.{i // 250}.{i % 250 + 1}:7233" for i in range(count)]


def _queues(settings: PlacementSettings, cluster: Cluster) -> Iterator[tuple[QueueId, int]]:
    left = cluster.partitions
    number = 0
    while left > 0:
        yield QueueId("study", f"queue-{number}", 1), min(left, settings.partitions_per_queue)
        left -= settings.partitions_per_queue
        number += 1


def _share_moved(before: list[list[str]], after: list[list[str]]) -> float:
    moved = sum(
        old != new
        for one, other in zip(before, after, strict=True)
        for old, new in zip(one, other, strict=True)
    )
    return moved / sum(len(queue) for queue in before)


def with_clusters(settings: PlacementSettings, clusters: list[str]) -> PlacementSettings:
    """The settings with clusters given as text: HOSTS:PARTITIONS or HOSTS:PARTITIONS:CHANGES."""
    parsed = []
    for text in clusters:
        numbers = text.split(":")
        if len(numbers) not in {2, 3} or not all(
            number.isascii() and number.isdecimal() and len(number) < 20 for number in numbers
        ):
            raise InvalidArgument(
                f"{text!r} is not a cluster.",
                remedy="Give HOSTS:PARTITIONS or HOSTS:PARTITIONS:CHANGES, as in 1000:100000:2.",
            )
        parsed.append(Cluster(*map(int, numbers)))
    return replace(settings, clusters=tuple(parsed)) if parsed else settings
