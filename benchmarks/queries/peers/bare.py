"""The least that an echo and a transfer can be: raw bytes between two uvloop protocols.

No frames, no futures, no tasks: a message is known by its length. `server PORT` echoes; a message
that begins with `s` asks for so many bytes instead, which are sent as fast as they are taken.
`client ADDRESS await` has a future for each message, as every client has that people use.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from typing import Any, cast

import uvloop

from benchmarks.queries.asking import PAYLOAD, Client, Load, run

BYTES = PAYLOAD.encode()
ASK = b"s%15d"


class Server(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._left = 0
        self._may_write = True

    def data_received(self, data: bytes) -> None:
        if data[:1] == b"s":
            self._left = int(data[1:])
            self._chunk = bytes(64 * 1024)
            self._send()
        else:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._send()

    def _send(self) -> None:
        while self._left > 0 and self._may_write:
            self._left -= len(self._chunk)
            self.transport.write(self._chunk)


class Echoes(asyncio.Protocol):
    """Keeps so many messages under way until the time is over."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._rest = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed"))

    def start(self, in_flight: int, seconds: float) -> None:
        self._under_way = in_flight
        self._sent_at = [time.perf_counter()] * in_flight
        self._until = self._sent_at[0] + seconds
        self._next = 0
        self.transport.write(BYTES * in_flight)

    def data_received(self, data: bytes) -> None:
        answers, self._rest = divmod(self._rest + len(data), len(BYTES))
        now = time.perf_counter()
        sent_at, at, places = self._sent_at, self._next, len(self._sent_at)
        for _ in range(answers):
            self.latencies.append(now - sent_at[at])
            sent_at[at] = now
            at = (at + 1) % places
        self._next = at
        if now < self._until:
            self.transport.write(BYTES * answers)
            return
        self._under_way -= answers
        if self._under_way == 0:
            self.done.set_result(None)


class Awaited(asyncio.Protocol):
    """A future for each message, and each written by itself: the least that an `await` can be."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._rest = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def echo(self) -> asyncio.Future[None]:
        future = self._loop.create_future()
        self._waiting.append(future)
        self.transport.write(BYTES)
        return future

    def data_received(self, data: bytes) -> None:
        answers, self._rest = divmod(self._rest + len(data), len(BYTES))
        for _ in range(answers):
            self._waiting.popleft().set_result(None)


class Counter(asyncio.Protocol):
    """Takes bytes until there were as many as it was promised."""

    def __init__(self, total: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = total

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)


class Bare(Client):
    def __init__(self, *, awaits: bool) -> None:
        self._awaits = awaits
        self._awaited: Awaited | None = None

    async def open(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        if self._awaits:
            loop = asyncio.get_running_loop()
            _, self._awaited = await loop.create_connection(Awaited, self._host, self._port)

    async def ask(self) -> None:
        assert self._awaited is not None
        await self._awaited.echo()

    async def load(self, in_flight: int, seconds: float) -> Load:
        if self._awaited is not None:
            return await super().load(in_flight, seconds)
        loop = asyncio.get_running_loop()
        transport, echoes = await loop.create_connection(Echoes, self._host, self._port)
        started = time.perf_counter()
        echoes.start(in_flight, seconds)
        await echoes.done
        took = time.perf_counter() - started
        transport.close()
        return Load(took, echoes.latencies)

    async def do(self, order: dict[str, Any]) -> dict[str, Any]:
        total: int = order["bytes"]
        loop = asyncio.get_running_loop()
        transport, counter = await loop.create_connection(
            lambda: Counter(total), self._host, self._port
        )
        started = time.perf_counter()
        transport.write(ASK % total)
        await counter.done
        took = time.perf_counter() - started
        transport.close()
        return {"seconds": took, "bytes": total}

    async def close(self) -> None:
        pass


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        uvloop.run(serve(int(sys.argv[2])))
    else:
        run(Bare(awaits="await" in sys.argv[3:]))
