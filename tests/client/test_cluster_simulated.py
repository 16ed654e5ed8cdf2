"""A client of a cluster in virtual time: nodes die, are restarted one by one, or move away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import maitred
from maitred.client.node_pools import SEEDS_SECONDS
from maitred.errors import NodeUnreachable, NotOwner, Unavailable
from maitred.logs import silent
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.protocol import cql
from maitred.protocol.cluster import encode_view
from maitred.protocol.frames import EVENT_STREAM, Opcode
from maitred.protocol.messages import Echo, Echoed
from maitred.settings import Node
from maitred.simulation.world import World
from tests.client.clusters import ACTIVE, DRAINING, a_view, member, owned_by
from tests.client.handlers import answer_echo

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.client.client import AsyncClient
    from maitred.membership.view import ClusterMember, ClusterView, MemberState
    from maitred.simulation.process import Process

PORT = 4747
SHARDS = 2
TOLD_SECONDS = 0.05
"""How often a node looks for clients that it has not told its view."""


class SimulatedNode:
    """A node of two shards, each a process, that tells the test's views."""

    def __init__(self, world: World, number: int) -> None:
        self.host = world.host(f"node-{number}")
        self.number = number
        self.identity = UUID(int=number + 1)
        self.starts = 0
        self.view: ClusterView | None = None
        self.shards: dict[int, Shard] = {}
        self.processes: list[Process] = []
        self.answer: Callable[[Echo, int], Echoed] = self._echo

    def member(self, state: MemberState = ACTIVE) -> ClusterMember:
        return member(
            self.number,
            state,
            id=f"{self.starts:08x}{self.number:08x}",
            node=str(self.identity),
            host=self.host.name,
            port=PORT,
            shards=SHARDS,
            shard_ports=self._ports,
        )

    @property
    def _ports(self) -> tuple[int, ...]:
        return tuple(PORT + 1 + shard for shard in range(SHARDS))

    def start(self) -> None:
        self.starts += 1
        self.answer = self._echo
        self.processes = [
            self.host.spawn(self._serve(shard), name=f"{self.number}-{shard}")
            for shard in range(SHARDS)
        ]

    def kill(self) -> None:
        self.view = None
        for process in self.processes:
            process.kill()

    def _echo(self, message: Echo, shard: int) -> Echoed:
        del message
        return Echoed(str(self.number).encode(), shard)

    async def _serve(self, number: int) -> None:
        place = ShardPlace(
            node=self.identity,
            number=number,
            shards=SHARDS,
            host=self.host.address,
            port=PORT,
            own_ports=self._ports,
            peer_paths=tuple(f"/run/shard-{shard}" for shard in range(SHARDS)),
        )
        shard = Shard(place, Node(), self.host.surroundings, silent(), vitals=Vitals.none())
        answer_echo(shard, lambda message: self.answer(message, number))
        self.shards[number] = shard
        await shard.start()
        told: dict[object, int] = {}
        while True:
            await asyncio.sleep(TOLD_SECONDS)
            view = self.view
            for connection in shard.connections if view is not None else ():
                is_new = view is not None and told.get(connection) != view.version
                if view is not None and is_new and cql.VIEW in connection.events:
                    told[connection] = view.version
                    event = cql.encode_view(encode_view(view))
                    connection.send(0, EVENT_STREAM, Opcode.EVENT, event)


class SimulatedCluster:
    """Nodes of which the test says what they tell, and a client."""

    def __init__(self, world: World, nodes: int = 3) -> None:
        self.world = world
        self.nodes = [SimulatedNode(world, number) for number in range(nodes)]
        self.version = 0

    def tell(self, *members: ClusterMember | int, by: list[int] | None = None) -> ClusterView:
        """The next view: of these members, or active nodes."""
        self.version += 1
        listed = [self.nodes[one].member() if isinstance(one, int) else one for one in members]
        view = a_view(self.version, *listed)
        for number, node in enumerate(self.nodes):
            if by is None or number in by:
                node.view = view
        return view

    async def use(
        self,
        main: Callable[[AsyncClient], Coroutine[Any, Any, None]],
        **settings: Any,  # noqa: ANN401 - of a client
    ) -> None:
        host = self.world.host("client")

        async def process() -> None:
            url = f"maitred://{self.nodes[0].host.name}:{PORT}"
            client = await maitred.connect(url, surroundings=host.surroundings, **settings)
            await main(client)
            await client.close()

        await host.spawn(process(), name="client").wait()


async def who(client: AsyncClient, partition: int, timeout: float = 10) -> int:  # noqa: ASYNC109
    answer = await client.echo("shop", "q", b"", partition=partition, timeout=timeout)
    return int(answer.payload)


async def following(client: AsyncClient, view: ClusterView) -> None:
    while client.view != view:
        await client._news()
    await client.covered()


