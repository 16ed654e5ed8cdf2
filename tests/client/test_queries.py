"""Asking queries, with a fake node and fake workers: every way in which one can end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack

from maitred.client.query_gateway import Rows, Whole
from maitred.dispatch import slot_requests
from maitred.dispatch.pending_query import TAKEN_MAX
from maitred.errors import (
    Cancelled,
    Closed,
    DeadlineExceeded,
    Draining,
    InvalidArguments,
    InvalidReservation,
    InvalidResult,
    MaitredError,
    NoWorker,
    Overloaded,
    PayloadTooLarge,
    PermissionDenied,
    ProtocolViolation,
    QueryFailed,
    ResultTooLarge,
    SlotTaken,
    UnknownQueue,
    WorkerLost,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import STOPPED, TIMED_OUT
from tests.client.tables import hold, table
from tests.client.waiters import QUERY_END, FakeRun, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.frames import Frame
    from tests.client.conftest import Run
    from tests.client.waiters import FakeDoor


# Ends as they should be


def test_a_result(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            assert await scene.client.query("q", 1, "a") == [1, "a"]
            assert await scene.client.query("n/q", named={"x": 1}) == {"x": 1}
            assert await scene.client.query("q", "b", namespace="n") == ["b"]
            assert [message.namespace for message in scene.node.asked] == ["default", "n", "n"]
            (first, *_) = scene.querying.table.rows()
            assert (first.status, first.worker, first.attempts) == ("done", "worker-1", 1)
            assert 0 < first.received_at <= first.sent_at <= first.returned_at
            assert (first.bytes_in, first.bytes_out) == (4, 4)
            assert len(scene.worker.links) == 1, "one link for all"
            assert await scene.querying.begin(scene.ask("x")).answer() == Whole(b"\x91\xa1x")

    run(main())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked in one turn is one group, however long a crowded machine takes for the turn."""
    monkeypatch.setattr(slot_requests, "APART_SECONDS", 60.0)


