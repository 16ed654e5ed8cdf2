"""What a supervisor logs about the members of its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.logs import OccasionalWarning
from maitred.membership.view import MemberState

if TYPE_CHECKING:
    from maitred.logs import Logger
    from maitred.membership.clock_watch import ClockWatch
    from maitred.membership.member_effects import AccuseMember, AdoptView
    from maitred.membership.view import ClusterMember
    from maitred.node.member_link import ProbeFailure

AWAY_SECONDS: Final = 10.0
"""Time between two lines about the same trouble, while it lasts."""

CLOCK_SECONDS: Final = 600.0
"""Time between two lines about a clock that is wrong: whoever can set it may not look for hours."""

ENTERED: Final = {
    MemberState.JOINING: "member is joining",
    MemberState.ACTIVE: "member is active",
    MemberState.DRAINING: "member is draining",
}


class MemberLog:
    """Logs each change of the view by the names of the members, and what goes wrong, rarely."""

    def __init__(self, log: Logger, own_id: str) -> None:
        self._log = log
        self._own_id = own_id
        self._away = OccasionalWarning(
            log,
            "membership table is away: the node serves on, and no member is admitted or declared "
            "dead",
            AWAY_SECONDS,
        )
        self._away_since: float | None = None
        self._silent: dict[str, OccasionalWarning] = {}
        self._clock = OccasionalWarning(
            log,
            "the clocks of this node and the database differ: synchronise them",
            CLOCK_SECONDS,
        )
        self._clock_is_apart = False

    def adopted(self, effect: AdoptView) -> None:
        """Log what differs between two views."""
        before = {one.id: one for one in effect.before.members} if effect.before else {}
        for one in effect.view.members:
            known = before.get(one.id)
            if known is None or known.state is not one.state:
                self._log.info(ENTERED[one.state], **self._of(one), version=effect.view.version)
        for gone in effect.gone:
            reason = gone.reason
            self._silent.pop(gone.member.id, None)
            fields = self._of(gone.member)
            self._log.info("member is gone", **fields, reason=reason, version=effect.view.version)

    def accuses(self, effect: AccuseMember) -> None:
        """Log a vote for the death of a member."""
        fields = self._of(effect.member)
        self._log.warning(
            "member is accused", **fields, reason=effect.reason, votes_needed=effect.needed
        )

    def table_away(self, problem: Exception, now: float) -> None:
        """Log that a call of the table failed."""
        if self._away_since is None:
            self._away_since = now
        reason = str(problem) or type(problem).__name__
        self._away.say(now, reason=reason, seconds=round(now - self._away_since, 1))

    def table_back(self, now: float) -> None:
        """Log that the table answers again."""
        if self._away_since is not None:
            seconds = round(now - self._away_since, 1)
            self._away_since = None
            self._log.info("membership table is back", seconds=seconds)

    def clock(self, clock: ClockWatch, now: float) -> None:
        """Log that the clocks of the node and the database differ by too much, or no more."""
        if clock.is_apart:
            self._clock.say(now, node_is_ahead_seconds=round(clock.ahead_seconds, 1))
        elif self._clock_is_apart:
            self._log.info("the clocks of this node and the database agree again")
        self._clock_is_apart = clock.is_apart

    def unreachable(self, member: ClusterMember, failure: ProbeFailure, now: float) -> None:
        """Log that a member does not answer probes."""
        said = self._silent.get(member.id)
        if said is None:
            event = "member does not answer probes"
            said = self._silent[member.id] = OccasionalWarning(self._log, event, AWAY_SECONDS)
        said.say(now, **self._of(member), outcome=failure.outcome.value, reason=failure.detail)

    def stopped(self, reason: str) -> None:
        """Log that this member has to stop."""
        self._log.error("this member is dead and stops", member_id=self._own_id, reason=reason)

    def _of(self, one: ClusterMember) -> dict[str, object]:
        fields: dict[str, object] = {"member": one.name, "member_id": one.id}
        if one.id == self._own_id:
            fields["own"] = True
        return fields
