"""Random scripts on real sockets and in the simulation must leave the same record at both ends.

A script writes, pauses, half-closes, closes and aborts at either end. After each step an echo on a
connection of its own lets everything settle, on both kinds of loop: loopback delivers at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Coroutine

ADDRESS = "127.0.0.1"
STEPS = ("write", "write_eof", "pause_reading", "resume_reading", "close", "abort")
SCRIPT = st.lists(st.tuples(st.sampled_from([0, 1]), st.sampled_from(STEPS)), max_size=12)
KEEP_OPEN = st.tuples(st.booleans(), st.booleans())
SETTLING_ECHOES = 3


class End(asyncio.Protocol):
    def __init__(self, *, keep_open: bool) -> None:
        self.keep_open = keep_open
        self.record: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.record.append("made")

    def data_received(self, data: bytes) -> None:
        self.record.append(data.decode())

    def eof_received(self) -> bool:
        self.record.append("end")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.record.append(f"lost {type(exc).__name__}")

    @property
    def lost(self) -> bool:
        return self.record[-1].startswith("lost")

    def act(self, step: str, number: int) -> None:
        if self.lost:
            return
        try:
            if step == "write":
                self.transport.write(b"<%d>" % number)
            else:
                getattr(self.transport, step)()
        except (RuntimeError, OSError) as error:
            self.record.append(f"{step}: {error}")
        self.record.append(f"{step} closing={self.transport.is_closing()}")


class Settling:
    """An echo on another connection."""

    async def __aenter__(self) -> Settling:
        self.server = await asyncio.start_server(self._echo, ADDRESS, 0)
        port = self.server.sockets[0].getsockname()[1]
        self.reader, self.writer = await asyncio.open_connection(ADDRESS, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.write_eof()
        assert await self.reader.read() == b""
        self.writer.close()
        await self.writer.wait_closed()
        self.server.close()
        await self.server.wait_closed()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    async def settle(self) -> None:
        for _ in range(SETTLING_ECHOES):
            self.writer.write(b".")
            await self.reader.readexactly(1)


async def connect(ends: list[End], path: str | None) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if path is not None:
        server: asyncio.Server = await loop.create_unix_server(lambda: ends[1], path)
        await loop.create_unix_connection(lambda: ends[0], path)
    else:
        server = await loop.create_server(lambda: ends[1], ADDRESS, 0)
        port = server.sockets[0].getsockname()[1]
        await loop.create_connection(lambda: ends[0], ADDRESS, port)
    return server


async def play(
    script: list[tuple[int, str]], keep_open: tuple[bool, bool], path: str | None
) -> tuple[list[str], list[str]]:
    ends = [End(keep_open=keep) for keep in keep_open]
    async with Settling() as settling, await connect(ends, path):
        await settling.settle()
        for number, (end, step) in enumerate(script):
            ends[end].act(step, number)
            await settling.settle()
        records = ends[0].record.copy(), ends[1].record.copy()
        for end_left in ends:
            end_left.act("abort", -1)
        await settling.settle()
        assert ends[0].lost
        assert ends[1].lost
    return records


async def bounded(play: Coroutine[Any, Any, Any]) -> tuple[list[str], list[str]]:
    async with asyncio.timeout(20):
        records: tuple[list[str], list[str]] = await play
        return records


def compare(script: list[tuple[int, str]], keep_open: tuple[bool, bool], path: str | None) -> None:
    real = asyncio.run(bounded(play(script, keep_open, path)))
    with World(seed=1) as world:
        process = world.host("a").spawn(bounded(play(script, keep_open, path)))
        simulated = world.run(process.wait())
    assert simulated == real


@settings(max_examples=120, deadline=None)
@given(SCRIPT, KEEP_OPEN)
def test_both_worlds_leave_the_same_record(
    script: list[tuple[int, str]], keep_open: tuple[bool, bool]
) -> None:
    compare(script, keep_open, None)


RESET_AFTER_THE_END = [
    (1, "write_eof"),
    (1, "pause_reading"),
    (0, "write"),
    (0, "pause_reading"),
    (1, "abort"),
    (0, "resume_reading"),
]


@settings(max_examples=120, deadline=None)
@example(RESET_AFTER_THE_END, (True, True))
@given(SCRIPT, KEEP_OPEN)
def test_both_worlds_leave_the_same_record_over_unix_sockets(
    script: list[tuple[int, str]], keep_open: tuple[bool, bool]
) -> None:
    with tempfile.TemporaryDirectory(prefix="maitred-") as directory:
        compare(script, keep_open, f"{directory}/socket")
