"""A cluster whose nodes are processes in virtual time, with a client. A test says what the nodes
tell, and which of them are killed or frozen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import maitred
from maitred.logs import silent
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.protocol import cql
from maitred.protocol.cluster import encode_view
from maitred.protocol.frames import EVENT_STREAM, Opcode
from maitred.protocol.messages import Echo, Echoed
from maitred.settings import Node
from tests.client.clusters import ACTIVE, a_view, member
from tests.client.handlers import answer_echo

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.client.client import AsyncClient
    from maitred.membership.view import ClusterMember, ClusterView, MemberState
    from maitred.simulation.process import Process
    from maitred.simulation.world import World

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

    def freeze(self) -> None:
        """As SIGSTOP does: its connections stay open, and nothing answers."""
        for process in self.processes:
            process.pause()

    def thaw(self) -> None:
        for process in self.processes:
            process.resume()

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

    def connections(self) -> set[object]:
        """The open connections of all nodes."""
        shards = [shard for node in self.nodes for shard in node.shards.values()]
        return {connection for shard in shards for connection in shard.connections}

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
