"""A node that is away, in virtual time: what callers are told and when, and how soon it is used
again after its return. The node, its clients and its worker are real."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred import App
from maitred.errors import (
    ConnectionLost,
    DeadlineExceeded,
    MaitredError,
    NodeUnreachable,
    Unavailable,
    WorkerLost,
)
from maitred.logs import silent
from maitred.protocol.tasks import Add
from maitred.settings import ClientSettings, Node, QuerySettings, Queue, WorkerSettings
from maitred.simulation.scenarios.simulated_node import PORT, SimulatedNode
from maitred.simulation.store import SimulatedDisk
from maitred.simulation.world import World
from maitred.worker.process import COME_BACK_SECONDS
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from maitred.client.client import AsyncClient

AWAY_SECONDS = 2.0
SILENT_SECONDS = 9.0
"""Within this time a client that waits for an answer notices that its node hangs: twice
`silence_seconds`, and `heartbeat_timeout_seconds`."""
BACK_SECONDS = 2.0
"""Within this time after the node's return it is used again."""
QUERY_SECONDS = 30.0


class Room:
    """A node, a worker and a caller, each on a host of its own."""

    def __init__(self, world: World, shards: int, policy: str = "idle") -> None:
        self.world = world
        self.loop = world.loop
        queue = Queue(queries=QuerySettings(policy=policy))  # type: ignore[arg-type]
        self.node = SimulatedNode(
            world.host("node"),
            Node(queues={"*": queue}),
            silent(),
            shards=shards,
            random=world.random("node"),
            disk=SimulatedDisk(world.random("disk")),
        )
        self.app = App("desk", node=self._url, surroundings=world.host("caller").surroundings)
        self.gate = asyncio.Event()
        self.began = asyncio.Event()
        self.begun: list[int] = []
        """The arguments of the calls of `gated`."""

    @property
    def _url(self) -> str:
        return f"maitred://{self.node.host.name}:{PORT}"

    async def kill(self, client: AsyncClient) -> None:
        """Kill the node, and wait until the client knows."""
        await self.node.kill()
        while client.nodes()[0].covered:
            await client._news()

    def serve(self) -> None:
        """Start a worker, as `maitred worker` does."""
        host = self.world.host("worker")

        async def work() -> None:
            client = await maitred.connect(
                self._url,
                surroundings=host.surroundings,
                backoff_longest_seconds=COME_BACK_SECONDS,
            )
            served = App("desk")
            handlers = [served.handler(one)(getattr(self, one)) for one in ("price", "gated")]
            settings = WorkerSettings(host=host.address, public_without_tls=True)
            await Worker(
                client, handlers, settings, "w", host.surroundings, silent(), secret=bytes(16)
            ).run()

        host.spawn(work(), name="worker")

    async def price(self, number: int) -> int:
        return number

    async def gated(self, number: int) -> int:
        self.begun.append(number)
        self.began.set()
        await self.gate.wait()
        return number

    async def timed(self, asked: Awaitable[Any]) -> tuple[object, float]:
        """What came of it, a result or an error, and after which time."""
        start = self.loop.time()
        try:
            outcome: object = await asked
        except MaitredError as problem:
            outcome = problem
        return outcome, self.loop.time() - start

    async def recovered(self, ask: Callable[[], Awaitable[Any]]) -> float:
        """How long it takes until what is asked is answered."""
        start = self.loop.time()
        while True:
            try:
                await ask()
            except MaitredError:
                await asyncio.sleep(0.01)
            else:
                return self.loop.time() - start


def in_a_world(
    main: Callable[[Room, AsyncClient], Coroutine[Any, Any, None]],
    shards: int = 2,
    policy: str = "idle",
    **settings: object,
) -> None:
    """Run it as a caller of a node whose worker is there."""
    with World(1) as world:
        world.calm()

        async def scenario() -> None:
            room = Room(world, shards, policy)
            room.node.start()
            await asyncio.sleep(1)
            room.serve()
            host = world.host("caller")

            async def call() -> None:
                client = await maitred.connect(
                    room._url,
                    surroundings=host.surroundings,
                    **settings,  # type: ignore[arg-type]
                )
                await client.covered()
                await room.recovered(lambda: client.query("desk/price", 1, timeout=QUERY_SECONDS))
                await asyncio.sleep(1)  # the slot that the worker kept for us is free
                await main(room, client)
                await client.close()

            await host.spawn(call(), name="caller").wait()

        world.run(scenario())


def adding(client: AsyncClient, timeout: float | None = None) -> Coroutine[Any, Any, Any]:
    return client.request(Add("desk", "mails", 1, 0, 0, 0, [b"task"]), timeout)


