"""Presence, and a person's orders."""

from __future__ import annotations

import asyncio

from maitred import App
from maitred.errors import UnknownRequest
from maitred.protocol.queries import Attend, Attended
from maitred.protocol.sessions import session_of_secret
from maitred.protocol.tasks import Offer
from maitred.worker.attendance import UNANSWERED_MAX
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker


def an_app() -> tuple[App, asyncio.Event]:
    app = App("desk")
    go_on = asyncio.Event()

    @app.handler("echo")
    async def echo(text: str) -> str:
        return text

    @app.handler("holding")
    async def holding() -> str:
        await go_on.wait()
        return "held"

    return app, go_on


def order(node: ReservingNode, queue: str, what: str) -> None:
    node.orders.setdefault(queue, asyncio.Queue()).put_nowait(Attended(what))  # type: ignore[arg-type]


def said(node: ReservingNode, queue: str) -> list[Attend]:
    return [one for one in node.heard(Attend) if one.queue == queue]


@in_a_loop
async def test_the_root_of_every_queue_hears_of_the_worker_again_and_again() -> None:
    app, go_on = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app, slots=3, attend_seconds=0.3) as worker,
        a_gateway(worker) as gateway,
    ):
        await until(lambda: all(said(node, queue) for queue in ("echo", "holding")))
        first = said(node, "echo")[0]
        assert (first.partition, first.worker) == (0, "w")
        assert session_of_secret(first.session) == worker._session
        assert (first.address, first.slots, first.busy) == (worker.address, 3, 0)
        assert (first.limit, first.limit_reason, first.blocked) == (3, "slots", 0)
        assert first.state == "online"
        stream = gateway.run(node.reserve("holding"))
        await until(lambda: said(node, "echo")[-1].busy == 1)
        go_on.set()
        assert await gateway.result(stream) == "held"


@in_a_loop
async def test_it_is_ready_once_every_root_knows_of_it() -> None:
    app, _ = an_app()
    first = asyncio.Event()

    async def late() -> None:
        await first.wait()

    async with ReservingNode() as node:
        node.before[Attend] = lambda one: late() if one.queue == "holding" else None
        async with a_worker(node, app) as worker:
            await until(lambda: len(said(node, "echo")) > 1)
            assert not worker.ready.is_set(), "one of them has not answered"
            first.set()
            async with asyncio.timeout(30):
                await worker.ready.wait()


@in_a_loop
async def test_taken_offline_it_drains_and_put_back_it_offers() -> None:
    app, go_on = an_app()
    log = RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, app, log=log) as worker,
        a_gateway(worker) as gateway,
    ):
        running = gateway.run(node.reserve("holding"))
        await until(lambda: worker.statistics.queries == 1)
        token = node.reserve("echo")
        await until(lambda: worker.querying.reservations == 1)
        await until(lambda: len(node.held(Attend)) == 2)
        order(node, "echo", "offline")
        await until(lambda: not node.held(Offer))
        await until(
            lambda: all(said(node, one)[-1].state == "draining" for one in ("echo", "holding"))
        )
        # What was promised is kept, and what is new goes elsewhere.
        assert await gateway.result(gateway.run(token, "a")) == "a"
        task = await app.handlers["echo"].enqueue("later")
        go_on.set()
        assert await gateway.result(running) == "held"
        await until(
            lambda: all(said(node, one)[-1].state == "offline" for one in ("echo", "holding"))
        )
        assert not node.held(Offer)
        order(node, "echo", "offline")  # as it is already
        await until(node.orders["echo"].empty)
        order(node, "holding", "online")
        assert await task.result(timeout=10) == "later"
        await until(lambda: said(node, "echo")[-1].state == "online")
        assert await gateway.result(gateway.run(node.reserve("echo"), "b")) == "b"
    told = log.events("info")
    assert [told.count(line) for line in ("taken offline", "put back online")] == [1, 1]
    assert "offline: no handler runs any more; waits for the order to go online" in told


@in_a_loop
async def test_a_worker_that_is_offline_can_be_stopped() -> None:
    app, _ = an_app()
    async with ReservingNode() as node, a_worker(node, app) as worker:
        await until(lambda: len(node.held(Attend)) == 2)
        order(node, "echo", "offline")
        await until(lambda: said(node, "echo")[-1].state == "offline")
        assert not worker.statistics.busy


@in_a_loop
async def test_a_stopping_worker_says_so() -> None:
    app, go_on = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app) as worker,
        a_gateway(worker) as gateway,
    ):
        gateway.run(node.reserve("holding"))
        await until(lambda: worker.statistics.queries == 1)
        worker.stop()
        await until(lambda: said(node, "echo")[-1].state == "draining")
        order(node, "echo", "online")  # too late
        await until(node.orders["echo"].empty)
        assert not node.held(Offer)
        go_on.set()


@in_a_loop
async def test_a_restarted_node_hears_who_is_offline() -> None:
    app, _ = an_app()
    log = RecordedLog()
    async with ReservingNode() as node, a_worker(node, app, log=log):
        await until(lambda: len(node.held(Attend)) == 2)
        order(node, "echo", "offline")
        await until(lambda: said(node, "echo")[-1].state == "offline")
        await node.stop()
        node.said.clear()
        await node.start()
        await until(lambda: all(said(node, queue) for queue in ("echo", "holding")))
        assert {one.state for one in node.heard(Attend)} == {"offline"}
        assert not node.heard(Offer)
    assert log.events("warning").count("the node does not answer; trying again") <= 2


@in_a_loop
async def test_a_node_that_knows_nothing_of_queries_is_no_trouble() -> None:
    app, _ = an_app()
    log = RecordedLog()

    async def refuse(_: Attend) -> None:
        raise UnknownRequest("What?")

    async with ReservingNode() as node:
        node.before[Attend] = refuse
        async with a_worker(node, app, log=log):
            await until(lambda: len(node.heard(Attend)) >= 4)
            assert await (await app.handlers["echo"].enqueue("a")).result(timeout=10) == "a"
    assert not log.events("error") + log.events("warning")


@in_a_loop
async def test_a_root_that_never_answers_is_logged() -> None:
    app, _ = an_app()
    log = RecordedLog()

    async def never(_: Attend) -> None:
        await asyncio.Event().wait()

    async with ReservingNode() as node:
        node.before[Attend] = never
        async with a_worker(node, app, log=log, attend_seconds=0.05):
            await until(lambda: "the node does not answer; trying again" in log.events("warning"))
            assert len(said(node, "echo")) >= UNANSWERED_MAX
