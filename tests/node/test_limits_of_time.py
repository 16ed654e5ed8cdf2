"""Every limit of time that a shard has, at it and beyond it, on real sockets.

Where a limit has to be reached the clock is the test's: a machine that is busy with other things
must not make anybody too slow who is not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.node.shard import SWEEP_SECONDS
from maitred.protocol.frames import Opcode
from maitred.settings import Limits
from tests.node.in_process import GATED, LOOPS, in_a_loop, node, own_seconds, until
from tests.node.raw import (
    echo,
    echoed_in,
    error_in,
    options,
    register,
    startup,
    status,
    status_in,
)
from tests.node.test_limits import only_connection

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.in_process import NodeUnderTest


def look_at_all(running: NodeUnderTest, now: float) -> None:
    """As the shard does now and then; the clock is the test's."""
    for connection in list(running.shard.connections):
        connection.look_at_clock(now)


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_handshake_seconds(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, limits=Limits(handshake_seconds=60)) as running:
        silent, trickling, asking = [await running.open() for _ in range(3)]
        ready = await running.ready()
        trickling.write(startup()[:-1])
        asking.write(options())
        assert (await asking.frame()).opcode == Opcode.SUPPORTED
        await until(lambda: running.shard.strangers_bytes == len(startup()) - 1)
        first = min(connection.opened_at for connection in running.shard.connections)
        look_at_all(running, first + 59.9)
        assert not any(connection.closing for connection in running.shard.connections)
        look_at_all(running, running.shard.loop.time() + 60)
        for client in (silent, trickling, asking):
            answer = await client.frame()
            assert answer.stream == 0
            problem = error_in(answer)
            assert problem.code == "too-slow"
            assert "handshake" in problem.sentence
            await client.ended()
            client.close()
        await ready.lives()


@in_a_loop
async def test_short_limits_are_looked_at_more_often_than_long_ones(tmp_path: Path) -> None:
    async with node(tmp_path, limits=Limits(handshake_seconds=0.05)) as running:
        began = own_seconds()
        client = await running.open()
        assert (await client.last_words()).code == "too-slow"
        assert own_seconds() - began < 0.8 * SWEEP_SECONDS


@in_a_loop
async def test_frame_seconds_for_one_that_trickles(tmp_path: Path) -> None:
    async with node(tmp_path, limits=Limits(frame_seconds=0.08)) as running:
        client, quick = await running.ready(), await running.ready()
        frame = echo("q", bytes(100_000))

        async def trickle() -> None:
            for at in range(len(frame)):
                client.write(frame[at : at + 1])
                await quick.lives()  # some time passes, and others are served
                if client.reader.at_eof() or client.writer.is_closing():
                    return

        trickling = asyncio.create_task(trickle())
        problem = error_in(await client.frame())
        assert problem.code == "too-slow"
        assert "frame" in problem.sentence
        client.reset()
        await trickling
        await until(lambda: running.shard.partial_bytes == 0)


