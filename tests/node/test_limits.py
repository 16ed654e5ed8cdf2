"""Every limit of size and number that a shard has, at it and beyond it, on real sockets.

Those of time are in `test_limits_of_time.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.protocol.frames import HEADER_BYTES, REQUEST, Opcode, encode_frame
from maitred.protocol.messages import Echo, encode
from maitred.settings import Limits
from tests.node.in_process import GATED, LOOPS, in_a_loop, node, until
from tests.node.raw import (
    echo,
    echoed_in,
    error_in,
    options,
    startup,
    status,
    status_in,
)

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.node.accepted import Accepted
    from tests.node.in_process import NodeUnderTest


def only_connection(running: NodeUnderTest) -> Accepted:
    [connection] = running.shard.connections
    return connection


# Sizes


@in_a_loop
async def test_frame_bytes(tmp_path: Path) -> None:
    limits = Limits(frame_bytes=2048, payload_bytes=2048)
    async with node(tmp_path, limits=limits) as running:
        client = await running.ready()
        around = len(encode(Echo("n", "q", 1, 0, 60_000, bytes(1000), 0))) - 1000
        assert echoed_in(await client.ask(echo("q", bytes(2048 - around)))).payload
        client.write(options(1) + echo("q", bytes(2049 - around), stream=2))
        assert (await client.frame()).opcode == Opcode.SUPPORTED  # what came before is answered
        answer = await client.frame()
        assert answer.stream == -1
        problem = error_in(answer)
        assert problem.code == "frame-too-large"
        assert "2,049" in problem.sentence
        assert "2,048" in problem.sentence
        await client.ended()


@in_a_loop
async def test_frame_bytes_holds_for_strangers_too(tmp_path: Path) -> None:
    async with node(tmp_path, limits=Limits(frame_bytes=1024, payload_bytes=0)) as running:
        client = await running.open()
        fitting = encode_frame(REQUEST, 0, 1, Opcode.STARTUP, bytes(1024))
        assert error_in(await client.ask(fitting)).code == "protocol-violation"
        client.write(encode_frame(REQUEST, 0, 1, Opcode.STARTUP, bytes(1025)))
        assert (await client.last_words()).code == "frame-too-large"


@in_a_loop
async def test_a_frame_is_refused_by_its_header(tmp_path: Path) -> None:
    """Before a byte of its body has come, and whatever length it claims."""
    async with node(tmp_path) as running:
        for length, code in (
            (b"\x01\x00\x00\x01", "frame-too-large"),
            (b"\x7f\xff\xff\xff", "frame-too-large"),
            (b"\xff\xff\xff\xff", "protocol-violation"),
            (b"\x80\x00\x00\x00", "protocol-violation"),
        ):
            client = await running.ready()
            client.write(b"\x04\x00\x00\x01\x40" + length)
            assert (await client.last_words()).code == code


# Counts


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_connections(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, shards=2, limits=Limits(connections=3)) as running:
        clients = [await running.ready() for _ in range(3)]
        for _ in range(5):
            refused = await running.open()
            answer = await refused.frame()
            assert answer.stream == 0  # where a driver looks for the answer to its first frame
            problem = error_in(answer)
            assert problem.code == "too-many-connections"
            assert "3" in problem.sentence
            await refused.ended()
            refused.close()
        for client in clients:
            await client.lives()
        # Another shard is no client: its link is taken.
        elsewhere = await running.ready(1)
        assert echoed_in(await elsewhere.ask(echo(running.queue_of(0)))).shard == 0
        # Who leaves makes room.
        clients.pop().close()
        await until(lambda: running.shard.client_connections == 2)
        await running.ready()
        assert running.shard.client_connections == 3


@in_a_loop
async def test_in_flight(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2, limits=Limits(in_flight=3)) as running:
        running.hold_until((gate := asyncio.Event()).wait)
        client = await running.ready()
        here, there = running.queue_of(0), running.queue_of(1)
        held = [echo(here, stream=1, hold=GATED), echo(there, stream=2, hold=GATED)]
        client.write(b"".join((*held, echo(here, stream=3, hold=GATED))))
        client.write(echo(here, stream=4) + echo(there, stream=5))
        answers = await client.frames(2)
        for stream in (4, 5):
            problem = error_in(answers[stream])
            assert problem.code == "too-many-in-flight"
            assert "3" in problem.sentence
        gate.set()
        answers = await client.frames(3)
        for stream in (1, 2, 3):
            assert echoed_in(answers[stream]).payload == b"hello"
        # There is room again.
        assert echoed_in(await client.ask(echo(there))).shard == 1


# Fairness


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_turn_frames(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    """Thousands of requests wait on one connection; another's is served after at most a turn."""
    async with node(tmp_path, limits=Limits(turn_frames=8)) as running:
        served: list[bytes] = []
        sound = running.shard.handlers[Opcode.ECHO]

        def counting(message: Echo) -> object:
            served.append(message.payload)
            return sound(message)

        running.shard.handlers[Opcode.ECHO] = counting  # type: ignore[assignment]
        greedy, modest = await running.ready(), await running.ready()
        greedy.write(b"".join(echo("q", b"greedy", stream=n) for n in range(5000)))
        await until(lambda: len(served) > 8)
        modest.write(echo("q", b"modest"))
        assert echoed_in(await modest.frame()).payload == b"modest"
        # Some turns pass until the bytes are seen, but never all that wait.
        assert served.index(b"modest") < 2500
        assert len(await greedy.frames(5000)) == 5000


