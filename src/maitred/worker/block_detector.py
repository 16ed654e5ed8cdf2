"""Whether the worker's loop is blocked, as seen from another thread. Pure."""

from __future__ import annotations

from enum import Enum, auto


class Sighting(Enum):
    """The result of one look at the loop."""

    NOTHING = auto()
    BLOCKED = auto()
    """The loop has had no turn for too long; found once for each block."""
    FREED = auto()
    """The loop that was blocked has had a turn."""


class BlockDetector:
    """Compares the loop's last stamp with the time, and the time with the moment for which the
    watching thread had set its own timer.

    A thread that comes late was kept from running itself: a handler holds the GIL, the process was
    stopped, or the machine has no CPU time for it. Then the loop was blocked for as long, even if
    it has stamped since.
    """

    __slots__ = ("_blocked_seconds", "lasted", "since")

    def __init__(self, blocked_seconds: float) -> None:
        self._blocked_seconds = blocked_seconds
        self.since: float | None = None
        """The last stamp before the block that lasts; None if none does."""
        self.lasted = 0.0
        """Seconds of the block that was found last, as far as is known."""

    def look(self, now: float, stamped_at: float, overslept: float) -> Sighting:
        """Return whether a block has begun or ended since the last look. `overslept` is by how many
        seconds the watching thread woke too late."""
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
