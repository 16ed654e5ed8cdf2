"""Computes the node and the shard of a request; answers correct it.

The nodes are those of the address, as it spells them: clients with the same list find the same
node. A node tells how many shards it has, and the batch size of spread routing. If an answer names
another owner of a partition, the router remembers that in place of the computed one.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.client.pool import HOPELESS
from maitred.errors import (
    Closed,
    InvalidArgument,
    NodeUnreachable,
    Overloaded,
    Unavailable,
    UnknownHost,
)
from maitred.protocol.requests import PartitionRequest
from maitred.routing.placement import place
from maitred.routing.ring import HashRing

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.address import Address
    from maitred.client.call import Call
    from maitred.client.pool import Pool
    from maitred.errors import MaitredError
    from maitred.protocol.messages import HomeHint

    Partition = tuple[str, str, int, int]

SILENT_SECONDS: Final = 2.0
"""A new client raises `NodeUnreachable` when the network has neither accepted nor refused a
connection for this long. A node that was reached has `connect_seconds` for its handshake."""

ROUTES_MAX: Final = 65_536
"""Routes that are remembered, some 300 bytes each; at this number all are forgotten."""


class PartitionRoute(NamedTuple):
    """The owner of a partition."""

    pool: Pool
    shard: int
    until: float
    """The wall-clock time at which the route has to be computed again."""


class Router:
    """The nodes of one client."""

    def __init__(self, wall_clock: Callable[[], float], news: Callable[[], None]) -> None:
        self.pools: dict[str, Pool] = {}
        """The nodes by name, in the order of the address."""
        self.news = news
        """Called when a connection was opened, failed or ended."""
        self.closed = False
        self._wall_clock = wall_clock
        self._routes: dict[Partition, PartitionRoute] = {}
        self._ring = HashRing()

    def begin(self, pools: list[Pool]) -> None:
        """Set the nodes, before the first request."""
        self.pools = {pool.name: pool for pool in pools}
        self._ring = HashRing(self.pools)

    # The first connection

    def has_connected(self, address: Address, *, silent: bool) -> bool:
        """Return whether any node is connected; raise the reason if none will be. `silent`: the
        network has neither accepted nor refused a connection."""
        pools = self.pools.values()
        if any(pool.by_shard for pool in pools):
            return True
        if all(isinstance(pool.problem, HOPELESS) for pool in pools):
            raise self.why_not_connected(address)
        if silent:
            raise NodeUnreachable(
                f"{address} cannot be reached: the network has not answered for "
                f"{SILENT_SECONDS:g} s. Nothing was done.",
                remedy="Check host and port, and what lies between: a firewall may drop packets.",
            )
        return False

    def why_not_connected(self, address: Address, seconds: float = 0.0) -> MaitredError:
        """Return the error for a client that none of its nodes has answered within `seconds`."""
        problems = [pool.problem for pool in self.pools.values() if pool.problem]
        for problem in problems:
            if isinstance(problem, HOPELESS):
                return problem
        if len(problems) == 1 and isinstance(problems[0], Unavailable | Overloaded):
            return problems[0]
        reasons = "; ".join(problem.sentence.rstrip(".") for problem in problems)
        return Unavailable(
            f"{address} did not answer within {seconds:g} s{': ' if reasons else ''}{reasons}.",
            remedy="Check host and port, and whether a node is up there.",
        )

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
                and len(connection.pending) < connection.calls_max
            ):
                connection.send_call(call, now)  # as nearly all do
            else:
                pool.submit(call, now)
        else:
            node = call.pool = call.pool or self.the_pool(None)
            call.shard = message.shard
            description = node.description
            if type(message.shard) is not int:
                raise InvalidArgument(f"A shard is a number, not {message.shard!r}.")
            if description is not None and not 0 <= message.shard < description.shards:
                raise InvalidArgument(
                    f"{node.name} has shards 0 to {description.shards - 1}; "
                    f"there is no {message.shard}."
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

    def the_pool(self, name: str | None) -> Pool:
        """Return the node of that address or identity; without a name, the only one."""
        if name is None:
            if len(self.pools) > 1:
                raise InvalidArgument(
                    "There are several nodes, and the request does not say which.",
                    remedy=f"Name one of: {', '.join(self.pools)}.",
                )
            return next(iter(self.pools.values()))
        found = self.pools.get(name) or self._pool_of(name)
        if found is None:
            raise UnknownHost(
                f"There is no node {name!r}.", remedy=f"Name one of: {', '.join(self.pools)}."
            )
        return found

    # Corrections

    def learn(self, call: Call, home: HomeHint) -> None:
        """Remember the owner of a partition that an answer names, unless the call was meant for
        that owner and sent to another shard for want of a connection."""
        pool = call.pool
        if pool is None or pool.description is None or call.connection is None:
            return
        if home.node == pool.description.node and home.shard == call.shard:
            return
        call.connection.counts.misroutes += 1
        right = self._pool_of(home.node)
        message = call.message
        if right is None or right.description is None or not isinstance(message, PartitionRequest):
            return
        if 0 <= home.shard < right.description.shards:
            partition = (message.namespace, message.queue, message.queue_type, message.partition)
            until = self._computed(partition).until
            self._remember(partition, PartitionRoute(right, home.shard, until))

    def forget(self) -> None:
        """Forget all routes: a node has changed."""
        self._routes.clear()

    def _pool_of(self, identity: str) -> Pool | None:
        for pool in self.pools.values():
            if pool.description is not None and pool.description.node == identity:
                return pool
        return None

    def _remember(self, partition: Partition, route: PartitionRoute) -> None:
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[partition] = route

    def _computed(self, partition: Partition) -> PartitionRoute:
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
