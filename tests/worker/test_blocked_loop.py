"""Handlers that block the worker's loop: leases are renewed, and what was lost does not begin."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import maitred
from maitred import App
from maitred.errors import InvalidReservation, TaskCancelled, Unavailable
from maitred.protocol.tasks import RETURNED, Finish, Finished, Heard, Heartbeat, Offer
from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker import standby
from maitred.worker.block_reports import QUIET_SECONDS, BlockReports
from maitred.worker.process import _connecting
from maitred.worker.pulse import LATE_SECONDS, PULSE_SECONDS, BlockDetector, Pulse, Sighting
from maitred.worker.statistics import WorkerStatistics
from maitred.worker.worker import Worker
from tests.app.fake_node import FakeNode
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.client.client import AsyncClient
    from maitred.worker.standby import Connecting

PATIENCE_SECONDS = 20


class Blocking:
    """An app whose handlers block until the test lets them go on, one by one."""

    def __init__(self) -> None:
        self.app = App("shop")
        self.begun: list[int] = []
        self.go_on = [threading.Event() for _ in range(3)]
        self.block = asyncio.Event()
        self.blocks = threading.Event()

        @self.app.handler("blocking", retries=0)
        async def blocking(number: int) -> int:
            self.begun.append(number)
            assert self.go_on[number].wait(PATIENCE_SECONDS)
            return number

        @self.app.handler("later", retries=0)
        async def later(number: int) -> int:
            self.begun.append(number)
            if number == 0:
                await self.block.wait()
                self.blocks.set()
                assert self.go_on[0].wait(PATIENCE_SECONDS)
            return number

        self.blocking, self.later = blocking, later


class WorkerThread:
    """A worker whose loop is not the test's, so that it can be blocked."""

    def __init__(self, app: App, connecting: Connecting, **settings: Any) -> None:  # noqa: ANN401
        self.app = app
        self.connecting = connecting
        self.settings = WorkerSettings(**settings)
        self.log = RecordedLog()
        self.worker: Worker | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._work())

    async def _work(self) -> None:
        self.loop = asyncio.get_running_loop()
        session = await self.app.session()
        handlers = list(self.app.handlers.values())
        surroundings = Surroundings.real()
        worker = Worker(
            session.client,
            handlers,
            self.settings,
            "w",
            surroundings,
            self.log,
            connecting=self.connecting,
        )
        self.worker = worker
        await worker.run()
        await self.app.close()

    @property
    def statistics(self) -> WorkerStatistics:
        assert self.worker is not None
        return self.worker.statistics


@asynccontextmanager
async def a_worker_thread(
    node: FakeNode,
    shop: Blocking,
    connecting: Connecting | None = None,
    **settings: Any,  # noqa: ANN401 - whatever a worker has
) -> AsyncIterator[WorkerThread]:
    node.app(shop.app)
    made = WorkerThread(shop.app, connecting or partial(_connecting, shop.app), **settings)
    made.thread.start()
    try:
        yield made
    finally:
        for event in shop.go_on:
            event.set()
        await until(lambda: made.worker is not None, PATIENCE_SECONDS)
        assert made.worker is not None
        made.loop.call_soon_threadsafe(made.worker.stop)
        await asyncio.to_thread(made.thread.join, PATIENCE_SECONDS)
        assert not made.thread.is_alive()
        await shop.app.close()


def mentioned(node: FakeNode) -> list[set[int]]:
    """The sequence numbers in each heartbeat."""
    return [{sequence for sequence, *_ in one.running} for one in node.heard(Heartbeat)]


def offered(node: FakeNode, queue: str) -> bool:
    """Whether an offer for that queue waits at the node."""
    return any(one.queue == queue for one in node.held(Offer))


