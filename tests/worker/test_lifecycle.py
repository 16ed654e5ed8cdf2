"""The phases of a worker: what the table lists, and what a running worker does with it."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from maitred import App
from maitred.errors import InternalError
from maitred.protocol.queries import Attend, Attended
from maitred.worker.lifecycle import (
    DRAINING,
    OFFLINE,
    SERVING,
    STOPPED,
    WORKER_TABLE,
    WorkerEvent,
    WorkerLifecycle,
    WorkerPhase,
)
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker


@pytest.mark.parametrize(("event", "phase"), list(product(WorkerEvent, WorkerPhase)))
def test_a_pair_that_is_not_listed_raises_and_changes_nothing(
    event: WorkerEvent, phase: WorkerPhase
) -> None:
    lifecycle = WorkerLifecycle()
    lifecycle.phase = phase
    after = WORKER_TABLE.transitions[phase].get(event)
    if after is None:
        with pytest.raises(InternalError, match=f"{phase.value} got the event {event.value}"):
            lifecycle.happen(event)
        assert lifecycle.phase is phase
    else:
        assert lifecycle.happen(event) is (after is not phase)
        assert lifecycle.phase is after
        assert after.value in repr(lifecycle)


def an_app(go_on: asyncio.Event) -> App:
    app = App("desk")

    @app.handler("hold")
    async def hold() -> str:
        await go_on.wait()
        return "held"

    return app


def order(node: ReservingNode, what: str) -> None:
    node.orders.setdefault("hold", asyncio.Queue()).put_nowait(Attended(what))  # type: ignore[arg-type]


@in_a_loop
async def test_a_worker_goes_through_its_phases_and_does_not_run_twice() -> None:
    go_on = asyncio.Event()
    async with ReservingNode() as node, a_worker(node, an_app(go_on)) as worker:
        await until(lambda: worker.lifecycle.phase is SERVING)
        await until(lambda: bool(node.held(Attend)))
        order(node, "offline")
        await until(lambda: worker.lifecycle.phase is OFFLINE)
        worker.stop()
        assert worker.lifecycle.phase is DRAINING
    assert worker.lifecycle.phase is STOPPED
    worker.stop()
    with pytest.raises(InternalError):
        await worker.run()


@in_a_loop
async def test_an_order_to_a_worker_that_drains_changes_nothing() -> None:
    go_on, log = asyncio.Event(), RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, an_app(go_on), log=log) as worker,
        a_gateway(worker) as gateway,
    ):
        running = gateway.run(node.reserve("hold"))
        await until(lambda: worker.statistics.queries == 1)
        worker.stop()
        for what in ("offline", "online"):
            await until(lambda: bool(node.held(Attend)))
            order(node, what)
            await until(node.orders["hold"].empty)
        assert worker.lifecycle.phase is DRAINING
        go_on.set()
        assert await gateway.result(running) == "held"
    assert not {"taken offline", "put back online"} & set(log.events("info"))
