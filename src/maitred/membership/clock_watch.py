"""How far a node's wall clock is ahead of the database's.

Membership does not depend on wall clocks. Moments that are stored do: the time at which a delayed
task is due, an expiry, the end of a result's retention. One node stores them and another one may
read them, so all nodes of a cluster go by one clock, that of their database: its time comes with
the answer to each heartbeat.

The database read its clock at some moment between the request and the answer, so each heartbeat
gives a lower and an upper bound of the difference. The estimate moves only as far as it must to lie
within both. So it stays at 0, and does not tremble with the duration of heartbeats, as long as the
two clocks can be the same.
"""

from __future__ import annotations

from typing import Final

CLOCK_WARNING_SECONDS: Final = 2.0
"""From this difference on, a node and `maitred admin cluster` warn. Synchronised clocks differ by
less than a tenth of a second."""


class ClockWatch:
    """The difference between the wall clocks of one node and its database."""

    __slots__ = ("ahead_seconds", "is_measured")

    def __init__(self) -> None:
        self.ahead_seconds = 0.0
        """The node's clock minus the database's; negative if the node's is behind."""
        self.is_measured = False
        """Whether the database has told its time yet."""

    def __repr__(self) -> str:
        return f"<ClockWatch: {self.ahead_seconds:+.3f} s>"

    @property
    def is_apart(self) -> bool:
        """Whether the difference is large enough for a warning."""
        return abs(self.ahead_seconds) >= CLOCK_WARNING_SECONDS

    def measured(self, database: float, sent: float, answered: float) -> None:
        """Take the database's time from the answer to a request, which was sent and answered at
        these times of the node's wall clock."""
        if answered >= sent:  # otherwise the node's clock was set back meanwhile
            least, most = sent - database, answered - database
            self.ahead_seconds = min(max(self.ahead_seconds, least), most)
            self.is_measured = True
