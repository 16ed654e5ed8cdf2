"""Handles: ids, results, and the ways in which there is none."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

import pytest

from maitred import App
from maitred.app import task as tasks
from maitred.errors import (
    DeadlineExceeded,
    InvalidArgument,
    InvalidResult,
    InvalidTaskId,
    StoreUnavailable,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    UnknownTask,
)
from maitred.protocol.messages import encode
from maitred.protocol.tasks import Await, Failure, Outcome
from tests.app.fake_node import FakeNode
from tests.node.in_process import in_a_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

app = App("sh/op")


@app.handler("thumb/nails")
async def thumbnail(url: str) -> int:
    return len(url)


@contextlib.asynccontextmanager
async def a_task() -> AsyncIterator[tuple[FakeNode, tasks.Task[int]]]:
    async with FakeNode() as node:
        node.app(app)
        async with app:
            yield node, await thumbnail.enqueue("u")


def settle(
    node: FakeNode,
    task: tasks.Task[int],
    status: Literal["done", "failed", "cancelled", "expired"],
    body: bytes = b"",
    attempts: int = 1,
) -> None:
    found = node.partition("thumb/nails").tasks[task.sequence]
    found.outcome.set_result(Outcome(status, attempts, body))


@in_a_loop
async def test_a_result_has_its_type() -> None:
    async with a_task() as (node, task):
        waiting = asyncio.create_task(task.result(timeout=10))
        await node.until(lambda: node.heard(Await))
        settle(node, task, "done", encode(7))  # type: ignore[arg-type]
        assert await waiting == 7
        assert await thumbnail.task(task.id).result() == 7
        assert await app.task(task.id).result() == 7


@in_a_loop
async def test_a_result_that_is_not_what_was_promised() -> None:
    async with a_task() as (node, task):
        settle(node, task, "done", encode("seven"))  # type: ignore[arg-type]
        with pytest.raises(InvalidResult, match="return annotation of thumbnail"):
            await task.result()
        other = App("sh/op")
        async with node.app(other):
            assert await other.task(task.id).result() == "seven"


@in_a_loop
async def test_a_failure_tells_what_it_knows() -> None:
    async with a_task() as (node, task):
        settle(node, task, "failed", encode(Failure("ValueError", "too small", "Trace...")), 4)
        with pytest.raises(TaskFailed, match="after 4 attempts: ValueError: too small") as caught:
            await task.result()
        found = caught.value
        assert (found.kind, found.message, found.remote_traceback, found.attempts) == (
            "ValueError",
            "too small",
            "Trace...",
            4,
        )


@in_a_loop
async def test_a_failure_that_cannot_be_read_is_one_all_the_same() -> None:
    async with a_task() as (node, task):
        settle(node, task, "failed", b"\xc1")
        with pytest.raises(TaskFailed, match="1 attempt"):
            await task.result()


@pytest.mark.parametrize(
    ("status", "error"), [("cancelled", TaskCancelled), ("expired", TaskExpired)]
)
@in_a_loop
async def test_no_result(status: Literal["cancelled", "expired"], error: type[Exception]) -> None:
    async with a_task() as (node, task):
        settle(node, task, status)
        with pytest.raises(error):
            await task.result()


@in_a_loop
async def test_cancelling() -> None:
    async with a_task() as (node, task):
        assert await task.cancel() == "cancelled"
        assert await task.cancel() == "over"
        with pytest.raises(TaskCancelled):
            await task.result()
        second = await thumbnail.enqueue("u")
        node.partition("thumb/nails").tasks[second.sequence].running = True
        assert await second.cancel() == "cancelling"


@in_a_loop
async def test_a_task_that_nobody_knows() -> None:
    async with a_task() as (_, task):
        unknown = app.task(task.id + "0")
        with pytest.raises(UnknownTask):
            await unknown.result()
        with pytest.raises(UnknownTask):
            await unknown.cancel()


@in_a_loop
async def test_time_is_up_and_the_task_is_not_touched() -> None:
    async with a_task() as (node, task):
        with pytest.raises(TimeoutError) as caught:
            await task.result(timeout=0.05)
        assert isinstance(caught.value, DeadlineExceeded)
        assert task.id in str(caught.value)
        settle(node, task, "done", encode(1))  # type: ignore[arg-type]
        assert await task.result(timeout=5) == 1
        for wrong in (0, -1, float("nan")):
            with pytest.raises(InvalidArgument):
                await task.result(timeout=wrong)


@in_a_loop
async def test_a_long_wait_is_asked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_SECONDS", 0.02)
    async with a_task() as (node, task):
        waiting = asyncio.create_task(task.result())
        await node.until(lambda: len(node.heard(Await)) >= 3)
        settle(node, task, "done", encode(1))  # type: ignore[arg-type]
        assert await waiting == 1


@in_a_loop
async def test_a_wait_outlives_the_node() -> None:
    async with a_task() as (node, task):
        waiting = asyncio.create_task(task.result(timeout=20))
        await node.until(lambda: node.heard(Await))
        await node.stop()
        settle(node, task, "done", encode(1))  # type: ignore[arg-type]
        await node.start()
        assert await waiting == 1


def test_an_id_is_text_that_makes_a_handle_again() -> None:
    task = thumbnail.task("sh/op/thumb/nails/12/9876543210987654321"[:-3])
    assert (task.queue, task.partition, task.sequence) == ("thumb/nails", 12, 9876543210987654)
    assert app.task(task.id) == task
    assert hash(app.task(task.id)) == hash(task)
    assert app.task("sh/op/other/0/1").queue == "other"
    with pytest.raises(InvalidTaskId, match="of the queue 'other'"):
        thumbnail.task("sh/op/other/0/1")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "sh/op",
        "sh/op/q",
        "sh/op/q/1",
        "shop/q/0/1",
        "sh/op//0/1",
        "sh/op/q/-1/1",
        "sh/op/q/0/x",
        "sh/op/q/0/",
        "sh/op/q/0/²",
        "sh/op/q/0/99999999999999999999",
        "sh/op/q/9999999999/1",
        7,
        None,
    ],
)
def test_what_is_no_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidTaskId) as caught:
        app.task(wrong)
    assert caught.value.code == "invalid-task-id"


@in_a_loop
async def test_a_store_that_is_away_is_told_soon_and_not_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_task() as (node, task):
        asked: list[Await] = []

        def away(message: Await) -> None:
            asked.append(message)
            raise StoreUnavailable("The disk is away.")

        node.before[Await] = away
        monkeypatch.setattr(tasks, "AWAY_SECONDS", 0.01)
        with pytest.raises(StoreUnavailable, match="The disk is away") as refused:
            await task.result(timeout=600)
        assert refused.value.outcome == "nothing"
        assert len(asked) == 2  # one that fails once is asked again

        def once(message: Await) -> None:
            asked.append(message)
            del node.before[Await]
            raise StoreUnavailable("The disk is away.")

        node.before[Await] = once
        settle(node, task, "done", encode(7))  # type: ignore[arg-type]
        assert await task.result() == 7
