"""Which pool serves which member, and where a client sends its requests by the newest view."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.client.address import HostPort
from maitred.client.call import AwaitedCall
from maitred.client.members import MemberAddresses
from maitred.client.router import Router
from maitred.client.waiting_room import WaitingRoom
from maitred.errors import InvalidArgument, ProtocolViolation, UnknownHost
from maitred.membership.homes import ClusterHomes
from maitred.protocol.access import ListTokens
from maitred.protocol.messages import Echo, HomeHint, Status
from tests.client.clusters import ACTIVE, DRAINING, JOINING, a_view, member

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.node_pools import NodePools
    from maitred.client.pool import Pool
    from maitred.membership.view import ClusterMember, ClusterView

ANNOUNCED = HostPort("host-1", 4747)
ALIAS = HostPort("localhost", 14747)


@dataclass(eq=False)
class FakePool:
    """A pool without connections."""

    node: HostPort
    identity: str | None = None
    connected: bool = False
    stalled: bool = False
    wavers: bool = False
    member: str = ""
    closed: bool = False
    asked_for_views: bool = False
    started: bool = False
    line: dict[Any, None] = field(default_factory=dict)
    homes: Any = None
    description: Any = None
    problem: Any = None
    sent: list[Any] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def by_shard(self) -> dict[int, Any]:
        return {0: None} if self.connected else {}

    def start(self) -> None:
        self.started = True

    def retire(self) -> None:
        self.closed = True
        self.connected = False

    def connections(self) -> list[Any]:
        return []

    def resubmit(self, line: list[Any]) -> None:
        assert not line

    def submit(self, call: Any, _now: float) -> None:  # noqa: ANN401
        self.sent.append(call)

    forward = submit


def test_a_pool_that_is_connected_to_the_node_stays_whatever_it_dials() -> None:
    addresses = MemberAddresses()
    alias = FakePool(ALIAS, "node-1", connected=True)
    view = a_view(1, member(1), member(2))
    plan = addresses.plan(view, [alias])
    assert plan.serving == {member(1).id: alias}
    assert plan.wanted == {member(2).id: HostPort("host-2", 4747)}
    assert plan.left == []
    # The address is remembered for the next pool, as long as the node announces the same one.
    plan = addresses.plan(view, [])
    assert plan.wanted[member(1).id] == ALIAS
    moved = a_view(2, member(1, host="elsewhere"))
    assert addresses.plan(moved, []).wanted[member(1).id] == HostPort("elsewhere", 4747)


def test_of_two_pools_of_one_node_the_one_with_the_announced_address_stays() -> None:
    alias = FakePool(ALIAS, "node-1", connected=True)
    announced = FakePool(ANNOUNCED, "node-1", connected=True)
    plan = MemberAddresses().plan(a_view(1, member(1)), [alias, announced])
    assert plan.serving == {member(1).id: announced}
    assert plan.left == [alias]


def test_a_pool_without_connection_stays_if_its_address_is_the_announced_one() -> None:
    away = FakePool(ANNOUNCED, "node-of-old")
    assert MemberAddresses().plan(a_view(1, member(1)), [away]).serving == {member(1).id: away}
    elsewhere = FakePool(ALIAS, "node-1")
    plan = MemberAddresses().plan(a_view(1, member(1)), [elsewhere])
    assert plan.wanted == {member(1).id: ANNOUNCED}
    assert plan.left == [elsewhere]


def test_an_address_that_leads_to_several_nodes_is_left_for_the_announced_ones() -> None:
    addresses = MemberAddresses()
    balancer = FakePool(ALIAS, "node-1", connected=True)
    view = a_view(1, member(1), member(2))
    addresses.plan(view, [balancer])
    balancer.identity, balancer.wavers = "node-2", True
    plan = addresses.plan(view, [balancer])
    assert plan.serving == {}
    assert plan.wanted == {member(1).id: ANNOUNCED, member(2).id: HostPort("host-2", 4747)}
    assert plan.left == [balancer]


# The whole router


class Routing:
    """A router with pools that connect when the test says so."""

    def __init__(self, *seeds: HostPort) -> None:
        self.loop = asyncio.new_event_loop()
        self.made: list[FakePool] = []
        self.news = 0
        self.router = Router(
            lambda: 0.0,
            self._news,
            loop=self.loop,
            room=WaitingRoom(self.loop, 100),
            make_pool=cast("Any", self._make),
            preference=Random(1).random,
        )
        self.router.begin(seeds or [ANNOUNCED])

    def __enter__(self) -> Routing:
        return self

    def __exit__(self, *_: object) -> None:
        self.router.stop()
        self.loop.close()

    def _news(self) -> None:
        self.news += 1

    def _make(self, node: HostPort, serves: ClusterMember | None) -> FakePool:
        pool = FakePool(node, connected=True)
        pool.identity = serves.node if serves is not None else "node-1"
        self.made.append(pool)
        return pool

    @property
    def pools(self) -> list[FakePool]:
        return [cast("FakePool", pool) for pool in self.router.pools.values()]

    def routes(self) -> dict[int, tuple[str, int]]:
        """Member and shard of some partitions."""
        found = {}
        for partition in range(40):
            pool, shard, _ = self.router.route(("shop", "q", 1, partition))
            found[partition] = (pool.member, shard)
        return found


def owners(view: ClusterView) -> dict[int, tuple[str, int]]:
    homes = ClusterHomes(view)
    return {
        partition: (homes.home(("shop", "q", 1, partition), 0.0).member.id, home.shard)
        for partition in range(40)
        for home in [homes.home(("shop", "q", 1, partition), 0.0)]
    }


STATES = st.sampled_from([None, ACTIVE, ACTIVE, DRAINING, JOINING])
VIEWS = st.lists(st.tuples(STATES, STATES, STATES, STATES), min_size=1, max_size=6)


@given(VIEWS, st.lists(st.integers(0, 5), max_size=20))
def test_views_in_any_order_lead_to_the_routes_of_the_newest(
    states: list[tuple[Any, ...]], order: list[int]
) -> None:
    views = []
    for version, row in enumerate(states, 1):
        members = [member(number, state) for number, state in enumerate(row) if state is not None]
        views.append(a_view(version, *members, member(9)))
    told = [views[number % len(views)] for number in order] or views
    newest = max(told, key=lambda view: view.version)
    with Routing() as routing:
        for view in told:
            routing.router.viewed(view)
        assert routing.router.view == newest
        assert routing.routes() == owners(newest)
        assert {pool.member for pool in routing.pools} == {one.id for one in newest.members}
        assert [pool for pool in routing.made if not pool.closed] == sorted(
            routing.pools, key=routing.made.index
        )
        assert all(not routing.router.nodes.by_member[pool.member].closed for pool in routing.pools)


def test_a_view_without_active_members_leads_to_any_node_and_is_not_remembered() -> None:
    with Routing() as routing:
        routing.router.viewed(a_view(1, member(1, DRAINING), member(2, JOINING)))
        assert {shard for _, shard in routing.routes().values()} == {-1}
        routing.router.viewed(a_view(2, member(1, DRAINING), member(2)))
        assert {id_ for id_, _ in routing.routes().values()} == {member(2).id}


def test_malformed_terms_of_placement_leave_the_last_view() -> None:
    with Routing() as routing:
        first = a_view(1, member(1))
        routing.router.viewed(first)
        for nonsense in ("{", "-1", '{"value": 3}'):
            with pytest.raises(ProtocolViolation):
                routing.router.viewed(a_view(2, member(1), spread_batch=nonsense))
        assert routing.router.view == first


def test_the_view_decides_about_placement_not_the_nodes() -> None:
    with Routing() as routing:
        members = [member(number) for number in range(4)]
        routing.router.viewed(a_view(1, *members, spread_batch="4", placement="steady"))
        spread = a_view(1, *members, spread_batch="4", placement="steady")
        assert routing.routes() == owners(spread)
        assert routing.routes() != owners(a_view(1, *members))


def test_who_follows_is_told_once_a_view() -> None:
    with Routing() as routing:
        told: list[object] = []
        routing.router.listeners[lambda: told.append(routing.router.view)] = None
        first, second = a_view(1, member(1)), a_view(2, member(1), member(2))
        for view in (first, first, second, first):
            routing.router.viewed(view)
        assert told == [first, second]
        assert routing.news == 2


def _call(message: Any, routing: Routing) -> AwaitedCall:  # noqa: ANN401
    return AwaitedCall(message, 10.0, routing.loop.create_future())


def test_a_request_for_any_node_waits_until_it_is_known_whether_there_is_a_cluster() -> None:
    seeds = (ANNOUNCED, HostPort("host-2", 4747))
    with Routing(*seeds) as routing:
        call = _call(ListTokens(0, 0), routing)
        routing.router.dispatch(call, 0.0)
        assert call.line is not None
        routing.router.viewed(a_view(1, member(1), member(2)))
        assert [call in pool.sent for pool in routing.pools].count(True) == 1
        # The same one for as long as it lives.
        chosen = next(pool for pool in routing.pools if pool.sent)
        again = _call(ListTokens(0, 0), routing)
        routing.router.dispatch(again, 0.0)
        assert chosen.sent == [call, again]
        with pytest.raises(InvalidArgument, match="several"):
            routing.router.dispatch(_call(Status(0, 0), routing), 0.0)
    with Routing(*seeds) as routing:
        for pool in routing.pools:
            pool.asked_for_views = True
        with pytest.raises(InvalidArgument, match="several"):
            routing.router.dispatch(_call(ListTokens(0, 0), routing), 0.0)


def test_a_node_is_found_by_its_address_its_alias_and_its_identity() -> None:
    with Routing(ALIAS) as routing:
        routing.router.viewed(a_view(1, member(1), member(2)))
        nodes: NodePools = routing.router.nodes
        names = ("host-1:4747", ALIAS.name, "node-1")
        assert len({id(nodes.find(name)) for name in names}) == 1
        with pytest.raises(UnknownHost):
            nodes.find("host-3:4747")
        assert nodes.only() is nodes.find("node-1"), "the one that the address names"


def _forwarded(routing: Routing, away: Callable[[Pool], bool]) -> list[str]:
    """Which members get the requests for one that is not connected."""
    for pool in routing.pools:
        pool.connected = not away(cast("Pool", pool))
    lost = next(one for one in range(100) if _away(routing, one))
    for _ in range(12):
        routing.router.dispatch(_call(Echo("shop", "q", 1, lost, 0, b""), routing), 0.0)
    return sorted({pool.member for pool in routing.pools for _ in pool.sent})


def _away(routing: Routing, partition: int) -> bool:
    return not routing.router.route(("shop", "q", 1, partition)).pool.connected


def test_requests_for_a_node_that_is_away_are_spread_over_the_active_ones() -> None:
    with Routing() as routing:
        others = [member(2), member(3), member(4, DRAINING), member(5, JOINING)]
        routing.router.viewed(a_view(1, member(1), *others))
        ids = [member(2).id, member(3).id]
        assert _forwarded(routing, lambda pool: pool.member == member(1).id) == ids


def test_without_an_active_one_a_draining_one_forwards_and_without_any_they_wait() -> None:
    with Routing() as routing:
        routing.router.viewed(a_view(1, member(1), member(2, DRAINING)))
        found = _forwarded(routing, lambda pool: pool.member == member(1).id)
        assert found == [member(2).id]
    with Routing() as routing:
        routing.router.viewed(a_view(1, member(1), member(2, DRAINING)))
        assert _forwarded(routing, lambda _: True) == [member(1).id]


def test_a_request_that_follows_a_forwarded_one_goes_to_the_shard_that_served_it() -> None:
    # The node that forwarded the first one may have stopped since, and keeps nothing of it.
    with Routing() as routing:
        routing.router.viewed(a_view(1, member(1), member(2)))
        one, two = (
            next(pool for pool in routing.pools if pool.identity == node)
            for node in (member(1).node, member(2).node)
        )
        message = Echo("shop", "q", 1, 0, 0, b"")
        first = _call(message, routing)
        first.pool, first.shard = cast("Pool", one), 0
        routing.router.served_at(first, HomeHint(member(2).node, 1))
        second = _call(message, routing)
        routing.router.dispatch_after(second, first, 0.0)
        assert (one.sent, two.sent) == ([], [second])
        assert second.shard == 1
        routing.router.served_at(first, HomeHint("a node that the client does not know", 0))
        assert cast("FakePool", first.pool) is two