@in_a_loop
async def test_leases_are_renewed_while_a_handler_blocks_the_loop() -> None:
    shop = Blocking()
    async with (
        FakeNode(lease_seconds=0.6) as node,
        a_worker_thread(node, shop, blocked_seconds=1.0) as made,
    ):
        task = await shop.blocking.enqueue(0)
        await node.until(lambda: shop.begun)
        # The loop that would send them is blocked until we let it go on.
        await node.until(lambda: len(node.heard(Heartbeat)) >= 4, PATIENCE_SECONDS)
        (sequence,) = node.partition("blocking").tasks
        assert mentioned(node)[-1] == {sequence}
        shop.go_on[0].set()
        assert await task.result(timeout=PATIENCE_SECONDS) == 0
        await node.until(lambda: made.statistics.blocked_seconds)
        assert shop.begun == [0], "it ran once"
        assert (made.statistics.blocked, made.statistics.lost) == (1, 0)
    (line,) = [fields for level, _, fields in made.log.lines if level == "warning"]
    assert line["handler"].endswith("blocking")
    assert line["queue"] == "shop/blocking"
    assert "go_on[number].wait" in line["stack"]
    assert __file__ in line["stack"].splitlines()[0], "the frames above the handler are left out"


@in_a_loop
async def test_what_waits_for_the_loop_and_what_is_not_told_yet_is_renewed_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standby, "LEASE_SHARE", 1 / 300)  # of a lease that no busy machine ends
    shop = Blocking()
    async with FakeNode(lease_seconds=60.0) as node:
        node.app(shop.app)
        tasks = await shop.blocking.enqueue_many(shop.blocking.call(n) for n in range(3))
        async with a_worker_thread(node, shop, blocked_seconds=0.2):
            everything = set(node.partition("blocking").tasks)
            await node.until(lambda: everything in mentioned(node), PATIENCE_SECONDS)
            assert shop.begun == [0], "the others are known to the worker, and have not begun"
            shop.go_on[0].set()
            await node.until(lambda: shop.begun == [0, 1])
            before = len(mentioned(node))
            assert not node.ends(), "the loop has had no turn to tell it"
            await node.until(lambda: everything in mentioned(node)[before:], PATIENCE_SECONDS)
            for event in shop.go_on:
                event.set()
            assert [await task.result(timeout=PATIENCE_SECONDS) for task in tasks] == [0, 1, 2]
            assert shop.begun == [0, 1, 2]


@in_a_loop
async def test_the_end_of_an_attempt_that_is_not_confirmed_does_not_cost_the_next_one() -> None:
    """A partition may give the next attempt out before it has written the end of the last one. The
    heartbeats of the standby thread also name ends, and an answer names tasks, not attempts."""
    shop = Blocking()
    confirmed = asyncio.Event()

    @shop.app.handler("failing", retries=1, backoff=0)
    async def failing() -> int:
        shop.begun.append(maitred.current().number)
        if len(shop.begun) == 1:
            raise ValueError("the first attempt fails")
        assert shop.go_on[0].wait(PATIENCE_SECONDS)
        await asyncio.sleep(0)  # what the other thread has heard is done now
        return 7

    async with FakeNode(lease_seconds=0.6) as node:

        async def finish(message: Finish) -> Finished:
            answer = await node._finish(message)
            await confirmed.wait()
            return answer

        node.before[Finish] = finish
        async with a_worker_thread(node, shop, blocked_seconds=0.2) as made:
            task = await failing.enqueue()
            await node.until(lambda: shop.begun == [1, 2])
            await node.until(lambda: len(node.heard(Heartbeat)) > 2)
            confirmed.set()
            shop.go_on[0].set()
            assert await task.result(timeout=PATIENCE_SECONDS) == 7
            assert made.statistics.lost == 0


class NoConnection:
    """Cannot be opened."""

    async def __aenter__(self) -> AsyncClient:
        raise Unavailable("There is no second connection.")

    async def __aexit__(self, *_: object) -> None: ...


