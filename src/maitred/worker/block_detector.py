"""Whether the worker's loop is blocked, as seen from another thread. Pure."""

from __future__ import annotations

from enum import Enum, auto


class Sighting(Enum):
    """What a look has found."""

    NOTHING = auto()
    BLOCKED = auto()
    """The loop has had no turn for too long; found once for each block."""
    FREED = auto()
    """The loop that was blocked has had a turn."""


class BlockDetector:
    """Compares the loop's last stamp with the time, and the time with what the looker expected.

    A looker that comes late itself was kept from running as well: a handler holds the GIL, the
    process was stopped, or the machine has no CPU time for it. Then the loop was blocked for as
    long, even if it has stamped since.
    """

    __slots__ = ("_blocked_seconds", "lasted", "since")

    def __init__(self, blocked_seconds: float) -> None:
        self._blocked_seconds = blocked_seconds
        self.since: float | None = None
        """The last stamp before the block that lasts; None if none does."""
        self.lasted = 0.0
        """Seconds of the block that was found last, as far as is known."""

    def look(self, now: float, stamped_at: float, overslept: float) -> Sighting:
        """`overslept`: by how much the looker is later than it meant to be."""
        if self.since is None:
            held = overslept >= self._blocked_seconds
            if not held and now - stamped_at < self._blocked_seconds:
                return Sighting.NOTHING
            self.since = min(stamped_at, now - overslept) if held else stamped_at
            self.lasted = now - self.since
            return Sighting.BLOCKED
        if stamped_at > self.since:
            self.lasted = stamped_at - self.since
            self.since = None
            return Sighting.FREED
        self.lasted = now - self.since
        return Sighting.NOTHING
