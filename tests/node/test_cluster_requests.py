"""What operators are told of a cluster, and which nodes they can drain."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred.errors import NoCluster, StoreUnavailable, UnknownNode, UnsafeMemberChange
from maitred.matching.records import PartitionKey
from maitred.membership.homes import ClusterHomes
from maitred.membership.table import TableState
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.node import cluster_requests
from maitred.node.audited import OF_OPERATORS, tell_of_request
from maitred.node.cluster_requests import ClusterRequests, KnownMember
from maitred.protocol.cluster import (
    ClusterDescription,
    DescribeCluster,
    DrainNode,
    NodeDrained,
)
from maitred.protocol.frames import Opcode
from maitred.settings import ClusterSettings
from maitred.store.interface import LastOwner
from tests.node.in_process import RecordedLog, in_a_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.logs import Logger
    from maitred.node.request_origin import RequestOrigin
    from maitred.security.audit_log import AuditLog
    from maitred.store.interface import Store

ACTIVE, DRAINING, JOINING, DEAD = (
    MemberState.ACTIVE,
    MemberState.DRAINING,
    MemberState.JOINING,
    MemberState.DEAD,
)


def member(number: int, state: MemberState = ACTIVE, **changes: Any) -> ClusterMember:  # noqa: ANN401
    told: dict[str, Any] = {
        "id": f"{number:016x}",
        "node": f"{number}9f2b587-4472-41d5-acc5-10e7e7c6725c",
        "host": f"node-{number}",
        "port": 4747,
        "member_port": 4746,
        "shards": 2,
        "shard_ports": (4748, 4749),
        "state": state,
        "release": "0.1",
        "versions": (1, 2),
        "since": 1_700_000_000.0,
    }
    return ClusterMember(**told | changes)


class Table:
    """A membership table in memory."""

    def __init__(self, *members: ClusterMember) -> None:
        self.members = {one.id: one for one in members}
        self.version = 7
        self.open = 0
        self.opened = 0
        self.problem: Exception | None = None
        self.hangs = False
        self.drained_meanwhile: list[str] = []
        """Members that another operator drains at the moment of the next change."""

    async def __call__(self) -> Table:
        if self.problem is not None:
            raise self.problem
        self.open += 1
        self.opened += 1
        assert self.open == 1, "one connection at a time"
        return self

    async def describe(self) -> Sequence[KnownMember]:
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        known = [cast("KnownMember", KnownMember.of(one)) for one in self.members.values()]
        return [one._replace(load=0.25, silent_seconds=0.5) for one in known]

    async def change(self, id_: str, before: MemberState, after: MemberState) -> TableState:
        for other in [*self.drained_meanwhile]:
            self.drained_meanwhile.remove(other)
            self.put(other, DRAINING)
        if self.members[id_].state is before:
            self.put(id_, after)
        return TableState(self.view(), {})

    def put(self, id_: str, state: MemberState) -> None:
        from msgspec.structs import replace

        self.members[id_] = replace(self.members[id_], state=state)
        self.version += 1

    async def close(self) -> None:
        self.open -= 1

    def view(self) -> ClusterView:
        alive = tuple(one for one in self.members.values() if one.state is not DEAD)
        return ClusterView(cluster="maitred", version=self.version, members=alive)


class Partitions:
    """A store of which only the keys of partitions and their owners are known."""

    def __init__(self, many: int) -> None:
        self.keys = [PartitionKey("shop", f"q{number}", 1, 0) for number in range(many)]
        self.owned: dict[PartitionKey, str] = {}
        self.reads = 0
        self.away = False

    async def partitions(self) -> list[PartitionKey]:
        self.reads += 1
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("The store is away.")
        return self.keys

    async def owners(self, group: Sequence[PartitionKey]) -> dict[PartitionKey, LastOwner]:
        return {key: LastOwner(1, self.owned[key]) for key in group if key in self.owned}


class Scene:
    """Cluster requests of one shard, whose view is that of the table unless set."""

    def __init__(self, *members: ClusterMember, partitions: int = 0) -> None:
        self.table = Table(*members)
        self.store = Partitions(partitions)
        self.log = RecordedLog()
        self.view: ClusterView | None = self.table.view()
        self.served = ClusterRequests(
            self,
            cast("Store", self.store),
            ClusterSettings(),
            cast("Logger", self.log),
            wall_clock=lambda: 1_700_000_100.0,
            open_members=self.table,
        )

    async def describe(self) -> ClusterDescription:
        answer = self.served.requests.handlers[Opcode.CLUSTER](DescribeCluster(0, 0))
        return cast("ClusterDescription", await answer)  # type: ignore[misc]

    async def drain(self, name: str, *, drain: bool = True) -> NodeDrained:
        request = DrainNode(0, 0, name, drain)
        answer = self.served.requests.handlers[Opcode.DRAIN_NODE](request)
        return cast("NodeDrained", await answer)  # type: ignore[misc]


@in_a_loop
async def test_members_as_the_table_has_them() -> None:
    scene = Scene(
        member(2, JOINING, versions=(1,)),
        member(1),
        member(3, DEAD, host="node-1"),  # before its node was started again
        member(4, DEAD, versions=(), since=5.0),
        member(5, DEAD, host="node-4", since=4.0),
        partitions=1_000,
    )
    told = await scene.describe()
    assert (told.cluster, told.version, told.protocol, told.problem) == ("maitred", 7, 1, "")
    assert told.lease_seconds == ClusterSettings().lease_seconds
    assert [(row.address, row.state) for row in told.members] == [
        ("node-1:4747", "active"),
        ("node-2:4747", "joining"),
        ("node-4:4747", "dead"),
    ]
    first, second, gone = told.members
    assert gone.id == member(4).id
    assert (first.protocol, first.shards, first.load, first.beat_seconds_ago) == (2, 2, 0.25, 0.5)
    assert (first.partitions, second.partitions) == (1_000, 0)
    assert scene.table.open == 0
    scene.served.close()


@in_a_loop
async def test_partitions_are_counted_by_the_ring() -> None:
    scene = Scene(member(1), member(2), member(3, DRAINING), partitions=2_500)
    assert scene.view is not None
    homes = ClusterHomes(scene.view)
    expected = Counter(homes.home(key, 0.0).member.id for key in scene.store.keys)
    scene.store.owned = dict.fromkeys(scene.store.keys[:1_234], member(3).id)
    scene.store.owned |= dict.fromkeys(scene.store.keys[1_234:], member(1).id)
    told = await scene.describe()
    assert [row.partitions for row in told.members] == [
        expected[member(1).id],
        expected[member(2).id],
        0,
    ]
    assert [row.held for row in told.members] == [None, None, 1_234]


@in_a_loop
async def test_counts_are_used_again_for_a_while_and_not_for_another_view() -> None:
    scene = Scene(member(1), member(2), partitions=10)
    await asyncio.gather(*(scene.describe() for _ in range(5)))
    assert scene.store.reads == 1
    scene.table.put(member(2).id, DRAINING)
    scene.view = scene.table.view()
    told = await scene.describe()
    assert scene.store.reads == 2
    assert [row.partitions for row in told.members] == [10, 0]


@in_a_loop
async def test_without_the_database_the_view_is_shown() -> None:
    scene = Scene(member(1), member(2), partitions=10)
    scene.table.problem = StoreUnavailable("PostgreSQL does not answer.")
    scene.store.away = True
    told = await scene.describe()
    assert told.problem == "PostgreSQL does not answer."
    assert [row.address for row in told.members] == ["node-1:4747", "node-2:4747"]
    assert {(row.load, row.beat_seconds_ago, row.partitions) for row in told.members} == {
        (None, None, None)
    }
    with pytest.raises(StoreUnavailable):
        await scene.drain("node-1")
    scene.view = None
    with pytest.raises(StoreUnavailable):
        await scene.describe()


@in_a_loop
async def test_a_database_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_requests, "TABLE_SECONDS", 0.0)
    scene = Scene(member(1))
    scene.table.hangs = True
    told = await scene.describe()
    assert "did not answer within 0 s" in told.problem
    assert scene.table.open == 0


@in_a_loop
async def test_before_the_first_view_the_table_is_shown() -> None:
    scene = Scene(member(1, JOINING))
    scene.view = None
    told = await scene.describe()
    assert told.version == 0
    assert [(row.state, row.partitions) for row in told.members] == [("joining", None)]


@in_a_loop
async def test_a_node_without_a_cluster() -> None:
    scene = Scene()
    scene.served = ClusterRequests(
        scene,
        cast("Store", scene.store),
        ClusterSettings(),
        cast("Logger", scene.log),
        wall_clock=lambda: 0.0,
        open_members=None,
    )
    for asked in (scene.describe(), scene.drain("node-1")):
        with pytest.raises(NoCluster, match="belongs to no cluster") as refused:
            await asked
        assert "--store postgresql://" in str(refused.value.remedy)


@pytest.mark.parametrize(
    "name", ["node-2:4747", "NODE-2:4747", "node-2", member(2).node, "29f2", member(2).id]
)
@in_a_loop
async def test_a_node_is_drained_by_any_of_its_names_and_put_back(name: str) -> None:
    scene = Scene(member(1), member(2))
    assert await scene.drain(name) == NodeDrained("node-2:4747", "draining", 8)
    assert scene.table.members[member(2).id].state is DRAINING
    scene.view = scene.table.view()
    assert await scene.drain(name) == NodeDrained("node-2:4747", "draining", 8), "already"
    assert await scene.drain(name, drain=False) == NodeDrained("node-2:4747", "active", 9)
    assert scene.log.events("info") == ["an operator changed the state of a node"] * 2
    assert scene.table.open == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("node-3:4747", "Did you mean 'node-"),
        ("elsewhere", "Its nodes are node-1:4747, node-2:4747"),
        ("", "Its nodes are"),
        ("node-", "can be 2 nodes: node-1:4747, node-2:4747."),
        ("x" * 10_000, "Its nodes are"),
    ],
)
@in_a_loop
async def test_names_of_no_node(name: str, said: str) -> None:
    scene = Scene(member(1), member(2))
    with pytest.raises(UnknownNode) as refused:
        await scene.drain(name)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


@in_a_loop
async def test_the_last_active_node_stays() -> None:
    scene = Scene(member(1), member(2, DRAINING), member(3, JOINING))
    with pytest.raises(UnsafeMemberChange, match="the only active one"):
        await scene.drain("node-1")
    with pytest.raises(UnsafeMemberChange, match="node-3:4747 is joining"):
        await scene.drain("node-3")
    assert scene.table.version == 7


@in_a_loop
async def test_two_operators_cannot_drain_the_last_two_nodes() -> None:
    scene = Scene(member(1), member(2))
    scene.table.drained_meanwhile = [member(2).id]
    with pytest.raises(UnsafeMemberChange, match="the only active one"):
        await scene.drain("node-1")
    assert scene.table.members[member(1).id].state is ACTIVE


@in_a_loop
async def test_a_node_that_dies_meanwhile() -> None:
    scene = Scene(member(1), member(2))

    async def too_late(id_: str, before: MemberState, after: MemberState) -> TableState:
        del before, after
        scene.table.put(id_, DEAD)
        return TableState(scene.table.view(), {})

    scene.table.change = too_late  # type: ignore[method-assign]
    with pytest.raises(UnsafeMemberChange, match="no longer in the cluster"):
        await scene.drain("node-1")


def test_draining_is_recorded_and_looking_is_not() -> None:
    recorded: list[tuple[str, dict[str, Any]]] = []

    class Audit:
        def record(self, action: str, **fields: Any) -> None:  # noqa: ANN401
            recorded.append((action, fields))

    class Origin:
        user, source, is_gateway = "boss", "10.0.0.9:1", False

    for message in (DescribeCluster(0, 0), DrainNode(0, 0, "node-1", drain=False)):
        assert message.permission in OF_OPERATORS
        tell_of_request(cast("AuditLog", Audit()), message, cast("RequestOrigin", Origin()))
    ((action, fields),) = recorded
    assert action == "drain node"
    assert fields["user"] == "boss"
    assert fields["details"] == {"name": "node-1", "drain": False}
