"""The rule of what is balanced at all.

Only the normal name of a queue leaves the choice of a partition open. A sticky queue belongs to
one worker and is never partitioned. A request that was forwarded already went where the tree sent
it. And a partition that is named is meant. All of these go to the partition that was named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maitred.balancing.interface import PartitionSelector, Poll
from maitred.routing.keys import check_partition

if TYPE_CHECKING:
    from maitred.routing.names import QueueId


@dataclass(frozen=True, slots=True)
class Target:
    """What a request names: a queue, and perhaps more than that."""

    queue: QueueId
    partition: int = 0
    sticky: bool = False
    forwarded: bool = False

    def __post_init__(self) -> None:
        check_partition(self.partition)

    @property
    def balanced(self) -> bool:
        """Whether the choice of the partition is open."""
        return self.partition == 0 and not self.sticky and not self.forwarded


def write_partition(
    selector: PartitionSelector, target: Target, partitions: int, now: float
) -> int:
    """Where to write: the selector's choice if there is one, else the partition named."""
    if target.balanced:
        return selector.write(target.queue, partitions, now)
    return target.partition


def read_partition(
    selector: PartitionSelector, target: Target, partitions: int, now: float
) -> Poll:
    """Where to poll: the selector's choice if there is one, else the partition named."""
    if target.balanced:
        return selector.read(target.queue, partitions, now)
    return Poll(target.queue, target.partition)
