"""Tasks that failed, counted by why: which errors there are, and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from maitred.client.task_rows import place_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.protocol.inspection import ListedTask

GROUPS_MAX: Final = 200
"""Most groups with a message of their own. Tasks with further messages are counted in a group
without one, so that messages that are all different do no harm."""


class DeadGroup(Struct):
    """Dead letters that died of the same error."""

    error: str
    message: str
    """Private. Empty: it is not shown, or the messages differ."""
    reason: str
    count: int
    newest_at: float
    example: str
    """Partition and sequence number of the newest one."""


class DeadGroupCount:
    """Dead letters, counted by why they died."""

    def __init__(self) -> None:
        self.looked_at = 0
        self._groups: dict[tuple[str, str, str], DeadGroup] = {}

    def add(self, tasks: Iterable[ListedTask]) -> None:
        """Count some dead letters."""
        groups = self._groups
        for one in tasks:
            self.looked_at += 1
            key = (one.error, one.message, one.reason)
            if key not in groups and len(groups) >= GROUPS_MAX:
                key = (one.error, "", one.reason)
            group = groups.get(key)
            if group is None:
                group = groups[key] = DeadGroup(one.error, key[1], one.reason, 0, 0.0, "")
            group.count += 1
            if one.ended_at >= group.newest_at:
                group.newest_at = one.ended_at
                group.example = place_text((one.partition, one.sequence))

    def ordered(self) -> list[DeadGroup]:
        """Return the groups, the largest first."""
        return sorted(self._groups.values(), key=lambda one: (-one.count, one.error, one.message))
