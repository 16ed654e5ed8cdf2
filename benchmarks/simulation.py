"""Events per second of CPU in the simulated world, as a ratio of the goal.

An event is one callback or one step of a task. The clock is CPU time, so that neighbours on the
machine count less; the best of several rounds is taken, since noise only ever slows down.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from benchmarks.measuring import Result, report
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

GOAL_EVENTS_PER_SECOND: Final = 200_000
ROUNDS: Final = 5
PORT: Final = 80


async def callbacks(world: World) -> None:
    """Timers that set timers and callbacks: what state machines do."""
    loop = world.loop
    done = loop.create_future()
    left = 100_000

    def tick() -> None:
        nonlocal left
        left -= 1
        if left > 0:
            loop.call_later(0.001, tick)
            loop.call_soon(int)
        elif not done.done():
            done.set_result(None)

    for _ in range(100):
        loop.call_soon(tick)
    await done


async def tasks(world: World) -> None:  # noqa: ARG001 - a benchmark takes a world
    """Tasks that sleep for different times."""

    async def sleeper(number: int) -> None:
        for _ in range(200):
            await asyncio.sleep(0.001 * (number % 7 + 1))

    async with asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(sleeper(number))


class Echo(asyncio.Protocol):
    """Answers what it gets."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # streams have no other

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Asker(Echo):
    """Sends the next request when the answer has come."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(bytes(64))

    def data_received(self, data: bytes) -> None:
        self.left -= 1
        if self.left:
            self.transport.write(data)
        else:
            self.done.set_result(None)


async def requests(world: World) -> None:
    """Request and response over the network, protocol to protocol."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Echo, None, PORT) as server:
            await server.serve_forever()

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        askers = [
            (await loop.create_connection(lambda: Asker(2_000), "server", PORT))[1]
            for _ in range(10)
        ]
        for asker in askers:
            await asker.done

    world.host("server").spawn(serve)
    await asyncio.sleep(1)
    clients = [world.host(f"client-{number}").spawn(ask) for number in range(3)]
    for client in clients:
        await client.wait()


def measure() -> list[Result]:
    """Events per CPU second of each kind of work, as a ratio of the goal."""
    results = []
    for kind in (callbacks, tasks, requests):
        speed = max(_measure_once(kind) for _ in range(ROUNDS))
        results.append(
            Result(
                f"simulated events a CPU second, {kind.__name__}",
                speed / GOAL_EVENTS_PER_SECOND,
                1,
                at_least=True,
                ours=f"{speed:,.0f} a second",
                peer=f"the goal is {GOAL_EVENTS_PER_SECOND:,}",
            )
        )
    return results


def _measure_once(kind: Callable[[World], Coroutine[Any, Any, None]]) -> float:
    with World(1) as world:
        started = time.process_time()
        world.run(kind(world))
        return world.loop.events / (time.process_time() - started)


if __name__ == "__main__":
    report("simulation", measure())
