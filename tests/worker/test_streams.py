"""Rows: as they come, never more than the window, and stopped when nobody wants them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator  # noqa: TC003 - annotations are read
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from maitred import App, current
from maitred.protocol.frames import ANSWER, Opcode
from maitred.protocol.query_link import QueryEnd, decode_query_end
from maitred.protocol.tasks import DONE, FAILED, STOPPED, TIMED_OUT
from maitred.worker.outcomes import Unfit
from maitred.worker.streams import Gathered, RowStream, StreamLimits
from tests.node.in_process import in_a_loop, until
from tests.worker.querying import RawGateway, ReservingNode, a_gateway, decode, encode
from tests.worker.running import a_worker

KINDS = ["later", "plainly"]
"""An async generator, and one in a thread."""


class Ticker:
    def __init__(self) -> None:
        self.app = app = App("ticker")
        self.given = 0
        self.ended = threading.Event()
        self.go_on = asyncio.Event()

        @app.handler("later")
        async def later(count: int, size: int = 0, fail: str = "") -> AsyncIterator[Any]:
            try:
                for number in range(count):
                    self.given += 1
                    yield row(number, size, fail, count)
            finally:
                self.ended.set()

        @app.handler("plainly")
        def plainly(count: int, size: int = 0, fail: str = "") -> Iterator[Any]:
            try:
                for number in range(count):
                    self.given += 1
                    yield row(number, size, fail, count)
            finally:
                self.ended.set()

        @app.handler("waiting")
        async def waiting() -> AsyncIterator[str]:
            yield f"first of {current().query_id}"
            await self.go_on.wait()
            yield "second"

        def row(number: int, size: int, fail: str, count: int) -> Any:  # noqa: ANN401
            if fail and number == count - 1:
                if fail == "raise":
                    raise ValueError("no more")
                return object()
            return "x" * size if size else number


async def rows_of(
    gateway: RawGateway, stream: int, *, credit: bool = True
) -> tuple[list[Any], QueryEnd]:
    """All rows, and the last word."""
    rows: list[Any] = []
    while True:
        frame = await gateway.hear(stream)
        if frame.opcode != Opcode.ROWS + ANSWER:
            assert frame.opcode == Opcode.RUN + ANSWER
            return rows, decode_query_end(frame.body)
        rows += values(frame.body)
        if credit:
            gateway.credit(stream, len(frame.body))


def values(chunk: bytes) -> list[Any]:
    """A chunk's values: as many as make an array of exactly these bytes."""
    found = []
    at = 0
    while at < len(chunk):
        kind = chunk[at]
        size = 1
        if kind == 0xD9:
            size = 2 + chunk[at + 1]
        elif kind == 0xDA:
            size = 3 + int.from_bytes(chunk[at + 1 : at + 3], "big")
        elif kind == 0xDB:
            size = 5 + int.from_bytes(chunk[at + 1 : at + 5], "big")
        elif 0xA0 <= kind < 0xC0:
            size = 1 + (kind & 0x1F)
        elif kind in (0xCC, 0xCD, 0xCE):
            size = 1 + 2 ** (kind - 0xCC)
        found.append(decode(chunk[at : at + size]))
        at += size
    return found


@pytest.mark.parametrize("kind", KINDS)
@in_a_loop
async def test_rows_come_and_the_slot_is_free_in_the_end(kind: str) -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve(kind), 5_000)
        rows, query_end = await rows_of(gateway, stream)
        assert rows == list(range(5_000))
        assert (query_end.how, query_end.body, query_end.streamed, query_end.rows) == (
            DONE,
            b"\xc0",
            True,
            5_000,
        )
        await until(lambda: worker.statistics.busy == 0)
        empty = gateway.run(node.reserve(kind), 0)
        rows, query_end = await rows_of(gateway, empty)
        assert (rows, query_end.how, query_end.streamed, query_end.rows) == ([], DONE, True, 0)


