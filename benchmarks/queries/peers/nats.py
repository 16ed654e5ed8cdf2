"""NATS request-reply: a subscriber that responds; `nats-server` is between it and the client."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import nats  # type: ignore[import-not-found]
import uvloop

from benchmarks.queries.asking import PAYLOAD, Client, run

BYTES = PAYLOAD.encode()
SUBJECT = "echo"


async def serve(port: int) -> None:
    connection = await nats.connect(f"nats://127.0.0.1:{port}")

    async def echo(message: Any) -> None:  # noqa: ANN401 - nats is not in our environment
        await message.respond(message.data)

    await connection.subscribe(SUBJECT, cb=echo)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


class Nats(Client):
    async def open(self, address: str) -> None:
        self._connection = await nats.connect(f"nats://{address}")

    async def ask(self) -> None:
        answer = await self._connection.request(SUBJECT, BYTES, timeout=10)
        assert len(answer.data) == len(BYTES)

    async def close(self) -> None:
        await self._connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        uvloop.run(serve(int(sys.argv[2])))
    else:
        run(Nats())
