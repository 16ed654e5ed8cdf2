"""The time limits of membership, each with its reason. All follow from `cluster.beat_seconds` and
`cluster.lease_seconds`, so that a cluster with a longer lease is more patient in every respect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from maitred.settings import ClusterSettings

LEASE_MARGIN_SHARE: Final = 0.1
"""The share of the lease for which a member no longer trusts it, although the others still wait:
half a second of five. The others cannot count a heartbeat before it was sent, so the margin only
has to cover clocks that run at different rates (below 0.1 %) and the time from a shard's look at
the lease until the task it hands out has left."""

STALE_LEASES: Final = 3
"""A member without a heartbeat for this many leases is stale: it no longer counts among the members
that could vote, and joining nodes need not reach it. Without this rule, one survivor of three could
never declare the other two dead, and a cluster that lost its power could not start again before
each of its machines is back. Orleans has the same rule, with 90 s."""

WATCHED_MAX: Final = 10
"""How many others a member probes: its successors in the order of the ids. With two votes needed,
ten watchers of each member are plenty, and the number of links grows with the members, not with
their square. Orleans has the same number."""

PROBE_SECONDS: Final = 1.0
"""Time between two probes of a member over its link. A process that dies is noticed at once by its
closed link; the probes find links that have become silent."""

REDIAL_SECONDS: Final = 0.05
"""Time between two probes for the first `PROBE_SECONDS` after a link broke. A killed process closes
its links and its port one after the other: a connection that is opened in between is closed without
an answer, and only the next one is refused."""

EVIDENCE_SECONDS: Final = 3.0
"""How long a refused port counts as evidence: three probes."""

TICK_SECONDS: Final = 0.5
"""The observer is asked for its decisions at least this often, so that it notices a late loop."""

LATE_SECONDS: Final = 0.5
"""An observer whose loop runs this much late is overloaded or was suspended. It then watches for a
full lease before it suspects any member."""

VOTE_AGAIN_SECONDS: Final = 60.0
"""A vote that did not suffice is repeated after this time: half of the time for which it counts."""

JOIN_LEASES: Final = 6
"""A node that cannot join within this many leases gives up with an error: twice the time after
which members without a heartbeat no longer delay it."""

JOIN_CALL_LEASES: Final = 2
"""The longest call of the table that inserts a joining member, in leases. The table may watch for
some seconds whether another node uses the address; an answer that is lost is noticed after this."""

TABLE_LEASE_SHARE: Final = 0.6
"""The share of the lease after which a call of the membership table is given up: 3 of 5 seconds.
The lease ends soon after, and another connection may still reach the database in time."""


def trusted_seconds(settings: ClusterSettings) -> float:
    """Return for how long after it sent a heartbeat a member may trust its lease."""
    return settings.lease_seconds * (1 - LEASE_MARGIN_SHARE)


def stale_seconds(settings: ClusterSettings) -> float:
    """Return after how long without a heartbeat a member is stale."""
    return settings.lease_seconds * STALE_LEASES


def join_seconds(settings: ClusterSettings) -> float:
    """Return how long a node tries to join."""
    return settings.lease_seconds * JOIN_LEASES


def join_call_seconds(settings: ClusterSettings) -> float:
    """Return after how long the call that inserts a joining member is repeated."""
    return settings.lease_seconds * JOIN_CALL_LEASES


def table_seconds(settings: ClusterSettings) -> float:
    """Return after how long a call of the membership table is given up."""
    return settings.lease_seconds * TABLE_LEASE_SHARE
