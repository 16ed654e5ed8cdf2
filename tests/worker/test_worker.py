"""What a worker does with tasks, at a node that is a fake."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from maitred import App, current
from maitred.errors import (
    NotOwner,
    PermissionDenied,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    UnknownQueue,
)
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    RETURNED,
    TIMED_OUT,
    Counts,
    Finish,
    Heard,
    Heartbeat,
    Offer,
)
from maitred.worker.completions import SLOW_SECONDS
from maitred.worker.execution import Execution
from tests.app.fake_node import FakeNode
from tests.node.in_process import RecordedLog, in_a_loop, instances, until
from tests.node.raw import PATIENCE_SECONDS
from tests.worker.running import a_worker


class Shop:
    """An app whose handlers tell the test what happens to them."""

    def __init__(self) -> None:
        self.app = app = App("shop")
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.stopped: list[int] = []
        self.running = self.most = 0
        self.thread_begun = threading.Event()
        self.thread_may_end = threading.Event()
        self.thread_saw_cancel = threading.Event()

        @app.handler("adding", retries=0)
        async def adding(one: int, two: int) -> int:
            return one + two

        @app.handler("holding", retries=0)
        async def holding(number: int) -> int:
            self.running += 1
            self.most = max(self.most, self.running)
            self.begun.put_nowait(number)
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.stopped.append(number)
                raise
            finally:
                self.running -= 1
            return number

        @app.handler("threads", retries=0)
        def threads(number: int) -> int:
            self.thread_begun.set()
            while not self.thread_may_end.wait(0.005):
                if current().cancelled:
                    self.thread_saw_cancel.set()
            return number

        @app.handler("failing", retries=0)
        async def failing(what: str) -> Any:  # noqa: ANN401 - that is what it is about
            if what == "raise":
                raise ValueError("too small")
            if what == "exit":
                raise SystemExit(3)
            if what == "cancel":
                raise asyncio.CancelledError
            return object()

        self.adding, self.holding, self.threads, self.failing = adding, holding, threads, failing


@in_a_loop
async def test_an_attempt_that_has_ended_is_freed_without_the_garbage_collector() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "adding"):
        gc.disable()
        try:
            before = instances(Execution)
            task = await shop.adding.enqueue(1, 2)
            assert await task.result(timeout=10) == 3
            await until(lambda: instances(Execution) <= before)
        finally:
            gc.enable()


@in_a_loop
async def test_tasks_are_run_and_their_results_come_back() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "adding") as worker:
        tasks = await asyncio.gather(*(shop.adding.enqueue(1, two) for two in range(200)))
        found = await asyncio.gather(*(task.result(timeout=10) for task in tasks))
        assert found == [1 + two for two in range(200)]
        assert worker.statistics.done == 200
        assert worker.statistics.busy == 0


@in_a_loop
async def test_plain_functions_run_beside_the_loop() -> None:
    shop = Shop()
    shop.thread_may_end.set()
    async with FakeNode() as node, a_worker(node, shop.app, "threads"):
        task = await shop.threads.enqueue(7)
        assert await task.result(timeout=10) == 7


@in_a_loop
async def test_never_more_than_slots_and_the_ends_of_a_turn_are_one_message() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "holding", slots=4):
        node.app(shop.app)
        tasks = [await shop.holding.enqueue(number) for number in range(10)]
        for _ in range(4):
            await shop.begun.get()
        assert len(node.partition("holding").waiting) == 6
        shop.go_on.set()
        for task in tasks:
            await task.result(timeout=10)
        assert shop.most == 4
        assert len(node.heard(Finish)[0].ends) == 4
        assert all(offer.slots <= 4 for offer in node.heard(Offer))


@in_a_loop
async def test_what_becomes_free_is_offered_unless_plenty_is() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "holding", slots=4):
        await node.until(lambda: node.heard(Offer))
        first = [await shop.holding.enqueue(number) for number in range(3)]
        for _ in range(3):
            await shop.begun.get()
        await node.until(lambda: len(node.held(Offer)) == 1)
        assert [offer.slots for offer in node.held(Offer)] == [1]
        shop.go_on.set()
        for task in first:
            await task.result(timeout=10)
        # Half of them at least; whether more are on offer depends on which became free together.
        await node.until(lambda: sum(offer.slots for offer in node.held(Offer)) >= 2)
        # One is taken and given back while as many are on offer: that is worth no message.
        said = len(node.heard(Offer))
        await (await shop.holding.enqueue(3)).result(timeout=10)
        await node.until(lambda: sum(offer.slots for offer in node.held(Offer)) >= 2)
        await (await shop.holding.enqueue(4)).result(timeout=10)
        await node.until(lambda: sum(offer.slots for offer in node.held(Offer)) >= 2)
        assert len(node.heard(Offer)) - said <= 2


@in_a_loop
async def test_several_queues_share_slots_and_a_full_worker_takes_its_offers_back() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "holding", "adding", slots=1) as worker:
        await node.until(lambda: len(node.heard(Offer)) == 2)
        await shop.holding.enqueue(1)
        await shop.begun.get()
        # Nobody serves the other queue now, so the task must wait at the node.
        await node.until(lambda: not node.held(Offer))
        task = await shop.adding.enqueue(1, 2)
        assert len(node.partition("adding").waiting) == 1
        shop.go_on.set()
        assert await task.result(timeout=10) == 3
        assert worker.statistics.returned == 0


@in_a_loop
async def test_what_finds_no_slot_is_given_back() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "holding", "adding", slots=1) as worker:
        await node.until(lambda: len(node.heard(Offer)) == 2)
        both = await asyncio.gather(shop.holding.enqueue(1), shop.adding.enqueue(1, 2))
        shop.go_on.set()
        assert [await task.result(timeout=10) for task in both] == [1, 3]
        assert worker.statistics.returned == 1
        assert [end.how for end in node.ends()].count(RETURNED) == 1
        assert {task.attempt for task in node.partition("adding").tasks.values()} == {1}


def given_again(node: FakeNode, queue: str) -> None:
    """Give the queue's task to a worker again, as an owner does that does not know of the first."""
    partition = node.partition(queue)
    (task,) = partition.tasks.values()
    task.running = False
    task.attempt -= 1
    partition.waiting.append(task)
    partition.tell()


