"""maitred: a handler with 64 slots, on SQLite with an fsync before every acknowledgement."""

from __future__ import annotations

import os

from benchmarks.tasks.producing import URL
from benchmarks.tasks.recording import RECORD, record_of_this_worker
from maitred import App

app = App("bench", node=os.environ.get(URL))
called = record_of_this_worker().called if RECORD in os.environ else None


@app.handler("noop")
async def noop(payload: str) -> None:
    assert called is not None
    called(payload)


class Producer:
    many = "enqueue_many"

    async def open(self, _url: str) -> None:
        await app.session()

    async def enqueue(self, payload: str) -> None:
        await noop.enqueue(payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        await noop.enqueue_many(noop.call(payload) for payload in payloads)

    async def close(self) -> None:
        await app.close()
