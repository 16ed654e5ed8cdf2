"""Strangers by the thousand, none of whom says anything sensible, and one client that does."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import socket
import warnings
from typing import TYPE_CHECKING

import pytest

from maitred.node.vitals import Vitals
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.messages import HOLD_MAX_MILLISECONDS
from maitred.settings import Limits
from tests.node.in_process import LOOPS, in_a_loop, node, own_seconds, until
from tests.node.raw import (
    RawClient,
    credentials,
    echo,
    echoed_in,
    error_in,
    options,
    startup,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(60))

NONSENSE: dict[str, tuple[bytes, str]] = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "unsupported-version"),
    "TLS": (CLIENT_HELLO, "unsupported-version"),
    "zeros": (bytes(1000), "unsupported-version"),
    "ones": (b"\xff" * 1000, "unsupported-version"),
    "one byte": (b"\x47", "unsupported-version"),
    "an answer": (encode_frame(0x84, 0, 0, Opcode.READY, b""), "protocol-violation"),
    "version 3": (encode_frame(0x03, 0, 0, Opcode.OPTIONS, b""), "unsupported-version"),
    "too long": (b"\x04\x00\x00\x00\x01\x7f\xff\xff\xff", "frame-too-large"),
    "negative": (b"\x04\x00\x00\x00\x01\xff\xff\xff\xff", "protocol-violation"),
    "stream": (options(-7), "protocol-violation"),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("said", NONSENSE)
@in_a_loop
async def test_what_is_no_frame_ends_the_connection_in_words(
    said: str,
    loop: str,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as running:
        sent, code = NONSENSE[said]
        client = await running.open()
        client.write(sent)
        assert (await client.last_words()).code == code
        client.close()
        await until(lambda: running.shard.client_connections == 0)
        # After a handshake, and after sensible frames in the same breath.
        client = await running.ready()
        client.write(echo("q", stream=1) + sent + echo("q", stream=2) * 1000)
        assert echoed_in(await client.frame()).payload == b"hello"
        assert (await client.last_words()).code == code


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_leaving_in_the_middle_of_a_frame(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path) as running:
        frame = echo("q", bytes(10_000))
        for leave in (RawClient.close, RawClient.reset):
            for size in (1, 8, 9, 10, 5000, len(frame) - 1):
                client = await running.ready()
                client.write(frame[:size])
                await until(lambda size=size: running.shard.partial_bytes == size)  # type: ignore[misc]
                leave(client)
                await until(lambda: running.shard.client_connections == 0)
                assert running.shard.partial_bytes == 0


@in_a_loop
async def test_half_closed(tmp_path: Path) -> None:
    """Whoever says that nothing follows still gets what was answered at once."""
    async with node(tmp_path) as running:
        client = await running.ready()
        client.write(b"".join(echo("q", stream=n) for n in range(500)))
        client.writer.write_eof()
        assert len(await client.frames(500)) == 500
        await client.ended()


@pytest.mark.parametrize("seed", range(4))
@in_a_loop
async def test_garbage_of_all_kinds(seed: int, tmp_path: Path) -> None:
    """Random bytes, random frames, and sensible frames with random bits turned."""
    chance = random.Random(seed)
    async with node(tmp_path, shards=2) as running:
        other = await running.ready(1)
        sensible = [
            *(options(1), startup(stream=2), credentials("a", "b", 3), status(0, stream=4)),
            *(echo("q", stream=5, hold=1), echo(running.queue_of(1), stream=6)),
        ]

        def anything() -> bytes:
            kind = chance.randrange(3)
            if kind == 0:
                return chance.randbytes(chance.randrange(1, 200))
            if kind == 1:
                body = chance.randbytes(chance.randrange(50))
                stream, opcode = chance.randrange(-5, 100), chance.randrange(256)
                return encode_frame(REQUEST, chance.randrange(4), stream, opcode, body)
            frame = bytearray(chance.choice(sensible))
            for _ in range(chance.randrange(3)):
                frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
            return bytes(frame)

        for _ in range(150):
            client = await running.open()
            if chance.random() < 0.7:
                await client.handshake()
            client.write(b"".join(anything() for _ in range(chance.randrange(1, 20))))
            if chance.random() < 0.5:
                client.writer.write_eof()
                await client.cut_off()
                client.close()
            else:
                client.reset()
        await other.lives()
        assert echoed_in(await other.ask(echo(running.queue_of(0)))).shard == 0
        await until(lambda: running.shards[0].client_connections == 0)
        assert running.log.events("error") == []  # none of it was a fault of ours


# By the thousand

MANY = 2_500
"""At once; tests/node/test_ten_thousand.py has more of them, in processes of their own."""
STORM_SECONDS = 600.0
"""Far longer than a storm takes on a crowded machine: strangers are not told to go before all are
here. Echoes are held for a minute, the most that there is; half of that has sufficed there."""

ODD: list[Callable[[random.Random], bytes]] = [
    lambda _: b"",
    lambda _: b"GET / HTTP/1.1\r\n\r\n",
    lambda _: CLIENT_HELLO,
    lambda chance: chance.randbytes(chance.randrange(1, 300)),
    lambda _: startup()[:-1],
    lambda _: startup() + echo("q", bytes(2000))[:1500],
    lambda _: startup() + echo("q", hold=HOLD_MAX_MILLISECONDS),
    lambda _: startup() + echo("q", stream=3) * 50,
    lambda _: b"\x04\x00\x00\x00\x01\x7f\xff\xff\xff",
    lambda _: options(-1),
    lambda _: startup("99"),
    lambda _: options() * 100,
]


def connections_allowed() -> int:
    """How many there can be, with both ends in this process."""
    wish, spare = MANY, 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2 * wish + spare
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, hard), hard))
    allowed = min(wish, (min(max(soft, most), hard) - spare) // 2)
    if allowed < wish:
        warnings.warn(
            f"only {allowed:,} connections instead of {wish:,}: the hard limit of descriptors "
            f"is {hard:,} (ulimit -Hn)",
            stacklevel=2,
        )
    return allowed


@pytest.mark.filterwarnings("default:only")
@in_a_loop
async def test_thousands_of_odd_connections(tmp_path: Path) -> None:
    limits = Limits(handshake_seconds=STORM_SECONDS, frame_seconds=STORM_SECONDS)
    many = connections_allowed()
    chance = random.Random(many)
    loop = asyncio.get_running_loop()
    async with node(tmp_path, limits=limits) as running:
        shard = running.shard
        sensible = await running.ready()
        memory_bytes = Vitals.real().memory_bytes
        slowest = 0.0
        asked = 0

        async def keep_asking(until_done: asyncio.Event) -> None:
            nonlocal slowest, asked
            while not until_done.is_set():
                began = own_seconds()
                answer = await sensible.ask(echo("q", b"still here", stream=asked % 1000))
                assert echoed_in(answer).payload == b"still here"
                slowest = max(slowest, own_seconds() - began)
                asked += 1

        async def storm() -> None:
            done = asyncio.Event()
            asking = asyncio.create_task(keep_asking(done))
            sockets: list[socket.socket] = []
            try:
                for number in range(many):
                    made = socket.socket()
                    made.setblocking(False)  # noqa: FBT003 - its only argument
                    sockets.append(made)
                    await loop.sock_connect(made, ("127.0.0.1", running.own_ports[0]))
                    said = ODD[number % len(ODD)](chance)
                    if said:
                        await loop.sock_sendall(made, said)
                # All of them are here, except those that were told to go.
                await until(lambda: shard.in_flight >= many // len(ODD))
                assert shard.client_connections >= many // 2
                assert shard.partial_bytes > 0
            finally:
                for number, made in enumerate(sockets):
                    if number % 2:  # half of them vanish without a word
                        linger = b"\x01\0\0\0\0\0\0\0"
                        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    made.close()
            await until(lambda: shard.client_connections == 1, 30)
            done.set()
            await asking

        await storm()  # the first time also pays for what stays: pools, caches, the heap
        gc.collect()
        before = memory_bytes()
        await storm()
        gc.collect()
        grown = memory_bytes() - before
        assert shard.client_connections == 1
        assert shard.in_flight == 0
        assert shard.partial_bytes == 0
        assert len(shard._tasks) == 1
        assert grown < 8 * 2**20, f"{grown:,} bytes more after the second storm"
        assert asked > 100
        assert slowest < 2.0
        assert running.log.events("error") == []


@in_a_loop
async def test_connections_that_only_wait_are_cheap(tmp_path: Path) -> None:
    """Some 10 KiB each, as the settings say; the client's end is counted here as well."""
    many = min(connections_allowed(), 2_000)
    loop = asyncio.get_running_loop()
    async with node(tmp_path) as running:
        gc.collect()
        before = Vitals.real().memory_bytes()
        sockets = []
        for _ in range(many):
            made = socket.socket()
            made.setblocking(False)  # noqa: FBT003 - its only argument
            await loop.sock_connect(made, ("127.0.0.1", running.own_ports[0]))
            await loop.sock_sendall(made, startup())
            sockets.append(made)
        await until(lambda: sum(each.version > 0 for each in running.shard.connections) == many, 20)
        each = (Vitals.real().memory_bytes() - before) / many
        for made in sockets:
            made.close()
        await until(lambda: running.shard.client_connections == 0, 20)
        assert each < 24 * 1024


@in_a_loop
async def test_refused_before_it_has_said_anything(tmp_path: Path) -> None:
    """A connection beyond the limit that talks at once still hears why."""
    async with node(tmp_path, limits=Limits(connections=1)) as running:
        await running.ready()
        for _ in range(20):
            client = await running.open()
            client.write(startup() + echo("q", bytes(50_000)) * 20)
            assert error_in(await client.frame()).code == "too-many-connections"
            await client.ended()
            client.close()