@in_a_loop
async def test_an_attempt_that_runs_is_not_begun_again() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "holding", slots=2) as worker:
        task = await shop.holding.enqueue(1)
        await shop.begun.get()
        await node.until(lambda: node.held(Offer))
        offers = len(node.heard(Offer))
        given_again(node, "holding")
        # The worker offers its free slot again when it has seen what it was given.
        await node.until(lambda: len(node.heard(Offer)) > offers)
        shop.go_on.set()
        assert await task.result(timeout=10) == 1
        assert worker.statistics.begun == 1
        assert worker.statistics.busy == 0


@in_a_loop
async def test_an_attempt_whose_end_is_being_reported_is_not_begun_again() -> None:
    shop = Shop()
    never: asyncio.Event = asyncio.Event()
    async with FakeNode() as node, a_worker(node, shop.app, "adding", slots=1) as worker:
        node.before[Finish] = lambda _: never.wait()  # the owner cannot reach its store
        task = await shop.adding.enqueue(1, 2)
        await node.until(lambda: node.held(Finish))
        await asyncio.sleep(SLOW_SECONDS)
        del node.before[Finish]
        given_again(node, "adding")
        assert await task.result(timeout=10) == 3
        assert worker.statistics.begun == 1
        assert len(node.ends()) == 2
        never.set()


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("raise", "ValueError"),
        ("exit", "SystemExit"),
        ("cancel", "CancelledError"),
        ("object", "unserialisable-result"),
    ],
)
@in_a_loop
async def test_a_handler_that_fails(what: str, kind: str) -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "failing", "adding") as worker:
        task = await shop.failing.enqueue(what)
        with pytest.raises(TaskFailed) as caught:
            await task.result(timeout=10)
        assert caught.value.kind == kind
        assert worker.statistics.failed == 1
        assert await (await shop.adding.enqueue(1, 1)).result(timeout=10) == 2


