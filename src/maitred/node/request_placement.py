"""The part of a shard that brings each request to its owner: this shard, another one, another node.

The owner of a partition follows from the number of shards, and in a cluster from the view. A shard
that does not own a partition forwards the request, and the answer tells the client where to send
the next one.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidArgument, MaitredError, Unavailable
from maitred.node.deferred_reply import HeldHere, node_fault
from maitred.node.owners import Owners
from maitred.node.peer_calls import PeerCall
from maitred.node.peer_table import Peers
from maitred.node.remote_peer import ClusterCredentials
from maitred.node.shard_membership import ShardMembership
from maitred.node.shard_tasks import ShardTasks
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import PartitionRequest
from maitred.routing.gradual import GradualChange
from maitred.routing.homes import Homes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from maitred.logs import Logger
    from maitred.matching.records import PartitionKey
    from maitred.membership.view import ClusterView
    from maitred.node.accepted import Accepted
    from maitred.node.dispatched import Dispatched
    from maitred.node.peer_calls import Done, ShardQuestion
    from maitred.node.request_table import Holder
    from maitred.node.shard_membership import ViewListener
    from maitred.node.shard_place import ShardPlace
    from maitred.node.system_tables import SystemTables
    from maitred.node.work import ForwardedWork
    from maitred.protocol.messages import AnyRequest
    from maitred.security.cluster_proof import ListenerProof
    from maitred.settings import Node
    from maitred.surroundings import Surroundings

ALSO_OF_THE_DEAD: Final = frozenset({Opcode.STATUS, Opcode.TELL_VIEW, Opcode.CLUSTER})
"""The requests to a shard that it still answers when the cluster has declared its node dead."""


class RequestPlacement(ShardTasks):
    """Finds the owners of requests, and forwards requests to them."""

    holders: dict[int, Holder]
    """Serve requests that are answered through a deferred reply, by opcode."""
    tables: SystemTables
    """The system tables that drivers of CQL read."""

    def __init__(
        self,
        place: ShardPlace,
        settings: Node,
        surroundings: Surroundings,
        log: Logger,
        *,
        versions: tuple[int, ...],
        peer_tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        """`peer_tls` returns the context for connections to other nodes of the cluster."""
        super().__init__(log)
        self.place = place
        self.number = place.number
        self.limits = settings.limits
        self.connections: dict[Accepted, None] = {}
        """The open connections, in the order of arrival."""
        self.forwarded = 0
        """Requests that were forwarded to another shard."""
        self._surroundings = surroundings
        self._wall_clock = surroundings.wall_clock
        change = GradualChange.parse(settings.spread_batch, int)
        homes = Homes(place.shards, spread_batch=change)
        self.owners = Owners(place, homes)
        self.settled = self.owners.settled
        """Owner numbers of partitions that do not move within the view, which saves a request the
        call of `owner_of`."""
        self.homes_told = self.owners.homes_told
        """The bytes before a forwarded answer, which name the owner, by owner number."""
        self.clustered = self.owners.clustered
        """Whether the node belongs to a cluster."""
        self.membership = ShardMembership(self, place, self.owners, surroundings)
        self.cluster_time = (
            self.membership.cluster_time if self.clustered else surroundings.wall_clock
        )
        """Returns the time by which partitions are placed and their tasks stored, in seconds since
        1970: that of the cluster's database, or of this machine."""
        self._peers = Peers(
            self,
            self.owners,
            ClusterCredentials(
                place.member,
                bytes.fromhex(place.cluster_secret),
                surroundings.secret,
                peer_tls,
                versions,
            )
            if self.clustered
            else None,
        )

    def owner_of(self, message: AnyRequest) -> int:
        """Return the owner number of the shard that the request belongs to; raise a typed error for
        a request that can belong to none."""
        if isinstance(message, PartitionRequest):
            address = (message.namespace, message.queue, message.queue_type, message.partition)
            return self.owners.home(address, self.cluster_time())[0]
        if message.shard >= self.place.shards:
            raise InvalidArgument(
                f"This node has shards 0 to {self.place.shards - 1}; there is no {message.shard}."
            )
        if self.owners.dead and message.opcode not in ALSO_OF_THE_DEAD:
            raise self.owners.refusal() or node_fault()
        return message.shard

    def moves_at(self, key: PartitionKey) -> float:
        """Return the wall-clock time at which the partition gets another owner within the present
        view; infinity: never."""
        return self.owners.moves_at(key, self.cluster_time())

    def owner_number(self, member_id: str, shard: int) -> int:
        """Return the owner number of a shard of a member of the cluster; raise `Unavailable` if the
        view does not have the member."""
        return self.owners.number_of(member_id, shard)

    def member_of(self, owner: int) -> str:
        """Return the id of the member with this owner number; empty without a cluster."""
        return self.owners.owner(owner).member

    def owner_name(self, owner: int) -> str:
        """Return the name of a shard for people, by its owner number."""
        return self.owners.name(owner)

    def is_here(self, owner: int) -> bool:
        """Whether the shard with this owner number belongs to this node."""
        return owner < self.place.shards

    def forward(self, work: ForwardedWork, message: AnyRequest, deadline: float) -> None:
        """Forward a request to its owner."""
        self.forwarded += 1
        peer = self._peers.known.get(work.owner)
        if peer is None:
            self._peers.forward(work, message, deadline)
        else:
            peer.forward(work, message, deadline)

    def dispatch(self, work: Dispatched, message: AnyRequest, deadline: float) -> None:
        """Send a request to the shard that owns it by the present view, or serve it here."""
        if self.loop.time() >= deadline:
            work.expired()
            return
        if not work.addressed:
            try:
                work.owner = self.owner_of(message)
            except MaitredError as problem:
                work.stop(problem)
                return
        if work.owner == self.number:
            work.serve(message, deadline)
        else:
            self._peers.forward(work, message, deadline)

    def ask(
        self, message: AnyRequest, seconds: float, done: Done, owner: int | None = None
    ) -> ShardQuestion:
        """Send a request of this shard to the shard that it belongs to, perhaps this one, or to the
        one with this owner number. `done` is called once, with the answer or an error, and never
        before this has returned."""
        try:
            to = self.owner_of(message) if owner is None else owner
        except Unavailable as problem:  # the cluster has no owner for it now
            call = PeerCall(self, self.number, message.opcode, done)
            call.stop(problem)
            return call
        if owner is not None and not isinstance(message, PartitionRequest):
            message.shard = self.owners.owner(owner).shard
        message.timeout_milliseconds = ceil(seconds * 1000)
        if to == self.number:
            here = HeldHere(self.loop, lambda: self.holders[message.opcode](message, here), done)
            return here
        call = PeerCall(self, to, message.opcode, done, addressed=owner is not None)
        self._peers.forward(call, message, self.loop.time() + seconds)
        return call

    # The cluster

    @property
    def view(self) -> ClusterView | None:
        """The newest view of the cluster that the shard has adopted; None before the first, and
        without a cluster."""
        return self.owners.view

    @property
    def view_version(self) -> int:
        """The version of the view; 0 without one."""
        return self.owners.version

    @property
    def view_event(self) -> bytes:
        """The body of the EVENT with the view; empty without one."""
        return self.owners.view_event

    @property
    def view_listeners(self) -> list[ViewListener]:
        """Called with the previous view and the new one when the shard has adopted a view."""
        return self.membership.listeners

    @property
    def lease_until(self) -> float:
        """Until when the node's lease may be trusted, by the boot clock; infinity without a
        cluster."""
        return self.membership.lease_until

    @property
    def lapses(self) -> int:
        """How often the lease had run out before it was renewed."""
        return self.membership.lapses

    @property
    def prover(self) -> Callable[[str], ListenerProof] | None:
        """Begins this member's end of the mutual proof with a process of another node that has this
        role; None without a cluster."""
        return self.membership.prover

    def adopt(self, view: ClusterView) -> None:
        """Place partitions by this view, if it is newer than the present one."""
        if self.membership.adopt(view):
            self.tables.adopt(view, self.place.member)
            self._peers.view_adopted()

    def renew_lease(self, until: float, clock_ahead_seconds: float = 0.0) -> None:
        """Trust the node's lease until this time of the boot clock, and correct the node's wall
        clock by so many seconds."""
        self.membership.renew_lease(until, clock_ahead_seconds)

    def trusted(self) -> bool:
        """Whether the node's lease has not run out, so that no other node has its partitions;
        always true without a cluster."""
        return self.membership.trusted()
