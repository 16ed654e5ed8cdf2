"""The same client and the same shards in the simulated world, where hours take no time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import maitred
from maitred.client.connection import FAREWELL_SECONDS
from maitred.errors import (
    ConnectionLost,
    DeadlineExceeded,
    MaitredError,
    NodeUnreachable,
    Overloaded,
)
from maitred.logs import silent
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import Echo, Echoed
from maitred.settings import Limits, Node
from maitred.simulation.faults import Faults
from maitred.simulation.hosts import EPOCH_SECONDS
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.client.client import AsyncClient
    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process

PORT = 4747


class Scene:
    """A node of some shards, each a process, and a client on another host."""

    def __init__(self, world: World, shards: int = 3, **settings: Any) -> None:  # noqa: ANN401
        self.world = world
        self.host = world.host("node")
        self.count = shards
        self.settings = Node(**settings)
        self.shards: dict[int, Shard] = {}
        self.processes: dict[int, Process] = {}
        self.identity = UUID(int=7)

    def start(self, *numbers: int) -> None:
        for number in numbers or range(self.count):
            self.processes[number] = self.host.spawn(self._serve(number), name=f"shard-{number}")

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    def connections(self) -> list[int]:
        return [self.shards[number].client_connections for number in range(self.count)]

    async def _serve(self, number: int) -> None:
        place = ShardPlace(
            node=self.identity,
            number=number,
            shards=self.count,
            host=self.host.address,
            port=PORT,
            own_ports=tuple(PORT + 1 + shard for shard in range(self.count)),
            peer_paths=tuple(f"/run/shard-{shard}" for shard in range(self.count)),
        )
        shard = Shard(place, self.settings, self.host.surroundings, silent(), vitals=Vitals.none())
        self.shards[number] = shard
        await shard.start()
        await asyncio.get_running_loop().create_future()

    async def use(
        self,
        main: Callable[[AsyncClient], Coroutine[Any, Any, None]],
        name: str = "client",
        **settings: object,
    ) -> None:
        """Run it in a process of its own, with a client."""
        host = self.world.host(name)

        async def process() -> None:
            client = await _connected(self.host, host, settings)
            await main(client)
            await client.close()

        await host.spawn(process(), name=name).wait()


async def _connected(node: Host, host: Host, settings: dict[str, object]) -> AsyncClient:
    url = f"maitred://{node.name}:{PORT}"
    return await maitred.connect(url, surroundings=host.surroundings, **settings)  # type: ignore[arg-type]


def _storm(seed: int) -> tuple[str, int]:
    """A run under faults; its fingerprint, and how many requests were answered."""
    answered = 0
    with World(seed, faults=Faults.stormy()) as world:
        scene = Scene(world)

        async def main(client: AsyncClient) -> None:
            nonlocal answered
            for number in range(200):
                with suppress(MaitredError):
                    await client.echo("shop", "q", b"x", partition=number % 16, timeout=1)
                    answered += 1

        async def scenario() -> None:
            scene.start()
            await scene.use(main, connect_seconds=60)

        world.run(scenario())
        return world.fingerprint(), answered


@pytest.mark.parametrize("seed", range(3))
def test_a_run_is_the_same_for_the_same_seed(seed: int) -> None:
    first, second = _storm(seed), _storm(seed)
    assert first == second
    assert first[1] > 100
    assert first[0] != _storm(seed + 100)[0]


def test_an_idle_client_keeps_its_connections_for_hours() -> None:
    with World(1) as world:
        scene = Scene(world, limits=Limits(idle_seconds=8.0))

        async def main(client: AsyncClient) -> None:
            await client.covered()
            await asyncio.sleep(3 * 3600)
            statistics = client.statistics()
            assert (statistics.connections, statistics.reconnects) == (3, 0)
            assert scene.connections() == [1, 1, 1]

        async def scenario() -> None:
            scene.start()
            await scene.use(main)

        world.run(scenario())


def test_what_is_left_of_the_time_is_what_the_node_is_told() -> None:
    with World(1) as world:
        scene = Scene(world, shards=1)
        told: list[int] = []

        async def hold(message: Echo) -> Echoed:
            told.append(message.timeout_milliseconds)
            await asyncio.sleep(5)
            return Echoed(message.payload, 0)

        async def main(client: AsyncClient) -> None:
            scene.shards[0].handlers[Opcode.ECHO] = hold
            first = asyncio.create_task(client.echo("shop", "q", b"x", timeout=20))
            second = asyncio.create_task(client.echo("shop", "q", b"x", timeout=20))
            await asyncio.gather(first, second)
            assert 19_990 <= told[0] <= 20_000
            assert 14_980 <= told[1] <= 15_000

        async def scenario() -> None:
            scene.start()
            await scene.use(main, in_flight=1)

        world.run(scenario())


def test_a_retry_that_would_come_too_late_is_not_waited_for() -> None:
    with World(1) as world:
        scene = Scene(world, shards=1)
        asked: list[float] = []

        def refuse(_message: Echo) -> Echoed:
            asked.append(world.loop.time())
            raise Overloaded("Not now.")

        async def main(client: AsyncClient) -> None:
            scene.shards[0].handlers[Opcode.ECHO] = refuse
            loop = asyncio.get_running_loop()
            start = loop.time()
            with pytest.raises(Overloaded, match="Not now"):
                await client.echo("shop", "q", b"x", timeout=2)
            assert 0.4 < loop.time() - start < 2
            gaps = [later - earlier for earlier, later in pairwise(asked)]
            assert len(gaps) >= 1
            for number, gap in enumerate(gaps):
                assert 0.25 * 2**number <= gap <= 0.51 * 2**number

        async def scenario() -> None:
            scene.start()
            await scene.use(main, backoff_first_seconds=0.5, retries=100)

        world.run(scenario())


def test_those_who_wait_expire_one_by_one() -> None:
    with World(1) as world:
        scene = Scene(world, shards=1)

        async def main(client: AsyncClient) -> None:
            loop = asyncio.get_running_loop()
            start = loop.time()
            first = asyncio.create_task(client.echo("shop", "q", b"x", hold=9, timeout=10))

            async def give_up_after(seconds: float) -> None:
                with pytest.raises(DeadlineExceeded, match="turn"):
                    await client.echo("shop", "q", b"x", timeout=seconds)
                assert loop.time() - start == pytest.approx(seconds, abs=0.01)

            await asyncio.sleep(0)
            await asyncio.gather(*(give_up_after(seconds) for seconds in (3, 1, 4, 2)))
            assert (await first).payload == b"x"

        async def scenario() -> None:
            scene.start()
            await scene.use(main, in_flight=1)

        world.run(scenario())


def test_closing_does_not_wait_for_a_node_that_is_silent() -> None:
    with World(1) as world:
        scene = Scene(world)

        async def main(client: AsyncClient) -> None:
            await client.covered()
            world.network.partition("node", "client")
            start = world.loop.time()
            await client.close()
            assert world.loop.time() - start == pytest.approx(FAREWELL_SECONDS, abs=0.01)
            assert client.statistics().connections == 0

        async def scenario() -> None:
            scene.start()
            await scene.use(main)

        world.run(scenario())


def test_a_full_and_silent_connection_is_asked_once_and_given_up() -> None:
    with World(1) as world:
        scene = Scene(world, shards=1)

        async def main(client: AsyncClient) -> None:
            asked = asyncio.create_task(client.echo("shop", "q", b"x", hold=30, timeout=60))
            await asyncio.sleep(1)
            world.network.partition("node", "client")
            start = world.loop.time()
            with pytest.raises(ConnectionLost, match="silent for too long"):
                await asked
            assert 5 <= world.loop.time() - start <= 7
            world.network.heal()

        async def scenario() -> None:
            scene.start()
            await scene.use(
                main, in_flight=1, retries=0, heartbeat_seconds=1, heartbeat_timeout_seconds=5
            )

        world.run(scenario())


def test_a_silent_network_is_noticed_in_time_and_healed_from() -> None:
    with World(2) as world:
        scene = Scene(world)

        async def main(client: AsyncClient) -> None:
            loop = asyncio.get_running_loop()
            await client.covered()
            world.network.partition("node", "client")
            start = loop.time()
            with pytest.raises(DeadlineExceeded):
                await client.echo("shop", "q", b"x", timeout=1)
            assert loop.time() - start == pytest.approx(1, abs=0.01)
            # It asked at once whether that connection lives, and gives it up when nothing comes.
            await asyncio.sleep(5.1)
            assert len(client.nodes()[0].covered) == 2
            await asyncio.sleep(20)
            assert client.nodes()[0].covered == ()
            start = loop.time()
            with pytest.raises(NodeUnreachable, match="has been away for 26"):
                await client.echo("shop", "q", b"x", timeout=1)
            assert loop.time() == start, "it is known to be away"
            world.network.heal()
            start = loop.time()
            while not client.nodes()[0].covered:
                await client._news()
            assert (await client.echo("shop", "q", b"x", timeout=20)).payload == b"x"
            async with asyncio.timeout(20):
                await client.covered()

        async def scenario() -> None:
            scene.start()
            await scene.use(main)

        world.run(scenario())


def test_a_shard_that_dies_is_back_in_use_soon_after_it_is_started_again() -> None:
    with World(3) as world:
        scene = Scene(world)

        async def main(client: AsyncClient) -> None:
            await client.covered()
            shard = client._router.route(("shop", "q", 1, 0)).shard
            scene.processes[shard].kill()
            world.loop.call_later(1.0, scene.start, shard)
            # The others cannot reach it either, so nothing was done, and it is tried again.
            answer = await client.echo("shop", "q", b"x", timeout=10)
            assert answer.shard == shard
            async with asyncio.timeout(5):
                await client.covered()
            statistics = client.statistics()
            assert statistics.retries > 0
            assert statistics.nodes[0].shards[shard].reconnects == 1

        async def scenario() -> None:
            scene.start()
            await scene.use(main, retries=100)

        world.run(scenario())


def test_a_thousandth_of_a_second_after_a_restart_not_everybody_is_back() -> None:
    """Fifty clients of a node that was down for a minute come back one after another."""
    clients = 50
    with World(4) as world:
        scene = Scene(world, shards=1)
        back: list[float] = []

        async def main(client: AsyncClient) -> None:
            await client.covered()
            while client.nodes()[0].covered:
                await client._news()
            await client.covered()
            back.append(world.loop.time())

        async def scenario() -> None:
            scene.start()
            using = [
                asyncio.create_task(scene.use(main, name=f"client-{number}"))
                for number in range(clients)
            ]
            await asyncio.sleep(10)
            scene.kill()
            await asyncio.sleep(60)
            scene.start()
            await asyncio.gather(*using)

        world.run(scenario())
    assert len(back) == clients
    fullest = max(sum(start <= moment < start + 0.3 for moment in back) for start in back)
    assert fullest < clients / 2, "they come back within 1.5 seconds, spread over all of them"
    assert max(back) - min(back) <= 2


@pytest.mark.parametrize("skew_seconds", [0.0, 3.0])
def test_a_gradual_change_is_followed_key_by_key(skew_seconds: float) -> None:
    with World(5) as world:
        change = {"old": 0, "new": 8, "start": EPOCH_SECONDS + 10, "end": EPOCH_SECONDS + 40}
        scene = Scene(world, shards=4, spread_batch=change)
        world.host("client").clock_skew_seconds = skew_seconds

        async def main(client: AsyncClient) -> None:
            await client.covered()
            while world.loop.time() < 60:
                for partition in range(16):
                    await client.echo("shop", "q", b"x", partition=partition)
                await asyncio.sleep(0.5)
            moved = client.statistics().misroutes
            if skew_seconds:
                # Each key is found at the old place once at most, and once again when it moves.
                assert 0 < moved <= 2 * 16
            else:
                assert moved <= 1, "only what was under way at the very moment"
            for partition in range(16):
                await client.echo("shop", "q", b"x", partition=partition)
            assert client.statistics().misroutes == moved

        async def scenario() -> None:
            scene.start()
            await scene.use(main)

        world.run(scenario())


def test_a_node_that_comes_back_with_other_shards_fails_nobody() -> None:
    with World(6) as world:
        scene = Scene(world, shards=2)

        async def main(client: AsyncClient) -> None:
            await client.covered()

            async def ask(number: int) -> None:
                await asyncio.sleep(number * 0.1)
                await client.echo("shop", "q", b"x", partition=number % 16, timeout=20)

            asked = [asyncio.create_task(ask(number)) for number in range(100)]
            await asyncio.sleep(3)
            scene.kill()
            scene.count = 4
            await asyncio.sleep(1)
            scene.start()
            await asyncio.gather(*asked)
            await client.covered()
            assert client.nodes()[0].covered == (0, 1, 2, 3)
            assert client.statistics().misroutes == 0
            assert scene.connections() == [1, 1, 1, 1]

        async def scenario() -> None:
            scene.start()
            await scene.use(main)

        world.run(scenario())


def test_after_an_outage_the_waiting_spread_over_all_shards_as_they_come_back() -> None:
    with World(7) as world:
        scene = Scene(world, shards=4)

        async def main(client: AsyncClient) -> None:
            await client.covered()
            scene.kill()
            while client.nodes()[0].covered:
                await client._news()
            before = client.statistics()
            asked = [
                asyncio.create_task(client.echo("shop", "q", b"x", partition=number, timeout=60))
                for number in range(400)
            ]
            await asyncio.sleep(3)
            assert client.statistics().waiting == 400
            scene.start()
            await asyncio.gather(*asked)
            after = client.statistics()
            # What the first connection took until the others were there is all that took a detour.
            assert after.fallbacks - before.fallbacks < 150
            assert min(shard.requests for shard in after.nodes[0].shards) > 50

        async def scenario() -> None:
            scene.start()
            await scene.use(main, in_flight=20, away_seconds=60)

        world.run(scenario())
