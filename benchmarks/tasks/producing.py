"""The one producer process: `python -m benchmarks.tasks.producing <peer>`, with orders on stdin.

It is started with the peer's own interpreter, so nothing but the standard library is imported here.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.tasks.recording import payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

URL = "TASKS_BENCHMARK_URL"
"""The variable of the environment that says where the server is."""

IN_FLIGHT = 64
BATCH = 1_000
"""Payloads that are made, and handed to `enqueue_many`, at once."""


class Producer(Protocol):
    """A peer's client. What it has to offer for many at once, it says itself."""

    many: str
    """In a word or two, how `enqueue_many` goes about it."""

    async def open(self, url: str) -> None: ...

    async def enqueue(self, payload: str) -> None:
        """Return when the server has taken it."""

    async def enqueue_many(self, payloads: list[str]) -> None:
        """As fast as the library sensibly can; return when the server has taken all of them."""

    async def close(self) -> None: ...


def server_url() -> str:
    return os.environ[URL]


async def in_flight(
    enqueue: Callable[[str], Awaitable[object]], payloads: list[str], most: int = IN_FLIGHT
) -> None:
    """For a library that has no way of its own: so many calls at a time."""
    left = iter(payloads)

    async def work() -> None:
        for each in left:
            await enqueue(each)

    await asyncio.gather(*[work() for _ in range(most)])


async def burst(
    producer: Producer, first: int, most: int, seconds: float, *, each: bool
) -> dict[str, float]:
    """As many as there is time for, as fast as it goes."""
    done = 0
    cpu, started = time.process_time(), time.monotonic()
    while done < most and time.monotonic() - started < seconds:
        size = min(BATCH, most - done)
        payloads = [payload(first + done + number) for number in range(size)]
        if each:
            await in_flight(producer.enqueue, payloads)
        else:
            await producer.enqueue_many(payloads)
        done += size
    return {
        "tasks": done,
        "seconds": time.monotonic() - started,
        "cpu": time.process_time() - cpu,
    }


async def paced(producer: Producer, first: int, tasks: int, rate: float) -> dict[str, float]:
    """One at a time, at an even pace."""
    cpu, started = time.process_time(), time.monotonic()
    for number in range(tasks):
        await asyncio.sleep(started + number / rate - time.monotonic())
        await producer.enqueue(payload(first + number))
    return {
        "tasks": tasks,
        "seconds": time.monotonic() - started,
        "cpu": time.process_time() - cpu,
    }


async def obey(name: str) -> None:
    producer: Producer = importlib.import_module(f"benchmarks.tasks.peers.{name}").Producer()
    await producer.open(server_url())
    _say({"many": producer.many})
    loop = asyncio.get_running_loop()
    orders: dict[str, Callable[..., Awaitable[dict[str, float]]]] = {"burst": burst, "paced": paced}
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order: dict[str, Any] = json.loads(line)
        _say(await orders[order.pop("do")](producer, **order))
    await producer.close()


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(obey(sys.argv[1]))
    else:
        uvloop.run(obey(sys.argv[1]))
