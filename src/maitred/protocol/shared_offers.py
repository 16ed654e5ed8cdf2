"""A worker's free slots, on offer to many queues at once.

A worker names the partitions that it serves on a shard once, as a numbered set. From then on each
offer tells how many slots are free, for all of them together, and names the set by its number. So a
thousand idle queues cost neither bytes nor time. The shard may forget a set at any time; it then
says so, and the worker names the partitions again.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from maitred.matching.shared_supplies import URGENCIES
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Natural, PartitionRequest
from maitred.protocol.tasks import TASKS_MAX, Offered, Session, WorkerName

MEMBERS_MAX = 4_096
"""Most partitions of one set; each takes some 30 bytes when it is named. A worker that serves more
on one shard has several sets there."""


class SetMember(Struct, array_like=True, frozen=True, gc=False):
    """One partition of a set; its namespace is that of the request."""

    queue: str
    queue_type: int
    partition: int
    version: Natural
    """The version of the partition counts that the worker knows."""


class OfferMany(PartitionRequest, array_like=True, gc=False):
    """A long poll that offers a worker's free slots to all partitions of a set together. Answered
    when one of them has a task or a query, or when the time is up."""

    opcode = Opcode.OFFER_MANY
    permission = "work"

    session: Session
    worker: WorkerName
    """Name of the worker, for people to read."""
    slots: Annotated[int, Meta(ge=1, le=TASKS_MAX)]
    number: Natural
    """Number of the set. The worker chooses it; it is valid for this session and user only."""
    members: Annotated[list[SetMember], Meta(max_length=MEMBERS_MAX)] = field(default_factory=list)
    """All partitions of the set, if the shard does not know the set; empty if it does."""
    address: Annotated[str, Meta(max_length=300)] = ""
    """`host:port` where gateways reach the worker directly; empty if they cannot."""
    user: str = ""
    """User as whom the worker connected; the shard that it is connected to fills this in. New
    queues count against this user's rate."""


class OfferedMany(Answer, array_like=True, gc=False):
    """Tasks and reservations for the worker; none if the time was up first."""

    gifts: list[tuple[int, Offered]]
    """For each partition that has something: its index in the list of members, and what an OFFER to
    it would have been answered with."""
    known: bool = True
    """False if the shard does not know the set: the slots are not on offer, and the worker has to
    name the members."""
    urgency: int = URGENCIES
    """Urgency of the most urgent task or query that still waits for a slot at a partition of the
    set: the priority of a query, or 5 more than that of a task; 10 if nothing waits."""
    hungry: int = 0
    """How many partitions of the set have something of that urgency."""
    refused: list[tuple[int, bytes]] = field(default_factory=list)
    """Index of each member that is not served, with the body of an ERROR that says why."""
    elsewhere: list[tuple[int, int]] = field(default_factory=list)
    """Index of each member that belongs to another shard, and the number of that shard; nothing was
    done for these."""