def test_a_node_that_is_killed_is_told_apart_from_one_without_free_workers() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        await room.kill(client)
        asked = (
            client.query("desk/price", 2, timeout=QUERY_SECONDS),
            client.query("desk/price", 2, timeout=QUERY_SECONDS, idempotent=True),
            adding(client),
        )
        # At the beginning it may be a restart. Then they are told why, long before their time.
        for outcome, after in await asyncio.gather(*map(room.timed, asked)):
            assert isinstance(outcome, NodeUnreachable), outcome
            assert "connection refused" in str(outcome)
            assert after == pytest.approx(AWAY_SECONDS, abs=0.01)
        # And from then on at once.
        await asyncio.sleep(60)
        for one in (client.query("desk/price", 2), adding(client)):
            outcome, after = await room.timed(one)
            assert isinstance(outcome, NodeUnreachable), outcome
            assert "has been away for 62" in str(outcome)
            assert after == 0
        room.node.start()
        assert await room.recovered(lambda: client.query("desk/price", 2)) <= BACK_SECONDS
        assert await room.recovered(lambda: adding(client)) <= 0.1

    in_a_world(main)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_brief_restart_is_not_noticed(shards: int) -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        await room.kill(client)
        asked = [client.query("desk/price", 2, timeout=QUERY_SECONDS), adding(client)]
        running = [asyncio.ensure_future(one) for one in asked]
        await asyncio.sleep(0.4)
        room.node.start()
        assert (await asyncio.gather(*running))[0] == 2

    in_a_world(main, shards)


@pytest.mark.parametrize("seconds", [3.0, 15.0, 300.0])
def test_tasks_that_run_while_the_node_stands_still_are_not_given_out_again(seconds: float) -> None:
    async def main(room: Room, _client: AsyncClient) -> None:
        gated = room.app.handler("gated", retries=3)(room.gated)
        async with room.app:
            tasks = [await gated.enqueue(number) for number in range(3)]
            await room.began.wait()
            await asyncio.sleep(1)
            room.node.host.pause()
            await asyncio.sleep(seconds)
            room.node.host.resume()
            await asyncio.sleep(30)  # three leases
            assert room.begun == [0, 1, 2]
            room.gate.set()
            assert [await task.result(timeout=10) for task in tasks] == [0, 1, 2]
        assert room.begun == [0, 1, 2]

    in_a_world(main)


def test_a_query_whose_time_is_over_in_the_grace_is_told_the_reason() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        await room.kill(client)
        outcome, after = await room.timed(client.query("desk/price", 2, timeout=0.5))
        assert isinstance(outcome, NodeUnreachable), outcome
        assert after == pytest.approx(0.5, abs=0.01)

    in_a_world(main)


def test_no_grace_at_all() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        await room.kill(client)
        outcome, after = await room.timed(client.query("desk/price", 2))
        assert isinstance(outcome, NodeUnreachable), outcome
        assert after == 0

    in_a_world(main, away_seconds=0)


def test_a_node_that_hangs_is_found_by_heartbeats() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        room.world.network.partition("node", "caller")
        outcomes = await asyncio.gather(
            room.timed(client.query("desk/price", 2, timeout=QUERY_SECONDS)),
            room.timed(adding(client, QUERY_SECONDS)),
        )
        (asked, asked_after), (added, added_after) = outcomes
        assert isinstance(asked, NodeUnreachable), asked
        # It was sent, so nobody knows; of a query only a slot was asked for, and none was used.
        assert isinstance(added, ConnectionLost), added
        assert asked_after <= SILENT_SECONDS + 1
        assert added_after <= SILENT_SECONDS + 1
        # All shards are known to hang by now, those that were asked nothing as well.
        await asyncio.sleep(SILENT_SECONDS)
        assert not client.nodes()[0].covered
        for one in (client.query("desk/price", 2), client.echo("desk", "any", b"")):
            outcome, after = await room.timed(one)
            assert isinstance(outcome, NodeUnreachable), outcome
            assert after == 0
        room.world.network.heal()
        assert await room.recovered(lambda: client.query("desk/price", 2)) <= BACK_SECONDS

    in_a_world(main)


def test_one_shard_of_several_that_stays_away() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        lost = client._router.route(("desk", "price", 1, 0)).shard
        names = map(str, range(100))
        here = next(name for name in names if client._router.route(("n", name, 1, 0)).shard != lost)
        room.node._keepers[lost].cancel()
        (process,) = (
            one for one in room.node.host.processes if one.name == f"shard-{lost}" and not one.dead
        )
        process.kill()
        outcome, after = await room.timed(client.query("desk/price", 2, timeout=QUERY_SECONDS))
        assert isinstance(outcome, NodeUnreachable), outcome
        assert f"Shard {lost}" in str(outcome)
        assert after <= AWAY_SECONDS + ClientSettings().backoff_longest_seconds + 0.1
        await asyncio.sleep(10)
        outcome, after = await room.timed(client.query("desk/price", 2, timeout=QUERY_SECONDS))
        assert isinstance(outcome, NodeUnreachable), outcome
        assert after < 0.01, "a round trip"
        assert (await client.echo("n", here, b"x")).payload == b"x"
        room.node._keepers[lost] = asyncio.ensure_future(room.node._keep(lost))
        assert await room.recovered(lambda: client.query("desk/price", 2)) <= BACK_SECONDS

    in_a_world(main, shards=3)


