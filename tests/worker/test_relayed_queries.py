"""Queries that come by the node, because their gateway cannot reach the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - annotations are read
from typing import Any

from maitred import App, current
from maitred.errors import Unavailable, UnknownRequest
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import PIECE_MAX, Deliver, Delivered, Fetch, Fetched
from maitred.protocol.query_link import RunQuery, decode_query_end, encode_run
from maitred.protocol.refusals import decode_error
from maitred.protocol.tasks import DONE, FAILED, STOPPED
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.node.raw import PATIENCE_SECONDS
from tests.worker.querying import ReservingNode, a_gateway, decode, encode, read_failure
from tests.worker.running import a_worker


class RelayingNode(ReservingNode):
    """Has queries for reservations, and takes the pieces of their answers when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[bytes, bytes] = {}
        self.asked = asyncio.Event()
        self.stopped = asyncio.Event()
        self.pieces: list[Deliver] = []
        self.may_take = asyncio.Semaphore(1_000_000)

    async def start(self, *numbers: int) -> None:
        await super().start(*numbers)
        for shard in self.shards:
            shard.handlers |= {
                Opcode.FETCH: self._hooked(self._fetch),
                Opcode.DELIVER: self._hooked(self._deliver),
            }

    def relay(self, token: bytes, *args: object, **fields: Any) -> None:  # noqa: ANN401
        message = RunQuery(token, 5, 30_000, 4 * 2**20, encode(args), fields.get("rows", True))
        self.runs[token] = fields.get("message") or encode_run(message)
        self.asked.set()

    async def _fetch(self, message: Fetch) -> Fetched:
        try:
            async with asyncio.timeout(message.timeout_milliseconds / 1000 - 0.02):
                if message.running:
                    await self.stopped.wait()
                    return Fetched(stop=True)
                while message.token not in self.runs:
                    self.asked.clear()
                    await self.asked.wait()
                return Fetched(self.runs[message.token])
        except TimeoutError:
            return Fetched()

    async def _deliver(self, message: Deliver) -> Delivered:
        await self.may_take.acquire()
        self.pieces.append(message)
        return Delivered()

    async def answer(self) -> tuple[list[Deliver], Deliver]:
        """Rows, and the last piece."""
        await self.until(lambda: self.pieces and not self.pieces[-1].more)
        *rows, last = self.pieces
        assert [piece.ordinal for piece in self.pieces] == list(range(len(self.pieces)))
        return rows, last


class Desk:
    def __init__(self) -> None:
        self.app = app = App("desk")
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.given = 0

        @app.handler("echo")
        async def echo(text: str, times: int = 1) -> str:
            return text * times

        @app.handler("who")
        async def who() -> list[str]:
            return [current().user, current().query_id]

        @app.handler("holding")
        async def holding() -> None:
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()

        @app.handler("rows")
        async def rows(count: int, size: int) -> AsyncIterator[bytes]:
            for _ in range(count):
                self.given += 1
                yield bytes(size)


@in_a_loop
async def test_without_a_listener_queries_are_fetched_at_once() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None) as worker:
        token = node.reserve("echo")
        node.relay(token, "a", 2)
        _, last = await node.answer()
        query_end = decode_query_end(last.body)
        assert (last.kind, query_end.how, decode(query_end.body)) == (Opcode.RUN, DONE, "aa")
        await until(lambda: worker.statistics.busy == 0)
        assert worker.address == ""
        assert (worker.statistics.queries, worker.statistics.relayed) == (1, 1)
        await until(lambda: not node.held(Fetch))


@in_a_loop
async def test_who_asks_is_known() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None):
        node.relay(node.reserve("who", user="bob"))
        _, last = await node.answer()
        assert decode(decode_query_end(last.body).body) == ["bob", "relayed/5"]


@in_a_loop
async def test_with_a_listener_the_node_is_asked_only_if_nobody_came() -> None:
    desk = Desk()
    async with (
        RelayingNode() as node,
        a_worker(node, desk.app, fetch_seconds=0.05) as worker,
        a_gateway(worker) as gateway,
    ):
        assert await gateway.result(gateway.run(node.reserve("echo"), "a")) == "a"
        token = node.reserve("echo")
        await until(lambda: len(node.held(Fetch)) == 1)
        # It comes directly after all: the question is taken back.
        assert await gateway.result(gateway.run(token, "b")) == "b"
        await until(lambda: not node.held(Fetch))
        token = node.reserve("echo")
        node.relay(token, "c")
        _, last = await node.answer()
        assert decode(decode_query_end(last.body).body) == "c"
        assert [fetch.token for fetch in node.heard(Fetch) if not fetch.running][-1] == token
        assert "used" in (await gateway.error(gateway.run(token, "c"))).sentence


