"""Queries that nobody waits for any more: cancelled, left, or too late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.errors import (
    Cancelled,
    DeadlineExceeded,
)
from maitred.protocol.tasks import STOPPED
from tests.client.tables import hold, table
from tests.client.waiters import expired, until

if TYPE_CHECKING:
    from tests.client.conftest import Run


def test_cancelled_while_it_waits(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.node.open.clear()
            waiting = asyncio.create_task(scene.client.query("q"))
            await until(lambda: scene.node.asked)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert scene.status() == "cancelled"
            await until(lambda: scene.node.stopped)
            assert scene.worker.runs == []

    run(main())


def test_cancelled_while_it_runs(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            running = scene.querying.begin(scene.ask())
            await scene.worker.until(lambda: scene.worker.runs)
            assert scene.querying.cancel(running.sequence)
            assert not scene.querying.cancel(running.sequence)
            assert not scene.querying.cancel(99)
            running.cancel()
            with pytest.raises(Cancelled):
                await running.answer()
            (fake_run,) = scene.worker.runs
            await scene.worker.until(lambda: fake_run.cancelled)
            (link,) = scene.querying.links.open.values()
            assert fake_run.stream in link.streams, "taken until the last frame"
            fake_run.end(STOPPED)
            scene.worker.serve = lambda fake_run: fake_run.end(value=1)
            assert await scene.client.query("q") == 1
            assert link.streams == {}

    run(main())


def test_leaving_a_stream_early_cancels_it(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = lambda fake_run: fake_run.rows(1, 2, 3)
            async for row in scene.client.stream("q"):
                assert row == 1
                break
            await scene.worker.until(lambda: scene.worker.runs[0].cancelled)
            async with scene.client.stream("q") as stream:
                assert await anext(stream) == 1
            await scene.worker.until(lambda: scene.worker.runs[1].cancelled)
            stream = scene.client.stream("q")
            assert [await anext(stream) for _ in range(3)] == [1, 2, 3]
            more = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            more.cancel()
            await scene.worker.until(lambda: scene.worker.runs[2].cancelled)

    run(main())


def test_the_deadline(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            allowed = []

            async def ask(seconds: float) -> None:
                allowed.append(seconds)
                await scene.client.query("q", timeout=seconds)

            await expired(ask, lambda told: "told to stop" in told.sentence)
            await scene.worker.until(lambda: scene.worker.runs[-1].cancelled)
            message = scene.worker.runs[-1].message
            assert 0 < message.timeout_milliseconds <= 1000 * allowed[-1]
            scene.node.open.clear()
            with pytest.raises(DeadlineExceeded, match="no worker was free"):
                await scene.client.query("q", timeout=0.05)
            scene.node.open.set()
            scene.worker.serve = lambda fake_run: fake_run.rows(1)
            rows = []

            async def read(seconds: float) -> None:
                stream = scene.client.stream("q", timeout=seconds)
                rows.append(await anext(stream))
                await anext(stream)

            await expired(read, lambda _: rows)
            assert set(rows) == {1}
            assert {row.status for row in scene.querying.table.rows()} == {"late"}
            with pytest.raises(DeadlineExceeded):
                scene.querying.begin(scene.ask(seconds=-1))

    run(main())


def test_many_deadlines_have_one_timer(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            began = asyncio.get_running_loop().time()
            found = await asyncio.gather(
                *(scene.client.query("q", timeout=0.02 * n) for n in range(10, 0, -1)),
                return_exceptions=True,
            )
            assert all(isinstance(one, DeadlineExceeded) for one in found)
            assert asyncio.get_running_loop().time() - began >= 0.19

    run(main())


def test_surplus_slots_are_given_back_at_once(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            gate = asyncio.Event()

            async def before(_: object) -> None:
                await gate.wait()

            scene.node.before = before
            tasks = [asyncio.create_task(scene.client.query("q", n)) for n in range(3)]
            await until(lambda: scene.node.asked)
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.wait([tasks[0], tasks[2]])
            gate.set()
            assert await tasks[1] == [1]
            # Both, unless this machine took so long that they were asked for one by one.
            await scene.worker.until(lambda: len(scene.worker.released) == scene.node.tokens - 1)
            used = {message.message.token for message in scene.worker.runs}
            assert used.isdisjoint(scene.worker.released)

    run(main())


def test_cancelled_while_its_worker_is_dialled(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            running = scene.querying.begin(scene.ask())
            await until(lambda: scene.querying.links._dialing, pause=0)
            running.cancel()
            with pytest.raises(Cancelled):
                await running.answer()
            await scene.worker.until(lambda: scene.worker.released)
            assert scene.worker.runs == []

    run(main())
