"""Asking queries, with a fake node and fake workers: every way in which one can end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack, structs

from maitred.client.querying import Querying, Rows, Whole
from maitred.client.relaying import Relaying
from maitred.errors import (
    Cancelled,
    Closed,
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidArgument,
    InvalidArguments,
    InvalidName,
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
from maitred.protocol.messages import encode
from maitred.protocol.queries import Order, QueryFilter, Relay, Relayed
from maitred.protocol.seats import Seated, decode_seat
from maitred.protocol.tasks import DONE, STOPPED, TIMED_OUT
from maitred.queries import demand
from maitred.queries.ask import Ask
from maitred.settings import Querying as Settings
from maitred.settings import QueryLimits
from maitred.surroundings import Surroundings
from tests.client.waiters import SEATED, FakeFloor, FakeWorker, Seating, floor, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from maitred.client.client import AsyncClient
    from tests.client.conftest import Run


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **_fields: Any) -> None:  # noqa: ANN401 - as Log has it
        self.lines.append(event)


class Table:
    """Everything that a test of queries has: a node, workers, a client, its gateway."""

    def __init__(
        self, node: FakeFloor, workers: list[FakeWorker], client: AsyncClient, querying: Querying
    ) -> None:
        self.node = node
        self.workers = workers
        self.worker = workers[0]
        self.client = client
        self.querying = querying
        self.log = Log()

    def status(self, sequence: int = 1) -> str:
        return next(row.status for row in self.querying.table.rows() if row.sequence == sequence)

    def ask(self, *args: object, seconds: float = 10, **fields: Any) -> Ask:  # noqa: ANN401
        deadline = asyncio.get_running_loop().time() + seconds
        known: dict[str, Any] = {"namespace": "n", "queue": "q", "deadline": deadline}
        return Ask(**{"payload": msgpack.encode(args), **known, **fields})


@asynccontextmanager
async def table(
    workers: int = 1,
    *,
    hook: Callable[[Ask], Ask | Awaitable[Ask]] | None = None,
    limits: Callable[[str], QueryLimits | None] | None = None,
    **settings: Any,  # noqa: ANN401 - of querying
) -> AsyncIterator[Table]:
    async with floor(workers) as (node, made), node.connect(close_seconds=0.05) as client:
        log = Log()
        querying = Querying(
            client, Settings(**settings), Surroundings.real(), log, "gate", hook, limits
        )
        client.ask_with(querying)
        scene = Table(node, made, client, querying)
        scene.log = log
        yield scene
        if not querying.closed:
            assert querying.under_way == 0, "everything came to an end"
            assert querying.table.under_way == 0
            assert not querying._pauses
            assert not querying._allocating._pauses
            lines = querying._allocating._lines.values()
            await until(lambda: all(line.demand.idle for line in lines))


def hold(scene: Table) -> None:
    """The workers answer nothing by themselves."""
    for worker in scene.workers:
        worker.serve = lambda _: None


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
    monkeypatch.setattr(demand, "APART_SECONDS", 60.0)


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
            # By a clock of milliseconds it may all be one moment; `test_demand` knows the ages.
            assert waited == sorted(waited)
            assert [seat.arguments for seat in scene.worker.seats] == [[n] for n in range(5)]

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
    def serve(seating: Seating) -> None:
        seating.rows(1, "two")
        seating.rows([3])
        seating.end(streamed=True)

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
            scene.worker.serve = lambda seating: seating.end(streamed=True)
            assert [row async for row in scene.client.stream("q")] == [], "without rows"
            scene.worker.serve = lambda seating: seating.end(value=[1, 2])
            assert [row async for row in scene.client.stream("q")] == [1, 2], "a list"
            scene.worker.serve = lambda seating: seating.end(value={"a": 1})
            assert [row async for row in scene.client.stream("q")] == [{"a": 1}]

    run(main())


def test_a_stream_is_as_fast_as_it_is_taken(run: Run) -> None:
    async def main() -> None:
        async with table(window_bytes=65536) as scene:
            hold(scene)
            stream = scene.client.stream("q")
            first = asyncio.create_task(anext(stream))
            await scene.worker.until(lambda: scene.worker.seats)
            (seating,) = scene.worker.seats
            assert seating.seat.window_bytes == 65536
            chunk = msgpack.encode(b"x" * 20_000)
            for _ in range(3):
                seating.chunk(chunk)
            assert await first == b"x" * 20_000
            assert [await anext(stream) for _ in range(2)]
            await scene.worker.until(lambda: seating.credit == 3 * len(chunk))
            seating.end(streamed=True)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(main())


def test_more_rows_than_allowed_end_the_stream(run: Run) -> None:
    async def main() -> None:
        async with table(window_bytes=65536) as scene:
            hold(scene)
            scene.querying.frame_bytes = 1000
            running = scene.querying.begin(scene.ask())
            await scene.worker.until(lambda: scene.worker.seats)
            for _ in range(5):
                scene.worker.seats[0].chunk(msgpack.encode(b"x" * 20_000))
            rows = await running.answer()
            assert isinstance(rows, Rows)
            await scene.worker.until(lambda: scene.worker.seats[0].cancelled)
            with pytest.raises(ProtocolViolation):
                await anext(rows)

    run(main())


# Failures


def test_a_handlers_own_error(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = lambda seating: seating.fail("KeyError", "'x'", "Traceback ...")
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
        (lambda one: one.link.send(0, one.stream, SEATED, b"\xc1"), ProtocolViolation, "lost"),
        (lambda one: one.link.abort(), WorkerLost, "lost"),
        (lambda one: one.link.write(b"garbage!" * 4), WorkerLost, "lost"),
    ],
)
def test_other_ends(
    run: Run, serve: Callable[[Seating], None], kind: type[MaitredError], status: str
) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = serve
            with pytest.raises(kind):
                await scene.client.query("q")
            assert scene.status() == status

    run(main())


def test_an_error_in_the_middle_of_a_stream_comes_after_its_rows(run: Run) -> None:
    def serve(seating: Seating) -> None:
        seating.rows(1)
        seating.fail("ValueError", "enough")

    def vanish(seating: Seating) -> None:
        seating.rows(1)
        seating.link.flush()
        asyncio.get_running_loop().call_later(0.02, seating.link.abort)

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
    def serve(seating: Seating) -> None:
        seating.chunk(b"\xa9cut")

    def serve_rows(seating: Seating) -> None:
        seating.rows(1)
        seating.end()

    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = serve
            with pytest.raises(ProtocolViolation):
                await anext(scene.client.stream("q"))
            await scene.worker.until(lambda: scene.worker.seats[0].cancelled)
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

            def serve(seating: Seating) -> None:
                if refusals:
                    seating.refuse(refusals.pop(0))
                else:
                    seating.end(value="done")

            scene.worker.serve = serve
            assert await scene.client.query("q") == "done"
            (row,) = scene.querying.table.rows()
            assert (row.attempts, row.status) == (4, "done")
            assert len({seat.seat.token for seat in scene.worker.seats}) == 4

    run(main())


def test_a_lost_worker_and_idempotent_queries(run: Run) -> None:
    async def main() -> None:
        async with table(2) as scene:
            scene.workers[0].serve = lambda seating: seating.link.abort()
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
            assert scene.workers[0].seats == []
            assert len(scene.workers[1].seats) == 1

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
            well.seats[0].end(value="slow")
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
            seats = len(hung.seats)
            scene.node.tokens = 0
            assert await scene.client.query("other", 1) == [1]
            await until(lambda: len(scene.node.suspected) == 2)
            assert len(hung.seats) == seats
            # Whoever gives them away after that may know better: it woke up.
            hung.serve, hung.answers_pings = serve, True
            scene.node.tokens = 0
            assert await scene.client.query("other", 2) == [2]
            assert len(hung.seats) == seats + 1
            assert scene.node.suspected == [hung.session] * 2

    run(main())


# Nobody waits any more


def test_cancelled_while_it_waits(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.node.open.clear()
            waiting = asyncio.create_task(scene.client.query("q"))
            await until(lambda: scene.node.asked)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert scene.status() == "cancelled"
            await until(lambda: scene.node.stopped)
            assert scene.worker.seats == []

    run(main())


def test_cancelled_while_it_runs(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            running = scene.querying.begin(scene.ask())
            await scene.worker.until(lambda: scene.worker.seats)
            assert scene.querying.cancel(running.sequence)
            assert not scene.querying.cancel(running.sequence)
            assert not scene.querying.cancel(99)
            running.cancel()
            with pytest.raises(Cancelled):
                await running.answer()
            (seating,) = scene.worker.seats
            await scene.worker.until(lambda: seating.cancelled)
            (link,) = scene.querying.links.open.values()
            assert seating.stream in link.streams, "taken until the last frame"
            seating.end(STOPPED)
            scene.worker.serve = lambda seating: seating.end(value=1)
            assert await scene.client.query("q") == 1
            assert link.streams == {}

    run(main())


def test_leaving_a_stream_early_cancels_it(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = lambda seating: seating.rows(1, 2, 3)
            async for row in scene.client.stream("q"):
                assert row == 1
                break
            await scene.worker.until(lambda: scene.worker.seats[0].cancelled)
            async with scene.client.stream("q") as stream:
                assert await anext(stream) == 1
            await scene.worker.until(lambda: scene.worker.seats[1].cancelled)
            stream = scene.client.stream("q")
            assert [await anext(stream) for _ in range(3)] == [1, 2, 3]
            more = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            more.cancel()
            await scene.worker.until(lambda: scene.worker.seats[2].cancelled)

    run(main())


def test_the_deadline(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            with pytest.raises(DeadlineExceeded, match="told to stop"):
                await scene.client.query("q", timeout=0.05)
            await scene.worker.until(lambda: scene.worker.seats[0].cancelled)
            assert 0 < scene.worker.seats[0].seat.timeout_milliseconds <= 50
            scene.node.open.clear()
            with pytest.raises(DeadlineExceeded, match="no worker was free"):
                await scene.client.query("q", timeout=0.05)
            scene.node.open.set()
            scene.worker.serve = lambda seating: seating.rows(1)
            stream = scene.client.stream("q", timeout=0.1)
            assert await anext(stream) == 1
            with pytest.raises(DeadlineExceeded):
                await anext(stream)
            assert [row.status for row in scene.querying.table.rows()] == ["late"] * 3
            with pytest.raises(DeadlineExceeded):
                scene.querying.begin(scene.ask(seconds=-1))

    run(main())


def test_many_deadlines_have_one_timer(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            began = asyncio.get_running_loop().time()
            found = await asyncio.gather(
                *(scene.client.query("q", timeout=0.02 * n) for n in range(10, 0, -1)),
                return_exceptions=True,
            )
            assert all(isinstance(one, DeadlineExceeded) for one in found)
            assert asyncio.get_running_loop().time() - began >= 0.19

    run(main())


def test_surplus_slots_are_given_back_at_once(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            gate = asyncio.Event()

            async def before(_: object) -> None:
                await gate.wait()

            scene.node.before = before
            tasks = [asyncio.create_task(scene.client.query("q", n)) for n in range(3)]
            await until(lambda: scene.node.asked)
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.wait([tasks[0], tasks[2]])
            gate.set()
            assert await tasks[1] == [1]
            # Both, unless this machine took so long that they were asked for one by one.
            await scene.worker.until(lambda: len(scene.worker.released) == scene.node.tokens - 1)
            used = {seat.seat.token for seat in scene.worker.seats}
            assert used.isdisjoint(scene.worker.released)

    run(main())


def test_cancelled_while_its_worker_is_dialled(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            running = scene.querying.begin(scene.ask())
            await until(lambda: scene.querying.links._dialing, pause=0)
            running.cancel()
            with pytest.raises(Cancelled):
                await running.answer()
            await scene.worker.until(lambda: scene.worker.released)
            assert scene.worker.seats == []

    run(main())


# Through the node


def test_a_worker_that_says_nothing_is_relayed_to(run: Run) -> None:
    async def main() -> None:
        async with table(dial_seconds=0.05) as scene:
            scene.worker.greets = False
            pieces = encode(Seated(DONE, msgpack.encode("far")))

            async def in_two(message: Relay) -> Relayed:
                half = len(pieces) // 2
                part = pieces[half:] if message.ordinal else pieces[:half]
                return Relayed(Opcode.SEAT, part, more=not message.ordinal)

            scene.node.relay = in_two
            assert await scene.client.query("q", 1) == "far"
            assert [one.ordinal for one in scene.node.relayed] == [0, 1]
            assert decode_seat(scene.node.relayed[0].seat).payload == b"\x91\x01"
            began = asyncio.get_running_loop().time()
            assert await scene.client.query("q", 2) == "far"
            assert asyncio.get_running_loop().time() - began < 0.05, "not dialled again"
            assert all(row.relayed for row in scene.querying.table.rows())

    run(main())


def test_relayed_rows_are_asked_for_as_they_are_taken(run: Run) -> None:
    async def main() -> None:
        async with table(window_bytes=65536) as scene:
            scene.worker.address = ""
            chunk = msgpack.encode(b"x" * 40_000)

            async def relay(_: Relay) -> Relayed:
                return Relayed(Opcode.ROWS, chunk, more=True)

            scene.node.relay = relay
            stream = scene.client.stream("q")
            assert await anext(stream)
            await until(lambda: len(scene.node.relayed) >= 3)
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(scene.node.relayed) <= 4, "no further than the window"
            for _ in range(5):
                await anext(stream)
            (running,) = scene.querying._under_way.values()
            relaying = running._carrier
            assert isinstance(relaying, Relaying)
            await until(lambda: relaying._held is None)
            assert len(scene.node.relayed) <= 9
            await stream.aclose()
            await until(lambda: scene.node.relayed[-1].stop)

    run(main())


@pytest.mark.parametrize(
    ("problem", "kind", "again"),
    [
        (InvalidReservation("Never heard of it."), None, 2),
        (WorkerLost("Gone."), WorkerLost, 1),
        (PermissionDenied("No."), PermissionDenied, 1),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_relays_that_fail(
    run: Run, problem: MaitredError, kind: type[MaitredError] | None, again: int
) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.address = ""
            problems = [problem]

            async def relay(_: Relay) -> Relayed:
                if problems:
                    raise problems.pop()
                return Relayed(Opcode.SEAT, encode(Seated(DONE, b"\x01")), more=False)

            scene.node.relay = relay
            if kind is None:
                assert await scene.client.query("q") == 1
            else:
                with pytest.raises(kind):
                    await scene.client.query("q")
            assert len(scene.node.relayed) == again

    run(main())


def test_a_worker_that_does_not_even_fetch_its_query_is_suspected(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.address = ""
            problems: list[MaitredError] = [InvalidReservation("It was not fetched in time.")]

            async def relay(_: Relay) -> Relayed:
                if problems:
                    raise problems.pop()
                return Relayed(Opcode.SEAT, encode(Seated(DONE, b"\x01")), more=False)

            scene.node.relay = relay
            assert await scene.client.query("q") == 1
            await until(lambda: scene.node.suspected)
            assert scene.node.suspected == [scene.worker.session]

    run(main())


def test_a_relayed_query_is_cancelled_while_it_runs(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.address = ""
            stopped = asyncio.Event()

            async def relay(_: Relay) -> Relayed:
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()
                raise AssertionError

            scene.node.relay = relay
            running = scene.querying.begin(scene.ask())
            await until(lambda: scene.node.relayed)
            running.cancel()
            with pytest.raises(Cancelled):
                await running.answer()
            async with asyncio.timeout(5):
                await stopped.wait()

    run(main())


def test_orders_are_obeyed_and_reported(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            scene.node.orders = [
                Order(7, "list", QueryFilter()),
                Order(8, "cancel", QueryFilter(sequence=1)),
                Order(9, "list", QueryFilter(gateway="other")),
            ]
            running = scene.querying.begin(scene.ask("x"))
            other = scene.querying.begin(scene.ask("y"))
            with pytest.raises(Cancelled):
                await running.answer()
            await until(lambda: len(scene.node.reports) == 3)
            found = {one.number: [row.query for row in one.rows] for one in scene.node.reports}
            assert found == {7: ["x", "y"], 8: ["x"], 9: []}
            assert {one.session for one in scene.node.reports} == {scene.querying.session}
            other.cancel()

    run(main())


# What is refused at once, and other bad input


def test_what_can_never_be(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            query = scene.client.query
            with pytest.raises(InvalidName):
                await query("a:b")
            with pytest.raises(InvalidName):
                await query("")
            with pytest.raises(InvalidArgument):
                await query(5)  # type: ignore[arg-type]
            for none in (9, -1, 2.0, True, "2", None):
                with pytest.raises(InvalidArgument):
                    await query("q", priority=none)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                await query("q", timeout=0)
            with pytest.raises(InvalidArguments):
                await query("q", object())
            with pytest.raises(InvalidArguments):
                await query("q", 1, named={"x": 1})
            with pytest.raises(PayloadTooLarge):
                await query("q", b"x" * 3_000_000)
            assert {row.status for row in scene.querying.table.rows()} == {"refused"}
            assert scene.node.asked == []

    run(main())


def test_what_is_like_a_priority_is_none_however_often_it_is_asked(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            for priority in (1, 2):
                assert await scene.client.query("q", priority=priority) == []
            for none in (2.0, True):
                with pytest.raises(InvalidArgument):
                    await scene.client.query("q", priority=none)  # type: ignore[arg-type]

    run(main())


def test_too_many_under_way(run: Run) -> None:
    async def main() -> None:
        async with table(under_way=2) as scene:
            scene.node.open.clear()
            running = [scene.querying.begin(scene.ask()) for _ in range(2)]
            with pytest.raises(Overloaded) as refused:
                scene.querying.begin(scene.ask())
            assert refused.value.retry_after
            for one in running:
                one.cancel()
            scene.node.open.set()
            assert await scene.client.query("q") == []

    run(main())


def test_limits_of_users(run: Run) -> None:
    limits = {"ann": QueryLimits(concurrent=1, queues=["n/q"])}

    async def main() -> None:
        async with table(limits=limits.get) as scene:
            hold(scene)
            begin = scene.querying.begin
            first = begin(scene.ask(user="ann"))
            with pytest.raises(Overloaded):
                begin(scene.ask(user="ann"))
            with pytest.raises(PermissionDenied):
                begin(scene.ask(user="ann", queue="other"))
            other = begin(scene.ask(user="bob"))
            await scene.worker.until(lambda: len(scene.worker.seats) == 2)
            first.cancel()
            again = begin(scene.ask(user="ann"))
            for one in (other, again):
                one.cancel()
            assert scene.querying.admission is not None
            assert scene.querying.admission.under_way("ann") == 0
            statuses = [row.status for row in scene.querying.table.rows()]
            assert statuses.count("refused") == 2

    run(main())


def test_a_hook_may_change_or_refuse(run: Run) -> None:
    async def slowly(ask: Ask) -> Ask:
        await asyncio.sleep(0)
        if ask.queue == "broken":
            raise RuntimeError("oops")
        return ask

    def hook(ask: Ask) -> Ask | Awaitable[Ask]:
        if ask.queue == "forbidden":
            raise PermissionDenied("Not this one.")
        if ask.queue == "bug":
            raise ZeroDivisionError
        if ask.queue in ("slow", "broken"):
            return slowly(ask)
        ask.payload = msgpack.encode(["changed"])
        ask.user = "root"
        return ask

    async def main() -> None:
        async with table(hook=hook) as scene:
            assert await scene.client.query("q", 1) == ["changed"]
            assert scene.querying.table.rows()[0].query == "changed"
            assert await scene.client.query("slow", 1) == [1]
            with pytest.raises(PermissionDenied):
                await scene.client.query("forbidden")
            for queue in ("bug", "broken"):
                with pytest.raises(InternalError):
                    await scene.client.query(queue)
            assert scene.log.lines == ["the hook for queries failed"] * 2
            asked = [message.queue for message in scene.node.asked]
            assert asked == ["q", "slow"]
            assert {row.user for row in scene.querying.table.rows()} == {""}

    run(main())


def test_a_hook_may_send_it_elsewhere(run: Run) -> None:
    def hook(ask: Ask) -> Ask:
        return structs.replace(ask, queue="elsewhere")

    limits = {"": QueryLimits(waiting=1)}

    async def main() -> None:
        async with table(hook=hook, limits=limits.get) as scene:
            for _ in range(3):
                assert await scene.client.query("q", 1) == [1]
            assert {message.queue for message in scene.node.asked} == {"elsewhere"}
            assert scene.querying.admission is not None
            assert scene.querying.admission.under_way("") == 0
            assert scene.querying.table.rows()[0].queue == "elsewhere"

    run(main())


def test_answers_that_nobody_asked_for(run: Run) -> None:
    def twice(seating: Seating) -> None:
        seating.end(DONE, "first")
        seating.end(DONE, "second")
        seating.link.send(0, 4711, SEATED, b"")

    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = twice
            for _ in range(3):
                assert await scene.client.query("q") == "first"
            assert scene.log.lines == ["a worker answered what nobody asked"], "once"
            assert len(scene.worker.links) == 1, "nothing else is disturbed"

    run(main())


def test_a_frame_that_makes_no_sense_ends_the_link(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = lambda seating: seating.link.send(
                0, seating.stream, Opcode.ECHO, b""
            )
            with pytest.raises(WorkerLost):
                await scene.client.query("q")
            scene.worker.serve = lambda seating: seating.end(value=1)
            assert await scene.client.query("q") == 1
            assert len(scene.worker.links) == 2

    run(main())


# The end


def test_closing_ends_everything(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            running = asyncio.create_task(scene.client.query("q"))
            await scene.worker.until(lambda: scene.worker.seats)
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
            await scene.worker.until(lambda: scene.worker.seats)
            closing = asyncio.create_task(scene.querying.close(5))
            await asyncio.sleep(0)
            scene.worker.seats[0].end(value=1)
            assert await running == 1
            await closing

    run(main())


def test_an_idle_link_is_closed_and_opened_again(run: Run) -> None:
    async def main() -> None:
        async with table(idle_seconds=0.05, ping_seconds=0.04) as scene:
            assert await scene.client.query("q", 1) == [1]
            await scene.worker.until(lambda: scene.worker.lost)
            assert len(scene.querying.links) == 0
            assert await scene.client.query("q", 2) == [2]

    run(main())