@in_a_loop
async def test_what_comes_while_the_loop_is_blocked_for_a_lease_is_given_back() -> None:
    shop = Blocking()
    async with (
        FakeNode(lease_seconds=60.0) as node,
        a_worker_thread(node, shop, NoConnection, blocked_seconds=0.2) as made,
    ):
        first = await shop.later.enqueue(0)
        await node.until(lambda: shop.begun and offered(node, "later"))
        made.loop.call_soon_threadsafe(shop.block.set)
        await node.until(shop.blocks.is_set)
        node.lease_seconds = LATE_SECONDS + 0.1
        second = await shop.later.enqueue(1)
        await node.until(lambda: not node.partition("later").waiting)
        given_at = time.monotonic()
        # Its lease ends while the message lies in the worker's socket.
        await node.until(
            lambda: time.monotonic() > given_at + node.lease_seconds + 2 * PULSE_SECONDS
        )
        node.lease_seconds = 60.0  # for the second time
        shop.go_on[0].set()
        assert await first.result(timeout=PATIENCE_SECONDS) == 0
        assert await second.result(timeout=PATIENCE_SECONDS) == 1
        assert RETURNED in [end.how for end in node.ends()]
        assert (made.statistics.lapsed, made.statistics.returned) == (1, 1)
        assert shop.begun == [0, 1]
    assert (
        "leases are not renewed while the event loop is blocked; trying again"
        in made.log.events("warning")
    )


@in_a_loop
async def test_a_task_whose_lease_ended_before_its_turn_does_not_begin() -> None:
    """The clock that leases go by jumps as it does when a turn of the loop takes long."""
    app = App("shop")
    jumped = 0.0
    begun = []

    @app.handler("jumping", retries=0)
    async def jumping(number: int) -> int:
        nonlocal jumped
        begun.append(number)
        if number == 0:
            jumped = 14.0
        return number

    async with FakeNode(lease_seconds=10.0) as node:
        node.app(app)
        tasks = await jumping.enqueue_many(jumping.call(n) for n in range(2))

        def finished(_: Finish) -> None:
            nonlocal jumped
            jumped = 0.0

        node.before[Finish] = finished
        async with a_worker(node, app) as worker:
            loop = asyncio.get_running_loop()
            worker._slots.clock = lambda: loop.time() + jumped
            assert [await task.result(timeout=PATIENCE_SECONDS) for task in tasks] == [0, 1]
            assert begun == [0, 1]
            assert worker.statistics.lapsed == 1
            assert [end.how for end in node.ends()] == [0, RETURNED, 0]


@in_a_loop
@pytest.mark.parametrize("fate", ["lost", "cancelled", "lapsed"])
async def test_what_is_over_before_a_thread_is_free_does_not_begin(fate: str) -> None:
    app = App("shop")
    go_on = threading.Event()
    begun = []

    @app.handler("threads", retries=0)
    def threads(number: int) -> int:
        begun.append(number)
        if number == 0:
            assert go_on.wait(PATIENCE_SECONDS)
        return number

    async with (
        FakeNode(lease_seconds=60.0) as node,
        a_worker(node, app, threads=1, slots=2, young_seconds=0.05) as worker,
    ):
        first = await threads.enqueue(0)
        await node.until(lambda: begun)
        second = await threads.enqueue(1)
        await node.until(lambda: worker.statistics.busy == 2)
        (origin,) = worker._origins()
        waiting = list(origin.running.values())[1]
        if fate == "lost":
            node.partition("threads").tasks[waiting.key[0]].attempt += 1
            node.partition("threads").tell()
            await node.until(lambda: worker.statistics.lost)
        elif fate == "cancelled":
            await second.cancel()
            await node.until(lambda: waiting.cancelled)
        else:
            worker._heartbeats.stop()
            waiting.lease_ends_at = 0.0
        go_on.set()
        assert await first.result(timeout=PATIENCE_SECONDS) == 0
        if fate == "cancelled":
            with pytest.raises(TaskCancelled):
                await second.result(timeout=PATIENCE_SECONDS)
        elif fate == "lapsed":
            # It is given back, and comes again.
            assert await second.result(timeout=PATIENCE_SECONDS) == 1
            assert worker.statistics.lapsed == 1
        await node.until(lambda: not worker.statistics.busy)
        assert begun == ([0, 1] if fate == "lapsed" else [0])