@in_a_loop
async def test_arguments_of_another_version_fail_with_their_code() -> None:
    shop = Shop()
    other = App("shop")

    @other.handler("adding", retries=1)
    async def adding(one: str) -> int:
        return len(one)

    async with FakeNode() as node, a_worker(node, shop.app, "adding") as worker:
        async with node.app(other):
            task = await adding.enqueue("x")
            with pytest.raises(TaskFailed, match="adding lacks its argument 'two'") as caught:
                await task.result(timeout=10)
        assert (caught.value.kind, caught.value.attempts) == ("invalid-arguments", 2)
        assert worker.statistics.failed == 2
        assert await (await shop.adding.enqueue(1, 1)).result(timeout=10) == 2


@in_a_loop
async def test_an_async_handler_whose_time_is_over_is_cancelled() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "holding") as worker:
        task = await shop.holding.options(timeout=0.05).enqueue(1)
        with pytest.raises(TaskFailed):
            await task.result(timeout=10)
        assert shop.stopped == [1]
        assert [end.how for end in node.ends()] == [TIMED_OUT]
        assert worker.statistics.timed_out == 1


@in_a_loop
async def test_a_handler_that_does_not_stop_keeps_its_slot_but_is_told_of() -> None:
    app = App("shop")
    may_end = asyncio.Event()

    @app.handler("stubborn", retries=0)
    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    async with FakeNode() as node, a_worker(node, app, slots=1, stop_seconds=0.05) as worker:
        task = await stubborn.options(timeout=0.05).enqueue()
        with pytest.raises(TaskFailed):
            await task.result(timeout=10)
        assert worker.statistics.busy == 1
        may_end.set()
        second = await stubborn.enqueue()
        await second.result(timeout=10)
        assert [end.how for end in node.ends()] == [TIMED_OUT, DONE]


@in_a_loop
async def test_a_thread_whose_time_is_over_is_told_of_at_once_and_keeps_its_slot() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, "threads", slots=1) as worker:
        task = await shop.threads.options(timeout=0.05).enqueue(1)
        with pytest.raises(TaskFailed):
            await task.result(timeout=10)
        assert worker.statistics.busy == 1
        assert await asyncio.to_thread(shop.thread_saw_cancel.wait, 10)
        shop.thread_may_end.set()
        assert await (await shop.threads.enqueue(2)).result(timeout=10) == 2
        assert [end.how for end in node.ends()] == [TIMED_OUT, DONE]


@in_a_loop
async def test_cancelling_what_runs() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, young_seconds=0.05) as worker:
        task = await shop.holding.enqueue(1)
        await shop.begun.get()
        assert await task.cancel() == "cancelling"
        with pytest.raises(TaskCancelled):
            await task.result(timeout=10)
        assert shop.stopped == [1]
        assert worker.statistics.stopped == 1
        thread = await shop.threads.enqueue(1)
        assert await asyncio.to_thread(shop.thread_begun.wait, 10)
        assert await thread.cancel() == "cancelling"
        assert await asyncio.to_thread(shop.thread_saw_cancel.wait, 10)
        shop.thread_may_end.set()
        assert await thread.result(timeout=10) == 1


@in_a_loop
async def test_one_that_became_somebody_elses_is_stopped_and_not_told_of() -> None:
    shop = Shop()
    async with FakeNode() as node, a_worker(node, shop.app, young_seconds=0.05) as worker:
        await shop.holding.enqueue(1)
        await shop.begun.get()
        partition = node.partition("holding")
        for task in partition.tasks.values():
            task.attempt += 1  # as if its lease had been over
        partition.tell()
        await node.until(lambda: worker.statistics.lost == 1)
        await node.until(lambda: node.heard(Heartbeat))
        assert shop.stopped in ([], [1])
        shop.go_on.set()
    assert shop.stopped == [1]
    assert not node.ends()


