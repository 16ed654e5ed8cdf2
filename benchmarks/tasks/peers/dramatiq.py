"""Dramatiq: an actor on the Redis broker."""

from __future__ import annotations

import os

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]

from benchmarks.tasks.producing import server_url
from benchmarks.tasks.recording import RECORD, record_of_this_worker

broker = RedisBroker(url=server_url())
dramatiq.set_broker(broker)
called = record_of_this_worker().called if RECORD in os.environ else None


def _noop(payload: str) -> None:
    assert called is not None
    called(payload)


noop = dramatiq.actor(_noop, actor_name="noop", max_retries=0)


class Producer:
    many = "one by one"

    async def open(self, _url: str) -> None:
        pass

    async def enqueue(self, payload: str) -> None:
        noop.send(payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        for payload in payloads:
            noop.send(payload)

    async def close(self) -> None:
        broker.close()