@in_a_loop
async def test_a_frame_in_pieces_is_no_trouble(tmp_path: Path) -> None:
    """The time starts with each frame, not with the connection."""
    async with node(tmp_path, limits=Limits(frame_seconds=60)) as running:
        client = await running.ready()
        connection = only_connection(running)
        frame = echo("q")
        client.write(frame[:20])
        for _ in range(3):
            await until(lambda: running.shard.partial_bytes == 20)
            assert connection.partial_since is not None
            connection.partial_since -= 40  # as if the rest had taken so long
            client.write(frame[20:] + frame[:20])  # never without a part of a frame
            assert echoed_in(await client.frame()).payload == b"hello"
            connection.look_at_clock(running.shard.loop.time() + 40)
            assert not connection.closing
        connection.look_at_clock(running.shard.loop.time() + 60)
        assert connection.closing


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_frame_seconds_for_one_that_never_reads(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    limits = Limits(frame_seconds=60, write_buffer_bytes=16 * 1024)
    async with node(tmp_path, limits=limits) as running:
        client = await running.ready(receive_buffer_bytes=4096)
        connection = only_connection(running)
        other = await running.ready()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for stream in range(200):
            client.write(echo("q", bytes(64 * 1024), stream=stream))
        await until(lambda: connection._reading_paused)
        connection.look_at_clock(running.shard.loop.time() + 60)
        await until(lambda: running.shard.client_connections == 1)
        seen = status_in(await other.ask(status(0)))
        assert seen.errors == {"too-slow": 1}
        assert "connection cut" in running.log.events("debug")


@in_a_loop
async def test_one_that_reads_slowly_is_kept(tmp_path: Path) -> None:
    """As long as something is taken, however little, and even if no frame comes meanwhile."""
    size = 15 * 2**20
    limits = Limits(
        frame_seconds=30, idle_seconds=60, write_buffer_bytes=16 * 1024, payload_bytes=size
    )
    async with node(tmp_path, limits=limits) as running:
        client = await running.ready(receive_buffer_bytes=4096)
        connection = only_connection(running)
        client.write(echo("q", bytes(size), stream=1))
        await until(lambda: connection.write_paused_since is not None)
        client.write(echo("q", stream=2)[:-1])
        await until(lambda: connection._reading_paused)
        # The clock is ours from here on: each round takes 20 seconds, in which a little is read.
        now = running.shard.loop.time()
        for _ in range(5):
            unsent = connection.transport.get_write_buffer_size()
            while connection.transport.get_write_buffer_size() == unsent:
                await client.reader.read(10_000)
            now += 20
            connection.look_at_clock(now)
            assert not connection.closing
        connection.look_at_clock(now + 31)  # but not without reading
        assert connection.closing


@in_a_loop
async def test_answers_that_pile_up_are_not_reading(tmp_path: Path) -> None:
    """What makes a peer worth waiting for is that it takes something, not that more is unsent."""
    limits = Limits(frame_seconds=30, write_buffer_bytes=16 * 1024)
    async with node(tmp_path, limits=limits) as running:
        running.hold_until((answers := asyncio.Semaphore(0)).acquire)
        client = await running.ready(receive_buffer_bytes=4096)
        connection = only_connection(running)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        size = 1024 * 1024
        for stream in range(12):
            client.write(echo("q", bytes(size), stream=stream, hold=GATED))
        await until(lambda: running.shard.in_flight == 12)
        while connection.write_paused_since is None:
            left = running.shard.in_flight
            answers.release()
            await until(lambda left=left: running.shard.in_flight < left)  # type: ignore[misc]
        began = now = running.shard.loop.time()
        while not connection.closing:
            assert now < began + 100, "it is kept, though it reads nothing"
            unsent = connection.transport.get_write_buffer_size()
            if running.shard.in_flight:
                answers.release()
                await until(
                    lambda unsent=unsent: (  # type: ignore[misc]
                        connection.transport.get_write_buffer_size() > unsent
                    )
                )
            now += 20
            connection.look_at_clock(now)


@in_a_loop
async def test_idle_seconds(tmp_path: Path) -> None:
    async with node(tmp_path, limits=Limits(idle_seconds=60)) as running:
        running.hold_until((gate := asyncio.Event()).wait)
        idle, busy, beating = [await running.ready() for _ in range(3)]
        assert (await idle.ask(register("STATUS_CHANGE"))).opcode == Opcode.READY
        busy.write(echo("q", hold=GATED))
        await until(lambda: running.shard.in_flight == 1)
        look_at_all(running, running.shard.loop.time() + 1)
        for connection in running.shard.connections:
            connection.arrived_at -= 59  # as if nothing had been said for so long
        await beating.lives()
        look_at_all(running, running.shard.loop.time() + 1)
        answer = await idle.frame()
        assert answer.stream == -1
        problem = error_in(answer)
        assert problem.code == "idle-too-long"
        assert problem.remedy
        await idle.ended()
        # Whoever waits for an answer is not idle; afterwards it is like everybody.
        gate.set()
        assert echoed_in(await busy.frame()).payload == b"hello"
        look_at_all(running, running.shard.loop.time() + 1)
        assert (await busy.last_words()).code == "idle-too-long"
        await beating.lives()  # which lived through all of it


@pytest.mark.timeout(30)
@in_a_loop
async def test_last_words_are_not_waited_for_long(tmp_path: Path) -> None:
    """A client that does not close after them is closed; its descriptor is wanted."""
    async with node(tmp_path) as running:
        client = await running.open()
        client.write(b"GET / HTTP/1.1\r\n\r\n")
        assert error_in(await client.frame()).code == "unsupported-version"
        connection = only_connection(running)
        connection.look_at_clock(running.shard.loop.time() + 1.9)
        assert running.shard.client_connections == 1
        connection.look_at_clock(running.shard.loop.time() + 2.0)
        await until(lambda: running.shard.client_connections == 0)
