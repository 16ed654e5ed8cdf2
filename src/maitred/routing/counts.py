"""The partition counts of a queue, and how to change them without losing a task.

A queue has two counts: producers write to the first `write` partitions, workers read from the first
`read`. A partition must be read for as long as it can hold tasks, therefore write <= read, always.
Growing is safe at once. Shrinking takes two steps: first `write` falls, and the partitions above it
accept no more tasks; then, when every partition to be removed has confirmed at exactly that version
of the counts that it is empty, `read` falls. A confirmation of an earlier version proves nothing:
the partition may have been writable again since.

`COUNTS_TABLE` has these rules as states; docs/architecture.md has it as a diagram. An operator who
accepts the loss of tasks may cut partitions off in any state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidPartition, UnsafePartitionChange
from maitred.routing.keys import check_partitions
from maitred.states import StateTable

if TYPE_CHECKING:
    from collections.abc import Mapping


class CountsState(Enum):
    """Whether a queue has partitions that are only read."""

    STEADY = "steady"
    """Every partition is written to and read."""
    DRAINING = "draining"
    """The partitions from `write` on accept no tasks; workers read those that are left there."""


class CountsChange(Enum):
    """The kinds of change of the counts, by what is removed and what is writable afterwards."""

    OPEN = "open"
    """Removes no partition; all are writable afterwards."""
    CLOSE = "close"
    """Removes no partition; some are read-only afterwards."""
    REMOVE = "remove"
    """Removes drained partitions; the others are all writable afterwards."""
    REMOVE_SOME = "remove-some"
    """Removes drained partitions; some of the others are read-only afterwards."""
    CUT = "cut"
    """Removes partitions whatever they hold; the others are all writable afterwards."""
    CUT_SOME = "cut-some"
    """Removes partitions whatever they hold; some of the others are read-only afterwards."""


STEADY, DRAINING = CountsState

COUNTS_TABLE: Final = StateTable[CountsState, CountsChange](
    "queue's partition counts",
    {STEADY: "created"},
    {
        STEADY: {
            CountsChange.OPEN: STEADY,
            CountsChange.CLOSE: DRAINING,
            CountsChange.CUT: STEADY,
            CountsChange.CUT_SOME: DRAINING,
        },
        DRAINING: {
            CountsChange.OPEN: STEADY,
            CountsChange.CLOSE: DRAINING,
            CountsChange.REMOVE: STEADY,
            CountsChange.REMOVE_SOME: DRAINING,
            CountsChange.CUT: STEADY,
            CountsChange.CUT_SOME: DRAINING,
        },
    },
)


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

    @property
    def state(self) -> CountsState:
        return STEADY if self.write == self.read else DRAINING

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
        COUNTS_TABLE.after(self.state, self.change_to(after))
        return after

    def forced(self, *, read: int, write: int) -> PartitionCounts:
        """Return the next counts, even if tasks in the removed partitions are lost by that."""
        after = PartitionCounts(read, write, self.version + 1)
        COUNTS_TABLE.after(self.state, self.change_to(after, force=True))
        return after

    def change_to(self, after: PartitionCounts, *, force: bool = False) -> CountsChange:
        """Return which kind of change leads from these counts to the ones after it."""
        whole = after.state is STEADY
        if after.read >= self.read:
            return CountsChange.OPEN if whole else CountsChange.CLOSE
        if force:
            return CountsChange.CUT if whole else CountsChange.CUT_SOME
        return CountsChange.REMOVE if whole else CountsChange.REMOVE_SOME
