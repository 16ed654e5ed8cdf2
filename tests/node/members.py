"""Shards of several members of a cluster in simulated time, joined by a network of function calls.

The shards are real, with a simulated store; requests between them take a millisecond each way. A
shard of another member is found by the view that a test has the shards adopt.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from maitred.errors import DeadlineExceeded, MaitredError, NotOwner
from maitred.membership.homes import ClusterHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.node.deferred_reply import HeldHere
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.protocol.description import VERSIONS
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import PartitionRequest
from maitred.settings import Node, Queue
from maitred.simulation.soak import LIMITS
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from maitred.simulation.world import World
from maitred.store.interface import COMMAND_SECONDS
from tests.node.in_process import RecordedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from msgspec import Struct

    from maitred.node.partitions import Partitions
    from maitred.node.peer_calls import Done, ShardQuestion
    from maitred.protocol.messages import AnyRequest

LATENCY_SECONDS = 0.001


class Call:
    """A request on its way to a shard, which may be that of another member."""

    def __init__(self, town: Town, target: TownShard, message: AnyRequest, done: Done) -> None:
        self._town = town
        self._target = target
        self._message = message
        self._done = done
        self._held: HeldHere | None = None
        self._over = False
        town.loop.call_later(LATENCY_SECONDS, self._arrives)

    def _arrives(self) -> None:
        target, message = self._target, self._message
        if self._over or target.is_frozen:
            return
        is_owner = message.opcode == Opcode.HAND_OVER or target.owner_of(message) == target.number

        def hold() -> None:
            if not is_owner:
                raise NotOwner("By its view another shard owns it.")
            target.holders[message.opcode](message, held)

        held = HeldHere(self._town.loop, hold, self._answered)
        self._held = held

    def _answered(self, outcome: Struct | MaitredError) -> None:
        if not self._target.is_frozen:
            self._town.loop.call_later(LATENCY_SECONDS, self.end, outcome)

    def end(self, outcome: Struct | MaitredError) -> None:
        if not self._over:
            self._over = True
            self._done(outcome)

    def give_up(self) -> None:
        self._over = True
        if self._held is not None:
            self._held.give_up()

    def recall(self) -> None:
        if self._held is not None:
            self._held.recall()


class TownShard(Shard):
    """A shard whose network is the town."""

    def __init__(self, town: Town, member: ClusterMember, number: int) -> None:
        place = ShardPlace(
            node=UUID(int=int(member.id, 16)),
            number=number,
            shards=member.shards,
            host=member.host,
            port=member.port,
            own_ports=member.shard_ports,
            peer_paths=(),
            member=member.id,
        )
        host = town.world.host(member.host)
        self.town = town
        self.is_frozen = False
        self._lasts = True
        self.recorded = RecordedLog()
        super().__init__(
            place, town.settings, host.surroundings, self.recorded, vitals=Vitals.none()
        )
        owner = f"{member.id}/{number}"
        self.store = SimulatedStore(town.disk, owner, answer_seconds=COMMAND_SECONDS)
        self.partitions: Partitions = self.keep_tasks(self.store)

    @property
    def lasts(self) -> bool:
        """Whether the node's lease lasts."""
        return self._lasts

    @lasts.setter
    def lasts(self, lasts: bool) -> None:
        self.membership.lapses += lasts and not self._lasts
        self._lasts = lasts

    def trusted(self) -> bool:
        return self.lasts

    def ask(
        self, message: AnyRequest, seconds: float, done: Done, owner: int | None = None
    ) -> ShardQuestion:
        number = self.owner_of(message) if owner is None else owner
        message.timeout_milliseconds = int(seconds * 1000)
        call = Call(self.town, self.town.shards[self.owners.owner(number)], message, done)
        late = DeadlineExceeded("The other shard did not answer in time.")
        self.loop.call_later(seconds, call.end, late)
        return call

    @property
    def holds(self) -> list[tuple[str, int]]:
        """The partitions that are loaded."""
        return [(key.queue, key.partition) for key in self.partitions.owned]