@in_a_loop
async def test_the_next_attempt_at_the_same_worker_outlives_the_lost_one() -> None:
    """The node names lost tasks, not attempts: neither the answer to a heartbeat that mentioned the
    lost attempt alone, nor a heartbeat that comes later, may stop the next one."""
    shop = Shop()
    async with FakeNode(lease_seconds=60.0) as node:
        partition = node.partition("holding")

        async def answer(message: Heartbeat) -> Heard | None:
            if len(node.heard(Heartbeat)) > 1:
                return None
            partition.waiting.extend(partition.tasks.values())  # the lease is over
            partition.tell()
            await node.until(lambda: shop.begun.qsize() == 1)
            return Heard([sequence for sequence, *_ in message.running], [])

        node.before[Heartbeat] = answer
        async with a_worker(node, shop.app, "holding", young_seconds=0.05) as worker:
            task = await shop.holding.enqueue(1)
            await shop.begun.get()
            await node.until(lambda: len(node.heard(Heartbeat)) > 1)
            mentioned = [
                [attempt for _, attempt, _ in one.running] for one in node.heard(Heartbeat)
            ]
            assert mentioned == [[1], [2]]
            assert worker.statistics.lost == 1
            shop.go_on.set()
            assert await task.result(timeout=60) == 1
            assert shop.stopped == [1]
    assert [end.attempt for end in node.ends()] == [2]


@in_a_loop
async def test_the_attempt_that_began_last_outlives_one_with_a_higher_number() -> None:
    """An owner that lost commits gives an attempt that an earlier owner gave before."""
    shop = Shop()
    async with FakeNode(lease_seconds=60.0) as node:
        partition = node.partition("holding")
        async with a_worker(node, shop.app, "holding", young_seconds=60.0) as worker:
            task = await shop.holding.enqueue(1)
            await shop.begun.get()
            for earlier in (4, 2):
                (fake,) = partition.tasks.values()
                fake.attempt = earlier
                partition.waiting.append(fake)
                partition.tell()
                await shop.begun.get()
            assert shop.stopped == [1]  # attempt 1; attempts 5 and 3 run
            worker._heartbeats.mention_all()
            await node.until(lambda: node.held(Heartbeat))
            (heartbeat,) = node.heard(Heartbeat)
            assert [attempt for _, attempt, _ in heartbeat.running] == [3]
            shop.go_on.set()
            assert await task.result(timeout=60) == 1
            assert shop.stopped == [1, 1]
    assert [end.attempt for end in node.ends()] == [3]


@in_a_loop
async def test_heartbeats_are_for_what_takes_long_and_come_within_the_lease() -> None:
    shop = Shop()
    async with (
        FakeNode(lease_seconds=0.6) as node,
        a_worker(node, shop.app, "holding", "adding", young_seconds=0.1),
    ):
        await (await shop.adding.enqueue(1, 1)).result(timeout=10)
        assert not node.heard(Heartbeat)
        first = await shop.holding.enqueue(1)
        await node.until(lambda: len(node.heard(Heartbeat)) >= 1)
        second = await shop.holding.enqueue(2)
        await node.until(
            lambda: any(
                {sequence for sequence, _, _ in beat.running} == {first.sequence, second.sequence}
                for beat in node.heard(Heartbeat)
            )
        )
        before = len(node.heard(Heartbeat))
        await node.until(lambda: len(node.heard(Heartbeat)) >= before + 3)
        assert {beat.worker for beat in node.heard(Heartbeat)} == {"w"}
        shop.go_on.set()


