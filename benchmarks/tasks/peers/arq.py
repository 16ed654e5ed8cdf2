"""arq: a coroutine, and the settings of its worker."""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

import uvloop
from arq import create_pool  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]
from arq.worker import func  # type: ignore[import-not-found]

from benchmarks.tasks.producing import IN_FLIGHT, in_flight, server_url
from benchmarks.tasks.recording import RECORD, record_of_this_worker

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
settings = RedisSettings.from_dsn(server_url())
called = record_of_this_worker().called if RECORD in os.environ else None


async def _noop(_context: dict[str, Any], payload: str) -> None:
    assert called is not None
    called(payload)


class WorkerSettings:
    functions: ClassVar = [func(_noop, name="noop", keep_result=0, max_tries=1)]
    redis_settings = settings
    max_jobs = 64
    poll_delay = 0.001
    log_results = False


QUIET = {"version": 1, "disable_existing_loggers": False, "loggers": {"arq": {"level": "ERROR"}}}
"""Else it writes two lines for each job."""


class Producer:
    many = f"{IN_FLIGHT} in flight"

    async def open(self, _url: str) -> None:
        self._pool = await create_pool(settings)

    async def enqueue(self, payload: str) -> None:
        await self._pool.enqueue_job("noop", payload)

    async def enqueue_many(self, payloads: list[str]) -> None:
        await in_flight(self.enqueue, payloads)

    async def close(self) -> None:
        await self._pool.aclose()
