"""The same for ordinary code: no loop of its own, any thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from maitred import App
from maitred.errors import InvalidArguments, TaskCancelled
from maitred.protocol.messages import encode
from maitred.protocol.tasks import Outcome
from tests.app.fake_node import FakeNode
from tests.node.in_process import in_a_loop

if TYPE_CHECKING:
    from collections.abc import Callable

app = App("shop")


@app.handler("thumbnails")
def thumbnail(url: str) -> int:
    return len(url)


def in_ordinary_code(test: Callable[[FakeNode], None]) -> Callable[[], None]:
    """The test in a thread without a loop, beside a node."""

    @in_a_loop
    async def running() -> None:
        async with FakeNode() as node:
            node.app(app)
            try:
                await asyncio.to_thread(test, node)
            finally:
                await asyncio.to_thread(app.sync.close)

    running.__name__ = test.__name__
    return running


@in_ordinary_code
def test_enqueue_and_result(node: FakeNode) -> None:
    task = thumbnail.sync.enqueue("u")
    found = node.partition("thumbnails").tasks[app.task(task.id).sequence]
    done = Outcome("done", 1, encode(3))  # type: ignore[arg-type]
    found.outcome.get_loop().call_soon_threadsafe(found.outcome.set_result, done)
    assert task.result(timeout=10) == 3
    assert app.sync.task(task.id) == task
    assert app.sync.task(task.id).result() == 3


@in_ordinary_code
def test_options_batches_and_cancelling(node: FakeNode) -> None:
    tasks = thumbnail.sync.options(priority=0).enqueue_many(
        thumbnail.call(str(number)) for number in range(10)
    )
    assert len(node.partition("thumbnails").waiting) == 10
    assert tasks[3].cancel() == "cancelled"
    with pytest.raises(TaskCancelled):
        tasks[3].result(timeout=10)
    with pytest.raises(InvalidArguments):
        thumbnail.sync.enqueue(3)  # type: ignore[arg-type]


@in_ordinary_code
def test_many_threads_share_one_connection(node: FakeNode) -> None:
    with ThreadPoolExecutor(8) as threads:
        tasks = list(threads.map(thumbnail.sync.enqueue, ["u"] * 100))
    assert len({task.id for task in tasks}) == 100
    assert sum(node.connections()) == 1
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("maitred-client") == 1


@in_ordinary_code
def test_it_connects_again_after_its_end(node: FakeNode) -> None:
    with app.sync:
        thumbnail.sync.enqueue("u")
    assert "maitred-client" not in [thread.name for thread in threading.enumerate()]
    thumbnail.sync.enqueue("u")
    assert len(node.partition("thumbnails").waiting) == 2


@in_a_loop
async def test_a_loop_and_ordinary_code_side_by_side() -> None:
    async with FakeNode() as node:
        node.app(app)
        async with app:
            for _ in range(3):
                await thumbnail.enqueue("u")
                await asyncio.to_thread(thumbnail.sync.enqueue, "u")
        await asyncio.to_thread(app.sync.close)
        assert len(node.partition("thumbnails").waiting) == 6


FORKING = """
import os, sys
from maitred import App
app = App("shop", node=sys.argv[1])
@app.handler("thumbnails")
def thumbnail(url: str) -> int: ...
thumbnail.sync.enqueue("before")
child = os.fork()
thumbnail.sync.enqueue("after")
if child:
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


@in_a_loop
async def test_a_forked_process_connects_by_itself() -> None:
    async with FakeNode() as node:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", FORKING, node.url
        )
        async with asyncio.timeout(30):
            assert await process.wait() == 0
        assert len(node.partition("thumbnails").waiting) == 3
