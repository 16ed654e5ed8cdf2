"""What the queues of a shard have now: for metrics, and for lists of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.metrics.slots_wanted import slots_wanted

if TYPE_CHECKING:
    from maitred.matching.controls import Pause
    from maitred.node.owned import Owned


class QueueGauges:
    """What a queue has now at this shard, all its partitions together."""

    __slots__ = (
        *("added_per_second", "backlog", "delayed", "finished_per_second", "free", "has_root"),
        "loaded",
        *("most_per_second", "oldest", "partitions", "pause", "queries", "running", "wanted"),
        "workers",
    )

    def __init__(self) -> None:
        self.backlog = self.delayed = self.running = self.free = self.queries = 0
        self.oldest = 0.0
        self.added_per_second = self.finished_per_second = 0.0
        self.most_per_second: float | None = None
        self.pause: Pause | None = None
        self.wanted = 0.0
        self.partitions = 0
        """Partitions of the queue, wherever they are."""
        self.loaded = 0
        """Partitions of the queue that are loaded here."""
        self.has_root = False
        """Whether the root of the queue is here."""
        self.workers = 0
        """Workers that attend, if the root is here."""

    def add(self, owned: Owned, now: float) -> float:
        """Add a partition of the queue; return how much it has, to compare it with others."""
        partition = owned.partition
        self.backlog += partition.waiting
        self.delayed += partition.delayed
        self.running += len(partition.own_tasks.leases)
        self.free += free_slots(owned)
        self.queries += partition.allocator.lines.total
        self.oldest = max(self.oldest, partition.backlog_age(now))
        rate = partition.intake.added.per_second(now)
        self.added_per_second += rate
        self.finished_per_second += partition.own_tasks.finished.per_second(now)
        if partition.controls.pause is not None:
            self.pause = partition.controls.pause
        limit = partition.rate_limit
        if limit is not None:
            self.most_per_second = (self.most_per_second or 0.0) + limit.rate
        self.partitions = max(self.partitions, partition.counts.read)
        self.loaded += 1
        if not owned.key.partition:
            self.has_root = True
            self.workers += len(partition.presence.workers)
        return partition.own_tasks.open_tasks + rate

    def decide(self, service_seconds: float) -> None:
        """Compute how many slots the queue wants."""
        self.wanted = slots_wanted(
            added_per_second=self.added_per_second,
            service_seconds=service_seconds,
            backlog=max(0, self.backlog - self.delayed),
            running=self.running,
            most_per_second=self.most_per_second,
            is_paused=self.pause is not None,
        )

    def include(self, other: QueueGauges) -> None:
        """Add another queue, for the sum of those without series of their own."""
        self.backlog += other.backlog
        self.delayed += other.delayed
        self.running += other.running
        self.free += other.free
        self.queries += other.queries
        self.oldest = max(self.oldest, other.oldest)
        self.wanted += other.wanted


def free_slots(owned: Owned) -> int:
    """Count the free slots on offer to a partition, without those that a child passed on to it:
    they wait at the child, too, and are counted there."""
    offers = owned.partition.offers
    if not offers.slots and not offers.sets:  # as at most of ten thousand queues
        return 0
    return offers.free - passed_slots(owned)


def passed_slots(owned: Owned) -> int:
    """Count the free slots that children of the partition passed on to it."""
    return sum(one.slots for one in owned.partition.offers.waiting() if one.hops)
