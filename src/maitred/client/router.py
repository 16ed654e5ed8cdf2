"""Computes the node and the shard of a request; answers and views of the cluster correct it.

Without a view, the nodes are those of the address, as it spells them: clients with the same list
find the same node. A node tells how many shards it has, and the batch size of spread routing. If an
answer names another owner of a partition, the router remembers that in place of the computed one.

With a view, the owners are computed from the newest one, and hints of answers only count as
misroutes: a node that names another owner has an older view, or sends a newer one. A request whose
owner has no connection goes to any other member, which forwards it. When a view gives a partition
another owner, its long polls are taken back from the old one and sent to the new one.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from msgspec import DecodeError

from maitred.client.long_poll import LongPoll
from maitred.client.node_pools import SILENT_SECONDS, NodePools
from maitred.errors import (
    Cancelled,
    Closed,
    Draining,
    InvalidArgument,
    MaitredError,
    NodeUnreachable,
    NotOwner,
    ProtocolViolation,
)
from maitred.membership.homes import ClusterHomes
from maitred.protocol.requests import PartitionRequest
from maitred.routing.placement import place
from maitred.routing.ring import HashRing

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from maitred.client.address import HostPort
    from maitred.client.call import Call, CallConnection
    from maitred.client.node_pools import PoolChanges
    from maitred.client.pool import Pool
    from maitred.client.waiting_room import WaitingRoom
    from maitred.membership.view import ClusterMember, ClusterView
    from maitred.protocol.messages import HomeHint
    from maitred.wire.caller import Receiver

    Partition = tuple[str, str, int, int]

__all__ = ["SILENT_SECONDS", "PartitionRoute", "Router", "closed"]

ROUTES_MAX: Final = 65_536
"""Routes that are remembered, some 300 bytes each; at this number all are forgotten."""

VIEW_SECONDS: Final = 0.1
"""A long poll that the owner of its partition refused as not its own waits this long for a newer
view before it is sent again. Views usually arrive before such a refusal."""


class PartitionRoute(NamedTuple):
    """The owner of a partition."""

    pool: Pool
    shard: int
    until: float
    """The wall-clock time at which the route has to be computed again."""


class Router:
    """The nodes of one client."""

    def __init__(
        self,
        wall_clock: Callable[[], float],
        news: Callable[[], None],
        *,
        loop: asyncio.AbstractEventLoop,
        room: WaitingRoom,
        make_pool: Callable[[HostPort, ClusterMember | None], Pool],
        preference: Callable[[], float],
    ) -> None:
        self.nodes = NodePools(make_pool, loop, preference)
        self.news = news
        """Called when a connection was opened, failed or ended, and when the view changed."""
        self.loss_listeners: dict[Callable[[CallConnection], None], None] = {}
        """Called with each connection that is lost."""
        self.listeners: dict[Callable[[], None], None] = {}
        """Called when partitions may have other owners than before: there is a newer view."""
        self.closed = False
        self.homes: ClusterHomes | None = None
        """The owners in the newest view; None without one, or if it has no active member."""
        self._wall_clock = wall_clock
        self._loop = loop
        self._room = room
        self._routes: dict[Partition, PartitionRoute] = {}
        self._ring = HashRing()
        self._line: OrderedDict[Call, None] = OrderedDict()
        """Calls that wait for a view."""
        self._timer: asyncio.TimerHandle | None = None
        """Fires when calls have waited for a newer view in vain."""

    def begin(self, seeds: Sequence[HostPort]) -> None:
        """Set the nodes of the address, before the first request."""
        self.nodes.begin(seeds)
        self._ring = HashRing(self.pools)

    @property
    def pools(self) -> dict[str, Pool]:
        """The nodes by name, in the order of the address; with a view, its members."""
        return self.nodes.current

    @property
    def view(self) -> ClusterView | None:
        """The newest view of the cluster; None before the first one."""
        return self.nodes.view

    # Requests

    def dispatch(self, call: Call, now: float) -> None:
        """Send the call to the shard that owns its partition, or queue it there."""
        if self.closed:
            raise closed()
        message = call.message
        if isinstance(message, PartitionRequest):
            partition = (message.namespace, message.queue, message.queue_type, message.partition)
            try:
                route = self._routes.get(partition)
            except TypeError:
                raise InvalidArgument(f"{partition!r} names no partition.") from None
            if route is None or route.until != inf:
                route = self.route(partition)
            pool, shard, _ = route
            call.pool, call.shard = pool, shard
            connection = pool.by_shard.get(shard)
            if (
                connection is not None
                and not connection.line
                and not connection.stalled
                and len(connection.pending) < connection.calls_max
            ):
                connection.send_call(call, now)  # as nearly all do
            elif connection is None and not pool.by_shard and self.view is not None:
                self._forward(call, pool, now)
            else:
                pool.submit(call, now)
        else:
            self._dispatch_to_shard(call, message.shard, now)

    def dispatch_after(self, call: Call, first: Call, now: float) -> None:
        """Send the call to the shard that answered the `first` one, which keeps what belongs to it
        when the partition gets another owner; to the owner if that node has left the cluster."""
        pool = first.pool
        if pool is None or pool.closed or first.shard < 0 or self.closed:
            self.dispatch(call, now)
        else:
            call.pool, call.shard = pool, first.shard
            pool.submit(call, now)

    def _forward(self, call: Call, pool: Pool, now: float) -> None:
        """Send the call to a node that forwards it; without one, let it wait for its own."""
        other = self.nodes.other()
        if other is None:
            pool.submit(call, now)
        else:
            other.forward(call, now)

    def _dispatch_to_shard(self, call: Call, shard: int, now: float) -> None:
        """Send a call that belongs to a shard instead of a partition."""
        if type(shard) is not int:
            raise InvalidArgument(f"A shard is a number, not {shard!r}.")
        call.shard = shard
        node = call.pool
        if node is None or (node.closed and call.message.any_node):
            if len(self.pools) > 1 and not self.nodes.settled:
                self._wait_for_view(call)  # it decides whether any node will do
                return
            anywhere = call.message.any_node and self.view is not None
            node = call.pool = self.nodes.near() if anywhere else self.nodes.only()
        elif node.closed:
            raise NodeUnreachable(f"{node.name} has left the cluster. Nothing was done.")
        description = node.description
        if description is not None and not 0 <= shard < description.shards:
            raise InvalidArgument(
                f"{node.name} has shards 0 to {description.shards - 1}; there is no {shard}."
            )
        node.submit(call, now)

    def route(self, partition: Partition) -> PartitionRoute:
        """Return where the partition's requests go now; raises typed errors for invalid names."""
        route = self._routes.get(partition)
        if route is not None and (route.until == inf or self._wall_clock() < route.until):
            return route
        route = self._computed(partition)
        if route.shard >= 0:
            self._remember(partition, route)
        return route

    def has_moved(self, call: Call) -> bool:
        """Return whether the newest view gives the call another owner than it was sent to."""
        if self.view is None:
            return False
        message = call.message
        if not isinstance(message, PartitionRequest):
            return call.pool is not None and call.pool.closed
        pool, shard, _ = self.route(
            (message.namespace, message.queue, message.queue_type, message.partition)
        )
        return shard >= 0 and (pool is not call.pool or shard != call.shard)

    # Long polls

    def redirect(self, call: LongPoll, problem: MaitredError) -> bool:
        """Send a long poll again whose node does not own its partition any more; return False if
        the answer is for its caller."""
        if self.view is None or self.closed or call.taken_back:
            return False
        now = self._loop.time()
        moved = call.moving and isinstance(problem, Cancelled)
        if now >= call.deadline or not (moved or isinstance(problem, NotOwner | Draining)):
            return False
        call.prepare_again()
        if moved or self.has_moved(call):
            self._again(call, now)
        else:
            try:
                self._wait_for_view(call)
            except MaitredError as full:
                call.fail(full)
        return True

    def _wait_for_view(self, call: Call) -> None:
        call.wait_in(self._line, self._room)
        if self._timer is None:
            self._timer = self._loop.call_later(VIEW_SECONDS, self._view_did_not_come)

    def _view_did_not_come(self) -> None:
        self._timer = None
        self._dispatch_waiting()

    def _dispatch_waiting(self) -> None:
        now = self._loop.time()
        for call in list(self._line):
            call.stop_waiting()
            if not call.is_over:
                self._again(call, now)

    def _again(self, call: Call, now: float) -> None:
        try:
            self.dispatch(call, now)
        except MaitredError as problem:
            call.fail(problem)

    # Views of the cluster

    def viewed(self, view: ClusterView) -> None:
        """Take over a view, unless a newer one is known; raise `ProtocolViolation` if it makes no
        sense."""
        if self.closed or not self.nodes.accepts(view):
            return
        try:
            homes = ClusterHomes(view) if view.active else None
        except (DecodeError, InvalidArgument) as problem:
            raise ProtocolViolation(
                f"The node's view of the cluster makes no sense: {problem}"
            ) from None
        self.homes = homes
        self._change(self.nodes.adopt(view))

    def described(self) -> None:
        """Match pools and members again: a node has described itself, or is another one than
        before."""
        if self.view is not None and not self.closed:
            changes = self.nodes.match()
            self._routes.clear()
            if changes.made or changes.left:
                self._change(changes)

    def _change(self, changes: PoolChanges) -> None:
        self._routes.clear()
        for pool in changes.made:
            pool.start()
        # Before long polls are moved: a worker takes those back that it makes in another way now.
        for listener in list(self.listeners):
            listener()
        self._move()
        for pool in changes.left:
            pool.retire()
        self._dispatch_waiting()
        self.nodes.watch_for_outage()
        self.news()

    def _move(self) -> None:
        """Take long polls back, and calls out of lines, whose partitions have other owners now. A
        long poll that stays is refused by its shard if it is to go to the new owner."""
        for pool in list(self.nodes.all()):
            for connection in pool.connections():
                for receiver in list(connection.pending.values()):
                    if _can_move(receiver) and (
                        pool in self.nodes.retiring or self.has_moved(receiver)
                    ):
                        receiver.move()
                pool.resubmit([call for call in connection.line if self.has_moved(call)])
            pool.resubmit([call for call in pool.line if self.has_moved(call)])

    def connected(self, pool: Pool) -> None:
        """Let the calls that wait for other nodes take the way over this one, and long polls that
        another node forwards to this one come directly."""
        if self.view is None or self.closed:
            return
        if self.nodes.has_extra:
            self.described()
        for other in list(self.pools.values()):
            if other is pool:
                continue
            if not other.by_shard:
                other.resubmit([call for call in other.line if _is_for_a_partition(call)])
            for connection in other.connections():
                for receiver in list(connection.pending.values()):
                    if _can_move(receiver) and receiver.pool is pool:
                        receiver.move()

    def has_deputies(self, pool: Pool) -> bool:
        """Return whether other members of the cluster are connected, which take over the partitions
        of the pool's node if it does not answer."""
        return self.nodes.has_deputies(pool)

    def disconnected(self) -> None:
        """Note that a pool has lost its last connection."""
        if not self.closed:
            self.nodes.disconnected()

    def lost(self, connection: CallConnection) -> None:
        for listener in list(self.loss_listeners):
            listener(connection)

    def closed_last(self, pool: Pool) -> None:
        """Forget a retired pool whose last connection has ended."""
        self.nodes.closed_last(pool)

    def stop(self) -> None:
        """Wait for no more views."""
        self.nodes.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Corrections

    def learn(self, call: Call, home: HomeHint) -> None:
        """Remember the owner of a partition that an answer names, unless the call was meant for
        that owner and sent to another shard for want of a connection. With a view, only count."""
        pool = call.pool
        if pool is None or pool.description is None or call.connection is None:
            return
        if home.node == pool.description.node and home.shard == call.shard:
            return
        call.connection.counts.misroutes += 1
        right = self.nodes.of_identity(home.node)
        message = call.message
        if right is None or right.description is None or not isinstance(message, PartitionRequest):
            return
        if self.view is None and 0 <= home.shard < right.description.shards:
            partition = (message.namespace, message.queue, message.queue_type, message.partition)
            until = self._computed(partition).until
            self._remember(partition, PartitionRoute(right, home.shard, until))

    def served_at(self, call: Call, home: HomeHint) -> None:
        """Note that the node to which the call was sent has forwarded it, and that the shard which
        the answer names has served it."""
        right = self.nodes.of_identity(home.node)
        if right is not None:
            call.pool, call.shard = right, home.shard

    def forget(self) -> None:
        """Forget all routes: a node has changed."""
        self._routes.clear()

    def _remember(self, partition: Partition, route: PartitionRoute) -> None:
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[partition] = route

    def _computed(self, partition: Partition) -> PartitionRoute:
        if self.view is None:
            return self._computed_from_address(partition)
        if self.homes is None:  # no member is active just now
            return PartitionRoute(self.nodes.near(), -1, inf)
        home = self.homes.home(partition, self._wall_clock())
        return PartitionRoute(self.nodes.by_member[home.member.id], home.shard, home.until)

    def _computed_from_address(self, partition: Partition) -> PartitionRoute:
        now = self._wall_clock()
        # The batch size is the same for all nodes.
        known = next((pool.homes for pool in self.pools.values() if pool.homes is not None), None)
        if known is None:
            return PartitionRoute(next(iter(self.pools.values())), -1, inf)
        home = known.home(partition, now)
        if len(self.pools) == 1:
            pool = next(iter(self.pools.values()))
        else:
            node = place(self._ring, home.queue, partition[3], home.batch_size).node
            pool = self.pools[node]
        if pool.homes is None:
            return PartitionRoute(pool, -1, home.until)
        there = pool.homes.home(partition, now)
        return PartitionRoute(pool, there.shard, min(home.until, there.until))


def closed() -> Closed:
    """Return the error of every call after `close()`."""
    return Closed("The client is closed.", remedy="Connect again.")


def _can_move(receiver: Receiver) -> TypeGuard[LongPoll]:
    return isinstance(receiver, LongPoll) and not receiver.message.stays


def _is_for_a_partition(call: Call) -> bool:
    return isinstance(call.message, PartitionRequest)
