"""The provider as a plain HTTP server: `python -m benchmarks.contest.server PORT AGENT_PORT`.

httptools on uvloop. A full pool answers 503 at once. It measures itself with the same estimator as
a worker does, and says so to HAProxy's agent checks on the second port.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import cast

import httptools
import uvloop

from benchmarks.contest import plan as plans
from benchmarks.contest.provider import Provider
from maitred.balancing.workers import LimitEstimator

FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull"


class Measured:
    """The provider, with an estimator that sees what is served and what waits."""

    def __init__(self, folder: Path, number: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.provider = Provider(folder, number, changed=self._changed)
        pool = self.provider.pool
        self.estimator = LimitEstimator(pool, pool, self._loop.time())
        self.inside = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def _changed(self) -> None:
        now = self._loop.time()
        self.estimator.observe(self.provider.serving, self.provider.waiting, now)
        self.estimator.limit(now)

    def report(self) -> bytes:
        """For an agent check: how many may be here, and what share of the pool that is."""
        limit = self.estimator.limit(self._loop.time())
        share = max(1, round(100 * limit / self.provider.pool))
        return f"up ready maxconn:{limit} {share}%\n".encode()


class Server(asyncio.Protocol):
    """A connection; requests come one after the other."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        measured = self._measured
        if measured.inside >= measured.provider.pool:
            measured.provider.refused()
            self._transport.write(FULL)
            return
        measured.inside += 1
        task = asyncio.get_running_loop().create_task(self._work())
        measured.tasks.add(task)
        task.add_done_callback(measured.tasks.discard)

    async def _work(self) -> None:
        measured = self._measured
        try:
            slept = str(await measured.provider.serve()).encode()
        finally:
            measured.inside -= 1
        measured.estimator.ended()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(slept), slept)
        )


class Agent(asyncio.Protocol):
    """What HAProxy asks from time to time."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writing = cast("asyncio.Transport", transport)
        writing.write(self._measured.report())
        writing.close()


async def serve(port: int, agent_port: int) -> None:
    measured = Measured(Path(os.environ[plans.FOLDER]), int(os.environ[plans.NUMBER]))
    loop = asyncio.get_running_loop()
    host = "127.0.0.1"
    await loop.create_server(lambda: Agent(measured), host, agent_port)
    server = await loop.create_server(lambda: Server(measured), host, port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
