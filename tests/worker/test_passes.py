"""Queries that come by a pass: the worker takes what it has room for, and says how it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred import App
from maitred.errors import AtCapacity, InvalidReservation
from maitred.protocol.frames import ANSWER, EVENT_STREAM, Opcode
from maitred.protocol.queries import Attend, Attended, Pass
from maitred.protocol.query_link import Load, decode_load
from maitred.worker.passes import SECONDS_MAX, Passes
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import RawGateway, ReservingNode, a_gateway
from tests.worker.running import a_worker

if TYPE_CHECKING:
    from maitred.worker.worker import Worker

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def a_pass(token: bytes = A, seconds: float = 60.0, **terms: Any) -> Pass:  # noqa: ANN401
    return Pass(
        token,
        b"g" * 16,
        terms.get("user", "ann"),
        seconds,
        terms.get("run_seconds", 60.0),
        terms.get("result_bytes", 2**20),
        terms.get("stream_bytes", 0),
    )


# The book, pure


def test_a_pass_is_good_again_and_again_until_its_time_is_over() -> None:
    book: Passes[str] = Passes()
    assert book.find(A, 0.0) is None
    assert book.add(a_pass(seconds=60.0), "q", 0.0)
    for now in (0.0, 1.0, 59.9):
        known = book.find(A, now)
        assert known is not None
        assert known.where == "q"
    assert book.find(A, 60.0) is None
    assert not book.known


def test_a_pass_that_is_told_again_lasts_longer_and_has_the_new_terms() -> None:
    book: Passes[str] = Passes()
    book.add(a_pass(), "q", 0.0)
    book.add(a_pass(user="bob"), "q", 50.0)
    known = book.find(A, 109.0)
    assert known is not None
    assert known.terms.user == "bob"
    assert book.find(A, 110.0) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_pass_without_any_time_is_none(seconds: float) -> None:
    book: Passes[str] = Passes()
    book.add(a_pass(), "q", 0.0)
    assert not book.add(a_pass(seconds=seconds), "q", 1.0)
    assert book.find(A, 1.0) is None


def test_a_pass_for_ever_lasts_an_hour() -> None:
    book: Passes[str] = Passes()
    book.add(a_pass(seconds=float("inf")), "q", 0.0)
    assert book.find(A, SECONDS_MAX - 1) is not None
    assert book.find(A, SECONDS_MAX) is None


def test_too_many_passes_those_that_are_over_go_first_then_those_that_end_first() -> None:
    book: Passes[str] = Passes(most=2)
    book.add(a_pass(A, 10.0), "q", 0.0)
    book.add(a_pass(B, 99.0), "q", 0.0)
    book.add(a_pass(C, 50.0), "q", 20.0)
    assert set(book.known) == {B, C}
    book.add(a_pass(A, 60.0), "q", 20.0)
    assert set(book.known) == {A, B}


# At a worker


class PassingNode(ReservingNode):
    """Answers the next attendance with the passes that the test hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.to_pass: list[Pass] = []
        self.passed = asyncio.Event()

    def hand_out(self, *passes: Pass) -> None:
        self.to_pass += passes
        self.passed.set()

    async def _attend(self, message: Attend) -> Attended:  # noqa: ARG002
        await self.passed.wait()
        self.passed.clear()
        told, self.to_pass = self.to_pass, []
        return Attended(passes=told)


def an_app() -> tuple[App, asyncio.Event]:
    app = App("desk")
    go_on = asyncio.Event()

    @app.handler("echo")
    async def echo(text: str) -> str:
        if text == "hold":
            await go_on.wait()
        if text == "fail":
            raise ValueError(text)
        return text

    return app, go_on


async def hear_load(gateway: RawGateway) -> Load:
    frame = await gateway.hear(EVENT_STREAM)
    assert frame.opcode == Opcode.LOAD + ANSWER
    return decode_load(frame.body)


async def known(worker: Worker, token: bytes = A) -> None:
    await until(lambda: token in worker.querying._passes.known)


def ticking(worker: Worker) -> bool:
    return worker.capacity._timer is not None


@in_a_loop
async def test_many_queries_by_one_pass_and_each_answer_tells_the_load() -> None:
    app, _ = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=4) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        numbers = []
        for text in ("a", "b", "fail"):
            query_end = await gateway.over(gateway.run(A, text))
            assert query_end.load is not None
            assert query_end.load.limit == 4
            assert (query_end.load.serving, query_end.load.waiting, query_end.load.yours) == (
                0,
                0,
                0,
            )
            assert query_end.load.senders == 1
            numbers.append(query_end.load.number)
        assert numbers == sorted(set(numbers))
        assert worker.statistics.busy == 0
        reserved = await gateway.over(gateway.run(node.reserve("echo"), "by reservation"))
        assert reserved.load is None


