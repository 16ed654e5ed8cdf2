"""A query that its gateway sends again after a lost connection never runs twice at one worker."""

from __future__ import annotations

import asyncio

import pytest

from maitred.errors import Unavailable
from maitred.protocol.tasks import Offer
from tests.node.in_process import in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker
from tests.worker.test_queries import Desk


@in_a_loop
async def test_the_earlier_run_is_stopped_before_the_query_begins_again() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, slots=4) as worker,
        a_gateway(worker) as lost,
        a_gateway(worker) as gateway,
    ):
        first, other = node.reserve("holding"), node.reserve("holding")
        lost.run(first, "first", sequence=1)
        kept = lost.run(other, "other", sequence=2)
        assert {await desk.begun.get(), await desk.begun.get()} == {"first", "other"}
        # The gateway gave that connection up. The worker has not heard of it.
        token = node.reserve("holding")
        with pytest.raises(Unavailable, match="earlier run"):
            await gateway.over(gateway.run(token, "again", sequence=1, lost=[first]))
        assert desk.begun.empty(), "two runs of one query at the same time"
        await until(lambda: desk.stopped == ["first"])
        again = gateway.run(node.reserve("holding"), "again", sequence=1, lost=[first])
        assert await desk.begun.get() == "again"
        desk.go_on.set()
        assert await gateway.result(again) == "again"
        assert await lost.result(kept) == "other", "another query of the same gateway goes on"
        await until(lambda: worker.statistics.busy == 0)


@in_a_loop
async def test_a_thread_that_cannot_be_stopped_is_waited_for() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, slots=4) as worker,
        a_gateway(worker) as lost,
        a_gateway(worker) as gateway,
    ):
        first = node.reserve("threads")
        lost.run(first, "first", sequence=1)
        await until(desk.thread_begun.is_set)
        desk.thread_begun.clear()
        for _ in range(3):
            stream = gateway.run(node.reserve("threads"), "again", sequence=1, lost=[first])
            with pytest.raises(Unavailable, match="earlier run"):
                await gateway.over(stream)
        assert desk.thread_saw_cancel.wait(10), "the handler is told"
        assert not desk.thread_begun.is_set()
        assert worker.statistics.busy == 1, "the slots of the refused attempts are free again"
        desk.thread_may_end.set()
        await until(lambda: worker.statistics.busy == 0)
        stream = gateway.run(node.reserve("threads"), "again", sequence=1, lost=[first])
        assert await gateway.result(stream) == "again"


@in_a_loop
async def test_an_attempt_that_arrives_after_its_successor_does_not_begin() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, slots=4) as worker,
        a_gateway(worker) as lost,
        a_gateway(worker) as gateway,
    ):
        known, unheard = node.reserve("holding"), node.token()
        await until(lambda: worker.statistics.busy == 1)
        early = lost.run(unheard, "early", sequence=1)
        await asyncio.sleep(0)
        again = gateway.run(node.reserve("holding"), "again", sequence=1, lost=[known, unheard])
        assert await desk.begun.get() == "again"
        late = lost.run(known, "late", sequence=1)
        for stream in (early, late):
            with pytest.raises(Unavailable, match="does not begin"):
                await lost.over(stream)
        node.reserve("holding", unheard)
        offers = len(node.heard(Offer))
        await until(lambda: len(node.heard(Offer)) > offers)
        assert desk.begun.empty()
        desk.go_on.set()
        assert await gateway.result(again) == "again"
