"""A worker in the test's own loop, at a node that is a fake."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker
from tests.node.in_process import RecordedLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.app.app import App
    from tests.app.fake_node import FakeNode

EARLY_SECONDS = 30.0
"""A query may come before the word of its reservation. On a busy machine that word takes its time,
and only tests of this wait set a shorter one."""


@contextlib.asynccontextmanager
async def a_worker(
    node: FakeNode,
    app: App,
    *queues: str,
    name: str = "w",
    log: RecordedLog | None = None,
    **settings: Any,  # noqa: ANN401 - whatever a worker has
) -> AsyncIterator[Worker]:
    """Serves the queues of the app, or all of them; drained in the end."""
    node.app(app)
    session = await app.session()
    worker = Worker(
        session.client,
        [one for queue, one in app.handlers.items() if not queues or queue in queues],
        WorkerSettings(**{"early_seconds": EARLY_SECONDS, **settings}),
        name,
        Surroundings.real(),
        log or RecordedLog(),
    )
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(20):
            await running
            await app.close()
