"""A handler that fails leaves a line in the worker's log that says what failed, where and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred import App
from maitred.errors import TaskCancelled, TaskFailed
from maitred.metrics.histogram import Histogram
from maitred.protocol.tasks import End, Finished
from maitred.routing.names import TASKS, QueueId
from maitred.worker.execution import Origin
from maitred.worker.failure_log import (
    BURST_LINES,
    FAILURES_KEPT,
    LINE_SECONDS,
    SHOWN_AGAIN_SECONDS,
    SHOWN_AGAIN_TIMES,
    TOGETHER_LINES,
    FailureLog,
)
from maitred.worker.outcomes import failure
from tests.app.fake_node import FakeNode
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker
from tests.worker.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

HANDLER = "thumbnail"
EVENTS = {"a task failed", "a task timed out", "a query failed", "a query timed out"}


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
        if level in {"warning", "error"} and event in EVENTS
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


class Failing:
    """A failure log with a clock of its own, and tasks that fail at will."""

    def __init__(self) -> None:
        self.log = RecordedLog()
        self.now = 0.0
        self.failures = FailureLog(self.log, lambda: self.now)
        self.sequence = 0
        self.origins: dict[str, Origin] = {}

    def fail(
        self,
        kind: str = "ValueError",
        place: str = 'File "shop.py", line 7, in charge',
        *,
        queue: str = "thumbnails",
        answer: Finished | None = None,
        answered: bool = True,
    ) -> End:
        """One attempt fails, and the node answers the report."""
        self.sequence += 1
        origin = self.origin(queue)
        trace = f"Traceback (most recent call last):\n  {place}\n    charge()\n{kind}: too small\n"
        how, body = failure(kind, "too small", trace)
        end = End(self.sequence, 1, b"p" * 16, how, body)
        self.failures.task_failed(origin, (self.sequence, 1), how, body)
        if answered:
            self.failures.answered(origin, [end], answer or Finished([]))
        return end

    def origin(self, queue: str) -> Origin:
        if queue not in self.origins:
            self.origins[queue] = Origin(QueueId("shop", queue, TASKS), 0, HANDLER, Histogram())
        return self.origins[queue]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return failures(self.log)


def test_a_flood_of_failures_does_not_fill_the_log() -> None:
    failing = Failing()
    for _ in range(BURST_LINES + 1_000):
        failing.fail()
    # The first is a failure that was not seen before, which has a budget of its own.
    assert len(failing.lines) == BURST_LINES + 1
    failing.fail(queue="mail")
    assert len(failing.lines) == BURST_LINES + 2, "another queue has a budget of its own"
    failing.now += LINE_SECONDS
    failing.fail()
    failing.fail()
    *_, last = failing.lines
    assert (len(failing.lines), last["unlogged"]) == (BURST_LINES + 3, 999)
    assert last["times"] == BURST_LINES + 1_001, "all are counted"


def test_a_rare_failure_is_seen_among_many() -> None:
    failing = Failing()
    for _ in range(10_000):
        failing.fail()
    failing.fail("KeyError")
    line = failing.lines[-1]
    assert (line["error"], line["times"]) == ("KeyError", 1)
    assert "KeyError" in line["exception"]


def test_many_queues_together_write_a_bounded_number_of_lines() -> None:
    failing = Failing()
    for number in range(1_000):
        for _ in range(3):
            failing.fail(queue=f"queue-{number}")
    assert len(failing.lines) <= 2 * TOGETHER_LINES


def test_a_traceback_comes_once_and_again_after_an_hour() -> None:
    failing = Failing()
    failing.fail()
    for _ in range(3):
        failing.now += 60
        failing.fail()
    first, *rest = failing.lines
    assert "line 7, in charge" in first["exception"]
    assert not any("exception" in line for line in rest)
    assert {line["failure"] for line in failing.lines} == {first["failure"]}
    assert [line["times"] for line in failing.lines] == [1, 2, 3, 4]
    failing.fail(place='File "shop.py", line 9, in charge')
    assert failing.lines[-1]["failure"] != first["failure"], "another place, another failure"
    assert "line 9" in failing.lines[-1]["exception"]
    failing.now += SHOWN_AGAIN_SECONDS
    failing.fail()
    assert failing.lines[-1]["exception"] == first["exception"]


def test_a_traceback_comes_again_after_a_thousand_failures() -> None:
    failing = Failing()
    for _ in range(SHOWN_AGAIN_TIMES + 1):
        failing.now += LINE_SECONDS
        failing.fail()
    assert [line["times"] for line in failing.lines if "exception" in line] == [
        1,
        SHOWN_AGAIN_TIMES + 1,
    ]


def test_the_memory_for_different_failures_is_bounded() -> None:
    failing = Failing()
    for number in range(FAILURES_KEPT + 10):
        failing.fail(f"Error{number}")
    assert len(failing.failures._known) == FAILURES_KEPT
    assert not failing.failures._waiting


@pytest.mark.parametrize(
    ("answer", "level", "said"),
    [
        (
            Finished([], [], [(1, 4.04, 2)]),
            "warning",
            {"next": "retry", "retry_seconds": 4.0, "attempts_left": 2},
        ),
        (Finished([], [], [(1, 0.0, 0)]), "warning", {"next": "dead letter"}),
        (Finished([], [], [(1, 0.0, -1)]), "warning", {"next": "nothing: the task is over"}),
        (
            Finished([1]),
            "warning",
            {"next": "nothing: another worker has the task, or it is over"},
        ),
        (Finished([], [1]), "warning", {"next": "nothing: the node refused the report"}),
        (Finished([]), "warning", {}),
    ],
)
def test_a_line_says_what_follows(answer: Finished, level: str, said: dict[str, Any]) -> None:
    failing = Failing()
    failing.fail(answer=answer)
    ((seen, _, line),) = failing.log.lines
    assert seen == level
    told = {name: line[name] for name in ("next", "retry_seconds", "attempts_left") if name in line}
    assert told == said


def test_a_line_does_not_wait_for_a_node_that_is_away() -> None:
    failing = Failing()
    end = failing.fail(answered=False)
    assert not failing.lines
    failing.failures.answered(failing.origin("thumbnails"), [end], None)
    assert failing.lines[0]["next"].startswith("unknown")
    failing.failures.answered(failing.origin("thumbnails"), [end], Finished([]))
    assert len(failing.lines) == 1, "it is not written twice"
    failing.fail(answered=False)
    failing.failures.unanswered()
    assert failing.lines[1]["next"].startswith("unknown")


@in_a_loop
async def test_a_worker_knows_what_follows_a_real_report(tmp_path: Path) -> None:
    """By a real partition: one retry, then a dead letter."""
    app = App("shop")

    @app.handler("charge", retries=1, backoff=0)
    async def charge() -> None:
        raise ValueError("no card")

    async with serving(tmp_path, app) as shop:
        task = await charge.enqueue()
        with pytest.raises(TaskFailed):
            await task.result(timeout=20)
        lines = await shop.said("a task failed", shop.log, 2)
        ((level, buried),) = await shop.said("a task became a dead letter", shop.node.log)
    assert [level for level, _ in lines] == ["warning", "warning"]
    (_, first), (_, second) = lines
    assert level == "warning"
    assert buried == {
        "namespace": "shop",
        "queue": "charge",
        "task": task.id,
        "attempts": 2,
        "error": "ValueError",
    }
    assert (first["next"], first["attempts_left"], first["attempt"]) == ("retry", 1, 1)
    assert (second["next"], second["attempt"]) == ("dead letter", 2)
    assert "exception" in first
    assert "exception" not in second
    assert (first["failure"], second["times"]) == (second["failure"], 2)


@in_a_loop
@pytest.mark.parametrize(
    ("retries", "event"),
    [
        (0, "a lease was lost: the node gives the task to another worker"),
        (1, "a lease was lost: the node gives the task to this worker again"),
    ],
)
async def test_a_lost_lease_is_logged(tmp_path: Path, retries: int, event: str) -> None:
    """The partition takes the lease of a running attempt back, and the worker hears of it: from a
    heartbeat, or when it is given the next attempt."""
    app = App("shop")
    begun: list[int] = []
    go_on = asyncio.Event()

    async def patient() -> None:
        begun.append(1)
        await go_on.wait()

    patience = app.handler("patient", retries=retries, backoff=0)(patient)
    async with serving(tmp_path, app) as shop:
        task = await patience.enqueue()
        await until(lambda: len(begun) == 1)
        owned_by_shard = shop.partitions.owned.values()
        (owned,) = (one for one in owned_by_shard if one.partition.own_tasks.leases)
        (lease,) = owned.partition.own_tasks.leases.values()
        lease.lease_until = 0.0  # as if no heartbeat had come for so long
        shop.partitions.touch(owned)
        await until(lambda: len(begun) == 1 + retries)
        ((level, line),) = await shop.said(event, shop.log)
        assert shop.worker.statistics.lost == 1
        go_on.set()
        if retries:
            await task.result(timeout=60)
        else:
            with pytest.raises(TaskFailed, match="lost"):
                await task.result(timeout=60)
        assert shop.log.events("warning") == [event], "the lost attempt reports no end"
    assert level == "warning"
    assert line.pop("seconds") >= 0
    handler = patient.__qualname__
    assert line == {"queue": "shop/patient", "handler": handler, "task": task.id, "attempt": 1}
