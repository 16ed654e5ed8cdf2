"""Real agents on simulated hosts: joining, leaving, dying, and what each error says."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.errors import CannotStart, StoreUnavailable
from maitred.membership.clock_watch import CLOCK_WARNING_SECONDS
from maitred.membership.view import ClusterMember, MemberState
from maitred.node.member_agent import MemberAgent
from maitred.settings import ClusterSettings
from maitred.simulation.member_table import SimulatedMembers, SimulatedMemberTable
from maitred.simulation.store import SimulatedDisk
from maitred.simulation.world import World
from tests.node.in_process import RecordedLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.membership.table import Beats, TableState
    from maitred.membership.view import ClusterView
    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process

SETTINGS = ClusterSettings()
PORT = 4747


class AgentLog(RecordedLog):
    """Keeps what an agent says."""

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, said, fields in self.lines if said == event]

    def starting(self, begin: str) -> list[dict[str, Any]]:
        return [fields for _, said, fields in self.lines if said.startswith(begin)]


@dataclass
class SimulatedMember:
    """One node: its process, its agent, and what the agent said."""

    host: Host
    process: Process | None = None
    agent: MemberAgent | None = None
    views: list[ClusterView] = field(default_factory=list)
    leases: list[float] = field(default_factory=list)
    log: AgentLog = field(default_factory=AgentLog)
    problem: CannotStart | StoreUnavailable | None = None
    joined_at: float | None = None

    @property
    def names(self) -> dict[str, str]:
        """The states in the newest view, by the name of the host."""
        return {one.node: one.state.value for one in self.views[-1].members} if self.views else {}


class SimulatedCluster:
    """Some nodes with one table."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.disk = SimulatedDisk(world.random("disk"))
        self.members = SimulatedMembers("maitred", world.random("members"))
        self.nodes: dict[str, SimulatedMember] = {}

    def me(self, on: Host, /, **fields: Any) -> ClusterMember:  # noqa: ANN401
        made = ClusterMember(
            id=on.surroundings.random.randbytes(8).hex(),
            node=on.name,
            host=on.address,
            port=PORT,
            member_port=PORT - 1,
            shards=1,
            shard_ports=(PORT + 1,),
            state=MemberState.JOINING,
            versions=(4,),
        )
        return replace(made, **fields)

    def start(
        self,
        name: str,
        *,
        table: SimulatedMemberTable | None = None,
        settings: ClusterSettings = SETTINGS,
        ports: tuple[int, ...] = (PORT, PORT + 1),
        then: Callable[[MemberAgent], Awaitable[None]] | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> SimulatedMember:
        """Start a node; when it has joined, run `then` in its process."""
        host = self.world.host(name)
        node = self.nodes[name] = SimulatedMember(host)

        async def live() -> None:
            loop = asyncio.get_running_loop()
            for port in ports:
                await loop.create_server(asyncio.Protocol, None, port)
            agent = node.agent = MemberAgent(
                table=table or SimulatedMemberTable(self.members, self.disk),
                me=self.me(host, **fields),
                settings=settings,
                surroundings=host.surroundings,
                log=node.log,
                load=lambda: 0.25,
                spread_batch="0",
                placement="wrap",
                on_view=node.views.append,
                on_lease=node.leases.append,
                listen_host="",
            )
            try:
                view = await agent.join()
            except (CannotStart, StoreUnavailable) as problem:
                node.problem = problem
                return
            assert view == agent.view
            node.joined_at = loop.time()
            if then is not None:
                await then(agent)
                return
            await agent.dead.wait()
            await agent.close()

        node.process = host.spawn(live, name=name)
        return node

    async def together(self, *names: str) -> list[SimulatedMember]:
        nodes = []
        for name in names:
            nodes.append(self.start(name))
            await asyncio.sleep(2.0)
        assert all(node.names == dict.fromkeys(names, "active") for node in nodes)
        return nodes


def simulated(test: Callable[[SimulatedCluster], Awaitable[None]]) -> Callable[[], None]:
    """Run an `async def` test in a world, outside of all processes."""

    def run() -> None:
        with World(7) as world:

            async def main() -> None:
                await test(SimulatedCluster(world))

            world.run(main())

    run.__doc__ = test.__doc__
    return run


@simulated
async def test_three_nodes_join_in_a_moment(cluster: SimulatedCluster) -> None:
    nodes = [cluster.start(name) for name in "abc"]
    await asyncio.sleep(3.0)
    for node in nodes:
        assert node.names == {"a": "active", "b": "active", "c": "active"}
        assert [view.version for view in node.views] == sorted(view.version for view in node.views)
        assert node.leases[-1] > cluster.world.loop.time() + 3.0
    assert cluster.members.loads == dict.fromkeys(cluster.members.loads, 0.25)


@simulated
async def test_a_killed_node_is_dead_at_once(cluster: SimulatedCluster) -> None:
    nodes = await cluster.together("a", "b", "c")
    await asyncio.sleep(1.0)
    assert nodes[2].process is not None
    nodes[2].process.kill()
    await asyncio.sleep(0.2)
    for node in nodes[:2]:
        assert node.names == {"a": "active", "b": "active"}
        (line,) = node.log.of("member is gone")
        assert line["member"] == f"{nodes[2].host.address}:{PORT}"
        assert line["reason"] == "its link broke and its port refuses connections"


@simulated
async def test_a_node_without_power_or_frozen_is_dead_after_its_lease(
    cluster: SimulatedCluster,
) -> None:
    nodes = await cluster.together("a", "b", "c", "d")
    nodes[2].host.crash()
    frozen = nodes[3].process
    assert frozen is not None
    frozen.pause()
    lease = nodes[3].leases[-1]
    await asyncio.sleep(3.5)  # their last heartbeat was up to a second ago
    assert nodes[0].names == dict.fromkeys("abcd", "active")
    await asyncio.sleep(3.5)
    for node in nodes[:2]:
        assert node.names == {"a": "active", "b": "active"}
        assert node.log.of("member is gone")[0]["reason"] == "it sent no heartbeat for 5 seconds"
    assert lease < min(death.at for death in cluster.members.deaths)
    frozen.resume()
    await asyncio.sleep(1.5)
    agent = nodes[3].agent
    assert agent is not None
    assert agent.dead.is_set(), "it reads that it is dead, and stops"
    assert nodes[3].leases[-1] == 0.0
    assert nodes[3].log.of("this member is dead and stops")


@simulated
async def test_a_node_leaves_comes_back_and_goes(cluster: SimulatedCluster) -> None:
    steps: list[dict[str, str]] = []

    async def then(agent: MemberAgent) -> None:
        for step in (agent.leave, agent.undrain, agent.leave, agent.gone):
            await step()
            steps.append(node.names)
            await asyncio.sleep(1.0)

    (other,) = await cluster.together("a")
    node = cluster.start("b", then=then)
    await asyncio.sleep(10.0)
    assert [step["b"] for step in steps] == ["draining", "active", "draining", "draining"]
    assert other.names == {"a": "active"}
    assert other.log.of("member is gone")[0]["reason"] == "it left the cluster"
    assert [line["member"] for line in other.log.of("member is draining")] == [
        f"{node.host.address}:{PORT}"
    ] * 2
    assert [death.cause for death in cluster.members.deaths] == ["left"]


@simulated
async def test_an_outage_of_the_database_evicts_nobody(cluster: SimulatedCluster) -> None:
    nodes = await cluster.together("a", "b", "c")
    cluster.disk.fail_for(60.0)
    late = cluster.start("d")
    await asyncio.sleep(59.0)
    assert cluster.members.deaths == []
    lines = nodes[0].log.starting("membership table is away")
    assert 5 <= len(lines) <= 8, "one in ten seconds"
    assert late.problem is not None
    assert "membership table in the database cannot be used" in str(late.problem)
    await asyncio.sleep(20.0)
    assert cluster.members.deaths == []
    assert nodes[0].log.of("membership table is back")
    assert nodes[0].leases[-1] > cluster.world.loop.time()


@simulated
async def test_lost_notifications_cost_a_heartbeat(cluster: SimulatedCluster) -> None:
    deaf = SimulatedMemberTable(cluster.members, cluster.disk, lost_notification_probability=1.0)
    node = cluster.start("a", table=deaf)
    await asyncio.sleep(2.0)
    cluster.start("b")
    await asyncio.sleep(2.5)
    assert node.names == {"a": "active", "b": "active"}


@simulated
async def test_a_restarted_node_replaces_its_earlier_start(cluster: SimulatedCluster) -> None:
    a, b = await cluster.together("a", "b")
    b.host.crash()  # no peer is told
    again = cluster.start("b")
    await asyncio.sleep(3.0)
    assert a.names == again.names == {"a": "active", "b": "active"}
    reasons = [line["reason"] for line in a.log.of("member is gone")]
    assert reasons == ["a later start of the node announced its address"]


class PatientTable(SimulatedMemberTable):
    """Watches another node at the address of a joining one for a while, as PostgreSQL's does."""

    async def join(self, member: ClusterMember, spread_batch: str, placement: str) -> TableState:
        await asyncio.sleep(4.0)
        return await super().join(member, spread_batch, placement)


@simulated
async def test_a_join_may_take_the_table_some_seconds(cluster: SimulatedCluster) -> None:
    node = cluster.start("a", table=PatientTable(cluster.members, cluster.disk))
    await asyncio.sleep(6.0)
    assert node.names == {"a": "active"}


@simulated
async def test_after_a_loss_of_all_power_one_node_alone_comes_up(cluster: SimulatedCluster) -> None:
    nodes = await cluster.together("a", "b", "c")
    for node in nodes:
        node.host.crash()
    await asyncio.sleep(60.0)
    began = cluster.world.loop.time()
    node = cluster.start("a")
    await asyncio.sleep(20.0)
    assert node.problem is None
    assert node.joined_at is not None
    assert 15.0 <= node.joined_at - began <= 17.0, "it waits until the others are stale"
    assert node.names == {"a": "active"}


@simulated
async def test_an_active_node_that_does_not_answer_delays_a_join(cluster: SimulatedCluster) -> None:
    a, b = await cluster.together("a", "b")
    cluster.world.network.partition(b.host, cluster.world.host("c"))
    node = cluster.start("c")
    await asyncio.sleep(20.0)
    assert node.names == {"a": "active", "b": "active", "c": "joining"}
    await asyncio.sleep(15.0)
    assert node.problem is not None
    assert str(node.problem).startswith(
        f"This node cannot join the cluster maitred. Node {b.host.address}:{PORT} is active and "
        "cannot be reached: no answer within 2 seconds."
    )
    assert "cluster.announce" in str(node.problem)
    assert a.names == {"a": "active", "b": "active"}, "it does not stay behind as joining"


@simulated
async def test_ports_that_others_do_not_reach_are_named(cluster: SimulatedCluster) -> None:
    await cluster.together("a")
    node = cluster.start("b", ports=(PORT,))
    await asyncio.sleep(33.0)
    assert node.problem is not None
    assert f"cannot connect to this node at {node.host.address}, ports 4748." in str(node.problem)


@simulated
async def test_an_announced_address_where_nothing_is(cluster: SimulatedCluster) -> None:
    node = cluster.start("a", host="10.9.9.9")
    await asyncio.sleep(20.0)
    assert node.problem is not None
    assert "announces 10.9.9.9:4746, and is not reached there: no answer" in str(node.problem)
    assert "cluster.announce" in str(node.problem)
    assert cluster.members.rows == {}


@simulated
async def test_an_announced_address_of_another_node(cluster: SimulatedCluster) -> None:
    (a,) = await cluster.together("a")
    node = cluster.start("b", host=a.host.address)
    await asyncio.sleep(20.0)
    assert node.problem is not None
    assert str(node.problem).startswith(
        f"Another node of the cluster announces the address {a.host.address}:4746 of this node."
    )
    assert a.names == {"a": "active"}, "the node that is really there stays"


@simulated
async def test_an_announced_address_of_another_cluster(cluster: SimulatedCluster) -> None:
    other = SimulatedCluster(cluster.world)
    other.members.random.seed(1)
    (a,) = await other.together("a")
    node = cluster.start("b", host=a.host.address)
    await asyncio.sleep(20.0)
    assert node.problem is not None
    assert "does not know the secret of the cluster maitred" in str(node.problem)


@simulated
async def test_an_unknown_name_is_no_address(cluster: SimulatedCluster) -> None:
    node = cluster.start("a", host="no-such-host")
    await asyncio.sleep(20.0)
    assert "its name no-such-host is not known" in str(node.problem)


@simulated
async def test_another_version_of_the_protocol(cluster: SimulatedCluster) -> None:
    await cluster.together("a")
    node = cluster.start("b", versions=(5, 6))
    await asyncio.sleep(5.0)
    assert node.problem is not None
    assert "speaks the protocol versions 4, and this node 5, 6." in str(node.problem)


@simulated
async def test_the_wrong_cluster(cluster: SimulatedCluster) -> None:
    node = cluster.start("a", settings=ClusterSettings(name="other"))
    await asyncio.sleep(5.0)
    assert node.problem is not None
    assert "belongs to the cluster maitred, and this node to other" in str(node.problem)


@simulated
async def test_a_port_in_use(cluster: SimulatedCluster) -> None:
    node = cluster.start("a", ports=(PORT, PORT + 1, PORT - 1))
    await asyncio.sleep(5.0)
    assert "The port for other nodes" in str(node.problem)


@simulated
async def test_a_node_whose_links_are_cut_stays_while_it_beats(cluster: SimulatedCluster) -> None:
    nodes = await cluster.together("a", "b", "c")
    cluster.world.network.partition("a", ["b", "c"])
    await asyncio.sleep(60.0)
    assert cluster.members.deaths == []
    assert nodes[1].log.of("member does not answer probes")


class SlowBeats(SimulatedMemberTable):
    """Answers each heartbeat long after it has counted it."""

    async def beat(self, *told: Any, **named: Any) -> Beats:  # noqa: ANN401 - as the table takes them
        counted = await super().beat(*told, **named)
        await asyncio.sleep(2.0)
        return counted


@simulated
async def test_a_lease_is_trusted_from_when_the_heartbeat_was_sent_by_the_boot_clock(
    cluster: SimulatedCluster,
) -> None:
    host = cluster.world.host("a")
    loop = cluster.world.loop
    started = 1e6  # so long before the loop's time began
    host.surroundings = dataclasses.replace(
        host.surroundings, boot_clock=lambda: loop.time() + started
    )
    node = cluster.start("a", table=SlowBeats(cluster.members, cluster.disk))
    await asyncio.sleep(20.0)
    left = []
    for _ in range(1000):
        known = len(node.leases)
        await asyncio.sleep(0.01)
        if len(node.leases) > known:
            left.append(node.leases[-1] - (loop.time() + started))
    # When each answer came, two seconds of the lease were over.
    assert len(left) > 2
    assert 2.4 < min(left) <= max(left) <= 2.5


@simulated
async def test_wall_clocks_do_not_matter(cluster: SimulatedCluster) -> None:
    nodes = await cluster.together("a", "b")
    nodes[0].host.clock_skew_seconds = 86_400.0
    nodes[1].host.clock_skew_seconds = -86_400.0
    await asyncio.sleep(30.0)
    assert cluster.members.deaths == []


def clock_of(node: SimulatedMember) -> float:
    assert node.agent is not None
    return node.agent.clock.ahead_seconds


@simulated
async def test_a_wrong_wall_clock_is_measured_and_named(cluster: SimulatedCluster) -> None:
    event = "the clocks of this node and the database differ: synchronise them"
    ahead, behind, right = await cluster.together("a", "b", "c")
    ahead.host.clock_skew_seconds = 300.0
    behind.host.clock_skew_seconds = -300.0
    await asyncio.sleep(10.0)
    for node, seconds in ((ahead, 300.0), (behind, -300.0), (right, 0.0)):
        assert clock_of(node) == pytest.approx(seconds, abs=CLOCK_WARNING_SECONDS)
        assert [round(one["node_is_ahead_seconds"]) for one in node.log.of(event)] == (
            [round(seconds)] if seconds else []
        )
    assert clock_of(right) == 0.0, "nothing contradicts that they are the same"
    told = {cluster.members.rows[id_].node: one for id_, one in cluster.members.clocks.items()}
    assert told == {node.host.name: clock_of(node) for node in (ahead, behind, right)}

    ahead.host.clock_skew_seconds = 0.0
    await asyncio.sleep(10.0)
    assert abs(clock_of(ahead)) < CLOCK_WARNING_SECONDS
    assert len(ahead.log.of("the clocks of this node and the database agree again")) == 1


def test_the_names_of_nodes_with_ipv6_addresses() -> None:
    with World(1) as world:
        me = SimulatedCluster(world).me(world.host("a"), host="::1")
    assert me.name == "[::1]:4747"


@pytest.mark.parametrize("seed", range(3))
def test_a_paused_process_goes_on_where_it_was(seed: int) -> None:
    """Its timers and what arrived for it wait, in their order; its peers see silence."""
    seen: list[tuple[str, float]] = []
    with World(seed) as world:
        loop = world.loop

        async def tick() -> None:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while line := await reader.readline():
                    seen.append((line.decode().strip(), loop.time()))
                    writer.write(line)

            await asyncio.start_server(answer, None, 80)
            cancelled = loop.call_later(6.0, seen.append, ("cancelled", 0.0))
            loop.call_later(5.0, cancelled.cancel)
            while True:
                await asyncio.sleep(1.0)
                seen.append(("tick", loop.time()))

        async def ask() -> float:
            reader, writer = await asyncio.open_connection("server", 80)
            await asyncio.sleep(3.0)
            writer.write(b"hello\n")
            await reader.readline()
            writer.close()
            return loop.time()

        async def main() -> None:
            server = world.host("server").spawn(tick)
            asking = world.host("client").spawn(ask)
            await asyncio.sleep(2.5)
            server.pause()
            await asyncio.sleep(7.5)
            assert [what for what, _ in seen] == ["tick", "tick"]
            server.resume()
            assert await asking.wait() >= 10.0
            await asyncio.sleep(2.5)
            server.pause()
            server.kill()
            server.resume()
            await asyncio.sleep(5.0)

        world.run(main())
    assert [what for what, _ in seen].count("hello") == 1
    assert "cancelled" not in [what for what, _ in seen]
    assert [moment for what, moment in seen if what == "tick"][2] == 10.0
    assert len([what for what, _ in seen if what == "tick"]) == 5
