"""What a worker does with queries: they run in reserved slots, and end exactly once."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

from maitred import App, current
from maitred.errors import Cancelled, InvalidReservation, SlotTaken
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import DONE, FAILED, STOPPED, TIMED_OUT, Failure, Offer, Reserved
from maitred.worker.query import Query
from tests.node.in_process import RecordedLog, in_a_loop, instances, until
from tests.worker.querying import ReservingNode, a_gateway, encode
from tests.worker.running import a_worker

if TYPE_CHECKING:
    from collections.abc import Callable


class Desk:
    """Handlers that tell the test what happens to them."""

    def __init__(self) -> None:
        self.app = app = App("desk")
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.stopped: list[str] = []
        self.thread_begun = threading.Event()
        self.thread_may_end = threading.Event()
        self.thread_saw_cancel = threading.Event()

        @app.handler("echo")
        async def echo(text: str, times: int = 1) -> str:
            return text * times

        @app.handler("plain")
        def plain(text: str) -> list[str]:
            attempt = current()
            return [text, attempt.user, attempt.query_id, attempt.task_id]

        @app.handler("holding")
        async def holding(name: str) -> str:
            self.begun.put_nowait(name)
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.stopped.append(name)
                raise
            return name

        @app.handler("threads")
        def threads(name: str) -> str:
            self.thread_begun.set()
            while not self.thread_may_end.wait(0.005):
                if current().cancelled:
                    self.thread_saw_cancel.set()
            return name

        @app.handler("failing")
        async def failing(what: str) -> Any:  # noqa: ANN401 - that is what it is about
            if what == "raise":
                raise ValueError("too small")
            if what == "exit":
                raise SystemExit(3)
            if what == "cancel":
                raise asyncio.CancelledError
            if what == "large":
                return "x" * 2_000
            return object()


@in_a_loop
async def test_queries_are_run_and_answered() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        assert await gateway.result(gateway.run(node.reserve("echo"), "a", 3)) == "aaa"
        stream = gateway.run(node.reserve("echo"), named={"times": 2, "text": "b"})
        query_end = await gateway.over(stream)
        assert (query_end.how, query_end.body, query_end.streamed) == (DONE, encode("bb"), False)
        assert query_end.run_seconds >= 0
        stream = gateway.run(node.reserve("plain", user="bob"), "c", sequence=12)
        assert await gateway.result(stream) == ["c", "bob", "gw/12", ""]
        tokens = [node.reserve("echo") for _ in range(60)]
        streams = [gateway.run(token, str(number)) for number, token in enumerate(tokens)]
        found = [await gateway.result(stream) for stream in streams]
        assert found == [str(number) for number in range(60)]
        assert (worker.statistics.queries, worker.statistics.busy) == (63, 0)
        offers = [offer for offer in node.heard(Offer) if offer.queue == "echo"]
        assert {offer.address for offer in offers} == {worker.address}
    assert current().query_id == current().user == ""


@in_a_loop
async def test_a_query_that_has_ended_is_freed_without_the_garbage_collector() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        gc.disable()
        try:
            before = instances(Query)
            streams = [gateway.run(node.reserve("echo"), "a") for _ in range(5)]
            assert [await gateway.result(stream) for stream in streams] == ["a"] * 5
            await until(lambda: instances(Query) <= before)
        finally:
            gc.enable()


@in_a_loop
async def test_the_query_may_come_before_the_word_of_its_reservation() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, early_seconds=10.0) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.token()
        stream = gateway.run(token, "a")
        await until(lambda: worker.querying._early.bytes > 0)
        node.reserve("echo", token)
        assert await gateway.result(stream) == "a"


@in_a_loop
async def test_reservations_that_are_not_good() -> None:
    desk = Desk()
    log = RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, early_seconds=0.02, log=log) as worker,
        a_gateway(worker) as gateway,
    ):
        assert isinstance(await gateway.error(gateway.run(b"?" * 16)), InvalidReservation)
        token = node.reserve("echo")
        await until(lambda: worker.querying.is_known(token))
        assert await gateway.result(gateway.run(token, "a")) == "a"
        again = await gateway.error(gateway.run(token, "a"))
        assert isinstance(again, InvalidReservation)
        assert "used" in again.sentence
        late = node.reserve("echo", reservation_seconds=0.02)
        await until(lambda: worker.statistics.unused == 1)
        assert "expired" in (await gateway.error(gateway.run(late, "a"))).sentence
        released = node.reserve("echo")
        await until(lambda: worker.querying.reservations == 1)
        gateway.say(0, Opcode.RELEASE, released)
        assert "given back" in (await gateway.error(gateway.run(released, "a"))).sentence
        assert (worker.statistics.refused, worker.statistics.busy) == (4, 0)
        last = node.reserve("echo")
        await until(lambda: worker.querying.is_known(last))
        assert await gateway.result(gateway.run(last, "b")) == "b"
    assert log.events("warning").count("a query was refused") == 1


@in_a_loop
async def test_a_reserved_slot_is_nobody_elses() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "holding", "echo", slots=1) as worker,
        a_gateway(worker) as gateway,
    ):
        await until(lambda: len(node.held(Offer)) == 2)
        token = node.reserve("holding")
        other = node.reserve("echo")  # the same slot, on offer in both places
        await until(lambda: worker.querying.reservations == 1)
        await until(lambda: not node.held(Offer))
        assert worker.statistics.busy == 1
        streams = [gateway.run(token, "a"), gateway.run(other, "b")]
        assert isinstance(await gateway.error(streams[1]), SlotTaken)
        desk.go_on.set()
        assert await gateway.result(streams[0]) == "a"
        assert worker.statistics.busy == 0


@in_a_loop
async def test_rule_6_of_two_owners_the_one_with_the_higher_range_id_has_the_slot() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "echo", slots=1) as worker,
        a_gateway(worker) as gateway,
    ):
        old, new, late = node.token(), node.token(), node.token()
        for token, range_id in ((old, 6), (new, 7), (late, 6)):
            terms = Reserved(0, token, "ann", 5.0, 60.0, 2**20, 0, range_id=range_id)
            (served,) = worker._served
            worker.querying.reserved(served, terms, asyncio.get_running_loop().time())
        assert worker.statistics.busy == 1
        streams = [gateway.run(token, "a") for token in (old, late, new)]
        for refused in streams[:2]:
            assert isinstance(await gateway.error(refused), SlotTaken)
        assert await gateway.result(streams[2]) == "a"
        assert worker.statistics.busy == 0


@in_a_loop
async def test_rule_6_a_replaced_owner_reserves_no_slot_though_one_is_free() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "echo", slots=2) as worker,
        a_gateway(worker) as gateway,
    ):
        new, late = node.token(), node.token()
        for token, range_id in ((new, 7), (late, 6)):
            terms = Reserved(0, token, "ann", 5.0, 60.0, 2**20, 0, range_id=range_id)
            (served,) = worker._served
            worker.querying.reserved(served, terms, asyncio.get_running_loop().time())
        assert worker.statistics.busy == 1
        assert isinstance(await gateway.error(gateway.run(late, "a")), SlotTaken)
        assert await gateway.result(gateway.run(new, "a")) == "a"


@in_a_loop
async def test_rule_6_a_lost_link_voids_the_reservations_whose_queries_have_not_come() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "holding", slots=2) as worker,
        a_gateway(worker) as gateway,
    ):
        begun, late = (node.reserve("holding", reservation_seconds=1000.0) for _ in range(2))
        await until(lambda: worker.querying.reservations == 2)
        runs = gateway.run(begun, "a")
        await until(lambda: len(worker.querying.running) == 1)
        for shard in node.shards:
            shard.close()
        await until(lambda: worker.querying.reservations == 0)
        assert worker.statistics.busy == 1, "the query that runs has the other slot"
        assert isinstance(await gateway.error(gateway.run(late, "b")), SlotTaken)
        # The slot is on offer again, and is reserved again.
        await node.start()
        again = node.reserve("holding")
        await until(lambda: worker.querying.reservations == 1)
        streams = [runs, gateway.run(again, "c")]
        desk.go_on.set()
        assert [await gateway.result(one) for one in streams] == ["a", "c"]
        assert worker.statistics.busy == 0
        assert sorted(desk.begun.get_nowait() for _ in range(desk.begun.qsize())) == ["a", "c"]


@in_a_loop
async def test_tasks_find_no_room_where_slots_are_reserved() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "holding", "echo", slots=1) as worker,
        a_gateway(worker) as gateway,
    ):
        await until(lambda: len(node.held(Offer)) == 2)
        token = node.reserve("holding")
        task = await desk.app.handlers["echo"].enqueue("t")
        stream = gateway.run(token, "a")
        desk.go_on.set()
        assert await gateway.result(stream) == "a"
        assert await task.result(timeout=10) == "t"
        assert worker.statistics.busy == 0


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("raise", "ValueError"),
        ("exit", "SystemExit"),
        ("cancel", "CancelledError"),
        ("object", "unserialisable-result"),
        ("large", "result-too-large"),
    ],
)
@in_a_loop
async def test_a_handler_that_fails(what: str, kind: str) -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve("failing", result_bytes=1_000), what)
        assert (await gateway.failure(stream)).kind == kind
        assert (worker.statistics.failed, worker.statistics.busy) == (1, 0)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", encode([1, 2, 3]), encode({"texts": "a"}), encode([1]), b"\x91\xd9"]
)
@in_a_loop
async def test_arguments_that_do_not_fit(payload: bytes) -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        query_end = await gateway.over(gateway.run(node.reserve("echo"), payload=payload))
        assert query_end.how == FAILED
        assert b"invalid-arguments" in query_end.body
        assert await gateway.result(gateway.run(node.reserve("echo"), "b")) == "b"
        assert worker.statistics.busy == 0


@pytest.mark.parametrize("whose", ["the caller", "the queue"])
@in_a_loop
async def test_a_query_whose_time_is_over(whose: str) -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        tries = 0

        async def time_out(handler: str, has_begun: Callable[[], bool]) -> None:
            """Again with more time, if the time was over before the handler began."""
            nonlocal tries
            seconds = 0.05
            while not has_begun():
                tries += 1
                short, long = (seconds, 60.0) if whose == "the caller" else (60.0, seconds)
                token = node.reserve(handler, run_seconds=long)
                stream = gateway.run(token, "a", timeout=short)
                assert (await gateway.over(stream)).how == TIMED_OUT
                seconds *= 2

        await time_out("holding", lambda: not desk.begun.empty())
        await until(lambda: worker.statistics.busy == 0)
        assert desk.stopped == ["a"]
        await time_out("threads", desk.thread_begun.is_set)
        assert worker.statistics.busy == 1
        assert await asyncio.to_thread(desk.thread_saw_cancel.wait, 10)
        desk.thread_may_end.set()
        await until(lambda: worker.statistics.busy == 0)
        assert 2 <= worker.statistics.timed_out <= tries


@in_a_loop
async def test_cancelling() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, slots=2, early_seconds=10.0) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve("holding"), "a")
        await desk.begun.get()
        gateway.say(stream, Opcode.CANCEL)
        assert (await gateway.over(stream)).how == STOPPED
        await until(lambda: worker.statistics.busy == 0)
        assert desk.stopped == ["a"]
        gateway.say(stream, Opcode.CANCEL)  # nobody there any more
        stream = gateway.run(node.reserve("threads"), "b")
        assert await asyncio.to_thread(desk.thread_begun.wait, 10)
        gateway.say(stream, Opcode.CANCEL)
        assert (await gateway.over(stream)).how == STOPPED
        assert worker.statistics.busy == 1
        desk.thread_may_end.set()
        await until(lambda: worker.statistics.busy == 0)
        token = node.token()
        stream = gateway.run(token, "c")
        gateway.say(stream, Opcode.CANCEL)
        assert isinstance(await gateway.error(stream), Cancelled)
        node.reserve("echo", token)
        assert await gateway.result(gateway.run(node.reserve("echo"), "d")) == "d"
        assert worker.statistics.busy == 0
        assert all(queue.empty() for queue in gateway.heard.values())


@in_a_loop
async def test_a_query_that_is_cancelled_in_the_turn_in_which_it_came() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("holding")
        await until(lambda: worker.querying.reservations == 1)
        gateway._flush_soon = True  # both in one write
        stream = gateway.run(token, "a")
        gateway.say(stream, Opcode.CANCEL)
        assert (await gateway.over(stream)).how == STOPPED
        await until(lambda: worker.statistics.busy == 0)


@in_a_loop
async def test_a_gateway_that_is_gone_takes_its_queries_with_it() -> None:
    desk = Desk()
    async with ReservingNode() as node, a_worker(node, desk.app, slots=3) as worker:
        async with a_gateway(worker) as gateway:
            gateway.run(node.reserve("holding"), "a")
            gateway.run(node.reserve("threads"), "b")
            gateway.run(node.token(), "early")
            await desk.begun.get()
            assert await asyncio.to_thread(desk.thread_begun.wait, 10)
        await until(lambda: desk.stopped == ["a"])
        # What runs still has its slot, and that is not on offer.
        await until(lambda: worker.statistics.busy == 1)
        assert all(served.on_offer <= 2 for served in worker._served)
        assert await asyncio.to_thread(desk.thread_saw_cancel.wait, 10)
        desk.thread_may_end.set()
        await until(lambda: worker.statistics.busy == 0)
        assert not worker.querying.running


@in_a_loop
async def test_a_stopping_worker_honours_what_it_promised() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, slots=2) as worker,
        a_gateway(worker) as gateway,
    ):
        running = gateway.run(node.reserve("holding"), "a")
        await desk.begun.get()
        token = node.reserve("echo")
        await until(lambda: worker.querying.reservations == 1)
        worker.stop()
        await until(lambda: not node.held(Offer))
        assert await gateway.result(gateway.run(token, "b")) == "b"
        desk.go_on.set()
        assert await gateway.result(running) == "a"
        await gateway.gone()


@in_a_loop
async def test_one_query_makes_one_offer() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "echo") as worker,
        a_gateway(worker) as gateway,
    ):
        await until(lambda: len(node.held(Offer)) == 1)
        before = worker.statistics.offers
        for _ in range(50):
            assert await gateway.result(gateway.run(node.reserve("echo"), "a")) == "a"
        assert worker.statistics.offers - before <= 51


@in_a_loop
async def test_what_does_not_end_in_time_is_left_behind_without_a_word() -> None:
    """The gateway sees the link end, and knows that nobody finished it."""
    desk = Desk()
    log = RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, drain_seconds=0.05, log=log) as worker,
        a_gateway(worker) as gateway,
    ):
        stream = gateway.run(node.reserve("holding"), "a")
        await desk.begun.get()
        worker.stop()
        await gateway.gone()
        assert stream not in gateway.heard
    assert desk.stopped == ["a"]
    assert any("stopped with unfinished work" in line for line in log.events("warning"))


@in_a_loop
async def test_a_reservation_that_is_told_twice_has_one_slot() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("echo")
        await until(lambda: worker.querying.reservations == 1)
        node.reserve("echo", token)
        await until(lambda: not node.to_reserve["echo"])
        assert await gateway.result(gateway.run(token, "a")) == "a"
        assert await gateway.result(gateway.run(node.reserve("echo"), "b")) == "b"
        assert worker.statistics.busy == 0


@in_a_loop
async def test_a_traceback_is_told_only_if_that_is_allowed() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker) as gateway,
    ):
        for allowed in (True, False):
            token = node.reserve("failing", tracebacks=allowed)
            query_end = await gateway.over(gateway.run(token, "raise"))
            failure = msgpack.decode(query_end.body, type=Failure)
            assert (query_end.how, failure.kind, failure.message) == (
                FAILED,
                "ValueError",
                "too small",
            )
            assert ("too small" in failure.traceback) == allowed
