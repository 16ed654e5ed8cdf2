"""What an observer knows of one other member: its heartbeats, its link, and the own vote."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from maitred.membership.member_effects import ProbeOutcome
from maitred.membership.timing import (
    EVIDENCE_SECONDS,
    PROBE_SECONDS,
    REDIAL_SECONDS,
    VOTE_AGAIN_SECONDS,
)

if TYPE_CHECKING:
    from maitred.membership.view import ClusterMember


@dataclass(slots=True)
class WatchedMember:
    """Another member of the view, as one observer sees it."""

    member: ClusterMember
    beat: int
    """The heartbeat counter of the last answer."""
    seen_at: float
    """When the observer first got an answer with this counter: the heartbeat was before."""
    linked: bool = False
    """Whether a link was ever open. Without one, a refused port is no evidence: the member may not
    be reachable from here."""
    outcome: ProbeOutcome | None = None
    """The end of the last probe."""
    detail: str = ""
    """What went wrong with the last probe, in words."""
    unreached: tuple[int, ...] | None = None
    """The ports of this node that the member could not connect to, as it answered to a joining
    node; None if it has not answered."""
    refused_at: float = -inf
    """When the port last refused a connection after a link had broken."""
    probe_at: float = -inf
    """When the next probe is due."""
    probing: bool = False
    lost_at: float = -inf
    """When the link last broke."""
    redial: bool = False
    """Whether the link broke after the present probe began: another one follows at once."""
    asked: tuple[int, int, int] | None = None
    """The counter, the version and the number of votes of the own last vote."""
    asked_at: float = -inf
    reason: str = ""
    """The evidence of the own last vote."""

    def counted(self, beat: int, now: float) -> None:
        """Record a heartbeat counter from the table."""
        if beat != self.beat:
            self.beat = beat
            self.seen_at = now

    def link_lost(self, now: float) -> None:
        """Record that the link broke: dial again at once."""
        self.probe_at = self.lost_at = now
        self.redial = True

    def begin_probe(self) -> None:
        """Record that a probe is under way."""
        self.probing = True
        self.redial = False

    def probed(self, outcome: ProbeOutcome, detail: str, now: float) -> None:
        """Record the end of a probe."""
        self.probing = False
        fresh = outcome is ProbeOutcome.NO_ANSWER and now - self.lost_at < PROBE_SECONDS
        pause = REDIAL_SECONDS if fresh else PROBE_SECONDS
        self.probe_at = now if self.redial else now + pause
        self.outcome, self.detail = outcome, detail
        if outcome is ProbeOutcome.REACHED:
            self.linked = True
            self.refused_at = -inf
        elif outcome is ProbeOutcome.REFUSED and self.linked:
            self.refused_at = now

    def refuses(self, now: float) -> bool:
        """Whether the link is broken and the port was found closed just now."""
        return now - self.refused_at <= EVIDENCE_SECONDS

    def may_ask(self, version: int, needed: int, now: float) -> bool:
        """Whether a vote would say more than the own last one."""
        return (
            self.asked != (self.beat, version, needed) or now - self.asked_at >= VOTE_AGAIN_SECONDS
        )
