"""A simulated node: a host with a process for each shard, which is restarted when it dies."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from maitred.node.restarts import RestartPolicy
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.settings import Restarts
from maitred.simulation.errors import ProcessKilled, Violation
from maitred.simulation.store import SimulatedStore

if TYPE_CHECKING:
    from random import Random

    from maitred.logs import Logger
    from maitred.node.partitions import Partitions
    from maitred.settings import Node
    from maitred.simulation.hosts import Host
    from maitred.simulation.store import SimulatedDisk

PORT: Final = 4_747
RESTARTS: Final = Restarts(give_up_after=1_000, longest_seconds=1.0)


class SimulatedNode:
    """Runs the real shards of one node; the restart policy is the supervisor's own."""

    def __init__(
        self,
        host: Host,
        settings: Node,
        log: Logger,
        *,
        shards: int,
        random: Random,
        disk: SimulatedDisk | None = None,
        restarts: Restarts = RESTARTS,
    ) -> None:
        """Without a disk the shards keep no tasks."""
        self.host = host
        self.shards = shards
        self.running: dict[int, Shard] = {}
        """Maps a shard's number to the shard, for those that serve."""
        self.crashes = 0
        self.lives = 0
        """Rises before and after the node is started with another number of shards."""
        self._disk = disk
        self._settings = settings
        self._log = log
        self._restarts = restarts
        self._identity = UUID(int=random.getrandbits(128))
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping: dict[int, asyncio.Event] = {}

    def start(self) -> None:
        """Start all shards."""
        self._keepers = [
            asyncio.get_running_loop().create_task(self._keep(number))
            for number in range(self.shards)
        ]

    async def restart(self, shards: int, *, orderly: bool) -> None:
        """Stop the node, and start it with this many shards."""
        self.lives += 1
        if orderly:
            processes = [process for process in self.host.processes if not process.dead]
            for stopping in self._stopping.values():
                stopping.set()
            for process in processes:
                with suppress(ProcessKilled):
                    await process.wait()
        await self.kill()
        self.shards = shards
        self.lives += 1
        self.start()

    async def kill(self) -> None:
        """SIGKILL for the supervisor and every shard: the node stays away until it is started."""
        self.crashes += any(not process.dead for process in self.host.processes)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for process in list(self.host.processes):
            process.kill()
        self.running.clear()

    def kill_one(self, random: Random) -> None:
        """SIGKILL for one of the shards that run."""
        alive = [process for process in self.host.processes if not process.dead]
        if alive:
            self.crashes += 1
            random.choice(alive).kill()

    def crash(self) -> None:
        """Let the host lose power."""
        self.crashes += 1
        self.host.crash()

    def partitions(self) -> list[Partitions]:
        """Return the partitions of each shard that serves."""
        return [
            shard._partitions  # noqa: SLF001 - a look from outside of the world
            for shard in self.running.values()
            if shard._partitions is not None  # noqa: SLF001
        ]

    def held_by_shards(self) -> list[object]:
        """Return what shards still hold of clients: connections, requests and bytes."""
        held = {
            number: (
                shard.client_connections,
                shard.in_flight,
                shard.partial_bytes,
                shard.under_way_bytes,
                shard.unsent_bytes,
            )
            for number, shard in self.running.items()
        }
        return [(self.host.name, number, counts) for number, counts in held.items() if any(counts)]

    def check_errors(self) -> None:
        """Raise `Violation` if a shard has answered with an error that it should never need."""
        for shard in self.running.values():
            bad = {"internal-error", "protocol-violation"} & set(shard.errors)
            if bad:
                raise Violation(f"Shard {shard.number} of {self.host.name} sent {sorted(bad)}.")

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        policy = RestartPolicy(self._restarts, loop.time())
        restarts = 0
        while True:
            process = self.host.spawn(self._main(number, restarts), name=f"shard-{number}")
            with suppress(ProcessKilled):
                await process.wait()
            self.running.pop(number, None)
            decision = policy.died(loop.time())
            assert isinstance(decision, float)  # noqa: S101 - the policy never gives up
            await asyncio.sleep(decision - loop.time())
            restarts += 1

    async def _main(self, number: int, restarts: int) -> None:
        place = ShardPlace(
            node=self._identity,
            number=number,
            shards=self.shards,
            host=self.host.address,
            port=PORT,
            own_ports=tuple(PORT + 1 + shard for shard in range(self.shards)),
            peer_paths=tuple(f"/run/shard-{shard}" for shard in range(self.shards)),
            restarts=restarts,
        )
        shard = Shard(
            place, self._settings, self.host.surroundings, self._log, vitals=Vitals.none()
        )
        store = None
        if self._disk is not None:
            store = SimulatedStore(self._disk)
            self.host.at_end.append(partial(free_partitions, shard.keep_tasks(store)))
        await shard.start()
        self.running[number] = shard
        self._stopping[number] = asyncio.Event()
        await self._stopping[number].wait()
        await shard.drain()
        if store is not None:
            await store.close()


def free_partitions(partitions: Partitions) -> None:
    """Break the reference cycles through tasks, so that the world can be freed from memory."""
    for owned in partitions.owned.values():
        owned.partition.leave()
