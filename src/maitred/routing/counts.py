"""How many partitions a queue has, and how to change that without losing a task.

A queue has two counts: producers write to the first `write` partitions, workers read from the first
`read`. A partition must be read for as long as it can hold tasks, therefore write <= read, always.
Growing is safe at once. Shrinking takes two steps: first `write` falls, and the partitions above it
take no more tasks; then, when every partition that is to go has confirmed under the counts of that
very version that it is empty, `read` falls. A confirmation from an earlier version proves nothing:
the partition may have been writable again since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maitred.errors import InvalidPartition, UnsafePartitionChange
from maitred.routing.keys import check_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The counts in force. A higher version replaces a lower one, wherever they meet."""

    read: int = 1
    write: int = 1
    version: int = 0

    def __post_init__(self) -> None:
        check_partitions(self.read)
        check_partitions(self.write)
        if self.write > self.read:
            raise InvalidPartition(
                f"{self.write} partitions to write but only {self.read} to read: "
                "tasks in the others would never be found."
            )
        if type(self.version) is not int or self.version < 0:
            raise InvalidPartition(f"The version {self.version!r} is not a whole number from 0.")

    def readable(self, partition: int) -> bool:
        return 0 <= partition < self.read

    def writable(self, partition: int) -> bool:
        return 0 <= partition < self.write

    def changed(self, *, read: int, write: int, drained: Mapping[int, int]) -> PartitionCounts:
        """The next counts, or `UnsafePartitionChange` with the reason.

        `drained` says which partitions confirmed that they are read-only and empty, and at which
        version of the counts.
        """
        after = PartitionCounts(read, write, self.version + 1)
        if read < self.write:
            raise UnsafePartitionChange(
                f"Partitions {read} to {self.write - 1} are still written to.",
                remedy=f"First lower write to {min(read, write)} and keep read at {self.read}.",
            )
        full = [p for p in range(read, self.read) if drained.get(p) != self.version]
        if full:
            listed = ", ".join(map(str, full[:5])) + (", ..." if len(full) > 5 else "")
            raise UnsafePartitionChange(
                f"{len(full)} of the partitions to be removed have not confirmed at version "
                f"{self.version} that they are drained: {listed}.",
                remedy="Keep them readable until they have.",
            )
        return after
