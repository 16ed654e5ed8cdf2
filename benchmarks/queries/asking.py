"""What runs in a client's process: it asks what it is told to ask, and says how that went.

The driver writes orders to stdin, one JSON object a line, and each is answered by a line. This is
imported in the environments of the peers, so it needs nothing but uvloop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

PAYLOAD = "x" * 100


@dataclass(frozen=True)
class Load:
    """What one order came to."""

    seconds: float
    latencies: list[float]
    """Seconds of each that was answered."""


class Client(ABC):
    """One peer's."""

    @abstractmethod
    async def open(self, address: str) -> None:
        """Connect to a server that listens."""

    async def load(self, in_flight: int, seconds: float) -> Load:
        """So many callers, each of which asks again when it was answered."""
        latencies: list[float] = []
        now = time.perf_counter
        ask = self.ask
        started = now()
        until = started + seconds

        async def caller() -> None:
            asked = now()
            while asked < until:
                await ask()
                answered = now()
                latencies.append(answered - asked)
                asked = answered

        await asyncio.gather(*[caller() for _ in range(in_flight)])
        return Load(now() - started, latencies)

    async def ask(self) -> None:
        """One echo."""
        raise NotImplementedError

    async def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Anything else that this client can be told to do."""
        raise NotImplementedError(order)

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def serve(client: Client, address: str) -> None:
    """Open, then follow orders until there are no more."""
    loop = asyncio.get_running_loop()
    await client.open(address)
    print(json.dumps({"open": True}), flush=True)
    warm = False
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if "in_flight" in order:
            if not warm:
                await client.load(1, 0.1)
                warm = True
            before = time.process_time()
            load = await client.load(order["in_flight"], order["seconds"])
            spent = time.process_time() - before
            ordered = sorted(load.latencies)
            answer = {
                "answers": len(ordered),
                "rate": len(ordered) / load.seconds,
                "p50 us": percentile(ordered, 0.5) * 1e6,
                "p99 us": percentile(ordered, 0.99) * 1e6,
                "client cpu us": spent / len(ordered) * 1e6,
            }
        else:
            answer = await client.do(order)
        print(json.dumps(answer), flush=True)
    with suppress(Exception):
        await client.close()


def run(client: Client) -> None:
    """`python -m benchmarks.queries.peers.<name> client ADDRESS`."""
    import uvloop

    uvloop.run(serve(client, sys.argv[2]))
