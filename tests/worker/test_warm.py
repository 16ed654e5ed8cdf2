"""A slot that is kept for a moment for the gateway that has just had it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maitred.errors import InvalidReservation, SlotTaken
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import DONE
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway, encode
from tests.worker.running import a_worker
from tests.worker.test_queries import Desk

if TYPE_CHECKING:
    from maitred.protocol.query_link import QueryEnd
    from maitred.worker.worker import Worker
    from tests.worker.querying import RawGateway


async def asked(gateway: RawGateway, token: bytes, text: str) -> QueryEnd:
    return await gateway.over(gateway.run(token, text))


async def first(
    worker: Worker, gateway: RawGateway, desk: Desk, token: bytes, *, others: bool = True
) -> QueryEnd:
    """A query that ends when the worker has its other slots on offer again, if it has any."""
    stream = gateway.run(token, "a")
    await desk.begun.get()
    if others:
        (served,) = (one for one in worker._served if one.name == "holding")
        await until(lambda: served.on_offer > 0)
    desk.go_on.set()
    return await gateway.over(stream)


@in_a_loop
async def test_the_slot_goes_from_query_to_query_and_each_token_counts_once() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, slots=2, warm_seconds=30.0) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("holding", again_seconds=60.0)
        query_end = await first(worker, gateway, desk, token)
        tokens = {query_end.again}
        for text in "bcd":
            assert worker.statistics.busy == 1
            following = await asked(gateway, query_end.again, text)
            assert (following.how, following.body) == (DONE, encode(text))
            with pytest.raises(InvalidReservation):
                await gateway.result(gateway.run(query_end.again, text))
            query_end = following
            tokens.add(query_end.again)
        assert len(tokens) == 4
        assert {len(token) for token in tokens} == {16}
        assert query_end.again_seconds == 30.0
        gateway.send(0, 0, Opcode.RELEASE, query_end.again)
        await until(lambda: worker.statistics.busy == 0)


@in_a_loop
async def test_a_slot_that_nobody_comes_back_to_is_free_again() -> None:
    desk, log = Desk(), RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, log=log, slots=2, warm_seconds=0.01) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("holding", again_seconds=60.0)
        query_end = await first(worker, gateway, desk, token)
        assert query_end.again
        await until(lambda: worker.statistics.busy == 0)
        assert worker.statistics.unused == 0, "it was only kept, in case"
        with pytest.raises(SlotTaken):
            await gateway.result(gateway.run(query_end.again, "b"))
    assert not log.events("warning"), "on a busy machine that is everyday life"


@pytest.mark.parametrize(
    ("slots", "warm_seconds", "again_seconds", "why"),
    [
        (1, 30.0, 60.0, "the worker has no other slot on offer: whoever waits goes first"),
        (2, 0.0, 60.0, "the worker keeps none"),
        (2, 30.0, 0.0, "the node allows none"),
        (2, 30.0, 20.0, "the node allows it for less than it would be kept"),
    ],
)
@in_a_loop
async def test_no_slot_is_kept(
    slots: int, warm_seconds: float, again_seconds: float, why: str
) -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, slots=slots, warm_seconds=warm_seconds) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("holding", again_seconds=again_seconds)
        query_end = await first(worker, gateway, desk, token, others=slots > 1)
        assert query_end.again == b"", why
        await until(lambda: worker.statistics.busy == 0)
