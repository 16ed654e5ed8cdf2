"""Real shards, real clients: cuts, half-open links, dying shards, nodes that come back changed.

What must hold: every request ends, with its own answer or a typed error, within its time; nothing
is answered twice, and nothing makes no sense to either end; an answer comes from the shard that
owns the partition. When it is calm, every client soon has a connection to every shard again, its
requests go straight to their shards, and when the clients have left nothing of them stays behind.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

from maitred import logs
from maitred.client.pending_client import PendingClient
from maitred.errors import MaitredError
from maitred.routing.homes import Homes
from maitred.settings import Limits, Node, Restarts
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.chaos import now_and_then
from maitred.simulation.scenarios.record import STAYED_BEHIND, until_nothing
from maitred.simulation.scenarios.simulated_node import PORT, SimulatedNode

if TYPE_CHECKING:
    from maitred.client.client import AsyncClient
    from maitred.simulation.hosts import Host
    from maitred.simulation.world import World

SHARDS_MAX: Final = 4
CLIENTS: Final = 2
WORKERS: Final = 4
PAUSE_SECONDS: Final = 0.4
"""Longest pause between two requests. What a run finds depends on its storm; what it costs, on the
number of requests."""
STORM_SECONDS: Final = 13.0
GAP_SECONDS: Final = 0.5
"""Mean time between two troubles."""
DENSITY: Final = 2.0
"""Cuts and half-open links are this many times as probable as drawn, since the storm is short."""
OUTAGE_SECONDS: Final = 3.0
"""Longest time that a path is closed: all but the most patient requests end before."""
RECOVERY_SECONDS: Final = 40.0
"""The longest time from the end of the storm until every client is connected to every shard.
Heartbeats detect half-open links, blocked ports are tried again, and attempts back off: the
settings below add up to half of this."""

HALF_OPEN_SECONDS: Final = 10.0
"""Within this time heartbeats have detected every half-open link: a heartbeat, its timeout, and the
time that a healed path takes to send again."""

LARGE_BYTES: Final = 5_000
"""The size of a large payload. On the slowest simulated path (1 KiB a round trip of 0.1 s) it takes
half a second each way; a heartbeat behind it must not look like a dead link."""

SLACK_SECONDS: Final = 0.01
"""How long after the deadline an error may come: timers are as exact as their loop."""

PARTITIONS: Final = 16

SETTINGS: Final = Node(
    limits=Limits(handshake_seconds=4.0, frame_seconds=6.0, idle_seconds=8.0),
    drain_seconds=2.0,
)
RESTARTS: Final = Restarts(give_up_after=1_000)
CLIENT: Final = (
    "connect_seconds=3&heartbeat_seconds=2&heartbeat_timeout_seconds=4"
    "&backoff_longest_seconds=2&port_blocked_seconds=5"
)


class Storm:
    """Injects faults into nodes and paths at random moments, and undoes them later."""

    def __init__(self, world: World, nodes: list[SimulatedNode], clients: list[Host]) -> None:
        self._world = world
        self._nodes = nodes
        self._clients = clients
        self._random = world.random("storm")

    async def rage(self, seconds: float) -> None:
        """Cause trouble for this many seconds."""
        actions = [self._kill, self._kill, self._crash, self._partition, self._block]
        if self._random.random() < 0.5:
            actions.append(self._resize)

        async def act() -> None:
            await self._random.choice(actions)(self._random.choice(self._nodes))

        await now_and_then(self._random, GAP_SECONDS, seconds, act)

    async def _outage(self) -> None:
        await asyncio.sleep(self._random.random() * OUTAGE_SECONDS)

    async def _kill(self, node: SimulatedNode) -> None:
        node.kill_one(self._random)

    async def _crash(self, node: SimulatedNode) -> None:
        node.host.crash()

    async def _partition(self, node: SimulatedNode) -> None:
        self._world.network.partition(node.host, self._random.choice(self._clients))
        await self._outage()
        self._world.network.heal()

    async def _block(self, node: SimulatedNode) -> None:
        ends = [node.host, self._random.choice(self._clients)]
        self._random.shuffle(ends)
        self._world.network.block(*ends)
        await self._outage()
        self._world.network.heal()

    async def _resize(self, node: SimulatedNode) -> None:
        await node.restart(self._random.randint(1, SHARDS_MAX), orderly=False)


@cache
def _homes(shards: int) -> Homes:
    """Return the homes of partitions on a node with this many shards."""
    return Homes(shards)


class SimulatedUser:
    """A process that makes requests, through the real client."""

    def __init__(self, host: Host, nodes: list[SimulatedNode], calm: asyncio.Event) -> None:
        self._host = host
        self._nodes = nodes
        self._calm = calm
        self._random = host.surroundings.random
        self._number = 0
        self.answered = 0

    async def main(self) -> None:
        """Connect, ask while the storm lasts, then see whether everything is well again."""
        client = await self._connect()
        await asyncio.gather(*[self._work(client) for _ in range(WORKERS)])
        await self._recover(client)
        before = client.statistics()
        for partition in range(PARTITIONS):
            await self._ask(client, seconds=5.0, must_answer=partition)
        after = client.statistics()
        if (after.misroutes, after.fallbacks) != (before.misroutes, before.fallbacks):
            raise Violation(f"It is calm, and requests went astray: {before}, then {after}.")
        if after.violations:
            raise Violation(f"The client met {after.violations} answers that made no sense.")
        await client.close()

    async def _connect(self) -> AsyncClient:
        url = "maitred://" + ",".join(f"{node.host.address}:{PORT}" for node in self._nodes)
        while True:
            connecting = PendingClient(f"{url}?{CLIENT}", surroundings=self._host.surroundings)
            with suppress(MaitredError):
                return await connecting
            await asyncio.sleep(0.5)

    async def _work(self, client: AsyncClient) -> None:
        random = self._random
        while not self._calm.is_set():
            seconds = random.choice((0.05, 0.5, 3.0))
            if random.random() < 0.1:
                await self._ask_and_leave(client, seconds)
            else:
                await self._ask(client, seconds)
            await asyncio.sleep(random.random() * PAUSE_SECONDS)

    async def _ask_and_leave(self, client: AsyncClient, seconds: float) -> None:
        asking = asyncio.ensure_future(self._ask(client, seconds))
        await asyncio.sleep(self._random.random() * seconds)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking

    async def _ask(
        self, client: AsyncClient, seconds: float, *, must_answer: int | None = None
    ) -> None:
        """Ask any partition; or this one, which must answer."""
        random = self._random
        loop = asyncio.get_running_loop()
        self._number += 1
        payload = f"{self._host.name} {self._number}".encode() + b"." * random.choice(
            (0, LARGE_BYTES)
        )
        partition = random.randrange(PARTITIONS) if must_answer is None else must_answer
        hold = 0.0 if must_answer is not None else random.choice((0.0, 0.0, 0.02, 1.0))
        lives = [node.lives for node in self._nodes]
        started = loop.time()
        try:
            answer = await client.echo(
                "shop", "orders", payload, partition=partition, hold=hold, timeout=seconds
            )
        except MaitredError as problem:
            if must_answer is not None:
                raise Violation(f"It is calm, and a request failed: {problem!r}") from problem
        else:
            self.answered += 1
            if answer.payload != payload:
                raise Violation("A request got the answer to another one.")
            if lives == [node.lives for node in self._nodes]:
                self._check_owner(partition, answer.shard)
        if loop.time() - started > seconds + SLACK_SECONDS:
            raise Violation(f"A request of {seconds} s ended after {loop.time() - started:.3f} s.")

    def _check_owner(self, partition: int, shard: int) -> None:
        owners = [
            _homes(node.shards).home(("shop", "orders", 1, partition), 0.0).shard
            for node in self._nodes
        ]
        if shard not in owners:
            raise Violation(f"Partition {partition} was served by {shard}, owned by {owners}.")

    async def _recover(self, client: AsyncClient) -> None:
        await asyncio.sleep(HALF_OPEN_SECONDS)
        problem = f"After {RECOVERY_SECONDS} s of calm not every shard has a connection"
        seconds = RECOVERY_SECONDS - HALF_OPEN_SECONDS
        await until_nothing(
            lambda: None if self._covered(client) else client.nodes(), problem, seconds, every=0.5
        )

    def _covered(self, client: AsyncClient) -> bool:
        return all(
            seen.shards == node.shards and set(seen.covered) == set(range(node.shards))
            for seen, node in zip(client.nodes(), self._nodes, strict=True)
        )


async def nodes(world: World) -> None:
    """Run the scenario of nodes."""
    random = world.random("nodes")
    world.network.faults = world.network.faults.denser(DENSITY)
    fleet = [
        SimulatedNode(
            world.host(f"node-{number}"),
            SETTINGS,
            logs.silent(),
            shards=random.randint(1, SHARDS_MAX),
            random=random,
            restarts=RESTARTS,
        )
        for number in range(random.randint(1, 2))
    ]
    for node in fleet:
        node.start()
    calm = asyncio.Event()
    hosts = [world.host(f"client-{number}") for number in range(CLIENTS)]
    users = [SimulatedUser(host, fleet, calm) for host in hosts]
    processes = [
        host.spawn(user.main(), name=host.name) for host, user in zip(hosts, users, strict=True)
    ]
    await Storm(world, fleet, hosts).rage(STORM_SECONDS)
    world.calm()
    for node in fleet:
        if not node.host.up:  # its keepers are about to start it again
            await asyncio.sleep(RESTARTS.longest_seconds)
    calm.set()
    for process in processes:
        await process.wait()
    if not any(user.answered for user in users):
        raise Violation("No request was ever answered.")
    # Shards notice half-open connections by their idleness.
    await until_nothing(
        lambda: [left for node in fleet for left in node.held_by_shards()],
        STAYED_BEHIND,
        2 * SETTINGS.limits.idle_seconds + 5.0,
        every=0.5,
    )
    for node in fleet:
        node.check_errors()
