"""What an owner of partitions remembers of its own commits, to notice when the store loses some.

A database that fails over to a standby without the latest commits goes on with an earlier state. An
acquisition may be undone, or only the last commits. Therefore each partition's row counts the
commits of its present owner, the owner counts those that were confirmed, and a commit is
conditional on the number. An owner that finds fewer commits than it counts knows that nobody but
the failover has changed the partition: another owner would have raised the range id above all that
were given out before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.matching.records import PartitionKey

UNDONE_RANGES: Final = 1_000
"""By how much the first acquisition on a later timeline raises a range id, for each timeline since
that of the last acquisition: more than the owners of a partition within the moments that a failover
can undo. Each timeline counts, since a failover may undo the raise after the one before it."""


class Fence(NamedTuple):
    """The state of a partition's row that its owner's next commit is conditional on."""

    range_id: int
    commits: int
    """The number of commits of the owner since it acquired the partition."""


class Fences:
    """The fences of the partitions that one owner has acquired, as far as they were confirmed."""

    def __init__(self) -> None:
        self._known: dict[PartitionKey, Fence] = {}

    def __repr__(self) -> str:
        return f"<Fences of {len(self._known)} partitions>"

    def acquired(self, key: PartitionKey, range_id: int, found: Fence, *, is_own: bool) -> bool:
        """Note an acquisition; return whether the row, as it was found, lacked commits that had
        been confirmed to this owner, or may have lacked some. `is_own` is whether the row named
        this owner."""
        known = self._known.get(key)
        self._known[key] = Fence(range_id, 0)
        if known is None:
            return False
        if found.range_id < known.range_id:
            return True
        if not is_own:
            return False
        if found.range_id == known.range_id:
            return found.commits < known.commits
        # This owner has acquired the partition before, and was not told so. What that acquisition
        # found is unknown: after a failover, commits may have been missing.
        return found.range_id - known.range_id >= UNDONE_RANGES

    def get(self, key: PartitionKey) -> Fence | None:
        """Return the fence of a partition; None if this owner never acquired it."""
        return self._known.get(key)

    def commits(self, key: PartitionKey, range_id: int) -> int:
        """Return the number of confirmed commits with this range id; -1, which no row has, if the
        partition was not acquired with it."""
        known = self._known.get(key)
        return known.commits if known is not None and known.range_id == range_id else -1

    def confirmed(self, key: PartitionKey) -> None:
        """Count a commit that the store has confirmed."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = Fence(known.range_id, known.commits + 1)

    def forget(self, key: PartitionKey) -> None:
        """Forget a partition that this owner deleted."""
        self._known.pop(key, None)


class ServerTimeline:
    """The timeline of the server, as the last new connection found it."""

    def __init__(self) -> None:
        self._present = ""
        self.changed: Callable[[], None] | None = None
        """Called when a connection finds another one."""

    def see(self, found: str) -> None:
        """Note the timeline of a new connection; empty if the server does not tell it."""
        before = self._present
        self._present = found or before
        if before and self._present != before and self.changed is not None:
            self.changed()
