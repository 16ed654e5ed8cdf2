"""A node that stores tasks: a process for each shard, one disk, and dead shards restart."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from maitred.node.restarts import RestartAt, RestartPolicy
from maitred.node.shard import Shard, ShardPlace
from maitred.node.vitals import Vitals
from maitred.settings import Restarts
from maitred.simulation.errors import ProcessKilled
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


class TaskNode:
    """One host, one disk, some shards."""

    def __init__(
        self,
        host: Host,
        disk: SimulatedDisk,
        settings: Node,
        log: Logger,
        shards: int,
        random: Random,
    ) -> None:
        self.host = host
        self.shards = shards
        self.running: dict[int, Shard] = {}
        """Maps a shard's number to the shard, for those that serve."""
        self.crashes = 0
        self._disk = disk
        self._settings = settings
        self._log = log
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
        """Stop, and come back with so many shards."""
        if orderly:
            processes = [process for process in self.host.processes if not process.dead]
            for stopping in self._stopping.values():
                stopping.set()
            for process in processes:
                with suppress(ProcessKilled):
                    await process.wait()
        await self.kill()
        self.shards = shards
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

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        policy = RestartPolicy(RESTARTS, loop.time())
        restarts = 0
        while True:
            process = self.host.spawn(self._main(number, restarts), name=f"shard-{number}")
            with suppress(ProcessKilled):
                await process.wait()
            self.running.pop(number, None)
            decision = policy.died(loop.time())
            assert isinstance(decision, RestartAt)  # noqa: S101 - they are never given up here
            await asyncio.sleep(decision.moment - loop.time())
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
        store = SimulatedStore(self._disk)
        self.host.at_end.append(partial(_free, shard.keep_tasks(store)))
        await shard.start()
        self.running[number] = shard
        self._stopping[number] = asyncio.Event()
        await self._stopping[number].wait()
        await shard.drain()
        await store.close()


def _free(partitions: Partitions) -> None:
    """Break the reference cycles through tasks, so that the world can be freed from memory."""
    for owned in partitions.owned.values():
        owned.partition.leave()
