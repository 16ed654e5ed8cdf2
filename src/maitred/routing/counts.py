"""The partition counts of a queue, and how to change them without losing a task.

A queue has two counts: producers write to the first `write` partitions, workers read from the first
`read`. A partition must be read for as long as it can hold tasks, therefore write <= read, always.
Growing is safe at once. Shrinking takes two steps: first `write` falls, and the partitions above it
accept no more tasks; then, when every partition to be removed has confirmed at exactly that version
of the counts that it is empty, `read` falls. A confirmation of an earlier version proves nothing:
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
    """The partition counts of a queue; a higher version always replaces a lower one."""

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
        """Return the next counts, or raise `UnsafePartitionChange` with the reason.

        `drained` maps each partition that confirmed that it is read-only and empty to the version
        of the counts at which it did.
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
