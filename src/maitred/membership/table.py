"""The membership table: what a node reads and writes of it in the database, and what comes back.

Each method is one transaction. A change of a member's state raises the version in the same
transaction and notifies the listeners; heartbeats and votes change no version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maitred.membership.view import ClusterMember, ClusterView, MemberState

TIMELINE_VERSIONS: Final = 1_000
"""By how much the version rises when the table is found on a later timeline of its database, for
each timeline since the one it was last seen on: more than a failover to a standby without the last
commits can undo. Each timeline counts, since a failover may undo the raise after the one before it.
"""


class Vote(NamedTuple):
    """One member's accusation of another."""

    accuser: str
    accused: str
    age_seconds: float
    """How long ago it was made, by the database's clock."""


class TableState(NamedTuple):
    """The whole table, as one read saw it."""

    view: ClusterView
    beats: Mapping[str, int]
    """The heartbeat counter of each member of the view, by id."""
    votes: tuple[Vote, ...] = ()


class Beats(NamedTuple):
    """The answer to a heartbeat."""

    version: int
    """The current version of the table; a higher one than the node knows has to be read."""
    beats: Mapping[str, int]
    """The heartbeat counter of each member that is not dead, by id."""
    alive: bool
    """Whether the member that beats is not dead. A member that is dead has to stop at once."""
    now: float | None = None
    """The database's clock when it counted the heartbeat, in seconds since 1970."""


class MembershipTable(Protocol):
    """The table of one cluster. Methods raise `StoreUnavailable` while the database is away, and
    `OutcomeUnknown` if a change may or may not have been made; also when the database has not
    answered a statement for `MEMBER_SECONDS`. A call may be cancelled: its caller then does not
    know the outcome either. `MemberAgent` makes one call at a time."""

    async def secret(self) -> bytes:
        """Return the cluster's secret, 32 random bytes that the first node creates."""

    async def read(self) -> TableState:
        """Return the whole table."""

    async def join(self, member: ClusterMember, spread_batch: str, placement: str) -> TableState:
        """Insert a joining member, and declare dead all others with its address. The first member
        of a cluster sets the terms of placement; raise `CannotStart` if they differ from the
        cluster's. A member that was inserted before stays as it is, so that a join whose outcome
        is unknown can be repeated."""

    async def beat(self, id_: str, load: float, clock_ahead_seconds: float | None = None) -> Beats:
        """Count a heartbeat of the member, durably, with the load of its node (1 is a full core)
        and how far the node's clock is ahead of the database's, if that was measured; return all
        counters."""

    async def change(self, id_: str, before: MemberState, after: MemberState) -> TableState:
        """Change the member's state if it is still `before`; return the table as it is then."""

    async def accuse(
        self, accuser: str, accused: str, *, beat: int, version: int, needed: int
    ) -> TableState:
        """Record a vote, if the table still has this version, the accuser is active and `beat` is
        still the accused's heartbeat counter. With it, if `needed` active members (counting the
        accuser) have voted within `VOTE_SECONDS` at this very counter, the accused is declared
        dead. So a heartbeat voids all earlier votes, and a member whose heartbeat was confirmed
        is never declared dead by an observer that had not seen it."""

    async def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the version rises, and after every interruption in which a
        notification may have been lost."""

    async def close(self) -> None:
        """Close the connection to the database."""


MEMBER_SECONDS: Final = 5.0
"""How long to wait for the answer to any statement but a heartbeat."""

VOTE_SECONDS = 120.0
"""How long a vote counts. An observer that accused a member long ago may have been the one with the
fault."""
