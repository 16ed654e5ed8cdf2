"""A partition of a shard, with what its driver remembers of it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.matching.partition import Partition
    from maitred.node.partition_trust import PartitionTrust
    from maitred.node.peer_calls import ShardQuestion
    from maitred.node.turn_loop import TurnTimer


class Owned:
    """A partition that this shard owns, with the state of its driver: timer, questions, turn."""

    __slots__ = (
        "asked",
        "key",
        "last_used",
        "leaving",
        "lightly",
        "partition",
        "tend_at",
        "timer",
        "timer_at",
        "told_at",
        "touched",
        "trust",
    )

    def __init__(
        self, partition: Partition, now: float, trust: PartitionTrust | None = None
    ) -> None:
        self.key = partition.key
        self.partition = partition
        self.trust = trust
        """Whether the partition may hand out what the store has; None: always."""
        self.touched = False
        """Whether the partition is driven at the end of this turn."""
        self.lightly = False
        """Whether slots were offered and reserved in this turn, and nothing else happened."""
        self.leaving = False
        """Whether the partition is being handed over: it takes no more requests."""
        self.timer: TurnTimer | None = None
        """Touches the partition at `timer_at`."""
        self.timer_at = inf
        self.last_used = now
        """When a request last named the partition."""
        self.tend_at = now
        """When the caretaker next looks at the partition."""
        self.told_at = now
        """When the root last told the partition the counts and the controls of the queue."""
        self.asked: dict[object, ShardQuestion] = {}
        """Questions to the parent that are not answered yet, by the offer, task or slot request
        that each is about."""

    def __repr__(self) -> str:
        return f"<Owned {self.key}, {len(self.asked)} questions to the parent>"
