"""The pools of a client: for the nodes of its address, then for the members of the cluster.

The nodes of the address are only a beginning. When the first of them has sent its view of the
cluster, the client has a pool for each member, and follows every newer view: members that came get
a pool, and the pools of those that left are retired. If no member can be reached any more, the
nodes of the address are tried again, because the cluster may have moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.client.members import MemberAddresses, by_name
from maitred.client.pool import HOPELESS
from maitred.client.statistics import Totals, summed
from maitred.errors import (
    InvalidArgument,
    NodeUnreachable,
    Overloaded,
    Unavailable,
    UnknownHost,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    from maitred.client.address import Address, HostPort
    from maitred.client.pool import Pool
    from maitred.errors import MaitredError
    from maitred.membership.view import ClusterMember, ClusterView

SILENT_SECONDS: Final = 2.0
"""A new client raises `NodeUnreachable` when the network has neither accepted nor refused a
connection for this long. A node that was reached has `connect_seconds` for its handshake."""

SEEDS_SECONDS: Final = 1.0
"""The nodes of the address are tried again when no member has been reached for this long. One node
that is started again is back sooner."""


class PoolChanges(NamedTuple):
    """The pools that a view brought, and those that serve no member of it."""

    made: list[Pool]
    left: list[Pool]


class NodePools:
    """The pools of one client."""

    def __init__(
        self,
        make: Callable[[HostPort, ClusterMember | None], Pool],
        loop: asyncio.AbstractEventLoop,
        preference: Callable[[], float],
    ) -> None:
        self.current: dict[str, Pool] = {}
        """The nodes of the address, in its order; with a view, its members, by name."""
        self.retiring: dict[Pool, None] = {}
        """Pools of nodes that left, until their last requests are answered."""
        self.departed = Totals()
        """What the pools of nodes that left have counted."""
        self.view: ClusterView | None = None
        """The newest view of the cluster; None before the first one."""
        self.by_member: dict[str, Pool] = {}
        """The pool of each member of the view, by the member's id."""
        self._seeds: tuple[HostPort, ...] = ()
        self._extra: dict[Pool, None] = {}
        """Pools of the address's nodes that are tried again while no member answers."""
        self._addresses = MemberAddresses()
        self._make = make
        self._loop = loop
        self._preference = preference
        """Returns a random number below 1."""
        self._chosen = -1.0
        self._turn = 0
        self._lost = False
        """Whether all connections were lost since the last view: the next view counts whatever its
        version is, because the cluster may be another one."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seeds: Sequence[HostPort]) -> None:
        """Make the pools of the address's nodes."""
        self._seeds = tuple(seeds)
        self.current = {node.name: self._make(node, None) for node in seeds}

    def all(self) -> Iterator[Pool]:
        """Yield all pools, including those of nodes that left."""
        yield from self.current.values()
        yield from self.retiring

    def stop(self) -> None:
        """Try the nodes of the address no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The first connection

    def has_connected(self, address: Address, *, silent: bool) -> bool:
        """Return whether any node is connected; raise the reason if none will be. `silent`: the
        network has neither accepted nor refused a connection."""
        pools = self.current.values()
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
        problems = [pool.problem for pool in self.current.values() if pool.problem]
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

    # The choice of a node

    @property
    def connected(self) -> bool:
        """Whether any node is connected."""
        return any(pool.by_shard for pool in list(self.current.values()))

    @property
    def settled(self) -> bool:
        """Whether the client has a view, or knows a node that has none."""
        if self.view is not None:
            return True
        return any(pool.asked_for_views for pool in self.current.values())

    def find(self, name: str) -> Pool:
        """Return the pool of the node with this address or identity; raise `UnknownHost` if the
        client has no such node."""
        found = self.current.get(name) or self.of_identity(name)
        if found is None:
            found = next((pool for pool in self.current.values() if pool.name == name), None)
        if found is None:
            raise UnknownHost(
                f"There is no node {name!r}.", remedy=f"Name one of: {', '.join(self.current)}."
            )
        return found

    def of_identity(self, identity: str) -> Pool | None:
        """Return the pool of the node with this identity; None if the client has no such node."""
        for pool in self.current.values():
            if pool.identity == identity:
                return pool
        return None

    def only(self) -> Pool:
        """Return the only node, or the one that the address names; raise `InvalidArgument` if it
        names several."""
        pools = list(self.current.values())
        if len(pools) > 1 and self.view is not None:
            pools = [pool for pool in pools if pool.node in self._seeds] or pools
        if len(pools) != 1:
            raise InvalidArgument(
                "There are several nodes, and the request does not say which.",
                remedy=f"Name one of: {', '.join(self.current)}.",
            )
        return pools[0]

    def near(self) -> Pool:
        """Return a member that can answer for the whole cluster: one that the address names, if
        such a one is connected, and the same one for as long as it lives."""
        usable = self._usable()
        named = [pool for pool in usable if pool.node in self._seeds]
        usable = named or usable
        if not usable:
            return next(iter(self.current.values()))
        if self._chosen < 0:
            self._chosen = self._preference()
        return usable[int(self._chosen * len(usable))]

    def other(self) -> Pool | None:
        """Return a connected node that forwards a request to one that is not connected, each time
        another one; None if no node is connected."""
        usable = self._usable()
        if not usable:
            return None
        self._turn += 1
        return usable[self._turn % len(usable)]

    def _usable(self) -> list[Pool]:
        """Return the connected pools, if possible only those of active members that answer."""
        connected = [pool for pool in self.current.values() if pool.by_shard]
        if self.view is None:
            return connected
        connected = [pool for pool in connected if not pool.stalled] or connected
        active = {member.id for member in self.view.active}
        return [pool for pool in connected if pool.member in active] or connected

    def has_deputies(self, pool: Pool) -> bool:
        """Return whether an active member other than the pool's is connected."""
        if self.view is None:
            return False
        return any(
            (other := self.by_member.get(member.id)) is not None
            and other is not pool
            and other.connected
            for member in self.view.active
        )

    # Views

    def accepts(self, view: ClusterView) -> bool:
        """Return whether the view is newer than the known one; a view without members never is."""
        known = self.view
        if not view.members:
            return False
        if known is None or self._lost:
            return True
        return view.cluster == known.cluster and view.version > known.version

    def adopt(self, view: ClusterView) -> PoolChanges:
        """Take over a view that `accepts` found to be newer. The caller starts the pools that were
        made and retires those that are left, when it has adapted its routes."""
        self.view = view
        self._lost = False
        return self.match()

    def match(self) -> PoolChanges:
        """Match the pools with the members of the view again."""
        view = self.view
        if view is None:
            return PoolChanges([], [])
        plan = self._addresses.plan(view, self.current.values())
        made: list[Pool] = []
        current: dict[str, Pool] = {}
        self.by_member = {}
        for member in by_name(view.members):
            pool = plan.serving.get(member.id)
            if pool is None:
                pool = self._make(plan.wanted[member.id], member)
                made.append(pool)
            pool.member = member.id
            current[member.name] = self.by_member[member.id] = pool
        left = plan.left
        if not any(pool.by_shard for pool in current.values()):
            # No member answers, and the address's nodes are being tried: go on with them.
            for pool in [pool for pool in left if pool in self._extra]:
                left.remove(pool)
                current[_free_key(pool.name, current)] = pool
        self._extra = {pool: None for pool in current.values() if not pool.member}
        self.current = current
        self.retiring.update(dict.fromkeys(left))
        return PoolChanges(made, left)

    @property
    def has_extra(self) -> bool:
        """Whether there are pools of the address's nodes that serve no member."""
        return bool(self._extra)

    # Outages

    def disconnected(self) -> None:
        """Note that a pool has lost its last connection."""
        if self.connected:
            return
        self._lost = True
        self.watch_for_outage()

    def watch_for_outage(self) -> None:
        """Try the nodes of the address again, after a while, if no member is connected by then."""
        if self.view is not None and self._timer is None and not self.connected:
            self._timer = self._loop.call_later(SEEDS_SECONDS, self._try_seeds)

    def _try_seeds(self) -> None:
        self._timer = None
        if self.connected:
            return
        dialled = {pool.node for pool in self.current.values()}
        for node in self._seeds:
            if node not in dialled:
                pool = self._make(node, None)
                self._extra[pool] = None
                self.current[_free_key(node.name, self.current)] = pool
                pool.start()

    def closed_last(self, pool: Pool) -> None:
        """Forget a retired pool whose last connection has ended, apart from its counts."""
        if pool in self.retiring:
            del self.retiring[pool]
            self.departed = Totals(**summed([self.departed, pool.statistics()]))


def _free_key(name: str, taken: dict[str, Pool]) -> str:
    """Return the name, or one like it that is not taken."""
    while name in taken:
        name += "'"
    return name