@in_a_loop
async def test_heartbeats_keep_the_lease_of_what_waits_for_a_thread() -> None:
    app = App("shop")
    go_on = threading.Event()

    @app.handler("threads", retries=0)
    def threads(number: int) -> int:
        assert go_on.wait(PATIENCE_SECONDS)
        return number

    async def answer(_: Heartbeat) -> Heard:
        return Heard([], [])  # at once: the worker need not wait for a third of the lease

    async with (
        FakeNode(lease_seconds=60.0) as node,
        a_worker(node, app, threads=1, slots=2, young_seconds=0.05) as worker,
    ):
        tasks = await threads.enqueue_many(threads.call(n) for n in range(2))
        await node.until(lambda: worker.statistics.busy == 2)
        (origin,) = worker._origins()
        executions = list(origin.running.values())
        first_end = max(one.lease_ends_at for one in executions)
        node.before[Heartbeat] = answer
        await node.until(lambda: min(one.lease_ends_at for one in executions) > first_end)
        worker._slots.clock = lambda: first_end  # when the leases of the offer have ended
        go_on.set()
        assert [await task.result(timeout=PATIENCE_SECONDS) for task in tasks] == [0, 1]
        assert worker.statistics.lapsed == 0


# Queries


class LatePulse(Pulse):
    """Of a loop that has just been blocked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._seconds = 0.0
        self.in_time_until = -inf

    @property
    def seconds(self) -> float:
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self.offset += seconds - self._seconds
        self._seconds = seconds

    def behind(self, now: float) -> float:  # noqa: ARG002
        return self._seconds


def asking_app(begun: list[int]) -> App:
    app = App("shop")

    @app.handler("async")
    async def a(number: int) -> int:
        begun.append(number)
        return number

    @app.handler("thread")
    def b(number: int) -> int:
        begun.append(number)
        return number

    return app


@in_a_loop
async def test_a_reservation_that_is_over_when_it_is_read_takes_no_slot() -> None:
    begun: list[int] = []
    async with (
        ReservingNode() as node,
        a_worker(node, asking_app(begun), "async", fetch_seconds=600.0) as worker,
        a_gateway(worker) as gateway,
    ):
        late = worker.querying.pulse = LatePulse(asyncio.get_running_loop())
        late.seconds = 6.0
        token = node.token()
        stream = gateway.run(token, 1)
        await node.until(lambda: token in worker.querying._early.waiting)
        node.reserve("async", token, reservation_seconds=5.0)
        assert isinstance(await gateway.error(stream), Unavailable)
        assert worker.statistics.busy == 0
        late.seconds = 0.0
        stream = gateway.run(node.reserve("async", reservation_seconds=5.0), 2)
        assert await gateway.result(stream) == 2
        assert begun == [2]


@in_a_loop
async def test_a_query_for_a_reservation_whose_end_nobody_has_noticed_yet_is_refused() -> None:
    begun: list[int] = []
    async with (
        ReservingNode() as node,
        a_worker(node, asking_app(begun), "async", fetch_seconds=600.0) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("async", reservation_seconds=5.0)
        await node.until(lambda: worker.querying.is_known(token))
        worker.querying._alarm.stop()  # as a blocked loop does
        worker.querying._book.known[token].expires_at = 0.0
        stream = gateway.run(token, 1)
        assert isinstance(await gateway.error(stream), InvalidReservation)
        assert (worker.statistics.busy, worker.statistics.unused) == (0, 1)
        assert not begun


@in_a_loop
@pytest.mark.parametrize("queue", ["async", "thread"])
async def test_a_query_whose_time_was_over_before_it_was_read_does_not_begin(queue: str) -> None:
    begun: list[int] = []
    async with (
        ReservingNode() as node,
        a_worker(node, asking_app(begun), queue, fetch_seconds=600.0) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve(queue, reservation_seconds=60.0)
        await node.until(lambda: worker.querying.is_known(token))
        late = worker.querying.pulse = LatePulse(asyncio.get_running_loop())
        late.seconds = 10.0
        failure = await gateway.failure(gateway.run(token, 1, timeout=5.0))
        assert failure.kind == "timed-out"
        assert not begun
        await node.until(lambda: worker.statistics.busy == 0)


# Pure


class HandLoop:
    """A loop whose time the test sets, and whose timers never ring."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def call_later(self, *_: object) -> HandLoop:
        return self

    def cancel(self) -> None: ...


