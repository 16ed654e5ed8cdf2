"""A node that stops: what is under way is finished or told, what is new is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.protocol import cql
from maitred.protocol.frames import Opcode
from maitred.protocol.notation import Reader
from tests.node.in_process import GATED, LOOPS, in_a_loop, node, until
from tests.node.raw import (
    RawClient,
    cancel,
    echo,
    echoed_in,
    error_in,
    options,
    register,
    status,
    status_in,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_what_is_under_way_is_finished(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, shards=2) as running:
        running.hold_until((gate := asyncio.Event()).wait)
        client = await running.ready(0)
        client.write(echo(running.queue_of(0), stream=1, hold=GATED))
        client.write(echo(running.queue_of(1), stream=2, hold=GATED))
        await until(lambda: all(shard.in_flight for shard in running.shards))
        draining = [asyncio.create_task(shard.drain()) for shard in running.shards]
        await until(lambda: all(shard.draining for shard in running.shards))
        for owner in (0, 1):  # new ones are refused, wherever they belong
            problem = error_in(await client.ask(echo(running.queue_of(owner), stream=3)))
            assert problem.code == "draining"
            assert problem.remedy
        assert status_in(await client.ask(status(0, stream=4))).state == "draining"
        assert (await client.ask(options(5))).opcode == Opcode.SUPPORTED
        with pytest.raises(ConnectionError):
            await RawClient.open(running.own_ports[0])
        gate.set()
        for answer in (await client.frames(2)).values():
            assert echoed_in(answer).payload == b"hello"
        await client.ended()
        client.close()
        assert await asyncio.gather(*draining) == [True, True]
        assert not running.shard.connections


@in_a_loop
async def test_a_request_passed_on_to_a_shard_that_stops(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        running.hold_until((gate := asyncio.Event()).wait)
        client = await running.ready(0)
        queue = running.queue_of(1)
        client.write(echo(queue, stream=1, hold=GATED))
        await until(lambda: running.shards[1].in_flight == 1)
        draining = asyncio.create_task(running.shards[1].drain())
        await until(lambda: running.shards[1].draining)
        assert error_in(await client.ask(echo(queue, stream=2))).code == "draining"
        gate.set()
        assert echoed_in(await client.frame()).shard == 1
        assert await draining
        assert error_in(await client.ask(echo(queue, stream=2))).code == "unavailable"
        # When this one stops as well, nobody is being started again.
        gate.clear()
        client.write(echo(running.queue_of(0), stream=3, hold=GATED))
        await until(lambda: running.shards[0].in_flight == 1)
        stopping = asyncio.create_task(running.shards[0].drain())
        await until(lambda: running.shards[0].draining)
        assert error_in(await client.ask(status(1, stream=4))).code == "draining"
        gate.set()
        assert echoed_in(await client.frame()).shard == 0
        client.close()
        assert await stopping


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_whoever_registered_is_told(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path) as running:
        ours, drivers, both, neither = [await running.ready() for _ in range(4)]
        await ours.ask(register("MAITRED_DRAINING"))
        await drivers.ask(register("TOPOLOGY_CHANGE", "STATUS_CHANGE", "SCHEMA_CHANGE"))
        await both.ask(register("MAITRED_DRAINING", "STATUS_CHANGE"))
        handshaking = await running.open()
        await handshaking.ask(options())
        draining = asyncio.create_task(running.shard.drain())
        for client, events in (
            (ours, ["MAITRED_DRAINING"]),
            (drivers, ["STATUS_CHANGE"]),
            (both, ["MAITRED_DRAINING", "STATUS_CHANGE"]),
            (neither, []),
            (handshaking, []),
        ):
            for event in events:
                frame = await client.frame()
                assert (frame.stream, frame.opcode) == (-1, Opcode.EVENT)
                assert cql.decode_event(frame.body) == event
                if event == "STATUS_CHANGE":
                    reader = Reader(frame.body)
                    assert [reader.string(), reader.string()] == ["STATUS_CHANGE", "DOWN"]
                    assert reader.inet() == ("127.0.0.1", running.port)
                    assert reader.at_end
            await client.ended()
            client.close()
        assert await draining


@in_a_loop
async def test_whoever_registers_late_is_told_at_once(tmp_path: Path) -> None:
    """And registering again adds to what was registered, as drivers expect."""
    async with node(tmp_path) as running:
        running.hold_until((gate := asyncio.Event()).wait)
        client = await running.ready()
        client.write(echo("q", stream=9, hold=GATED))
        await until(lambda: running.shard.in_flight == 1)
        await client.ask(register("STATUS_CHANGE"))
        draining = asyncio.create_task(running.shard.drain())
        assert cql.decode_event((await client.frame()).body) == "STATUS_CHANGE"
        client.write(register("MAITRED_DRAINING", stream=3))
        frames = [await client.frame() for _ in range(3)]
        assert frames[0].opcode == Opcode.READY
        events = {cql.decode_event(frame.body) for frame in frames[1:]}
        assert events == {"STATUS_CHANGE", "MAITRED_DRAINING"}
        gate.set()
        assert (await client.frame()).stream == 9  # what was under way is answered
        await client.ended()
        client.close()
        assert await draining


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_whoever_is_leaving_is_not_told(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    """Its last words have been said; a write after them would be an error."""
    async with node(tmp_path) as running:
        client = await running.ready()
        await client.ask(register("MAITRED_DRAINING", "STATUS_CHANGE"))
        client.write(options(-5))
        assert error_in(await client.frame()).code == "protocol-violation"
        assert len(running.shard.connections) == 1  # it waits for the client to close
        draining = asyncio.create_task(running.shard.drain())
        await client.ended()
        client.close()
        assert await draining


@pytest.mark.parametrize("owner", [0, 1])
@in_a_loop
async def test_at_the_bound_the_rest_is_told_and_cut_off(owner: int, tmp_path: Path) -> None:
    # Long enough for what may end at once, on a busy machine as well.
    async with node(tmp_path, shards=2, drain_seconds=1.0) as running:
        running.hold_until((gate := asyncio.Event()).wait)
        client = await running.ready(0)
        queue = running.queue_of(owner)
        client.write(b"".join(echo(queue, stream=n, hold=GATED) for n in range(5)))
        client.write(b"".join(echo(queue, stream=n, hold=30_000) for n in range(5, 10)))
        await until(lambda: running.shards[owner].in_flight == 10)
        draining = [asyncio.create_task(shard.drain()) for shard in running.shards]
        gate.set()
        answers = await client.frames(10)  # one for each, and never two
        for stream in range(5):
            assert echoed_in(answers[stream]).shard == owner
        for stream in range(5, 10):
            problem = error_in(answers[stream])
            assert problem.code == "cut-off"
            assert "before the request was finished" in problem.sentence
        await client.ended()
        client.close()
        assert False in await asyncio.gather(*draining)
        assert all(shard.in_flight == 0 for shard in running.shards)


@in_a_loop
async def test_taking_back_is_possible_while_draining(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        client.write(echo("q", stream=1, hold=30_000))
        await until(lambda: running.shard.in_flight == 1)
        draining = asyncio.create_task(running.shard.drain())
        await until(lambda: running.shard.draining)
        assert error_in(await client.ask(cancel(1))).code == "cancelled"
        await client.ended()
        client.close()
        assert await draining


@in_a_loop
async def test_a_client_that_does_not_close_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maitred.node.shard.FAREWELL_SECONDS", 0.1)
    async with node(tmp_path) as running:
        client = await running.ready()
        assert await running.shard.drain()
        await client.ended()
        await until(lambda: not running.shard.connections)
