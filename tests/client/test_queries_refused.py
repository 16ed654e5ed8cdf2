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
    MaitredError,
    Overloaded,
    PayloadTooLarge,
    PermissionDenied,
    SlotTaken,
    WorkerLost,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import DONE
from maitred.settings import QueryLimits
from tests.client.tables import hold, table
from tests.client.waiters import QUERY_END, FakeRun, until

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from maitred.dispatch.ask import Ask
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
            await scene.worker.until(lambda: len(scene.worker.runs) == 2)
            first.cancel()
            again = begin(scene.ask(user="ann"))
            for one in (other, again):
                one.cancel()
            assert scene.querying.dispatcher.admission is not None
            assert scene.querying.dispatcher.admission.under_way("ann") == 0
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
            assert scene.querying.dispatcher.admission is not None
            assert scene.querying.dispatcher.admission.under_way("") == 0
            assert scene.querying.table.rows()[0].queue == "elsewhere"

    run(main())


def test_answers_that_nobody_asked_for(run: Run) -> None:
    def twice(fake_run: FakeRun) -> None:
        fake_run.end(DONE, "first")
        fake_run.end(DONE, "second")
        fake_run.link.send(0, 4711, QUERY_END, b"")

    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = twice
            for _ in range(3):
                assert await scene.client.query("q") == "first"
            assert scene.log.lines == ["a worker answered a query that it was not sent"], "once"
            assert len(scene.worker.links) == 1, "nothing else is disturbed"

    run(main())


def test_a_frame_that_makes_no_sense_ends_the_link(run: Run) -> None:
    async def main() -> None:
        async with table() as scene:
            scene.worker.serve = lambda fake_run: fake_run.link.send(
                0, fake_run.stream, Opcode.ECHO, b""
            )
            with pytest.raises(WorkerLost):
                await scene.client.query("q")
            scene.worker.serve = lambda fake_run: fake_run.end(value=1)
            assert await scene.client.query("q") == 1
            assert len(scene.worker.links) == 2

    run(main())


def test_whoever_gave_a_slot_hears_that_it_was_refused(run: Run) -> None:
    async def main() -> None:
        async with table(workers=2) as scene:
            hold(scene)
            begun = [scene.querying.begin(scene.ask()) for _ in range(6)]
            runs = scene.worker.runs
            await scene.worker.until(lambda: len(runs) == 3)
            scene.node.open.clear()
            runs[0].refuse(SlotTaken("Gone."))
            await until(lambda: len(scene.node.refused) == 1)
            for fake_run in runs[1:]:
                fake_run.refuse(Overloaded("Full."))
            runs_of_both = [*runs, *scene.workers[1].runs]
            for worker in scene.workers:
                worker.serve = FakeRun.end
            await until(lambda: scene.querying.waiting == 3)
            scene.node.open.set()
            await until(lambda: len(scene.node.refused) == 2)
            for fake_run in runs_of_both[3:]:
                fake_run.end()
            for one in begun:
                await one.answer()
            told = [(one.worker_session, one.refused) for one in scene.node.refused]
            tokens = [one.message.token for one in runs_of_both[:3]]
            session = scene.worker.session
            assert told == [(session, tokens[:1]), (session, tokens[1:])]
            assert scene.node.suspected == []

    run(main())


@pytest.mark.parametrize("how", ["failed", "misfit"])
def test_what_is_refused_for_what_it_is_is_not_told(run: Run, how: str) -> None:
    async def main() -> None:
        async with table() as scene:
            hold(scene)
            scene.worker.serve = (
                (lambda fake_run: fake_run.fail("ValueError", "no"))
                if how == "failed"
                else (lambda fake_run: fake_run.refuse(PayloadTooLarge("No.")))
            )
            with pytest.raises(MaitredError):
                await scene.client.query("q")
            await scene.querying.close(1.0)
            assert scene.node.refused == []

    run(main())


def test_a_slot_that_the_worker_kept_and_gave_up_is_no_refusal(run: Run) -> None:
    """No partition gave it out, so none has a reason to believe the worker less."""

    async def main() -> None:
        async with table() as scene:
            kept = b"kept by a worker"

            def serve(fake_run: FakeRun) -> None:
                if fake_run.message.token == kept:
                    fake_run.refuse(SlotTaken("On offer again."))
                else:
                    fake_run.end(value=1, again=kept)

            scene.worker.serve = serve
            assert await scene.client.query("q") == 1
            assert await scene.client.query("q") == 1
            tokens = [one.message.token for one in scene.worker.runs]
            assert len(tokens) == 3
            assert tokens[1] == kept
            await scene.querying.close(1.0)
            assert scene.node.refused == []

    run(main())