class Town:
    """A cluster of members, a client of all of them, and their store."""

    def __init__(self, world: World, names: str, shards: int, queue: dict[str, Any]) -> None:
        self.world = world
        self.loop = asyncio.get_running_loop()
        self.settings = Node(queues={"*": Queue(**{"recovery_seconds": 3.0, **queue})})
        self.disk = SimulatedDisk(world.random("disk"))
        self.shards: dict[tuple[str, int], TownShard] = {}
        self.members = {
            name: ClusterMember(
                id=f"{at:016x}",
                node=str(UUID(int=at)),
                host=name,
                port=4747,
                member_port=4746,
                shards=shards,
                shard_ports=tuple(range(5000, 5000 + shards)),
                state=MemberState.ACTIVE,
                versions=VERSIONS,
            )
            for at, name in enumerate(names, 1)
        }
        self.version = 0
        self.view: ClusterView | None = None
        for member in self.members.values():
            for number in range(shards):
                self.shards[member.id, number] = TownShard(self, member, number)

    def states(self, *, told: str | None = None, spread_batch: str = "0", **states: str) -> None:
        """Change the states of members; tell all shards, or those of the members that are named.
        A dead member is not told."""
        for name, state in states.items():
            member = self.members[name]
            self.members[name] = _in_state(member, MemberState(state))
        self.version += 1
        alive = tuple(one for one in self.members.values() if one.state is not MemberState.DEAD)
        self.view = ClusterView(
            cluster="town", version=self.version, members=alive, spread_batch=spread_batch
        )
        for name in told or self.members:
            if self.members[name].state is not MemberState.DEAD:
                for shard in self.of(name):
                    shard.adopt(self.view)

    def of(self, name: str) -> list[TownShard]:
        """Return the shards of a member."""
        id_ = self.members[name].id
        return [shard for (owner, _), shard in self.shards.items() if owner == id_]

    def owner(self, queue: str, partition: int = 0) -> TownShard:
        """Return the shard that owns the partition by the last view."""
        assert self.view is not None
        home = ClusterHomes(self.view).home(("shop", queue, 1, partition), self.wall_clock())
        return self.shards[home.member.id, home.shard]

    def wall_clock(self) -> float:
        return self.world.host("client").wall_clock()

    def queue_of(self, name: str) -> str:
        """Return a queue whose root is that member's."""
        found = (f"q{number}" for number in range(10_000))
        return next(one for one in found if self.owner(one).place.host == name)

    def begin(
        self, message: AnyRequest, at: TownShard | None = None, seconds: float = 20.0
    ) -> asyncio.Future[Any]:
        """Send a request to its owner, or to that shard; the future gets the answer or error."""
        assert isinstance(message, PartitionRequest)
        shard = at or self.owner(message.queue, message.partition)
        future: asyncio.Future[Any] = self.loop.create_future()

        def done(outcome: Struct | MaitredError) -> None:
            if not future.done():
                future.set_result(outcome)

        message.timeout_milliseconds = int(seconds * 1000)
        Call(self, shard, message, done)
        return future

    async def ask(self, message: AnyRequest, at: TownShard | None = None) -> Any:  # noqa: ANN401
        async with asyncio.timeout(20.0):
            outcome = await self.begin(message, at)
        if isinstance(outcome, MaitredError):
            raise outcome
        return outcome

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Look every millisecond at first, and less often when it takes long."""
        began = self.loop.time()
        while not condition():
            waited = self.loop.time() - began
            assert waited < seconds, "it never happened"
            await asyncio.sleep(min(max(0.001, waited / 100), 0.01))

    def kill(self, name: str) -> None:
        """Stop all shards of a member at once."""
        for shard in self.of(name):
            shard.is_frozen = True
            shard.close()


def _in_state(member: ClusterMember, state: MemberState) -> ClusterMember:
    fields = {name: getattr(member, name) for name in member.__struct_fields__}
    return ClusterMember(**{**fields, "state": state})


def in_town(
    main: Callable[[Town], Coroutine[Any, Any, None]],
    *,
    names: str = "abc",
    shards: int = 1,
    **queue: Any,  # noqa: ANN401 - settings of all queues
) -> None:
    """Run a test in a cluster; the first view has all members active."""
    with World(1, limits=LIMITS) as world:
        world.calm()

        async def run() -> None:
            town = Town(world, names, shards, queue)
            town.states()
            try:
                await main(town)
            finally:
                for shard in town.shards.values():
                    shard.close()
                    for owned in shard.partitions.owned.values():
                        owned.partition.leave()

        world.run(run())
