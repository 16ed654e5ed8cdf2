"""A client of a cluster in virtual time: nodes die, are restarted one by one, or move away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.client.node_pools import SEEDS_SECONDS
from maitred.errors import NodeUnreachable, NotOwner, Unavailable
from maitred.protocol.messages import Echo, Echoed
from maitred.simulation.world import World
from tests.client.clusters import DRAINING, owned_by
from tests.client.simulated_clusters import PORT, SimulatedCluster, following, who

if TYPE_CHECKING:
    from maitred.client.client import AsyncClient


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
        # Other nodes that are connected would take its partitions over.
        seconds = 5 if others == "are dead too" else 12
        assert seconds - 1 <= loop.time() - begun <= seconds + 3, "and a pause or two"
        # From then on at once, and other partitions are as ever.
        with pytest.raises(NodeUnreachable):
            await who(client, partition, timeout=60)
        assert loop.time() - begun <= seconds + 4

    def _refuse(message: Echo, shard: int) -> Echoed:
        raise Unavailable(f"Shard {shard} cannot reach the owner of {message.partition}.")

    with World(3) as world:
        cluster = SimulatedCluster(world)

        async def scenario() -> None:
            for node in cluster.nodes:
                node.start()
            await cluster.use(main, away_seconds=5.0, takeover_seconds=12.0)

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


def test_connections_without_requests_stay_open_while_views_are_pushed() -> None:
    # The views that arrive must not keep the client from being heard: the node closes a connection
    # on which nothing arrives, and a request that is on its way then has an unknown outcome.
    async def main(client: AsyncClient) -> None:
        await following(client, cluster.tell(0, 1, 2))
        before = cluster.connections()
        for _ in range(30):
            await asyncio.sleep(10)
            await following(client, cluster.tell(0, 1, 2))
        assert cluster.connections() == before

    with World(5) as world:
        cluster = SimulatedCluster(world)

        async def scenario() -> None:
            for node in cluster.nodes:
                node.start()
            await cluster.use(main)

        world.run(scenario())