def test_a_cluster_that_moved_away_completely_is_found_by_its_address_again() -> None:
    async def main(client: AsyncClient) -> None:
        view = cluster.tell(1, 2)  # the node of the address is not among them
        await following(client, view)
        assert {await who(client, partition) for partition in range(16)} == {1, 2}
        for node in cluster.nodes:
            node.kill()
        # Another database, where versions begin anew, and a name that leads to another node.
        cluster.version = 0
        cluster.nodes[0].start()
        moved = cluster.tell(0, by=[0])
        assert moved.version <= view.version
        begun = asyncio.get_running_loop().time()
        assert await who(client, 0) == 0
        await following(client, moved)
        assert asyncio.get_running_loop().time() - begun < SEEDS_SECONDS + 5
        assert [node.address for node in client.nodes()] == [f"{cluster.nodes[0].host.name}:{PORT}"]
        assert {await who(client, partition) for partition in range(16)} == {0}

    with World(1) as world:
        cluster = SimulatedCluster(world)

        async def scenario() -> None:
            for node in cluster.nodes:
                node.start()
            await cluster.use(main, away_seconds=60.0)

        world.run(scenario())


def test_a_cluster_whose_nodes_all_died_is_waited_for_at_every_address() -> None:
    async def main(client: AsyncClient) -> None:
        await following(client, cluster.tell(0, 1, 2))
        for node in cluster.nodes:
            node.kill()
        asked = asyncio.create_task(who(client, 3, timeout=60))
        await asyncio.sleep(10)
        assert not asked.done()
        cluster.nodes[2].start()  # any one that is back forwards it
        assert await asked == 2
        view = cluster.tell(2, by=[2])
        await following(client, view)
        assert len(client.nodes()) == 1

    with World(2) as world:
        cluster = SimulatedCluster(world)

        async def scenario() -> None:
            for node in cluster.nodes:
                node.start()
            await cluster.use(main, away_seconds=60.0)

        world.run(scenario())


@pytest.mark.parametrize("others", ["cannot reach it", "are dead too"])
def test_an_owner_that_stays_away_without_a_newer_view_is_unreachable_after_a_while(
    others: str,
) -> None:
    async def main(client: AsyncClient) -> None:
        view = cluster.tell(0, 1, 2)
        await following(client, view)
        partition = owned_by(view, cluster.nodes[2].member())
        cluster.nodes[2].kill()
        for node in cluster.nodes[:2]:
            if others == "are dead too":
                node.kill()
            node.answer = _refuse
        killed = 3 if others == "are dead too" else 1
        while sum(not node.covered for node in client.nodes()) < killed:
            await client._news()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(NodeUnreachable):
            await who(client, partition, timeout=60)
        assert 4 <= loop.time() - begun <= 8, "five seconds, and a pause or two"
        # From then on at once, and other partitions are as ever.
        with pytest.raises(NodeUnreachable):
            await who(client, partition, timeout=60)
        assert loop.time() - begun <= 9

    def _refuse(message: Echo, shard: int) -> Echoed:
        raise Unavailable(f"Shard {shard} cannot reach the owner of {message.partition}.")

    with World(3) as world:
        cluster = SimulatedCluster(world)

        async def scenario() -> None:
            for node in cluster.nodes:
                node.start()
            await cluster.use(main, away_seconds=5.0)

        world.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_a_rolling_restart_shows_no_error(seed: int) -> None:
    answered: list[int] = []

    async def main(client: AsyncClient) -> None:
        await following(client, cluster.tell(0, 1, 2))
        stop = asyncio.Event()

        async def load(first: int) -> None:
            number = first
            while not stop.is_set():
                answered.append(await who(client, number % 32, timeout=10))
                number += 1
                await asyncio.sleep(0.01)

        async def poll() -> None:
            while not stop.is_set():
                await client.hold(Echo("shop", "q", 1, len(answered) % 32, 0, b""), 5).answer()
                await asyncio.sleep(0.01)

        loads = [asyncio.create_task(load(first * 7)) for first in range(4)]
        loads += [asyncio.create_task(poll()) for _ in range(4)]
        for number in (1, 2, 0):
            node = cluster.nodes[number]
            rest = [one for one in range(3) if one != number]
            draining = node.member(DRAINING)
            cluster.tell(draining, *rest)
            node.answer = _not_mine
            await asyncio.sleep(1)
            cluster.tell(*rest, by=rest)
            await asyncio.sleep(0.5)
            node.kill()
            await asyncio.sleep(1)
            node.start()
            cluster.tell(0, 1, 2)
            await asyncio.sleep(2)
        stop.set()
        await asyncio.gather(*loads)

    def _not_mine(message: Echo, shard: int) -> Echoed:
        raise NotOwner(f"Shard {shard} does not own {message.partition} any more.")

    with World(seed) as world:
        cluster = SimulatedCluster(world)

        async def scenario() -> None:
            for node in cluster.nodes:
                node.start()
            await cluster.use(main)

        world.run(scenario())
    assert set(answered) == {0, 1, 2}
    assert len(answered) > 2_000