def test_what_is_read_after_a_block_may_be_as_old_as_the_block() -> None:
    loop: Any = HandLoop()
    pulse = Pulse(loop, lambda: loop.now + 5.0)
    assert pulse.behind(loop.now + 60.0) == 0.0, "it was not started"
    pulse.start()
    for _ in range(3):
        loop.now += PULSE_SECONDS
        pulse.stamp()
        assert pulse.behind(loop.now) == 0.0
    loop.now += 14.0
    assert pulse.behind(loop.now) == 14.0
    pulse.stamp()
    assert pulse.behind(loop.now) == 14.0, "what is read in the same turn as well"
    loop.now += PULSE_SECONDS
    pulse.stamp()
    assert pulse.behind(loop.now) == 0.0
    assert pulse.time() == loop.now


def test_a_block_is_found_once_and_ends_with_the_next_stamp() -> None:
    detector = BlockDetector(1.0)
    assert detector.look(10.0, 9.8, 0.0) is Sighting.NOTHING
    assert detector.look(10.9, 9.9, 0.0) is Sighting.BLOCKED
    assert detector.look(15.0, 9.9, 0.0) is Sighting.NOTHING
    assert detector.look(15.3, 15.2, 0.0) is Sighting.FREED
    assert detector.lasted == pytest.approx(5.3)
    assert detector.look(15.5, 15.4, 0.0) is Sighting.NOTHING


def test_a_watcher_that_did_not_run_itself_finds_the_block_afterwards() -> None:
    detector = BlockDetector(1.0)
    assert detector.look(30.0, 29.9, 14.0) is Sighting.BLOCKED
    assert detector.lasted == pytest.approx(14.0)
    assert detector.look(30.2, 30.1, 0.0) is Sighting.FREED


@in_a_loop
async def test_lines_about_blocks_are_bounded_and_name_the_cause() -> None:
    log, statistics, now = RecordedLog(), WorkerStatistics(1), 1_000.0
    reports = BlockReports(statistics, log, lambda: (), lambda: now)
    here, reports._loop = reports._loop, uvloop.new_event_loop()
    reports._loop.close()  # no task runs on it
    for _ in range(50):
        reports.blocked(1.0, 0.0, 0.0)
        reports.not_renewed(Unavailable("gone"))
        reports.not_renewed(Unavailable("gone"))
        reports.freed(2.0)
    assert len(log.events("info")) == 1
    assert len([event for event in log.events("warning") if "has no turn" in event]) == 1
    now += QUIET_SECONDS
    reports.blocked(14.0, 14.0, 13.9)
    assert "held the GIL" in log.events("warning")[-1]
    assert log.lines[-1][2]["unlogged"] == 49
    now += QUIET_SECONDS
    reports.blocked(14.0, 14.0, 0.1)
    assert "no thread of this worker ran" in log.events("warning")[-1]
    assert "handler" not in log.lines[-1][2], "no handler is on the loop"
    now += QUIET_SECONDS
    reports._loop = here
    reports.blocked(1.0, 0.0, 0.0)
    assert "a handler blocks" in log.events("warning")[-1]
    assert log.lines[-1][2]["handler"].startswith("test_lines"), "a task of a handler's own"
    assert (statistics.blocked, statistics.blocked_seconds) == (53, 100.0)
