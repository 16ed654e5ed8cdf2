"""Taskiq: a task on a Redis stream, which is read 100 at a time.

Its broker on a Redis list takes one at a time, and was a fifth slower in the one comparison made.
"""

from __future__ import annotations

import os

from taskiq.serializers import ORJSONSerializer  # type: ignore[import-not-found]
from taskiq_redis import RedisStreamBroker  # type: ignore[import-not-found]

from benchmarks.tasks.producing import IN_FLIGHT, in_flight, server_url
from benchmarks.tasks.recording import RECORD, record_of_this_worker

broker = RedisStreamBroker(
    server_url(), max_connection_pool_size=IN_FLIGHT, xread_count=100
).with_serializer(ORJSONSerializer())
called = record_of_this_worker().called if RECORD in os.environ else None


async def _noop(payload: str) -> None:
    assert called is not None
    called(payload)


noop = broker.register_task(_noop, task_name="noop")


class Producer:
    many = f"{IN_FLIGHT} in flight"

    async def open(self, _url: str) -> None:
        await broker.startup()

    async def enqueue(self, payload: str) -> None:
        await noop.kiq(payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        await in_flight(noop.kiq, payloads)

    async def close(self) -> None:
        await broker.shutdown()
