"""Messages between the nodes of a cluster, and operators' questions about it.

A shard tells another one its view before it forwards a request that it placed by that view. So the
receiver's view is never older than the sender's, and a receiver that does not own the partition
knows better: it sends its own view as an EVENT, and then refuses the request with `NotOwner`. The
sender, which has the newer view by then, forwards the request again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, field, msgpack

from maitred.errors import ProtocolViolation
from maitred.matching.running_attempts import RunningAttempt  # noqa: TC001 - msgspec reads it
from maitred.membership.view import ClusterView
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import (
    Answer,
    Exchanges,
    PartitionRequest,
    ShardRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class TellView(ShardRequest, array_like=True, gc=False):
    """Tell another shard this shard's view of the cluster."""

    opcode = Opcode.TELL_VIEW
    permission = None
    repeatable = True
    between_shards = True

    view: ClusterView


class ViewTold(Answer, array_like=True, gc=False):
    """The version of the receiver's view, which is at least that of the view it was told."""

    version: int


class HandOver(PartitionRequest, array_like=True, gc=False):
    """Ask the present owner of a partition to let it go: the sender owns it by a newer view."""

    opcode = Opcode.HAND_OVER
    permission = None
    repeatable = True
    between_shards = True

    version: int = 0
    """The version of the sender's view. A receiver that owns the partition by a newer view refuses
    with `NotOwner`."""


class HandedOver(Answer, array_like=True, gc=False):
    """What the owner knew that the store does not."""

    released: bool
    """Whether the owner had the partition, persisted everything, let it go, and lists all attempts
    that run. Otherwise it did not have it, could not persist, or still waited for the workers of
    the owner before it."""
    attempts: list[RunningAttempt] = field(default_factory=list)
    """Every attempt that runs and that the owner knows of. If `released`, there are no others."""
    range_id: int = 0
    """The range id of the owner that let the partition go. What it says holds only for the next
    higher range id: otherwise a third shard has owned the partition since."""


class DescribeCluster(ShardRequest, array_like=True, gc=False):
    """Ask for the members of the cluster."""

    opcode = Opcode.CLUSTER
    permission = "read"
    any_node = True
    repeatable = True


class MemberRow(Struct, array_like=True, gc=False):
    """One member, as operators see it."""

    id: str
    node: str
    address: str
    state: str
    release: str
    protocol: int
    """The newest version of the protocol that the member speaks."""
    shards: int
    since: float
    """When the member entered its state, in seconds since 1970."""
    load: float | None
    """The load of the node at its last heartbeat: 1 is a full core. None if the membership table
    cannot be read."""
    beat_seconds_ago: float | None
    """How long ago its last heartbeat was, by the database's clock. None if the membership table
    cannot be read."""
    partitions: int | None
    """How many partitions of the store the ring gives it. None if they are not counted yet, or if
    the store cannot be read."""
    held: int | None = None
    """How many partitions it acquired and has not handed over yet, for a draining member."""
    clock_ahead_seconds: float | None = None
    """How far the node's clock was ahead of the database's at its last heartbeat. None if the node
    does not tell, or the membership table cannot be read."""


class ClusterDescription(Answer, array_like=True, gc=False):
    """The members of the cluster at a version of the membership table."""

    cluster: str
    version: int
    """The version of the answering shard's view."""
    protocol: int
    """The newest version of the protocol that every member speaks."""
    members: list[MemberRow]
    """Also nodes that left or died within a day and were not started again."""
    lease_seconds: float = 0.0
    """How long a heartbeat counts, by the settings of the answering node."""
    problem: str = ""
    """Why the membership table cannot be read; empty if it can. The members are then those of the
    answering shard's view."""


class DrainNode(ShardRequest, array_like=True, gc=False):
    """Take a node out of the ring, or put it back; the node goes on running."""

    opcode = Opcode.DRAIN_NODE
    permission = "operate"
    any_node = True

    name: str
    """The address or the identity of the node, or the beginning of one that no other node has."""
    drain: bool = True
    """False: put it back."""


class NodeDrained(Answer, array_like=True, gc=False):
    """The member's state after the change, and the version of the view that has it."""

    address: str
    state: str
    version: int


CLUSTER_EXCHANGES: Final[Exchanges] = (
    (TellView, ViewTold),
    (HandOver, HandedOver),
    (DescribeCluster, ClusterDescription),
    (DrainNode, NodeDrained),
)

encode_view: Final[Callable[[ClusterView], bytes]] = msgpack.Encoder().encode
"""Return the view as an EVENT carries it."""

_decode_view: Final = msgpack.Decoder(ClusterView).decode


def decode_view(body: bytes) -> ClusterView:
    """Return the view of an EVENT; raise `ProtocolViolation` if it is malformed."""
    try:
        return _decode_view(body)
    except (ValueError, RecursionError) as problem:  # msgspec's DecodeError is a ValueError
        raise ProtocolViolation(
            f"The node's view of the cluster is malformed: {problem}."
        ) from None