# Memory


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_write_buffer_bytes(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    """Nothing more is read from a peer that does not read, so what is unsent stays bounded."""
    limits = Limits(write_buffer_bytes=2**20)  # more than loops have by default
    async with node(tmp_path, limits=limits) as running:
        client = await running.ready(receive_buffer_bytes=4096)
        connection = only_connection(running)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        size = 16 * 1024
        requests = b"".join(echo("q", bytes(size), stream=n) for n in range(1000))
        client.write(requests)
        await until(lambda: connection.write_paused_since is not None)
        await until(lambda: connection._reading_paused)
        # It has stopped, with most of the requests still to be read.
        answered = running.shard.requests
        assert answered < 800
        other = await running.ready()
        for _ in range(50):
            await other.lives()
        assert running.shard.requests == answered
        # One read and a turn's answers beyond the limit, at most.
        assert connection.unsent_bytes > limits.write_buffer_bytes
        assert connection.unsent_bytes < limits.write_buffer_bytes + 2 * 256 * 1024
        assert connection.decoder.waiting_bytes < 512 * 1024
        # And it goes on where it stopped.
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for answer in (await client.frames(1000)).values():
            assert len(echoed_in(answer).payload) == size


@in_a_loop
async def test_partial_bytes(tmp_path: Path) -> None:
    limits = Limits(partial_bytes=100_000)
    async with node(tmp_path, limits=limits) as running:
        clients = [await running.ready() for _ in range(4)]
        frame = echo("q", bytes(60_000))
        for number, client in enumerate(clients[:3], 1):
            client.write(frame[:30_000])
            await until(lambda number=number: running.shard.partial_bytes == 30_000 * number)  # type: ignore[misc]
        clients[3].write(frame[:10_000])  # exactly the limit
        await until(lambda: running.shard.partial_bytes == 100_000)
        assert not any(connection.closing for connection in running.shard.connections)
        clients[3].write(frame[10_000:10_001])
        assert (await clients[3].last_words()).code == "overloaded"
        clients[3].close()
        await until(lambda: running.shard.partial_bytes == 90_000)
        # The others finish what they began.
        for client in clients[:3]:
            client.write(frame[30_000:])
            assert echoed_in(await client.frame()).payload == bytes(60_000)
        assert running.shard.partial_bytes == 0


@in_a_loop
async def test_what_waits_for_its_turn_is_not_incomplete_for_ever(tmp_path: Path) -> None:
    """A burst that took several turns counts while it waits, and not a moment longer."""
    async with node(tmp_path, limits=Limits(turn_frames=4, partial_bytes=64 * 1024)) as running:
        for _ in range(20):  # each of which leaves nothing behind
            client = await running.ready()
            client.write(b"".join(echo("q", bytes(500), stream=n) for n in range(20)))
            assert len(await client.frames(20)) == 20
            await until(lambda: running.shard.partial_bytes == 0)


@in_a_loop
async def test_a_link_between_shards_is_not_closed_for_others_memory(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2, limits=Limits(partial_bytes=300_000)) as running:
        running.shards[0].limits = Limits()
        client = await running.ready(0)
        hoarder = await running.ready(1)
        queue = running.queue_of(1)
        client.write(echo(queue, stream=1, hold=200))
        hoarder.write(echo("q", bytes(290_000))[:280_000])
        await until(lambda: running.shards[1].partial_bytes == 280_000)
        # A frame that comes to the owner in pieces, of more than there is room for.
        client.write(echo(queue, bytes(1_500_000), stream=2))
        answers = await client.frames(2)
        assert {echoed_in(answer).shard for answer in answers.values()} == {1}


@in_a_loop
async def test_under_way_bytes(tmp_path: Path) -> None:
    """Bodies that are held count together, whoever sent them; what is answered at once does too
    while it is looked at."""
    request = echo("q", bytes(1_000), hold=60_000)
    body_bytes = len(request) - HEADER_BYTES
    limits = Limits(under_way_bytes=2 * body_bytes)
    async with node(tmp_path, limits=limits) as running:
        first, second = await running.ready(), await running.ready()
        first.write(echo("q", bytes(1_000), stream=1, hold=60_000))
        second.write(echo("q", bytes(1_000), stream=1, hold=60_000))
        await until(lambda: running.shard.under_way_bytes == limits.under_way_bytes)  # at it
        second.write(echo("q", b"", stream=2, hold=60_000))  # and past it
        answers = await second.frames(1)
        assert error_in(answers[2]).code == "overloaded"
        first.close()
        await until(lambda: running.shard.under_way_bytes == body_bytes)
        second.write(echo("q", b"room again", stream=3))
        answers = await second.frames(1)
        assert echoed_in(answers[3]).payload == b"room again"


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_unsent_bytes(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    """Whose answers do not fit is cut off; who has some room, and who reads, stay."""
    size = 2**20
    limits = Limits(unsent_bytes=12 * size, write_buffer_bytes=16 * 1024)
    async with node(tmp_path, limits=limits) as running:
        shard = running.shard
        deaf = [await running.ready(receive_buffer_bytes=4096) for _ in range(2)]
        for client, answers in zip(deaf, (10, 20), strict=True):
            running.hold_until((gate := asyncio.Event()).wait)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for stream in range(answers):
                client.write(echo("q", bytes(size), stream=stream, hold=GATED))
            await until(lambda answers=answers: shard.in_flight == answers)  # type: ignore[misc]
            gate.set()
            if answers == 10:
                await until(lambda: shard.requests == 10)
                # The kernel has taken something, too.
                assert 3 * size < shard.unsent_bytes <= 10 * size + 1000
        await until(lambda: shard.client_connections == 1)
        assert shard.unsent_bytes <= limits.unsent_bytes
        other = await running.ready()
        seen = status_in(await other.ask(status(0)))
        assert seen.errors == {"overloaded": 1}
        deaf[0].writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await deaf[0].frames(10)) == 10
        await until(lambda: shard.unsent_bytes == 0)


@in_a_loop
async def test_handshake_bytes(tmp_path: Path) -> None:
    """Strangers have a budget of their own: a user's frame may come in parts, whatever they do."""
    limits = Limits(handshake_bytes=50_000, partial_bytes=100_000)
    async with node(tmp_path, limits=limits) as running:
        user = await running.ready()
        hello = encode_frame(REQUEST, 0, 0, Opcode.STARTUP, bytes(60_000))
        first, second = await running.open(), await running.open()
        first.write(hello[:30_000])
        await until(lambda: running.shard.strangers_bytes == 30_000)
        second.write(hello[:20_000])
        await until(lambda: running.shard.strangers_bytes == 50_000)  # at it
        second.write(hello[20_000:20_001])  # and past it
        assert error_in(await second.frame()).code == "overloaded"
        await second.ended()
        second.close()
        await until(lambda: running.shard.strangers_bytes == 30_000)
        large = echo("q", bytes(95_000))
        user.write(large[:90_000])
        await until(lambda: running.shard.partial_bytes == 120_000)
        user.write(large[90_000:])
        assert len(echoed_in(await user.frame()).payload) == 95_000
        first.close()


@in_a_loop
async def test_what_a_stranger_sent_is_a_users_when_it_has_become_one(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        request = echo("q", bytes(1_000), stream=1)
        client.write(startup() + request[:500])
        assert (await client.frame()).opcode == Opcode.READY
        await until(lambda: running.shard.partial_bytes == 500)
        assert running.shard.strangers_bytes == 0
        client.write(request[500:])
        assert len(echoed_in(await client.frame()).payload) == 1_000
