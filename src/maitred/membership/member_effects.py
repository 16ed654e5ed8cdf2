"""The values in which an observer asks its shell for I/O, and tells it what it decided."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from maitred.membership.view import ClusterMember, ClusterView


class ProbeOutcome(Enum):
    """How a probe of a member ended."""

    REACHED = "reached"
    """The member proved that it belongs to the cluster, and is the one that was meant."""
    REFUSED = "refused"
    """The host answers, and no process listens at the port."""
    NO_ANSWER = "no answer"
    """No connection or no answer came in time, or the connection broke."""
    WRONG_MEMBER = "another member"
    """Another member of the cluster answered at the address."""
    STRANGER = "a stranger"
    """The process at the address did not prove that it belongs to the cluster."""


class SendBeat(NamedTuple):
    """Count a heartbeat in the table, then call `Observer.beat_answered` or `table_failed`."""


class ReadTable(NamedTuple):
    """Read the table, then call `Observer.table_read` or `table_failed`."""


class ProbeMember(NamedTuple):
    """Probe the member over the link to it, or dial it without a link; then call
    `Observer.probed`."""

    member: ClusterMember
    and_back: bool
    """Whether to ask the member to probe this node too, because this node is joining."""


class AccuseMember(NamedTuple):
    """Vote for the death of a member, then call `Observer.accused` or `table_failed`."""

    member: ClusterMember
    beat: int
    """The heartbeat counter at which the observer saw the member stop."""
    version: int
    needed: int
    reason: str
    """The evidence, as the end of a sentence about the member."""


class BecomeActive(NamedTuple):
    """Change the own state from joining to active, then call `Observer.table_read` or
    `table_failed`."""


class GoneMember(NamedTuple):
    """A member that is dead in the new view."""

    member: ClusterMember
    reason: str
    """Why it is gone, as far as this observer knows, as the end of a sentence about it."""


class AdoptView(NamedTuple):
    """Use this view from now on. Each one has a higher version than the one before."""

    before: ClusterView | None
    view: ClusterView
    gone: tuple[GoneMember, ...]


class ExtendLease(NamedTuple):
    """The own lease may be trusted until this moment of the boot clock."""

    until: float


class StopMember(NamedTuple):
    """Stop at once: the table says that this member is dead. No other effect follows."""

    reason: str


MemberEffect = (
    SendBeat
    | ReadTable
    | ProbeMember
    | AccuseMember
    | BecomeActive
    | AdoptView
    | ExtendLease
    | StopMember
)
