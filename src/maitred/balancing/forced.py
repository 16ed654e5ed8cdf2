"""Forced partitions: lets a test send the reads or writes of a namespace where it wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.interface import PartitionSelector, Poll
from maitred.routing.keys import check_partition, check_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.routing.names import QueueId


class Forced:
    """Wraps another selector and overrules its choice for some namespaces.

    A forced partition may lie beyond the number of partitions, on purpose: a test can then see how
    a node refuses a partition that no longer exists.
    """

    def __init__(
        self,
        selector: PartitionSelector,
        *,
        reads: Mapping[str, int] | None = None,
        writes: Mapping[str, int] | None = None,
    ) -> None:
        self._selector = selector
        self._reads = dict(reads or {})
        self._writes = dict(writes or {})
        for partition in (*self._reads.values(), *self._writes.values()):
            check_partition(partition)

    def write(self, queue: QueueId, partitions: int, now: float) -> int:
        check_partitions(partitions)
        forced = self._writes.get(queue.namespace)
        return self._selector.write(queue, partitions, now) if forced is None else forced

    def read(self, queue: QueueId, partitions: int, now: float) -> Poll:
        check_partitions(partitions)
        forced = self._reads.get(queue.namespace)
        if forced is None:
            return self._selector.read(queue, partitions, now)
        return Poll(queue, forced)

    @property
    def entries(self) -> int:
        return self._selector.entries

    def __repr__(self) -> str:
        return f"<Forced reads {self._reads}, writes {self._writes}, over {self._selector!r}>"
