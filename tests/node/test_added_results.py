"""`result()` of a task that was over when `enqueue` returned asks no node again."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from maitred import App
from maitred.errors import TaskFailed
from maitred.node.task_requests import CARRIED_BYTES
from maitred.protocol.frames import Opcode
from maitred.settings import Queue, WorkerSettings
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker
from tests.node.in_process import RecordedLog, in_a_loop, node, until
from tests.node.raw import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from maitred.node.deferred_reply import DeferredReply

HOLD_SECONDS = 600.0
"""No write of a held task is due while the test runs, however slow the machine is."""


@in_a_loop
async def test_results_travel_with_the_acknowledgement_unless_they_are_large(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, queues={"*": Queue(hold_seconds=HOLD_SECONDS)}) as running:
        running.shard.keep_tasks(SimulatedStore(SimulatedDisk(Random(1))))
        awaited = 0
        serve = running.shard.holders[Opcode.AWAIT]

        def counted(message: Any, held: DeferredReply) -> None:  # noqa: ANN401
            nonlocal awaited
            awaited += 1
            serve(message, held)

        running.shard.holders[Opcode.AWAIT] = counted
        app = App("shop", node=f"maitred://127.0.0.1:{running.port}")

        @app.handler("blobs", retries=0)
        async def blob(size: int) -> bytes:
            return bytes(size)

        @app.handler("failures", retries=0)
        async def fails() -> None:
            raise ValueError("no")

        async with app:
            worker = Worker(
                (await app.session()).client,
                list(app.handlers.values()),
                WorkerSettings(),
                "w",
                Surroundings.real(),
                RecordedLog(),
            )
            working = asyncio.create_task(worker.run())
            await until(lambda: worker.statistics.offers > 0)
            small = await blob.enqueue(10)
            assert await small.result(PATIENCE_SECONDS) == bytes(10)
            assert await small.result(PATIENCE_SECONDS) == bytes(10)
            assert awaited == 0
            many = await blob.enqueue_many([blob.call(n) for n in range(20)])
            sizes = [len(await task.result(PATIENCE_SECONDS)) for task in many]
            assert sizes == list(range(20))
            assert awaited == 0
            large = await blob.enqueue(CARRIED_BYTES)
            assert len(await large.result(PATIENCE_SECONDS)) == CARRIED_BYTES
            assert awaited == 1
            failed = await fails.enqueue()
            with pytest.raises(TaskFailed, match="ValueError: no"):
                await failed.result(PATIENCE_SECONDS)
            worker.stop()
            await working
