"""NATS JetStream: a work queue in a file, taken from in batches; `python -m` this is the worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import nats  # type: ignore[import-not-found]
from nats.errors import TimeoutError as NothingToDo  # type: ignore[import-not-found]
from nats.js.api import (  # type: ignore[import-not-found]
    ConsumerConfig,
    RetentionPolicy,
    StorageType,
)

from benchmarks.tasks.producing import server_url
from benchmarks.tasks.recording import record_of_this_worker

SUBJECT = "tasks"
FETCHED = 256


async def work() -> None:
    called = record_of_this_worker().called
    connection = await nats.connect(server_url())
    context = connection.jetstream()
    config = ConsumerConfig(max_ack_pending=10_000)
    tasks = await context.pull_subscribe(SUBJECT, durable="worker", config=config)
    while True:
        with suppress(NothingToDo):
            for message in await tasks.fetch(FETCHED, timeout=60):
                called(message.data)
                await message.ack()


class Producer:
    many = "asynchronous publishes"

    async def open(self, url: str) -> None:
        self._connection = await nats.connect(url)
        self._context = self._connection.jetstream(publish_async_max_pending=1_000)
        await self._context.add_stream(
            name="work",
            subjects=[SUBJECT],
            storage=StorageType.FILE,
            retention=RetentionPolicy.WORK_QUEUE,
        )

    async def enqueue(self, payload: str) -> None:
        await self._context.publish(SUBJECT, payload.encode())

    async def enqueue_many(self, payloads: list[str]) -> None:
        publish = self._context.publish_async
        waiting = [await publish(SUBJECT, payload.encode()) for payload in payloads]
        await asyncio.gather(*waiting)

    async def close(self) -> None:
        await self._connection.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(work())