@in_a_loop
async def test_a_full_worker_refuses_at_once_and_says_its_limit() -> None:
    app, go_on = an_app()
    log = RecordedLog()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=2, log=log) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        held = [gateway.run(A, "hold") for _ in range(2)]
        problem = await gateway.error(gateway.run(A, "a"))
        assert isinstance(problem, AtCapacity)
        assert problem.limit == 2
        assert worker.statistics.full == 1
        go_on.set()
        assert [await gateway.result(stream) for stream in held] == ["hold", "hold"]
        assert await gateway.result(gateway.run(A, "b")) == "b"
        assert log.events("warning") == []


@in_a_loop
async def test_reports_come_while_there_are_queries_by_passes_and_tell_who_has_what() -> None:
    app, go_on = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=8) as worker,
        a_gateway(worker) as one,
        a_gateway(worker) as two,
        a_gateway(worker) as three,
    ):
        node.hand_out(a_pass(A), a_pass(B))
        await known(worker, B)
        for _ in range(3):
            one.run(A, "hold")
        two.run(B, "hold")
        await until(lambda: worker.statistics.busy == 4)
        first, other = await hear_load(one), await hear_load(two)
        assert (first.serving, first.waiting, first.yours, first.senders) == (4, 0, 3, 2)
        assert (other.serving, other.waiting, other.yours, other.senders) == (4, 0, 1, 2)
        assert (await hear_load(one)).number == first.number + 1
        assert EVENT_STREAM not in three.heard
        go_on.set()


@in_a_loop
async def test_the_timer_rests_when_there_is_nothing_to_do() -> None:
    app, _ = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=8) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        assert not ticking(worker)
        assert await gateway.result(gateway.run(A, "a")) == "a"
        assert ticking(worker)
        gateway.transport.abort()
        await until(lambda: not ticking(worker))
        assert worker.capacity._claims == 0


@in_a_loop
async def test_queries_that_are_earlier_than_their_pass_wait_for_it() -> None:
    app, _ = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=8, early_seconds=10.0) as worker,
        a_gateway(worker) as gateway,
    ):
        streams = [gateway.run(A, text) for text in "abc"]
        gone = gateway.run(A, "taken back")
        await until(lambda: worker.querying._early.count == 4)
        gateway.say(gone, Opcode.CANCEL)
        assert (await gateway.error(gone)).code == "cancelled"
        node.hand_out(a_pass())
        assert [await gateway.result(stream) for stream in streams] == ["a", "b", "c"]
        assert worker.querying._early.count == 0


@in_a_loop
async def test_a_pass_that_nobody_told_of_is_refused_after_a_moment() -> None:
    app, _ = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, early_seconds=0.05) as worker,
        a_gateway(worker) as gateway,
    ):
        for stream in [gateway.run(A, "a"), gateway.run(A, "b")]:
            assert isinstance(await gateway.error(stream), InvalidReservation)
        node.hand_out(a_pass())
        await known(worker)
        assert await gateway.result(gateway.run(A, "now")) == "now"


@in_a_loop
async def test_a_link_that_is_lost_leaves_nothing_behind() -> None:
    app, _ = an_app()
    async with PassingNode() as node, a_worker(node, app, early_seconds=30.0) as worker:
        async with a_gateway(worker) as gateway:
            for _ in range(3):
                gateway.run(B, "early")
            await until(lambda: worker.querying._early.count == 3)
            node.hand_out(a_pass())
            await known(worker)
            gateway.run(A, "hold")
            await until(lambda: worker.statistics.busy == 1)
        await until(lambda: worker.statistics.busy == 0)
        assert worker.querying._early.count == 0
        assert not worker.capacity._senders


@in_a_loop
async def test_a_reservation_and_queries_that_show_it_twice() -> None:
    app, _ = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, early_seconds=10.0) as worker,
        a_gateway(worker) as gateway,
    ):
        first, second = gateway.run(A, "first"), gateway.run(A, "second")
        await until(lambda: worker.querying._early.count == 2)
        node.reserve("echo", A)
        assert await gateway.result(first) == "first"
        assert isinstance(await gateway.error(second), InvalidReservation)


@in_a_loop
async def test_a_worker_that_leaves_takes_no_more_by_a_pass() -> None:
    app, go_on = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=8) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        held = gateway.run(A, "hold")
        await until(lambda: worker.statistics.busy == 1)
        worker.stop()
        problem = await gateway.error(gateway.run(A, "a"))
        assert isinstance(problem, AtCapacity)
        assert problem.limit == 0
        go_on.set()
        assert await gateway.result(held) == "hold"


@in_a_loop
async def test_the_terms_of_the_pass_hold() -> None:
    app, _ = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass(A, run_seconds=0.05), a_pass(B, result_bytes=10))
        await known(worker, B)
        assert (await gateway.failure(gateway.run(A, "hold"))).kind == "timed-out"
        assert (await gateway.failure(gateway.run(B, "x" * 100))).kind == "result-too-large"