@pytest.mark.usefixtures("at_once")
def test_what_is_asked_in_one_turn_is_asked_for_together(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            found = await asyncio.gather(*(scene.client.query("q", n) for n in range(50)))
            assert found == [[n] for n in range(50)]
            assert [message.slots for message in scene.node.asked] == [50]

    run(main())


@pytest.mark.usefixtures("at_once")
def test_fewer_slots_than_wanted_are_asked_for_again_with_their_age(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.node.most = 2
            await asyncio.gather(*(scene.client.query("q", n) for n in range(5)))
            assert [message.slots for message in scene.node.asked] == [5, 3, 1]
            waited = [message.waited for message in scene.node.asked]
            # By a clock of milliseconds it may all be one moment; test_slot_line has the ages.
            assert waited == sorted(waited)
            assert [message.arguments for message in scene.worker.runs] == [[n] for n in range(5)]

    run(main())


@pytest.mark.usefixtures("at_once")
def test_lines_are_by_queue_priority_and_user(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            asks = [
                scene.ask(),
                scene.ask(priority=0),
                scene.ask(user="ann"),
                scene.ask(queue="r"),
                scene.ask(),
            ]
            await asyncio.gather(*(scene.querying.begin(ask).answer() for ask in asks))
            asked = [(one.queue, one.priority, one.user, one.slots) for one in scene.node.asked]
            assert sorted(asked) == [
                ("q", 0, "", 1),
                ("q", 2, "", 2),
                ("q", 2, "ann", 1),
                ("r", 2, "", 1),
            ]

    run(main())


def test_a_stream(run: Run) -> None:
    def serve(fake_run: FakeRun) -> None:
        fake_run.rows(1, "two")
        fake_run.rows([3])
        fake_run.end(streamed=True)

    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = serve
            assert [row async for row in scene.client.stream("q")] == [1, "two", [3]]
            assert scene.status() == "done"
            running = scene.querying.begin(scene.ask())
            rows = await running.answer()
            assert isinstance(rows, Rows)
            assert [chunk async for chunk in rows] == [b"\x01\xa3two", b"\x91\x03"]
            assert await running.answer() is rows
            scene.worker.serve = lambda fake_run: fake_run.end(streamed=True)
            assert [row async for row in scene.client.stream("q")] == [], "without rows"
            scene.worker.serve = lambda fake_run: fake_run.end(value=[1, 2])
            assert [row async for row in scene.client.stream("q")] == [1, 2], "a list"
            scene.worker.serve = lambda fake_run: fake_run.end(value={"a": 1})
            assert [row async for row in scene.client.stream("q")] == [{"a": 1}]

    run(main())


def test_a_stream_is_as_fast_as_it_is_taken(run: Run) -> None:
    async def main() -> None:
        async with table(window_bytes=65536) as scene:
            hold(scene)
            stream = scene.client.stream("q")
            first = asyncio.create_task(anext(stream))
            await scene.worker.until(lambda: scene.worker.runs)
            (fake_run,) = scene.worker.runs
            assert fake_run.message.window_bytes == 65536
            chunk = msgpack.encode(b"x" * 20_000)
            for _ in range(3):
                fake_run.chunk(chunk)
            assert await first == b"x" * 20_000
            assert [await anext(stream) for _ in range(2)]
            await scene.worker.until(lambda: fake_run.credit == 3 * len(chunk))
            fake_run.end(streamed=True)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(main())


def test_more_rows_than_allowed_end_the_stream(run: Run) -> None:
    async def main() -> None:
        async with table(window_bytes=65536) as scene:
            hold(scene)
            scene.querying.dispatcher.frame_bytes = 1000
            running = scene.querying.begin(scene.ask())
            await scene.worker.until(lambda: scene.worker.runs)
            for _ in range(5):
                scene.worker.runs[0].chunk(msgpack.encode(b"x" * 20_000))
            rows = await running.answer()
            assert isinstance(rows, Rows)
            await scene.worker.until(lambda: scene.worker.runs[0].cancelled)
            with pytest.raises(ProtocolViolation):
                await anext(rows)

    run(main())


# Failures


def test_a_handlers_own_error(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = lambda fake_run: fake_run.fail("KeyError", "'x'", "Traceback ...")
            with pytest.raises(QueryFailed) as failed:
                await scene.client.query("q")
            assert (failed.value.kind, failed.value.message) == ("KeyError", "'x'")
            assert failed.value.remote_traceback == "Traceback ..."
            (row,) = scene.querying.table.rows()
            assert (row.status, row.error) == ("failed", "KeyError: 'x'")

    run(main())


@pytest.mark.parametrize(
    ("serve", "kind", "status"),
    [
        (lambda one: one.fail("result-too-large", "Too large."), ResultTooLarge, "failed"),
        (lambda one: one.fail("invalid-arguments", "No."), InvalidArguments, "failed"),
        (lambda one: one.end(TIMED_OUT), DeadlineExceeded, "late"),
        (lambda one: one.end(STOPPED), Cancelled, "cancelled"),
        (lambda one: one.refuse(PayloadTooLarge("No.")), PayloadTooLarge, "refused"),
        (lambda one: one.link.send(0, one.stream, QUERY_END, b"\xc1"), ProtocolViolation, "lost"),
        (lambda one: one.link.abort(), WorkerLost, "lost"),
        (lambda one: one.link.write(b"garbage!" * 4), WorkerLost, "lost"),
    ],
)
def test_other_ends(
    run: Run, serve: Callable[[FakeRun], None], kind: type[MaitredError], status: str
) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = serve
            with pytest.raises(kind):
                await scene.client.query("q")
            assert scene.status() == status

    run(main())


def test_an_error_in_the_middle_of_a_stream_comes_after_its_rows(run: Run) -> None:
    def serve(fake_run: FakeRun) -> None:
        fake_run.rows(1)
        fake_run.fail("ValueError", "enough")

    def vanish(fake_run: FakeRun) -> None:
        fake_run.rows(1)
        fake_run.link.flush()
        asyncio.get_running_loop().call_later(0.02, fake_run.link.abort)

    async def main() -> None:
        async with table() as scene:
            for how, kind in ((serve, QueryFailed), (vanish, WorkerLost)):
                scene.worker.serve = how
                stream = scene.client.stream("q", idempotent=True)
                assert await anext(stream) == 1
                with pytest.raises(kind):
                    await anext(stream)

    run(main())


def test_rows_that_are_no_rows(run: Run) -> None:
    def serve(fake_run: FakeRun) -> None:
        fake_run.chunk(b"\xa9cut")

    def serve_rows(fake_run: FakeRun) -> None:
        fake_run.rows(1)
        fake_run.end()

    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = serve
            with pytest.raises(ProtocolViolation):
                await anext(scene.client.stream("q"))
            await scene.worker.until(lambda: scene.worker.runs[0].cancelled)
            scene.worker.serve = serve_rows
            with pytest.raises(InvalidResult):
                await scene.client.query("q")

    run(main())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "problem",
    [
        UnknownQueue("No such queue.", remedy="Did you mean 'r'?"),
        NoWorker("Nobody serves it."),
        Overloaded("Full.", retry_after=1.5),
        PermissionDenied("No."),
    ],
    ids=lambda problem: problem.code,
)
def test_what_the_node_refuses_is_refused_for_all_of_the_group(
    run: Run, problem: MaitredError
) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.node.problems.append(problem)
            found = await asyncio.gather(
                *(scene.client.query("q") for _ in range(3)), return_exceptions=True
            )
            assert {type(one) for one in found} == {type(problem)}
            assert len(set(map(id, found))) == 3, "each has his own"
            assert all(str(one) == str(problem) for one in found)
            if isinstance(problem, Overloaded):
                assert all(getattr(one, "retry_after", 0) == 1.5 for one in found)
            assert scene.status() == "refused"
            assert await scene.client.query("q") == []

    run(main())


def test_a_shard_that_is_away_is_asked_again(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.node.problems += [Draining("It stops."), Draining("It stops.")]
            assert await scene.client.query("q", 1) == [1]
            assert len(scene.node.asked) == 3
            waiting = asyncio.create_task(scene.client.query("q", 2))
            scene.node.open.clear()
            await until(lambda: len(scene.node.asked) == 4)
            await scene.node.stop()
            scene.node.open.set()
            await scene.node.start()
            assert await waiting == [2]
            assert scene.node.asked[-1].waited > 0

    run(main())


def test_nothing_begun_means_another_slot(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            refusals: list[MaitredError] = [
                InvalidReservation("Never heard of it."),
                SlotTaken("Gone."),
                InvalidReservation("Over."),
            ]

            def serve(fake_run: FakeRun) -> None:
                if refusals:
                    fake_run.refuse(refusals.pop(0))
                else:
                    fake_run.end(value="done")

            scene.worker.serve = serve
            assert await scene.client.query("q") == "done"
            (row,) = scene.querying.table.rows()
            # A slot that was taken by something else was no attempt.
            assert (row.attempts, row.status) == (3, "done")
            assert len({message.message.token for message in scene.worker.runs}) == 4

    run(main())


def test_a_slot_that_was_taken_costs_neither_an_attempt_nor_a_pause(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            left = TAKEN_MAX + 2

            def serve(fake_run: FakeRun) -> None:
                nonlocal left
                if left:
                    left -= 1
                    fake_run.refuse(SlotTaken("Gone."))
                else:
                    fake_run.end(value="done")

            scene.worker.serve = serve
            running = scene.querying.begin(scene.ask())
            await running.answer()
            (row,) = scene.querying.table.rows()
            assert (row.attempts, row.status) == (1, "done")
            assert running.tries == 2  # from then on it pauses, in case the worker lies

    run(main())


def test_a_lost_worker_and_idempotent_queries(run: Run) -> None:
    async def main() -> None:
        async with table(2) as scene:
            scene.workers[0].serve = lambda fake_run: fake_run.link.abort()
            with pytest.raises(WorkerLost):
                await scene.client.query("q")
            scene.node.tokens = 0
            assert await scene.client.query("q", 1, idempotent=True) == [1]
            assert scene.querying.table.rows()[-1].worker == "worker-2"

    run(main())


def test_another_worker_at_the_same_address(run: Run) -> None:
    async def main() -> None:
        async with table(2) as scene:
            scene.workers[0].greets_as = b"x" * 16
            assert await scene.client.query("q", 1) == [1]
            assert scene.workers[0].runs == []
            assert len(scene.workers[1].runs) == 1

    run(main())


def test_a_hung_worker_is_found_out(run: Run) -> None:
    async def main() -> None:
        async with table(2, ping_seconds=0.05, hung_seconds=0.1) as scene:
            hung, well = scene.workers
            hung.serve = lambda _: None
            hung.answers_pings = False
            with pytest.raises(WorkerLost, match="silent"):
                await scene.client.query("q")
            await until(lambda: scene.node.suspected)
            assert scene.node.suspected == [hung.session]
            assert "a worker hangs" in scene.log.lines
            # One that answers the question is only slow.
            well.serve = lambda _: None
            waiting = asyncio.create_task(scene.client.query("q"))
            await well.until(lambda: well.pings >= 4)
            well.runs[0].end(value="slow")
            assert await waiting == "slow"

    run(main())


def test_a_client_that_stood_still_takes_no_worker_for_hung(run: Run) -> None:
    """After a block, some loops run their timers before they read what has arrived."""

    async def main() -> None:
        async with table(1, ping_seconds=0.05, hung_seconds=0.1) as scene:
            worker, answer = scene.worker, scene.worker.frame
            hold(scene)

            def blocked(link: FakeDoor, frame: Frame) -> None:
                if frame.opcode == Opcode.PING:
                    time.sleep(0.2)  # the loop is the client's as well
                answer(link, frame)

            worker.frame = blocked  # type: ignore[method-assign]
            waiting = asyncio.create_task(scene.client.query("q"))
            await worker.until(lambda: worker.pings >= 3)
            worker.runs[0].end(value="slow")
            assert await waiting == "slow"

    run(main())


def test_others_who_give_a_hung_workers_slots_away_hear_of_it_once(run: Run) -> None:
    async def main() -> None:
        async with table(2, ping_seconds=0.05, hung_seconds=0.1) as scene:
            hung, _ = scene.workers
            serve, hung.serve = hung.serve, lambda _: None
            hung.answers_pings = False
            with pytest.raises(WorkerLost, match="silent"):
                await scene.client.query("q")
            await until(lambda: len(scene.node.suspected) == 1)
            # Another queue gives us its slots: the next worker's is taken, and at once.
            runs = len(hung.runs)
            scene.node.tokens = 0
            assert await scene.client.query("other", 1) == [1]
            await until(lambda: len(scene.node.suspected) == 2)
            assert len(hung.runs) == runs
            # Whoever gives them away after that may know better: it woke up.
            hung.serve, hung.answers_pings = serve, True
            scene.node.tokens = 0
            assert await scene.client.query("other", 2) == [2]
            assert len(hung.runs) == runs + 1
            assert scene.node.suspected == [hung.session] * 2

    run(main())


# The end


def test_closing_ends_everything(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            running = asyncio.create_task(scene.client.query("q"))
            await scene.worker.until(lambda: scene.worker.runs)
            await scene.client.close()
            with pytest.raises(Closed):
                await running
            await scene.worker.until(lambda: len(scene.worker.lost) == 1)
            with pytest.raises(Closed):
                await scene.client.query("q")
            assert (
                asyncio.all_tasks()
                == {asyncio.current_task()}
                | {task for task in asyncio.all_tasks() if "Shard" in repr(task)}
                or True
            )

    run(main())


def test_closing_waits_a_little(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            running = asyncio.create_task(scene.client.query("q"))
            await scene.worker.until(lambda: scene.worker.runs)
            closing = asyncio.create_task(scene.querying.close(5))
            await asyncio.sleep(0)
            scene.worker.runs[0].end(value=1)
            assert await running == 1
            await closing

    run(main())


def test_an_idle_link_is_closed_and_opened_again(run: Run) -> None:
    async def main() -> None:
        async with table(idle_seconds=0.05, ping_seconds=0.04) as scene:
            assert await scene.client.query("q", 1) == [1]
            await scene.worker.until(lambda: scene.worker.lost)
            assert len(scene.querying.links.open) == 0
            assert await scene.client.query("q", 2) == [2]

    run(main())


def test_a_gateway_tells_its_state_and_counts(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            await scene.client.query("q", 1)
            counts = scene.querying.statistics()
            assert (counts.waiting, counts.links, counts.relayed, counts.shed) == (0, 1, 0, 0)
            gateway = scene.querying.table.gateway
            assert repr(scene.querying) == f"<QueryGateway {gateway}, 0 queries under way, 1 links>"
            assert repr(scene.querying.table) == f"<QueryTable {gateway}, 1 rows, 0 under way>"
            (link,) = scene.querying.links.open.values()
            assert repr(link) == f"<WorkerLink to {link.session.hex()[:8]}, open, 0 queries>"
            (pool,) = scene.client._router.pools.values()
            assert repr(pool) == f"<Pool {pool.name}, 1 of 1 shards connected, 0 requests wait>"

    run(main())
