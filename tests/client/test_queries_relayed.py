"""Queries through the node, where a worker cannot be reached from the gateway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack

from maitred.dispatch.relayed_query import RelayedQuery
from maitred.errors import (
    Cancelled,
    Draining,
    InvalidReservation,
    MaitredError,
    Overloaded,
    PermissionDenied,
    WorkerLost,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import encode
from maitred.protocol.queries import Order, QueryFilter, Relay, Relayed
from maitred.protocol.query_link import QueryEnd, decode_run
from maitred.protocol.tasks import DONE
from tests.client.tables import hold, table
from tests.client.waiters import until

if TYPE_CHECKING:
    from tests.client.conftest import Run


def test_a_worker_that_says_nothing_is_relayed_to(run: Run) -> None:
    async def main() -> None:
        async with table(dial_seconds=0.05) as scene:
            scene.worker.greets = False
            pieces = encode(QueryEnd(DONE, msgpack.encode("far")))

            async def in_two(message: Relay) -> Relayed:
                half = len(pieces) // 2
                part = pieces[half:] if message.ordinal else pieces[:half]
                return Relayed(Opcode.RUN, part, more=not message.ordinal)

            scene.node.relay = in_two
            assert await scene.client.query("q", 1) == "far"
            assert [one.ordinal for one in scene.node.relayed] == [0, 1]
            assert decode_run(scene.node.relayed[0].query).payload == b"\x91\x01"
            assert await scene.client.query("q", 2) == "far"
            assert len(scene.worker.links) == 1, "not dialled again"
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
            (running,) = scene.querying.dispatcher._under_way.values()
            relaying = running._carrier
            assert isinstance(relaying, RelayedQuery)
            await until(lambda: relaying._request is None)
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
                return Relayed(Opcode.RUN, encode(QueryEnd(DONE, b"\x01")), more=False)

            scene.node.relay = relay
            if kind is None:
                assert await scene.client.query("q") == 1
            else:
                with pytest.raises(kind):
                    await scene.client.query("q")
            assert len(scene.node.relayed) == again

    run(main())


@pytest.mark.parametrize("problem", [Overloaded("Too much."), Draining("It stops.")])
def test_a_refusal_after_the_first_piece_does_not_run_the_query_again(
    run: Run, problem: MaitredError
) -> None:
    """The node did nothing with that request; the worker has begun the query all the same."""

    async def main() -> None:
        async with table() as scene:
            scene.worker.address = ""

            async def relay(message: Relay) -> Relayed:
                if message.ordinal:
                    raise problem
                return Relayed(Opcode.RUN, encode(QueryEnd(DONE, b"\x01"))[:1], more=True)

            scene.node.relay = relay
            with pytest.raises(WorkerLost):
                await scene.client.query("q")
            assert [one.ordinal for one in scene.node.relayed] == [0, 1]

    run(main())


def test_a_worker_that_does_not_even_fetch_its_query_is_suspected(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.address = ""
            problems: list[MaitredError] = [InvalidReservation("It was not fetched in time.")]

            async def relay(_: Relay) -> Relayed:
                if problems:
                    raise problems.pop()
                return Relayed(Opcode.RUN, encode(QueryEnd(DONE, b"\x01")), more=False)

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
            async with asyncio.timeout(30):
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
