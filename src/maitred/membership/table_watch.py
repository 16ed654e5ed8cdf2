"""How long an observer has watched the membership table without interruption.

Heartbeat counters that stand still mean something only if the observer, and the database, were well
all the time. After an outage of the database, a failover, a slow answer or a late loop the observer
begins anew: it suspects a member only after a full lease of good answers. Whether a counter stood
still is judged by the observer's own clock alone.
"""

from __future__ import annotations

from math import inf

from maitred.membership.timing import LATE_SECONDS, TICK_SECONDS


class TableWatch:
    """The times at which one observer sent and received its last good calls."""

    def __init__(self, slow_seconds: float) -> None:
        """An answer that takes longer than `slow_seconds` interrupts the watch."""
        self.since: float | None = None
        """When the first good answer came since the last interruption; None during one."""
        self.confirmed = -inf
        """When the call was sent whose answer came last: what it showed was true after this."""
        self._slow_seconds = slow_seconds
        self._awake_at: float | None = None

    def answered(self, sent: float, now: float) -> None:
        """Record that a call was answered."""
        if now - sent > self._slow_seconds:
            self.since = None
        elif self.since is None:
            self.since = now
        self.confirmed = max(self.confirmed, sent)

    def interrupted(self) -> None:
        """Record that a call failed, or that the table went back in time."""
        self.since = None

    def awake(self, now: float) -> None:
        """Record that the observer runs; if it did not run for too long, begin anew."""
        if self._awake_at is not None and now - self._awake_at > TICK_SECONDS + LATE_SECONDS:
            self.since = None
        self._awake_at = now

    def silent_seconds(self, seen_at: float) -> float:
        """Return for how long the observer knows that nothing has changed since `seen_at`."""
        return -inf if self.since is None else self.confirmed - max(self.since, seen_at)

    def suspicion_at(self, seen_at: float, seconds: float) -> float:
        """Return when a call has to be sent at the earliest to show a silence of `seconds`."""
        return inf if self.since is None else max(self.since, seen_at) + seconds
