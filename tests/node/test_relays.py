"""Queries that pass through the node: both ways, piece by piece, and whoever leaves on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import (
    Cancelled,
    InvalidArgument,
    InvalidReservation,
    PayloadTooLarge,
    WorkerLost,
)
from maitred.node import relays
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import PIECE_MAX, Delivered, Fetched, Relayed
from maitred.settings import QuerySettings, Queue
from tests.node.in_process import in_a_loop, until
from tests.node.querying import SECONDS, Stage, stage, waits

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.client.long_poll import LongPoll

TOKEN = b"capability......"
SHORT = {"*": Queue(queries=QuerySettings(reservation_seconds=0.3))}


def table(one: Stage) -> dict[Any, Any]:
    """Of the shard that has the queue's root, wherever it was put."""
    hold: Any = one.node.shards[-1].holders[Opcode.RELAY]
    found: dict[Any, Any] = hold.__self__._table
    return found


async def begun(one: Stage, gateway: AsyncClient, worker: AsyncClient) -> LongPoll:
    """The worker has the query; what the gateway waits for."""
    asked = gateway.hold(one.relay(TOKEN, query=b"query"), SECONDS)
    assert await worker.request(one.fetch(TOKEN), SECONDS) == Fetched(b"query")
    return asked


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("first", ["gateway", "worker"])
@in_a_loop
async def test_a_query_and_its_answer_pass_in_pieces(
    tmp_path: Path, shards: int, first: str
) -> None:
    async with stage(tmp_path, shards=shards) as one:
        gateway, worker = await one.client(), await one.client()
        if first == "gateway":
            asked = gateway.hold(one.relay(TOKEN, query=b"query"), SECONDS)
            await until(lambda: len(table(one)) == 1)
            fetching = worker.hold(one.fetch(TOKEN), SECONDS)
        else:
            fetching = worker.hold(one.fetch(TOKEN), SECONDS)
            await until(lambda: len(table(one)) == 1)
            asked = gateway.hold(one.relay(TOKEN, query=b"query"), SECONDS)
        assert await fetching.answer() == Fetched(b"query")
        watching = worker.hold(one.fetch(TOKEN, running=True), SECONDS)
        for ordinal in range(3):
            if ordinal:
                asked = gateway.hold(one.relay(TOKEN, ordinal), SECONDS)
            more = ordinal < 2
            piece = one.deliver(TOKEN, ordinal, b"piece %d" % ordinal, more=more)
            assert await worker.request(piece, SECONDS) == Delivered()
            assert await asked.answer() == Relayed(0x55, b"piece %d" % ordinal, more)
        assert await watching.answer() == Fetched()
        assert not table(one)


@in_a_loop
async def test_a_piece_waits_until_it_is_asked_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway, worker = await one.client(), await one.client()
        asked = await begun(one, gateway, worker)
        assert await worker.request(one.deliver(TOKEN, 0, b"a"), SECONDS) == Delivered()
        await asked.answer()
        second = worker.hold(one.deliver(TOKEN, 1, b"b", more=False), SECONDS)
        await waits(second)
        assert await gateway.request(one.relay(TOKEN, 1), SECONDS) == Relayed(0x55, b"b", False)  # noqa: FBT003
        assert await second.answer() == Delivered()


@in_a_loop
async def test_a_gateway_that_leaves_stops_the_worker(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway, worker = await one.client(), await one.client()
        asked = await begun(one, gateway, worker)
        watching = worker.hold(one.fetch(TOKEN, running=True), SECONDS)
        await waits(watching)
        asked.take_back()
        assert await watching.answer() == Fetched(stop=True)
        with pytest.raises(Cancelled):
            await asked.answer()
        assert await worker.request(one.deliver(TOKEN, 0, b"a"), SECONDS) == Delivered(stop=True)
        again = await worker.request(one.fetch(TOKEN, running=True), SECONDS)
        assert again == Fetched(stop=True)
        assert not table(one)


@in_a_loop
async def test_a_gateway_that_leaves_while_a_piece_waits_stops_the_worker(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway, worker = await one.client(), await one.client()
        asked = await begun(one, gateway, worker)
        await worker.request(one.deliver(TOKEN, 0, b"a"), SECONDS)
        await asked.answer()
        waiting = worker.hold(one.deliver(TOKEN, 1, b"b"), SECONDS)
        await waits(waiting)
        (relaying,) = table(one).values()
        relaying.gateway_by = 0.0  # as if it had not asked for a minute
        assert await waiting.answer() == Delivered(stop=True)


@in_a_loop
async def test_a_gateway_that_leaves_before_the_worker_came_leaves_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway, worker = await one.client(), await one.client()
        asked = gateway.hold(one.relay(TOKEN, query=b"query"), SECONDS)
        await until(lambda: len(table(one)) == 1)
        asked.take_back()
        with pytest.raises(Cancelled):
            await asked.answer()
        assert not table(one)
        fetching = worker.hold(one.fetch(TOKEN), SECONDS)
        await waits(fetching)
        fetching.take_back()
        with pytest.raises(Cancelled):
            await fetching.answer()
        assert not table(one)


@in_a_loop
async def test_a_query_that_no_worker_fetches_was_not_run(tmp_path: Path) -> None:
    async with stage(tmp_path, queues=SHORT) as one:
        gateway = await one.client()
        with pytest.raises(InvalidReservation):
            await gateway.hold(one.relay(TOKEN, query=b"query"), SECONDS).answer()
        assert not table(one)


@pytest.mark.parametrize("watched", [True, False])
@in_a_loop
async def test_a_worker_that_is_lost_is_told_to_the_gateway(
    tmp_path: Path, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "RETURN_SECONDS", 0.3)
    async with stage(tmp_path) as one:
        gateway, worker = await one.client(), await one.client()
        asked = await begun(one, gateway, worker)
        if watched:
            watching = worker.hold(one.fetch(TOKEN, running=True), SECONDS)
            await waits(watching)
            watching.take_back()
            with pytest.raises(Cancelled):
                await watching.answer()
        with pytest.raises(WorkerLost):
            await asked.answer()
        assert not table(one)


@in_a_loop
async def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway, worker = await one.client(), await one.client()
        with pytest.raises(WorkerLost):  # a shard that was started again knows nothing
            await gateway.request(one.relay(TOKEN, 3), SECONDS)
        assert await worker.request(one.deliver(TOKEN, 3, b""), SECONDS) == Delivered(stop=True)
        asked = await begun(one, gateway, worker)
        with pytest.raises(InvalidReservation, match="already"):
            await gateway.hold(one.relay(TOKEN, query=b"again"), SECONDS).answer()
        with pytest.raises(InvalidReservation, match="already"):
            await worker.hold(one.fetch(TOKEN), SECONDS).answer()
        with pytest.raises(InvalidArgument):
            await worker.request(one.deliver(TOKEN, 1, b"too early"), SECONDS)
        with pytest.raises(PayloadTooLarge):
            await worker.request(one.deliver(TOKEN, 0, bytes(PIECE_MAX + 1)), SECONDS)
        await worker.request(one.deliver(TOKEN, 0, b"a"), SECONDS)
        await asked.answer()
        with pytest.raises(InvalidArgument):
            await gateway.request(one.relay(TOKEN, 2), SECONDS)
        assert await worker.request(one.deliver(TOKEN, 0, b"a"), SECONDS) == Delivered()
        assert len(table(one)) == 1
