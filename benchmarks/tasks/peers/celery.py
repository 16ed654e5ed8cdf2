"""Celery: an app with one task, and a producer that sends over one connection.

Without what a worker with one task has no use for: results, events, rate limits, remote control.
"""

from __future__ import annotations

import os

from celery import Celery  # type: ignore[import-not-found]

from benchmarks.tasks.producing import server_url
from benchmarks.tasks.recording import RECORD, record_of_this_worker

app = Celery("benchmark", broker=server_url())
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=0,
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
called = record_of_this_worker().called if RECORD in os.environ else None


def _noop(payload: str) -> None:
    assert called is not None
    called(payload)


noop = app.task(_noop, name="noop")


class Producer:
    many = "one by one"

    async def open(self, _url: str) -> None:
        self._connection = app.connection_for_write()
        self._producer = app.amqp.Producer(self._connection, auto_declare=False)

    async def enqueue(self, payload: str) -> None:
        noop.apply_async((payload,), producer=self._producer)

    async def enqueue_many(self, payloads: list[str]) -> None:
        for payload in payloads:
            noop.apply_async((payload,), producer=self._producer)

    async def close(self) -> None:
        self._connection.release()
