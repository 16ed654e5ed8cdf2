"""Kill processes, crash hosts and partition the network, at random but repeatably."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from random import Random

    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process
    from maitred.simulation.world import World


async def now_and_then(
    random: Random, gap_seconds: float, seconds: float, act: Callable[[], Awaitable[None]]
) -> None:
    """Act at random moments, on average once in `gap_seconds`, until `seconds` have passed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(random.expovariate(1.0 / gap_seconds))
        await act()


class Chaos:
    """Injects faults at random moments, and undoes each of them later."""

    interval_mean_seconds = 0.7
    outage_max_seconds = 4.0

    def __init__(
        self,
        world: World,
        hosts: Sequence[Host],
        start: Callable[[Host], Coroutine[Any, Any, None]],
    ) -> None:
        self._world = world
        self._hosts = hosts
        self._start = start
        self._random: Random = world.random("chaos")
        self._processes: dict[str, Process] = {}
        for host in hosts:
            self._spawn(host)

    async def rage(self, duration_seconds: float) -> None:
        """Go on for that long, then repair everything."""
        actions: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._kill,
            self._crash,
            self._partition,
            self._partition,
            self._one_way,
            self._clock_jump,
        ]
        async with asyncio.TaskGroup() as group:

            async def begin() -> None:
                group.create_task(self._random.choice(actions)())

            await now_and_then(self._random, self.interval_mean_seconds, duration_seconds, begin)
        for host in self._hosts:
            self._spawn(host)

    async def _outage(self) -> None:
        await asyncio.sleep(self._random.random() * self.outage_max_seconds)

    async def _kill(self) -> None:
        host = self._random.choice(self._hosts)
        self._processes[host.name].kill()
        await self._outage()
        self._spawn(host)

    async def _crash(self) -> None:
        host = self._random.choice(self._hosts)
        host.crash()
        await self._outage()
        self._spawn(host)

    async def _partition(self) -> None:
        cut_off = self._random.sample(self._hosts, self._random.randint(1, len(self._hosts) - 1))
        others = [host for host in self._hosts if host not in cut_off]
        self._world.network.partition(cut_off, others)
        await self._outage()
        self._world.network.heal()

    async def _one_way(self) -> None:
        source, target = self._random.sample(self._hosts, 2)
        self._world.network.block(source, target)
        await self._outage()
        self._world.network.heal()

    async def _clock_jump(self) -> None:
        host = self._random.choice(self._hosts)
        host.clock_skew_seconds += self._random.uniform(-3600.0, 3600.0)

    def _spawn(self, host: Host) -> None:
        process = self._processes.get(host.name)
        if process is None or process.dead:
            self._processes[host.name] = host.spawn(self._start(host), name=host.name)