@pytest.mark.parametrize("kind", KINDS)
@in_a_loop
async def test_who_takes_no_rows_gets_a_list(kind: str) -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app) as worker,
        a_gateway(worker) as gateway,
    ):
        for count in (0, 3, 15, 16, 70_000):
            stream = gateway.run(node.reserve(kind), count, rows=False)
            query_end = await gateway.over(stream)
            assert decode(query_end.body) == list(range(count))
            assert (query_end.streamed, query_end.rows) == (False, count)
        stream = gateway.run(node.reserve(kind, result_bytes=100), 10_000, rows=False)
        assert (await gateway.failure(stream)).kind == "result-too-large"
        assert await asyncio.to_thread(ticker.ended.wait, 10)
        failing = gateway.run(node.reserve(kind), 1, 0, "raise", rows=False)
        told = (await gateway.failure(failing)).traceback
        assert told.splitlines()[1].endswith(f"in {kind}"), "it begins in the handler"
        await until(lambda: worker.statistics.busy == 0)


@pytest.mark.parametrize("kind", KINDS)
@in_a_loop
async def test_a_task_of_a_generator_has_a_list_for_a_result(kind: str) -> None:
    ticker = Ticker()
    async with ReservingNode() as node, a_worker(node, ticker.app):
        task = await ticker.app.handlers[kind].enqueue(2_000)
        assert await task.result(timeout=10) == list(range(2_000))


@in_a_loop
async def test_a_row_is_sent_when_it_is_there_and_not_when_the_next_is() -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve("waiting"), sequence=3)
        assert values((await gateway.hear(stream)).body) == ["first of gw/3"]
        ticker.go_on.set()
        rows, _ = await rows_of(gateway, stream)
        assert rows == ["second"]


@pytest.mark.parametrize("kind", KINDS)
@in_a_loop
async def test_no_more_than_the_window_is_under_way(kind: str) -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app, chunk_bytes=4_096) as worker,
        a_gateway(worker) as gateway,
    ):
        size, window = 1_000, 10_000
        stream = gateway.run(node.reserve(kind), 100, size, window=window)
        taken = untaken = 0
        most = 0
        while True:
            if untaken + size + 3 > window:
                # Nothing more can come: the generator has made one row more, and waits with it.
                made = (taken + untaken) // (size + 3) + 1
                await until(lambda made=made: ticker.given == made)  # type: ignore[misc]
                assert gateway.heard[stream].empty()
                gateway.credit(stream, untaken)
                taken, untaken = taken + untaken, 0
            frame = await gateway.hear(stream)
            if frame.opcode == Opcode.RUN + ANSWER:
                break
            untaken += len(frame.body)
            most = max(most, untaken)
            if taken + untaken == 100 * (size + 3):
                gateway.credit(stream, untaken)
                taken, untaken = taken + untaken, 0
        assert most <= window
        assert taken == 100 * (size + 3)


@pytest.mark.parametrize("kind", KINDS)
@in_a_loop
async def test_a_row_larger_than_the_window_goes_alone(kind: str) -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve(kind), 3, 100_000, window=1_000)
        for number in range(3):
            frame = await gateway.hear(stream)
            assert len(values(frame.body)) == 1
            assert number == 2 or gateway.heard[stream].empty()  # the end follows the last at once
            gateway.credit(stream, len(frame.body))
        assert (await gateway.over(stream)).how == DONE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["cancel", "leave", "late"])
@in_a_loop
async def test_a_stream_that_nobody_wants_is_stopped(kind: str, how: str) -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app) as worker,
        a_gateway(worker) as gateway,
    ):
        timeout = 0.2 if how == "late" else 30.0
        stream = gateway.run(node.reserve(kind), 10**9, 1_000, window=70_000, timeout=timeout)
        await gateway.hear(stream)
        if how == "cancel":
            gateway.say(stream, Opcode.CANCEL)
        elif how == "leave":
            gateway.transport.abort()
        if how != "leave":
            _, query_end = await rows_of(gateway, stream, credit=False)
            assert (query_end.how, query_end.streamed) == (
                TIMED_OUT if how == "late" else STOPPED,
                True,
            )
        assert await asyncio.to_thread(ticker.ended.wait, 10)
        await until(lambda: worker.statistics.busy == 0)
        assert ticker.given < 200


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fail", "kind_of"), [("raise", "ValueError"), ("object", "unserialisable-result")]
)
@in_a_loop
async def test_a_stream_that_breaks_says_so_after_its_rows(
    kind: str, fail: str, kind_of: str
) -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve(kind), 4, 0, fail)
        rows, query_end = await rows_of(gateway, stream)
        assert rows == [0, 1, 2]
        assert query_end.how == FAILED
        assert decode(query_end.body)[0] == kind_of
        await until(lambda: worker.statistics.busy == 0)
        assert ticker.ended.is_set()


