"""A handler that fails leaves a line in the worker's log that says what failed, where and why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maitred import App
from maitred.errors import TaskCancelled, TaskFailed
from maitred.worker.failure_log import BURST_LINES, LINES_PER_SECOND, FailureLog
from maitred.worker.outcomes import failure
from tests.app.fake_node import FakeNode
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker

QUEUE, HANDLER = "shop/thumbnails", "thumbnail"


class Kitchen:
    """Handlers that fail as they are told."""

    def __init__(self) -> None:
        self.app = app = App("shop")
        self.begun = asyncio.Event()

        @app.handler("async", retries=0)
        async def on_the_loop(what: str) -> Any:  # noqa: ANN401 - that is what it is about
            return await do(what)

        @app.handler("plain", retries=0)
        def in_a_thread(what: str) -> Any:  # noqa: ANN401
            return fail(what)

        @app.handler("hurried", retries=0, timeout=0.01)
        async def hurried() -> None:
            await asyncio.Event().wait()

        async def do(what: str) -> Any:  # noqa: ANN401
            self.begun.set()
            if what == "wait":
                await asyncio.Event().wait()
            return fail(what)

        def fail(what: str) -> Any:  # noqa: ANN401
            if what == "raise":
                raise ValueError("too small")
            return object() if what == "object" else what

        self.on_the_loop, self.in_a_thread, self.hurried = on_the_loop, in_a_thread, hurried


def failures(log: RecordedLog) -> list[dict[str, Any]]:
    """The fields of the lines about failures."""
    return [
        fields
        for level, event, fields in log.lines
        if level == "warning" and event in {"a task failed", "a query failed"}
    ]


@pytest.mark.parametrize(
    ("queue", "what", "error", "message"),
    [
        ("async", "raise", "ValueError", "too small"),
        ("plain", "raise", "ValueError", "too small"),
        ("async", "object", "unserialisable-result", "The result cannot be serialised"),
    ],
)
@in_a_loop
async def test_a_task_that_fails(queue: str, what: str, error: str, message: str) -> None:
    kitchen, log = Kitchen(), RecordedLog()
    handler = kitchen.on_the_loop if queue == "async" else kitchen.in_a_thread
    async with FakeNode() as node, a_worker(node, kitchen.app, queue, log=log):
        task = await handler.enqueue(what)
        with pytest.raises(TaskFailed):
            await task.result(timeout=10)
        (line,) = failures(log)
        assert line["queue"] == f"shop/{queue}"
        assert line["handler"].endswith("on_the_loop" if queue == "async" else "in_a_thread")
        assert (line["task"], line["attempt"]) == (task.id, 1)
        assert line["error"] == error
        assert line["message"].startswith(message)
        assert ("too small" in line.get("exception", "")) == (what == "raise")
        assert "unlogged" not in line
        assert await (await handler.enqueue("fine")).result(timeout=10) == "fine"
        assert len(failures(log)) == 1


@in_a_loop
async def test_a_task_that_takes_too_long() -> None:
    kitchen, log = Kitchen(), RecordedLog()
    async with FakeNode() as node, a_worker(node, kitchen.app, "hurried", log=log):
        task = await kitchen.hurried.enqueue()
        await until(lambda: bool(failures(log)))
        (line,) = failures(log)
        assert (line["task"], line["error"]) == (task.id, "timed-out")


@in_a_loop
async def test_a_task_whose_arguments_do_not_fit_any_more() -> None:
    kitchen, log = Kitchen(), RecordedLog()
    other = App("shop")

    @other.handler("async", retries=0)
    async def earlier(number: int) -> None: ...

    async with FakeNode() as node, a_worker(node, kitchen.app, "async", log=log):
        node.app(other)
        task = await earlier.enqueue(7)
        with pytest.raises(TaskFailed):
            await task.result(timeout=10)
        (line,) = failures(log)
        assert (line["task"], line["attempt"]) == (task.id, 1)
        assert line["error"] == "invalid-arguments"
        await other.close()


@in_a_loop
async def test_a_task_that_is_cancelled_has_not_failed() -> None:
    kitchen, log = Kitchen(), RecordedLog()
    async with FakeNode() as node, a_worker(node, kitchen.app, "async", log=log):
        task = await kitchen.on_the_loop.enqueue("wait")
        await kitchen.begun.wait()
        await task.cancel()
        with pytest.raises(TaskCancelled):
            await task.result(timeout=10)
        assert not failures(log)


@in_a_loop
async def test_a_query_that_fails_and_one_that_its_caller_gave_no_time() -> None:
    kitchen, log = Kitchen(), RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, kitchen.app, log=log) as worker,
        a_gateway(worker) as gateway,
    ):
        await gateway.over(gateway.run(node.reserve("async"), "wait", timeout=0.01))
        assert not failures(log), "the caller wanted less time than the handler may have"
        await gateway.failure(gateway.run(node.reserve("async"), "raise"))
        (line,) = failures(log)
        assert line["queue"] == "shop/async"
        assert line["handler"].endswith("on_the_loop")
        assert line["query"]
        assert (line["error"], line["message"]) == ("ValueError", "too small")
        await gateway.over(gateway.run(node.reserve("async", run_seconds=0.01), "wait"))
        assert failures(log)[1]["error"] == "timed-out"


def test_a_flood_of_failures_does_not_fill_the_log() -> None:
    log, now = RecordedLog(), [0.0]
    written = FailureLog(log, lambda: now[0])
    _, body = failure("ValueError", "too small")
    for number in range(BURST_LINES + 1_000):
        written.attempt_failed(QUEUE, HANDLER, f"{QUEUE}/0/{number}", 1, body)
    assert len(failures(log)) == BURST_LINES
    written.attempt_failed("shop/mail", HANDLER, "shop/mail/0/1", 1, body)
    assert len(failures(log)) == BURST_LINES + 1, "another queue has a budget of its own"
    now[0] += 1.0 / LINES_PER_SECOND
    for number in range(2):
        written.attempt_failed(QUEUE, HANDLER, f"{QUEUE}/0/{number}", 1, body)
    *_, last = failures(log)
    assert (len(failures(log)), last["unlogged"]) == (BURST_LINES + 2, 1_000)
