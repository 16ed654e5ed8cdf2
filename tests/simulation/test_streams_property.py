"""Any sequence of writes, pauses and partitions: the reader gets a prefix, or everything."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.simulation.faults import Faults
from maitred.simulation.world import World

STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(min_value=1, max_value=5_000)),
    st.tuples(st.just("wait"), st.integers(min_value=0, max_value=3_000)),
    st.tuples(st.just("pause"), st.just(0)),
    st.tuples(st.just("resume"), st.just(0)),
    st.tuples(st.just("partition"), st.just(0)),
    st.tuples(st.just("heal"), st.just(0)),
)
FAULTS = st.builds(
    Faults,
    split_probability=st.sampled_from([0.0, 0.5]),
    spike_probability=st.sampled_from([0.0, 0.3]),
    cut_probability=st.sampled_from([0.0, 0.05]),
    half_open_probability=st.sampled_from([0.0, 0.05]),
    window_bytes=st.sampled_from([1, 100, 3_000, 128 * 1024]),
)


class End(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert data
        assert self.calls == ["made"]
        self.received += data

    def eof_received(self) -> None:
        assert self.calls == ["made"]
        self.calls.append("end")

    def connection_lost(self, exc: Exception | None) -> None:
        assert "lost" not in self.calls
        self.calls.append("lost")
        self.calls.append(type(exc).__name__)


async def run(world: World, steps: list[tuple[str, int]]) -> None:
    near, far = End(), End()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: far, None, 1) as server:
            await server.serve_forever()

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: near, "server", 1)
        await loop.create_future()

    world.host("server").spawn(serve)
    await asyncio.sleep(1)
    world.host("client").spawn(connect)
    await asyncio.sleep(1)
    sent = bytearray()
    for step, amount in steps:
        if step == "write" and not near.transport.is_closing():
            data = bytes(number % 251 for number in range(len(sent), len(sent) + amount))
            sent += data
            near.transport.write(data)
        elif step == "wait":
            await asyncio.sleep(amount / 1_000)
        elif step == "pause":
            far.transport.pause_reading()
        elif step == "resume":
            far.transport.resume_reading()
        elif step == "partition":
            world.network.partition("client", "server")
        elif step == "heal":
            world.network.heal()
        assert bytes(sent[: len(far.received)]) == far.received
    far.transport.resume_reading()
    near.transport.close()
    world.calm()
    await asyncio.sleep(100_000)
    assert bytes(sent[: len(far.received)]) == far.received
    if "end" in far.calls:
        assert far.received == sent
        assert far.calls == ["made", "end", "lost", "NoneType"]
    if near.calls == ["made", "lost", "NoneType"] and far.calls != ["made"]:
        assert far.received == sent or "ConnectionResetError" in far.calls
    assert near.calls[:2] == ["made", "lost"]


@settings(max_examples=150, deadline=None)
@given(st.integers(min_value=0, max_value=10**6), FAULTS, st.lists(STEP, max_size=25))
def test_streams_keep_their_promises(
    seed: int, faults: Faults, steps: list[tuple[str, int]]
) -> None:
    with World(seed, faults=faults) as world:
        world.run(run(world, steps))
