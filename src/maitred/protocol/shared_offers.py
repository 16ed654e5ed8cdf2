"""A worker's free slots, on offer to many queues at once.

A worker names the partitions that it serves on a shard once, as a numbered set. From then on each
offer says how many slots are free, for all of them together, and names the set by its number. A
thousand idle queues cost nothing so: neither bytes nor time. The shard may forget a set at any
time; then it says so, and the worker names it again.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from maitred.matching.shared_supplies import URGENCIES
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Natural, PartitionRequest
from maitred.protocol.tasks import TASKS_MAX, Offered, Session, WorkerName

MEMBERS_MAX = 4_096
"""Partitions of one set, some 30 bytes each when it is named. A worker that serves more on one
shard has several sets there."""


class SetMember(Struct, array_like=True, frozen=True, gc=False):
    """One partition of a set; its namespace is that of the request."""

    queue: str
    queue_type: int
    partition: int
    version: Natural
    """The version of the partition counts that the worker knows."""


class OfferMany(PartitionRequest, array_like=True, gc=False):
    """I have so many free slots for all partitions of this set together. Answered when there is a
    task or a query for one of them, or when time is up."""

    opcode = Opcode.OFFER_MANY
    permission = "work"

    session: Session
    worker: WorkerName
    """For people to read."""
    slots: Annotated[int, Meta(ge=1, le=TASKS_MAX)]
    number: Natural
    """Number of the set. The worker chooses it; it counts for this session and user only."""
    members: Annotated[list[SetMember], Meta(max_length=MEMBERS_MAX)] = field(default_factory=list)
    """All partitions of the set, if the shard has to hear of it; empty if it knows the set."""
    address: Annotated[str, Meta(max_length=300)] = ""
    """`host:port` where gateways reach the worker directly; empty: nowhere."""
    user: str = ""
    """As whom the worker connected. The shard that it connected to fills this in. New queues count
    against this user's rate."""


class OfferedMany(Answer, array_like=True, gc=False):
    """What there is to do; nothing, if the time was up first."""

    gifts: list[tuple[int, Offered]]
    """For each queue that has something: where it stands in the list of members, and the same as
    the answer to an OFFER."""
    known: bool = True
    """False: the shard knows no such set. The slots are not on offer; name the set."""
    urgency: int = URGENCIES
    """How urgent the first task or query is that still waits for a slot at a partition of the
    set: the priority of a query, or 5 more than that of a task; 10 if nothing waits."""
    hungry: int = 0
    """How many partitions of the set have something that is as urgent."""
    refused: list[tuple[int, bytes]] = field(default_factory=list)
    """Members that are not served, each with the body of an ERROR that says why."""
    elsewhere: list[tuple[int, int]] = field(default_factory=list)
    """Members that belong to another shard, and to which; nothing was done."""