@pytest.mark.parametrize("kind", KINDS)
@in_a_loop
async def test_limits_of_streams(kind: str) -> None:
    ticker = Ticker()
    async with ReservingNode() as node, a_worker(node, ticker.app) as worker:
        async with a_gateway(worker) as gateway:
            stream = gateway.run(node.reserve(kind, stream_bytes=50_000), 10**9, 1_000)
            rows, query_end = await rows_of(gateway, stream)
            assert len(rows) == 50_000 // 1_003
            assert decode(query_end.body)[0] == "result-too-large"
        async with a_gateway(worker, hello=False) as gateway:
            await gateway.hello(worker._session, frame_bytes=2_000)
            stream = gateway.run(node.reserve(kind), 5, 900)
            chunks = []
            while (frame := await gateway.hear(stream)).opcode == Opcode.ROWS + ANSWER:
                chunks.append(frame.body)
                assert len(frame.body) <= 2_000
            assert len(chunks) >= 3
            stream = gateway.run(node.reserve(kind), 5, 2_000)
            assert (await gateway.failure(stream)).kind == "result-too-large"
        await until(lambda: worker.statistics.busy == 0)


@pytest.mark.parametrize("kind", KINDS)
@in_a_loop
async def test_a_stopping_worker_lets_streams_end(kind: str) -> None:
    ticker = Ticker()
    async with (
        ReservingNode() as node,
        a_worker(node, ticker.app) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve(kind), 500, 1_000, window=10_000)
        first = await gateway.hear(stream)
        worker.stop()
        gateway.credit(stream, len(first.body))
        rows, query_end = await rows_of(gateway, stream)
        assert (len(values(first.body)) + len(rows), query_end.how) == (500, DONE)


class Taker:
    """Takes rows, and gives credit when it likes."""

    body_bytes = 5_000

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def rows(self, stream: int, parts: list[bytes], size: int) -> None:  # noqa: ARG002
        chunk = b"".join(parts)
        assert len(chunk) == size <= self.body_bytes
        self.chunks.append(chunk)


@settings(max_examples=200, deadline=None)
@given(
    some.lists(some.integers(0, 4_000), max_size=40),
    some.integers(1, 10_000),
    some.integers(1, 6_000),
)
def test_whatever_the_sizes_every_row_comes_once_and_the_window_holds(
    sizes: list[int], window: int, chunk_bytes: int
) -> None:
    loop = asyncio.new_event_loop()
    try:
        taker = Taker()
        rows = RowStream(taker, 1, StreamLimits(window, chunk_bytes, 0), loop)
        seen = credited = 0
        for size in sizes:
            rows.put("x" * size)
            while rows.blocked:
                seen = sum(map(len, taker.chunks))
                untaken = seen - credited
                assert untaken > 0
                assert untaken <= window or len(values(taker.chunks[-1])) == 1
                credited += untaken
                rows.credit(untaken)
        rows.flush()
        found = [value for chunk in taker.chunks for value in values(chunk)]
        assert [len(value) for value in found] == sizes
    finally:
        loop.close()


@given(some.lists(some.integers(), max_size=200))
def test_a_gathered_list_is_what_a_list_would_be(numbers: list[int]) -> None:
    numbers = [number for number in numbers if -(2**63) <= number < 2**63]
    gathered = Gathered(10_000)
    for number in numbers:
        gathered.put(number)
    assert gathered.body() == encode(numbers)


def test_what_is_too_much_is_noticed_on_the_way() -> None:
    gathered = Gathered(10)
    gathered.put("x" * 8)
    with pytest.raises(Unfit) as caught:
        gathered.put("x" * 8)
    assert caught.value.ending[0] == FAILED
    assert msgspec.msgpack.decode(caught.value.ending[1])[0] == "payload-too-large"
