"""Links between nodes over a network that loses what it is given, in simulated time."""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from maitred.errors import ConnectionLost, DeadlineExceeded, MaitredError, Unavailable
from maitred.logs import silent
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.node.remote_peer import (
    CONNECT_SECONDS,
    FRESH_SECONDS,
    PROBE_SECONDS,
    QUIET_SECONDS,
    WAIT_SECONDS,
)
from maitred.node.shard import SWEEP_SECONDS, Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import Echo, Echoed
from maitred.settings import Node
from maitred.simulation.faults import Faults
from maitred.simulation.world import World
from tests.node.clusters import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from msgspec import Struct

    from maitred.node.deferred_reply import DeferredReply
    from maitred.protocol.messages import AnyRequest

PORT = 4747


class Scene:
    """Nodes of one shard each, on hosts of their own."""

    def __init__(self, world: World, nodes: int) -> None:
        self.world = world
        self.hosts = [world.host(f"node{number}") for number in range(nodes)]
        self.shards: dict[int, Shard] = {}
        self._calls: dict[int, asyncio.Queue[Callable[[], object]]] = {}
        """What the process of each shard is to call: its links have to be its own."""
        self.started = asyncio.Event()
        self.holds = asyncio.Event()
        """Whether a shard has an echo of the payload `hold`, which is never answered."""

    def view(self, version: int, *active: int) -> ClusterView:
        members = tuple(
            ClusterMember(
                id=f"{number:016x}",
                node=str(UUID(int=number + 1)),
                host=host.address,
                port=PORT,
                member_port=1,
                shards=1,
                shard_ports=(PORT + 1,),
                state=MemberState.ACTIVE if number in active else MemberState.DRAINING,
                versions=(1,),
            )
            for number, host in enumerate(self.hosts)
        )
        return ClusterView(cluster="c", version=version, members=members)

    async def serve(self, number: int) -> None:
        host = self.hosts[number]
        place = ShardPlace(
            node=UUID(int=number + 1),
            number=0,
            shards=1,
            host=host.address,
            port=PORT,
            own_ports=(PORT + 1,),
            peer_paths=(),
            member=f"{number:016x}",
            cluster_secret=SECRET,
        )
        shard = Shard(place, Node(), host.surroundings, silent(), vitals=Vitals.none())
        del shard.handlers[Opcode.ECHO]

        def hold(message: Echo, held: DeferredReply) -> None:
            if message.payload == b"hold":
                self.holds.set()
            else:
                held.answer(Echoed(message.payload, number))

        shard.holders[Opcode.ECHO] = hold
        shard.renew_lease(inf)
        await shard.start()
        self.shards[number] = shard
        calls = self._calls[number] = asyncio.Queue()
        if len(self.shards) == len(self.hosts):
            self.started.set()
        while True:
            (await calls.get())()

    async def start(self) -> None:
        for number, host in enumerate(self.hosts):
            host.spawn(self.serve(number), name=f"shard-{number}")
        await self.started.wait()

    def adopt(self, view: ClusterView, *nodes: int) -> None:
        for number in nodes or range(len(self.hosts)):
            self._calls[number].put_nowait(partial(self.shards[number].adopt, view))

    async def ask(
        self, number: int, message: AnyRequest, seconds: float = 60.0
    ) -> tuple[Struct | MaitredError, float]:
        """What the shard gets for an answer, and how long it took."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Struct | MaitredError] = loop.create_future()
        before = loop.time()
        ask = partial(self.shards[number].ask, message, seconds, outcome.set_result)
        self._calls[number].put_nowait(ask)
        return await outcome, loop.time() - before


def echo(payload: bytes = b"x", queue: str = "q") -> Echo:
    return Echo("n", queue, 1, 0, 0, payload)


def played(nodes: int, play: Callable[[Scene], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    with World(seed) as world:
        scene = Scene(world, nodes)

        async def main() -> None:
            await scene.start()
            await play(scene)

        world.run(main())


def test_a_cut_is_noticed_while_a_request_is_in_flight() -> None:
    async def play(scene: Scene) -> None:
        scene.adopt(scene.view(1, 1))
        outcome, _ = await scene.ask(0, echo())
        assert outcome == Echoed(b"x", 1)
        asking = asyncio.create_task(scene.ask(0, echo(b"hold")))
        await scene.holds.wait()
        await asyncio.sleep(30)  # a long poll that is alive
        assert not asking.done()
        cut_at = asyncio.get_running_loop().time()
        scene.world.network.partition(["node0"], ["node1"])
        outcome, _ = await asking
        assert isinstance(outcome, ConnectionLost)
        noticed = asyncio.get_running_loop().time() - cut_at
        assert noticed <= QUIET_SECONDS + PROBE_SECONDS + 2 * SWEEP_SECONDS
        # What comes now has to wait for a link, and is refused: nothing was done.
        outcome, seconds = await scene.ask(0, echo())
        assert isinstance(outcome, Unavailable)
        assert WAIT_SECONDS <= seconds <= WAIT_SECONDS + CONNECT_SECONDS + 1
        outcome, seconds = await scene.ask(0, echo(), 0.5)
        assert isinstance(outcome, DeadlineExceeded)
        assert seconds <= 0.5 + 2 * SWEEP_SECONDS
        scene.world.network.heal()
        outcome, _ = await scene.ask(0, echo())
        assert outcome == Echoed(b"x", 1)

    played(2, play)


def test_a_cut_in_one_direction_is_noticed_as_well() -> None:
    async def play(scene: Scene) -> None:
        scene.adopt(scene.view(1, 1))
        await scene.ask(0, echo())
        scene.world.network.block(["node1"], ["node0"])
        outcome, seconds = await scene.ask(0, echo())
        assert isinstance(outcome, ConnectionLost)
        assert seconds <= QUIET_SECONDS + PROBE_SECONDS + 2 * SWEEP_SECONDS

    played(2, play)


def test_an_idle_link_stays_open_for_hours() -> None:
    async def play(scene: Scene) -> None:
        scene.adopt(scene.view(1, 1))
        await scene.ask(0, echo())
        (accepted,) = scene.shards[1].connections
        await asyncio.sleep(3 * 3600)
        assert list(scene.shards[1].connections) == [accepted]
        # The other end is gone: this one is closed, too.
        scene.hosts[0].crash()
        await asyncio.sleep(120)
        assert not scene.shards[1].connections

    played(2, play)


def test_requests_that_wait_behind_a_cut_go_to_the_next_owner() -> None:
    async def play(scene: Scene) -> None:
        scene.adopt(scene.view(1, 1))
        scene.world.network.partition(["node0", "node2"], ["node1"])
        asking = asyncio.create_task(scene.ask(0, echo()))
        await asyncio.sleep(0.5)
        scene.adopt(scene.view(2, 2), 0, 2)
        outcome, seconds = await asking
        assert outcome == Echoed(b"x", 2)
        assert seconds < 0.6

    played(3, play)


@pytest.mark.parametrize("moves", [True, False])
def test_a_request_is_not_sent_on_a_link_that_gives_no_sign_of_life(*, moves: bool) -> None:
    """A frozen node would keep it. A client may know the next view sooner than this node."""

    async def play(scene: Scene) -> None:
        scene.adopt(scene.view(1, 1))
        await scene.ask(0, echo())  # there is a link
        await asyncio.sleep(FRESH_SECONDS)
        (accepted,) = scene.shards[1].connections
        scene.world.network.partition(["node0", "node2"], ["node1"])
        asking = [asyncio.create_task(scene.ask(0, echo(b"%d" % one))) for one in range(5)]
        await asyncio.sleep(0.5)
        assert not any(one.done() for one in asking)
        if moves:
            scene.adopt(scene.view(2, 2), 0, 2)
        else:
            scene.world.network.heal()
        for number, one in enumerate(asking):
            outcome, seconds = await one
            assert outcome == Echoed(b"%d" % number, 2 if moves else 1)
            assert seconds < (0.6 if moves else PROBE_SECONDS)
        if not moves:
            assert list(scene.shards[1].connections) == [accepted]

    played(3, play)


def test_requests_that_wait_for_a_sign_of_life_are_refused_as_not_done() -> None:
    async def play(scene: Scene) -> None:
        scene.adopt(scene.view(1, 1))
        await scene.ask(0, echo())
        await asyncio.sleep(FRESH_SECONDS)
        scene.world.network.partition(["node0"], ["node1"])
        outcome, seconds = await scene.ask(0, echo())
        assert type(outcome) is Unavailable
        assert seconds <= PROBE_SECONDS + CONNECT_SECONDS + 1
        scene.world.network.heal()
        outcome, _ = await scene.ask(0, echo())
        assert outcome == Echoed(b"x", 1)

    played(2, play)


@pytest.mark.parametrize("seed", range(20))
def test_every_request_gets_one_answer(seed: int) -> None:
    """Views change, and reach the nodes in any order; links break. In the end all agree."""
    with World(seed, faults=Faults.stormy()) as world:
        scene = Scene(world, 3)
        random = world.random("play")

        async def main() -> None:
            await scene.start()
            scene.adopt(scene.view(1, 0, 1, 2))
            asked = []
            version = 1
            for number in range(150):
                if random.random() < 0.1:
                    version += 1
                    active = random.sample(range(3), random.randint(1, 3))
                    view = scene.view(version, *active)
                    for node in range(3):
                        delay = random.uniform(0.0, 0.5)
                        loop = asyncio.get_running_loop()
                        loop.call_later(delay, scene.adopt, view, node)
                if random.random() < 0.05:
                    one, other = random.sample(range(3), 2)
                    world.network.partition([f"node{one}"], [f"node{other}"])
                    asyncio.get_running_loop().call_later(
                        random.uniform(0.0, 4.0), world.network.heal
                    )
                message = echo(b"%d" % number, f"q{random.randrange(20)}")
                asked.append(asyncio.create_task(scene.ask(random.randrange(3), message, 8.0)))
                await asyncio.sleep(random.uniform(0.0, 0.1))
            outcomes = [outcome for outcome, _ in await asyncio.gather(*asked)]
            good = [one for one in outcomes if isinstance(one, Echoed)]
            assert len(good) > 50
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, Echoed):
                    assert outcome.payload == b"%d" % number
                else:
                    assert isinstance(outcome, Unavailable | ConnectionLost | DeadlineExceeded)
            world.calm()
            world.network.heal()
            await asyncio.sleep(10)
            for number in range(30):
                asks = random.randrange(3)
                outcome, _ = await scene.ask(asks, echo(b"end", f"q{number}"))
                assert isinstance(outcome, Echoed), outcome
                owner = scene.shards[outcome.shard]
                assert owner.owner_of(echo(queue=f"q{number}")) == 0  # it answered as the owner

        world.run(main())
