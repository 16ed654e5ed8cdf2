"""A node in this process whose store outlives it: for what must survive a restart."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import maitred
from maitred.settings import Queue
from tests.node.in_process import NodeUnderTest, node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.store.interface import Store
    from maitred.telemetry.tracing import Tracing
    from tests.store.engines import Engine


class Shop:
    """A node on a store that outlives it."""

    def __init__(self, made: NodeUnderTest, engine: Engine, stores: list[Store]) -> None:
        self.node = made
        self.stores = stores
        self._engine = engine

    async def restart(self) -> bool:
        """Drain all shards, and start new ones on the same store."""
        drained = await asyncio.gather(*(shard.drain() for shard in self.node.shards))
        for store in self.stores:
            await store.close()
        self.stores[:] = [await self._engine.open(n) for n in range(len(self.stores))]
        for number, store in enumerate(self.stores):
            shard = self.node._make(number, restarts=1)
            self.node.shards[number] = shard
            shard.keep_tasks(store)
            await shard.start()
        return all(drained)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        async with maitred.connect(f"maitred://127.0.0.1:{self.node.port}") as client:
            yield client


@asynccontextmanager
async def shop(
    directory: Path,
    engine: Engine,
    *,
    shards: int = 1,
    drain_seconds: float = 10.0,
    tracing: Tracing | None = None,
    **queue: Any,  # noqa: ANN401 - settings
) -> AsyncIterator[Shop]:
    settings = Queue(**{"recovery_seconds": 0.0, **queue})
    async with node(
        directory,
        shards=shards,
        queues={"*": settings},
        drain_seconds=drain_seconds,
        tracing=tracing,
    ) as made:
        stores = [await engine.open(number) for number in range(shards)]
        for shard, store in zip(made.shards, stores, strict=True):
            shard.keep_tasks(store)
        one = Shop(made, engine, stores)
        try:
            yield one
        finally:
            for shard in made.shards:
                shard.close()
            for store in one.stores:
                await store.close()