@in_a_loop
async def test_a_restarted_node_hears_what_runs_and_what_ended() -> None:
    shop = Shop()
    log = RecordedLog()
    async with FakeNode() as node, a_worker(node, shop.app, "holding", slots=4, log=log) as worker:
        task = await shop.holding.enqueue(1)
        await shop.begun.get()
        await node.stop()
        node.said.clear()
        await node.start()
        # Far younger than what is mentioned otherwise.
        await node.until(lambda: node.heard(Heartbeat))
        assert [one[:2] for one in node.heard(Heartbeat)[0].running] == [(task.sequence, 1)]
        await node.stop()
        shop.go_on.set()
        await asyncio.to_thread(lambda: None)
        await node.start()
        assert await task.result(timeout=10) == 1
        assert worker.statistics.done == 1
        assert [task.attempt for task in node.partition("holding").tasks.values()] == [1]
        await (await shop.holding.enqueue(2)).result(timeout=10)
    assert 1 <= log.events("warning").count("the node does not answer; trying again") <= 2


@in_a_loop
async def test_a_drained_worker_finishes_and_gives_back() -> None:
    shop = Shop()
    async with FakeNode() as node:
        async with a_worker(node, shop.app, "holding", slots=2) as worker:
            task = await shop.holding.enqueue(1)
            await shop.begun.get()
            worker.stop()
            await node.until(lambda: not node.held(Offer))
            late = await shop.holding.enqueue(2)
            shop.go_on.set()
            assert await task.result(timeout=10) == 1
        assert [one.sequence for one in node.partition("holding").waiting] == [late.sequence]
        assert [end.how for end in node.ends()] == [DONE]
        assert worker.statistics.begun == 1


@in_a_loop
async def test_a_task_that_was_on_its_way_when_the_worker_stopped_is_given_back() -> None:
    shop = Shop()
    async with FakeNode() as node:
        async with a_worker(node, shop.app, "adding") as worker:
            await node.until(lambda: node.heard(Offer))
            await shop.adding.enqueue(1, 2)
            # The answer to the offer is written, and the worker has not read it yet.
            worker.stop()
        assert worker.statistics.begun + worker.statistics.returned >= 1
        partition = node.partition("adding")
        assert not any(task.running for task in partition.tasks.values())


@in_a_loop
async def test_what_does_not_end_is_left_behind_after_a_while() -> None:
    shop = Shop()
    log = RecordedLog()
    async with FakeNode() as node:
        async with a_worker(node, shop.app, "holding", drain_seconds=0.05, log=log):
            await shop.holding.enqueue(1)
            await shop.begun.get()
        assert any("stopped with unfinished work" in line for line in log.events("warning"))


@in_a_loop
async def test_handlers_that_are_left_behind_are_stopped_and_do_not_count_as_failed() -> None:
    app, log = App("shop"), RecordedLog()
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.handler("waiting")
    async def waiting() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with FakeNode() as node:
        async with a_worker(node, app, drain_seconds=0.05, log=log) as worker:
            await waiting.enqueue()
            await begun.wait()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()
        await node.until(lambda: not worker.statistics.busy)
        assert (worker.statistics.failed, worker.statistics.stopped) == (0, 0)
        assert "a task failed" not in log.events("warning")
        assert not node.heard(Finish), "the node gives the task to another worker"
        assert not node.ends()