def test_what_runs_while_the_node_goes_away_is_finished() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        running = asyncio.ensure_future(client.query("desk/gated", 7, timeout=600))
        await room.began.wait()
        await room.node.kill()
        await asyncio.sleep(60)
        room.gate.set()
        assert await running == 7
        room.node.start()
        assert await room.recovered(lambda: client.query("desk/price", 2)) <= BACK_SECONDS

    in_a_world(main)


def test_where_gateways_pick_the_worker_queries_go_on_for_a_while() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        await asyncio.sleep(5)  # the roster is there
        assert await client.query("desk/price", 1) == 1
        await room.node.kill()
        await asyncio.sleep(5)
        assert await client.query("desk/price", 2, timeout=1) == 2
        # Passes are good for a minute; without them the node is needed.
        await asyncio.sleep(120)
        outcome, after = await room.timed(client.query("desk/price", 2))
        assert isinstance(outcome, NodeUnreachable), outcome
        assert after == 0

    in_a_world(main, policy="adaptive")


def test_an_idempotent_query_that_was_lost_with_its_worker_is_not_said_to_be_undone() -> None:
    async def main(room: Room, client: AsyncClient) -> None:
        asked = client.query("desk/gated", 7, timeout=QUERY_SECONDS, idempotent=True)
        running = asyncio.ensure_future(room.timed(asked))
        await room.began.wait()
        await room.node.kill()
        for process in list(room.world.host("worker").processes):
            process.kill()
        outcome, _ = await running
        assert isinstance(outcome, WorkerLost), outcome
        assert "has been away" in str(outcome)

    in_a_world(main)


def test_a_task_that_is_waited_for_is_waited_for_across_an_outage() -> None:
    async def main(room: Room, _client: AsyncClient) -> None:
        room.app.handler("price")(room.price)
        handler = room.app.handlers["price"]
        task = await handler.options(delay=1).enqueue(5)
        waiting = asyncio.ensure_future(task.result(timeout=60))
        await asyncio.sleep(0.1)
        await room.node.kill()
        await asyncio.sleep(10)
        with pytest.raises(NodeUnreachable):
            await handler.enqueue(6)
        room.node.start()
        assert await waiting == 5
        await room.node.kill()
        with pytest.raises(DeadlineExceeded, match="no connection"):
            await handler.task(task.id).result(timeout=5)
        await room.app.close()

    in_a_world(main)


def before_any_connection(
    main: Callable[[Room], Coroutine[Any, Any, None]], *, reached: bool = False
) -> None:
    """Run it as a caller that never had a connection. If the node is `reached`, something listens
    there that never says a word; else the network drops everything."""
    with World(1) as world:
        world.calm()

        async def scenario() -> None:
            room = Room(world, 1)
            if reached:

                async def listen() -> None:
                    await asyncio.get_running_loop().create_server(
                        asyncio.Protocol, world.host("node").address, PORT
                    )
                    await asyncio.Event().wait()

                world.host("node").spawn(listen(), name="silent")
            else:
                room.node.start()
            await asyncio.sleep(1)
            if not reached:
                world.network.partition("node", "caller")
            await world.host("caller").spawn(main(room), name="caller").wait()

        world.run(scenario())


def connecting(room: Room) -> Coroutine[Any, Any, Any]:
    async def connect() -> None:
        await maitred.connect(room._url, surroundings=room.world.host("caller").surroundings)

    return connect()


def test_a_silent_network_is_told_before_there_was_any_connection() -> None:
    async def main(room: Room) -> None:
        price = room.app.handler("price")(room.price)
        for ask in (connecting(room), price.enqueue(1), price.query(1), price.enqueue(1)):
            outcome, after = await room.timed(ask)
            assert isinstance(outcome, NodeUnreachable), outcome
            assert "the network has not answered" in str(outcome)
            assert after == pytest.approx(AWAY_SECONDS, abs=0.01)
        room.world.network.heal()
        assert await room.recovered(lambda: price.enqueue(1)) <= BACK_SECONDS

    before_any_connection(main)


def test_a_node_that_takes_its_time_for_the_handshake_gets_it() -> None:
    async def main(room: Room) -> None:
        outcome, after = await room.timed(connecting(room))
        assert isinstance(outcome, Unavailable), outcome
        assert not isinstance(outcome, NodeUnreachable)
        assert after == pytest.approx(ClientSettings().connect_seconds, abs=0.01)

    before_any_connection(main, reached=True)