@in_a_loop
async def test_nobody_relays_anything() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None) as worker:
        node.reserve("echo", reservation_seconds=0.2)
        await until(lambda: worker.statistics.unused == 1)
        await until(lambda: not worker.querying.relayed.under_way)
        assert worker.statistics.busy == 0


@in_a_loop
async def test_a_result_that_is_too_large_for_one_piece_comes_in_several() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None):
        size = 2 * PIECE_MAX + 5
        node.relay(node.reserve("echo", result_bytes=2**26), "x", size)
        first, last = await node.answer()
        assert [piece.kind for piece in (*first, last)] == [Opcode.RUN] * 3
        assert all(len(piece.body) <= PIECE_MAX for piece in first)
        whole = decode_query_end(b"".join(piece.body for piece in (*first, last)))
        assert decode(whole.body) == "x" * size


@in_a_loop
async def test_rows_wait_until_the_gateway_has_taken_those_before() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None) as worker:
        node.may_take = asyncio.Semaphore(0)
        node.relay(node.reserve("rows"), 300, 100_000)
        await node.until(lambda: node.held(Deliver))
        await until(lambda: desk.given >= 40)
        # The window is full: four megabytes are made, and not thirty.
        assert desk.given <= 44
        for _ in range(1_000):
            node.may_take.release()
        rows, _ = await node.answer()
        assert sum(len(piece.body) for piece in rows) == 300 * 100_005
        await until(lambda: worker.statistics.busy == 0)


@in_a_loop
async def test_all_rows_come_in_order() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None) as worker:
        node.relay(node.reserve("rows"), 100, 100_000)
        rows, last = await node.answer()
        assert {piece.kind for piece in rows} == {Opcode.ROWS}
        assert all(len(piece.body) <= PIECE_MAX for piece in rows)
        assert sum(len(piece.body) for piece in rows) == 100 * 100_005
        query_end = decode_query_end(last.body)
        assert (query_end.how, query_end.streamed, query_end.rows) == (DONE, True, 100)
        await until(lambda: worker.statistics.busy == 0)


@in_a_loop
async def test_a_row_that_fits_into_no_piece() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None):
        node.relay(node.reserve("rows"), 2, PIECE_MAX)
        _, last = await node.answer()
        assert read_failure(decode_query_end(last.body).body).kind == "result-too-large"


@in_a_loop
async def test_nobody_wants_the_answer_any_more() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None) as worker:
        node.relay(node.reserve("holding"))
        await desk.begun.wait()
        await node.until(lambda: any(fetch.running for fetch in node.held(Fetch)))
        node.stopped.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await desk.cancelled.wait()
        await until(lambda: worker.statistics.busy == 0)
        _, last = await node.answer()
        assert decode_query_end(last.body).how == STOPPED


@in_a_loop
async def test_the_way_back_is_gone() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None) as worker:

        async def refuse(message: Fetch) -> None:
            if message.running:
                raise Unavailable("Nobody knows of it.")

        node.before[Fetch] = refuse
        node.relay(node.reserve("holding"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await desk.cancelled.wait()
        await until(lambda: worker.statistics.busy == 0)


@in_a_loop
async def test_what_is_relayed_may_be_nonsense() -> None:
    desk = Desk()
    async with RelayingNode() as node, a_worker(node, desk.app, host=None) as worker:
        for message, code in (
            (b"\xc1", "protocol-violation"),
            (encode([1]), "invalid-argument"),
            (encode_run(RunQuery(b"?" * 16, 1, 1, 1, b"")), "invalid-reservation"),
        ):
            node.pieces.clear()
            node.relay(node.reserve("echo"), message=message)
            _, last = await node.answer()
            assert (last.kind, decode_error(last.body).code) == (Opcode.ERROR, code)
            await until(lambda: worker.statistics.busy == 0)
        node.pieces.clear()
        node.relay(node.reserve("echo"), 5)
        _, last = await node.answer()
        assert decode_query_end(last.body).how == FAILED


@in_a_loop
async def test_a_node_that_relays_nothing_is_no_trouble() -> None:
    desk = Desk()
    log = RecordedLog()

    async def refuse(_: Fetch) -> None:
        raise UnknownRequest("What?")

    async with RelayingNode() as node:
        node.before[Fetch] = refuse
        async with a_worker(node, desk.app, host=None, log=log) as worker:
            node.reserve("echo", reservation_seconds=0.1)
            await until(lambda: worker.statistics.unused == 1)
            assert len(node.heard(Fetch)) == 1
    assert not log.events("warning") + log.events("error")


@in_a_loop
async def test_a_stopping_worker_delivers_first() -> None:
    desk = Desk()
    async with RelayingNode() as node:
        async with a_worker(node, desk.app, host=None) as worker:
            node.relay(node.reserve("rows"), 50, 100_000)
            await node.until(lambda: node.pieces)
            worker.stop()
        _, last = await node.answer()
        assert decode_query_end(last.body).rows == 50