@in_a_loop
async def test_a_worker_whose_run_is_cancelled_stops_listening_and_offering() -> None:
    """Otherwise its listener stays open, and a loop that closes with it may wait for ever."""
    shop = Shop()
    async with FakeNode() as node:
        with contextlib.suppress(asyncio.CancelledError):
            async with a_worker(node, shop.app, "adding") as worker:
                await node.until(lambda: node.heard(Offer))
                (run,) = (task for task in asyncio.all_tasks() if _coroutine(task) == "Worker.run")
                run.cancel()
        host, port = worker.address.rsplit(":", 1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
        assert not [task for task in asyncio.all_tasks() if _coroutine(task).endswith("._offer")]
        await shop.app.close()


def _coroutine(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")


@in_a_loop
async def test_two_workers_of_one_name_do_not_mind() -> None:
    shop, twin = Shop(), Shop()
    async with (
        FakeNode() as node,
        a_worker(node, shop.app, "holding", slots=1),
        a_worker(node, twin.app, "holding", slots=1),
    ):
        tasks = [await shop.holding.enqueue(number) for number in range(2)]
        await shop.begun.get()
        await twin.begun.get()
        assert len({offer.session for offer in node.heard(Offer)}) == 2
        shop.go_on.set()
        twin.go_on.set()
        assert sorted([await task.result(timeout=10) for task in tasks]) == [0, 1]


@in_a_loop
async def test_handlers_know_their_attempt_and_may_enqueue() -> None:
    app = App("shop")
    seen: list[tuple[str, int]] = []

    @app.handler("first", retries=1)
    async def first() -> str:
        attempt = current()
        seen.append((attempt.task_id, attempt.number))
        if attempt.number == 1:
            raise RuntimeError("again")
        return (await second.enqueue()).id

    @app.handler("second")
    def second() -> str:
        return current().task_id

    async with FakeNode() as node, a_worker(node, app):
        task = await first.enqueue()
        inner = app.task(await task.result(timeout=10))
        assert await inner.result(timeout=10) == inner.id
        assert seen == [(task.id, 1), (task.id, 2)]
        assert [end.how for end in node.ends()].count(FAILED) == 1
    assert current().number == 1


@in_a_loop
async def test_a_node_that_refuses_is_said_once_and_asked_again() -> None:
    shop = Shop()
    log = RecordedLog()
    allowed = False

    async def refuse(_: Offer) -> None:
        if not allowed:
            raise PermissionDenied("Not you.")

    async with FakeNode() as node:
        node.before[Offer] = refuse
        async with a_worker(node, shop.app, "adding", log=log):
            await node.until(lambda: len(node.heard(Offer)) >= 3)
            allowed = True
            assert await (await shop.adding.enqueue(1, 1)).result(timeout=10) == 2
    assert log.events("error") == ["the node refuses this worker; trying again"]
    assert "the node answers again" in log.events("info")


@in_a_loop
async def test_ends_are_told_until_they_are_heard() -> None:
    shop = Shop()
    refused = 0

    async def refuse(_: Finish) -> None:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise StoreUnavailable("The disk sleeps.")

    async with FakeNode() as node:
        node.before[Finish] = refuse
        async with a_worker(node, shop.app, "adding") as worker:
            task = await shop.adding.enqueue(1, 1)
            await node.until(lambda: refused)
            # The slot is free all the same.
            assert worker.statistics.busy == 0
            assert await task.result(timeout=10) == 2
        assert [end.how for end in node.ends()] == [DONE] * 4


@in_a_loop
async def test_rule_5_an_end_that_is_refused_with_not_owner_is_told_again() -> None:
    shop = Shop()
    refused = 0

    async def refuse(_: Finish) -> None:
        nonlocal refused
        if not refused:
            refused += 1
            raise NotOwner("Another shard owns this partition now.")

    async with FakeNode() as node:
        node.before[Finish] = refuse
        async with a_worker(node, shop.app, "adding"):
            assert await (await shop.adding.enqueue(1, 1)).result(timeout=10) == 2
        assert [end.how for end in node.ends()] == [DONE] * 2


@in_a_loop
async def test_rule_5_a_heartbeat_that_is_refused_with_not_owner_is_sent_again() -> None:
    shop = Shop()
    refused = 0

    async def refuse(_: Heartbeat) -> None:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise NotOwner("Another shard owns this partition now.")

    async with (
        FakeNode(lease_seconds=0.6) as node,
        a_worker(node, shop.app, "holding", young_seconds=0.1),
    ):
        node.before[Heartbeat] = refuse
        task = await shop.holding.enqueue(1)
        await node.until(lambda: len(node.heard(Heartbeat)) >= 4)
        assert shop.stopped == []
        shop.go_on.set()
        assert await task.result(timeout=10) == 1


@in_a_loop
async def test_what_the_node_says_was_not_given_to_us_is_said_in_the_log() -> None:
    shop = Shop()
    log = RecordedLog()
    refused: list[int] = []

    async def refuse(message: Finish) -> None:
        refused.extend(end.sequence for end in message.ends)

    async with FakeNode() as node:
        node.before[Finish] = refuse
        node.refused = refused
        async with a_worker(node, shop.app, "adding", log=log) as worker:
            task = await shop.adding.enqueue(1, 1)
            await node.until(lambda: worker.statistics.unreported == 1)
            assert refused == [task.sequence]
    ((level, event, fields),) = [line for line in log.lines if line[0] == "error"]
    assert (level, event) == ("error", "the node refuses the end of tasks")
    assert (fields["tasks"], fields["error"].code) == (1, "invalid-proof")
    assert fields["error"].remedy


@in_a_loop
async def test_a_queue_that_was_deleted_wants_no_ends_and_stops_what_runs() -> None:
    shop = Shop()
    log = RecordedLog()

    async def unknown(_: object) -> None:
        raise UnknownQueue("Queue default/adding does not exist.")

    async with FakeNode() as node:
        node.before[Finish] = node.before[Heartbeat] = unknown
        async with a_worker(node, shop.app, young_seconds=0.05, log=log) as worker:
            await shop.adding.enqueue(1, 1)
            await node.until(lambda: worker.statistics.late == 1)
            await shop.holding.enqueue(1)
            await node.until(lambda: worker.statistics.lost == 1)
        assert shop.stopped == [1]
        assert worker.statistics.unreported == 0
    assert log.events("error") == []


@in_a_loop
async def test_offers_follow_the_partition_counts() -> None:
    shop = Shop()
    counts = Counts(3, 3, 1)
    async with FakeNode(counts=counts) as node, a_worker(node, shop.app, "adding", slots=7):
        await (await shop.adding.enqueue(1, 1)).result(timeout=10)
        await node.until(lambda: len(node.heard(Offer)) >= 4)
        first, *others = node.heard(Offer)
        assert (first.partition, first.version, first.slots) == (0, 0, 7)
        assert {offer.version for offer in others} == {1}
        assert {offer.partition for offer in others} == {0, 1, 2}
        assert sum(offer.slots for offer in others) == 7


@dataclass
class Picky:
    """An argument that the producer's version of the program lets pass."""

    number: int
    minds = False

    def __post_init__(self) -> None:
        if Picky.minds and self.number == 2:
            raise KeyError("not two")


@in_a_loop
async def test_arguments_that_raise_when_they_are_read_fail_alone() -> None:
    """What came in the same answer is run all the same."""
    app = App("shop")

    @app.handler("picking", retries=0)
    async def picking(what: Picky) -> int:
        return what.number

    async with FakeNode() as node:
        node.app(app)
        tasks = await picking.enqueue_many([picking.call(Picky(number)) for number in range(5)])
        Picky.minds = True
        try:
            async with a_worker(node, app):
                done = await asyncio.gather(
                    *(task.result(timeout=5) for task in tasks), return_exceptions=True
                )
        finally:
            Picky.minds = False
    assert isinstance(done[2], TaskFailed)
    assert done[2].kind == "KeyError"
    assert done[:2] + done[3:] == [0, 1, 3, 4]


@in_a_loop
async def test_the_parts_of_a_worker_tell_their_state() -> None:
    shop = Shop()
    async with FakeNode() as node:
        async with a_worker(node, shop.app, "holding", slots=3) as worker:
            await shop.holding.enqueue(1)
            await shop.begun.get()
            assert repr(worker) == "<Worker w serving, 1 of 3 slots busy>"
            assert repr(worker.capacity) == "<Capacity limit 3 of 3 (slots), 1 served, 0 waiting>"
            assert repr(worker.querying) == "<WorkerQueries 0 running, 0 reserved, 0 early>"
            (served,) = worker._served
            assert repr(served).startswith("<Served holding, ")
            (origin,) = served.origins.values()
            assert repr(origin).endswith("/holding/0, 1 running, 0 to report>")
            assert repr(worker._listener) == f"<QueryListener {worker.address}, 0 links>"
            shop.go_on.set()
        assert repr(worker) == "<Worker w stopped, 0 of 3 slots busy>"
