"""A real shard and a real worker in the test's own loop, with the logs of both."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from maitred.settings import Queue, WorkerSettings
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker
from tests.node.in_process import RecordedLog, node, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.app.app import App
    from maitred.node.partitions import Partitions
    from maitred.telemetry.tracing import Tracing
    from tests.node.in_process import NodeUnderTest


class Serving(NamedTuple):
    """A node and one of its workers."""

    node: NodeUnderTest
    partitions: Partitions
    """Those of the node's only shard."""
    worker: Worker
    log: RecordedLog
    """The worker's log."""

    async def said(
        self, event: str, log: RecordedLog, enough: int = 1
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return level and fields of the lines with this event, as soon as there are enough."""

        def found() -> list[tuple[str, dict[str, Any]]]:
            return [(level, fields) for level, one, fields in log.lines if one == event]

        await until(lambda: len(found()) >= enough)
        return found()


@asynccontextmanager
async def serving(
    directory: Path,
    app: App,
    *,
    name: str = "w",
    log: RecordedLog | None = None,
    tracing: Tracing | None = None,
    **queue: Any,  # noqa: ANN401 - settings
) -> AsyncIterator[Serving]:
    async with node(directory, queues={"*": Queue(**queue)}, tracing=tracing) as running:
        partitions = running.shard.keep_tasks(SimulatedStore(SimulatedDisk(Random(1))))
        app.node = f"maitred://127.0.0.1:{running.port}"
        async with app:
            log = log or RecordedLog()
            worker = Worker(
                (await app.session()).client,
                list(app.handlers.values()),
                WorkerSettings(stop_seconds=0.1),
                name,
                Surroundings.real(tracing),
                log,
            )
            working = asyncio.create_task(worker.run())
            await worker.ready.wait()
            yield Serving(running, partitions, worker, log)
            worker.stop()
            await working
