"""Which requests a selector balances over the partitions.

Only a request that names a queue, and nothing more, leaves the choice of a partition open. A sticky
queue belongs to one worker and is never partitioned. A forwarded request already went where the
tree sent it. A request may also name a partition. All of these go to the partition they name.
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
    """The queue of a request, and the partition if the request names one; 0 is also the default."""

    queue: QueueId
    partition: int = 0
    sticky: bool = False
    forwarded: bool = False

    def __post_init__(self) -> None:
        check_partition(self.partition)

    @property
    def balanced(self) -> bool:
        """Whether a selector chooses the partition of this request."""
        return self.partition == 0 and not self.sticky and not self.forwarded


def write_partition(
    selector: PartitionSelector, target: Target, partitions: int, now: float
) -> int:
    """Return the partition to write to: the selector's choice if balanced, else the one named."""
    if target.balanced:
        return selector.write(target.queue, partitions, now)
    return target.partition


def read_partition(
    selector: PartitionSelector, target: Target, partitions: int, now: float
) -> Poll:
    """Return the partition to poll: the selector's choice if balanced, else the one named."""
    if target.balanced:
        return selector.read(target.queue, partitions, now)
    return Poll(target.queue, target.partition)
