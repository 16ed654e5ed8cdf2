"""maitred: the handlers, and a native client, which does the gateway's part itself.

`maitred worker benchmarks.queries.peers.maitred:app` serves them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator  # noqa: TC003 - a handler's annotations are read
from typing import Any

import maitred
from benchmarks.queries.asking import PAYLOAD, Client, run
from benchmarks.queries.queues import ECHO, NAMESPACE, NAPS, ROWS

READY_WITHIN = 30

app = maitred.App(NAMESPACE)


@app.handler(ECHO)
async def echo(payload: str) -> str:
    return payload


@app.handler(ROWS)
async def rows(total: int, size: int) -> AsyncIterator[bytes]:
    row = bytes(size)
    for _ in range(total // size):
        yield row


def _napping(queue: str) -> None:
    @app.handler(queue)
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)


for _queue in NAPS:
    _napping(_queue)


async def ready(client: maitred.AsyncClient, queue: str, *arguments: object) -> None:
    """Wait until a worker has answered."""
    until = time.monotonic() + READY_WITHIN
    while True:
        try:
            await client.query(queue, *arguments, timeout=5)
        except maitred.MaitredError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)
        else:
            return


class Maitred(Client):
    async def open(self, address: str) -> None:
        self._client = await maitred.connect(f"maitred://{address}")
        await ready(self._client, ECHO, PAYLOAD)

    async def ask(self) -> None:
        assert len(await self._client.query(ECHO, PAYLOAD)) == len(PAYLOAD)

    async def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """A stream: so many bytes, in rows of that size."""
        total: int = order["bytes"]
        size: int = order["row"]
        taken = 0
        started = time.perf_counter()
        async for row in self._client.stream(ROWS, total, size):
            taken += len(row)
        took = time.perf_counter() - started
        assert taken == total // size * size, taken
        return {"seconds": took, "bytes": taken}

    async def close(self) -> None:
        await self._client.close()


if __name__ == "__main__":
    run(Maitred())
