"""Queries that are refused at once, and other bad input."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack, structs

from maitred.errors import (
    InternalError,
    InvalidArgument,
    InvalidArguments,
    InvalidName,
    Overloaded,
    PayloadTooLarge,
    PermissionDenied,
    WorkerLost,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import DONE
from maitred.settings import QueryLimits
from tests.client.tables import hold, table
from tests.client.waiters import SEATED, Seating

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from maitred.queries.ask import Ask
    from tests.client.conftest import Run


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
