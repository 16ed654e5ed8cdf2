"""A node with partitions and a store, and workers at it: all real, in the test's own loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from maitred.client.query_gateway import QueryGateway
from maitred.errors import UnknownQueue
from maitred.logs import silent
from maitred.protocol.tasks import Describe
from maitred.routing.names import TASKS
from maitred.settings import Querying as QueryingSettings
from maitred.settings import WorkerSettings
from maitred.store.sqlite import open_sqlite
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker
from tests.client.nodes import RunningNode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred import App
    from maitred.client.client import AsyncClient
    from maitred.client.query_gateway import GatewayLog
    from maitred.node.shard import Shard
    from maitred.protocol.tasks import PartitionDescription

PATIENCE_SECONDS = 30


class House(RunningNode):
    """A node that keeps its tasks in SQLite."""

    async def start(self, *numbers: int) -> None:
        data = Path(self._directory.name) / "data"
        data.mkdir(exist_ok=True)
        self._stores = {
            number: await open_sqlite(data, number) for number in numbers or range(self.count)
        }
        await super().start(*numbers)

    def prepare(self, shard: Shard) -> None:
        shard.keep_tasks(self._stores[shard.number])

    async def stop(self, *numbers: int) -> None:
        await super().stop(*numbers)
        for number in numbers or range(len(self.shards)):
            store = self._stores.pop(number, None)
            if store is not None:
                await store.close()


class Serving:
    """A worker that runs in the test's loop."""

    def __init__(self, worker: Worker, client: AsyncClient) -> None:
        self.worker = worker
        self.client = client
        self.task = asyncio.get_running_loop().create_task(worker.run())

    async def stop(self) -> None:
        self.worker.stop()
        await self.task
        await self.client.close()


class Scene:
    """A house, the app that is served in it, and whoever asks there."""

    def __init__(self, house: House, app: App) -> None:
        self.house = house
        self.app = app
        self._serving: list[Serving] = []
        self._clients: list[AsyncClient] = []

    async def worker(
        self,
        name: str = "w1",
        *,
        app: App | None = None,
        **settings: Any,  # noqa: ANN401 - of a worker
    ) -> Serving:
        """It serves the scene's app, or another one with the same queues."""
        client = await self.house.connect()
        worker = Worker(
            client,
            list((app or self.app).handlers.values()),
            WorkerSettings(**{"slots": 4, "drain_seconds": 5.0, **settings}),
            name,
            Surroundings.real(),
            silent(),
        )
        serving = Serving(worker, client)
        self._serving.append(serving)
        for handler in self.app.handlers.values():
            await self._offered(client, handler.queue)
        return serving

    async def _offered(self, client: AsyncClient, queue: str) -> None:
        """Until somebody's free slots wait at the queue."""
        message = Describe(self.app.namespace, queue, TASKS, 0, 0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    found = cast("PartitionDescription", await client.request(message))
                except UnknownQueue:
                    found = None
                if found is not None and found.offers:
                    return
                await asyncio.sleep(0.002)

    async def client(
        self,
        *,
        log: GatewayLog | None = None,
        **settings: Any,  # noqa: ANN401 - of querying
    ) -> AsyncClient:
        client = await self.house.connect()
        self._clients.append(client)
        client.ask_with(
            QueryGateway(client, QueryingSettings(**settings), Surroundings.real(), log)
        )
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.app.close()
        for serving in self._serving:
            if not serving.task.done():
                await serving.stop()


@asynccontextmanager
async def scene(app: App, shards: int = 1, **settings: Any) -> AsyncIterator[Scene]:  # noqa: ANN401
    async with House(shards, **settings) as house:
        app.node = house.url
        made = Scene(house, app)
        try:
            async with asyncio.timeout(2 * PATIENCE_SECONDS):
                yield made
        finally:
            await made.close()
