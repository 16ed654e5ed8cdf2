"""Real processes, killed and stopped in the middle of queries: one answer each, no slot lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.client.query_gateway import QueryGateway
from maitred.errors import UnknownQueue, WorkerLost
from maitred.settings import Querying as Settings
from maitred.surroundings import Surroundings
from tests.client.nodes import QUICK
from tests.client.waiters import until
from tests.queries_real.house import PATIENCE_SECONDS
from tests.tasks.stage import ROOT, Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.client.client import AsyncClient

ASKING = """
import asyncio, sys, maitred
async def main():
    async with maitred.connect(sys.argv[1]) as client:
        await client.query("shop/gated", 1, sys.argv[2], timeout=60)
asyncio.run(main())
"""


@asynccontextmanager
async def asking(stage: Stage, **settings: Any) -> AsyncIterator[AsyncClient]:  # noqa: ANN401
    async with (
        asyncio.timeout(4 * PATIENCE_SECONDS),
        maitred.connect(stage.url, **QUICK) as client,
    ):
        client.ask_with(QueryGateway(client, Settings(**settings), Surroundings.real()))
        yield client


async def served(client: AsyncClient) -> None:
    """Until a worker is there."""
    while True:
        try:
            assert await client.query("shop/orders", 0) == 0
        except UnknownQueue:
            await asyncio.sleep(0.01)
        else:
            return


def began(stage: Stage, number: int) -> int:
    return stage.journal.numbers("began").count(number)


@pytest.fixture
def stage(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    with Stage(tmp_path) as made:
        made.start_node(shards=2)
        yield made


def test_a_worker_is_killed_while_it_runs(stage: Stage, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    first = stage.start_worker("--slots", "2")

    async def main() -> None:
        async with asking(stage) as client:
            await served(client)
            lost = asyncio.create_task(client.query("shop/gated", 1, gate))
            again = asyncio.create_task(client.query("shop/gated", 2, gate, idempotent=True))
            await until(lambda: began(stage, 1) and began(stage, 2))
            await asyncio.to_thread(stage.start_worker, "--slots", "2")
            first.kill()
            with pytest.raises(WorkerLost):
                await lost
            await until(lambda: began(stage, 2) == 2)
            (tmp_path / "gate").touch()
            assert await again == 2
            assert began(stage, 1) == 1, "not run twice"

    asyncio.run(main())


def test_a_worker_hangs(stage: Stage, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    first = stage.start_worker("--slots", "2")

    async def main() -> None:
        async with asking(stage, ping_seconds=0.2, hung_seconds=0.5) as client:
            await served(client)
            lost = asyncio.create_task(client.query("shop/gated", 1, gate))
            await until(lambda: began(stage, 1))
            first.send(signal.SIGSTOP)
            with pytest.raises(WorkerLost, match="silent"):
                await lost
            # Its other slot is on offer no more: somebody else serves, and at once.
            await asyncio.to_thread(stage.start_worker, "--slots", "1")
            assert await client.query("shop/orders", 5, timeout=10) == 5
            first.send(signal.SIGCONT)
            await until(lambda: 1 in stage.journal.numbers("cancelled"), PATIENCE_SECONDS)

    asyncio.run(main())


def test_a_gateway_is_killed(stage: Stage, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    stage.start_worker("--slots", "1")
    command = [sys.executable, "-c", ASKING, stage.url, gate]

    async def main() -> None:
        async with asking(stage) as client:
            await served(client)
            running = subprocess.Popen(command, cwd=ROOT)  # noqa: ASYNC220 - to be killed
            await until(lambda: began(stage, 1), PATIENCE_SECONDS)
            waiting = subprocess.Popen(command, cwd=ROOT)  # noqa: ASYNC220
            for process in (running, waiting):
                process.kill()
                process.wait()
            await until(lambda: stage.journal.numbers("cancelled"), PATIENCE_SECONDS)
            assert await client.query("shop/orders", 7, timeout=10) == 7

    asyncio.run(main())


def test_the_node_is_killed_and_started_again(stage: Stage, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    stage.start_worker("--slots", "1")

    async def main() -> None:
        async with asking(stage) as client:
            await served(client)
            running = asyncio.create_task(client.query("shop/gated", 1, gate))
            await until(lambda: began(stage, 1))
            waiting = asyncio.create_task(client.query("shop/orders", 2))
            await until(lambda: client.querying.table.counts["waiting"] >= 3)
            await asyncio.to_thread(stage.kill_node)
            await asyncio.to_thread(stage.start_node, 2)
            (tmp_path / "gate").touch()
            assert await running == 1
            assert await waiting == 2

    asyncio.run(main())
