"""Queues whose gateways pick the worker: real ones, at a real node, in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - handlers' annotations are read
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred import App
from maitred.balancing.workers import WORKER_POLICIES
from maitred.balancing.workers import shedding as shedding_module
from maitred.errors import AtCapacity, Overloaded, QueryFailed, WorkerLost
from maitred.protocol.tasks import ControlQueue, Describe
from maitred.routing.names import TASKS
from maitred.settings import QuerySettings, Queue, Shedding
from tests.client.waiters import until
from tests.queries_real.house import scene
from tests.queries_real.test_asking import kill

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred import AsyncClient
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.queue_dispatcher import QueueDispatcher
    from maitred.protocol.tasks import PartitionDescription, QueueControlled
    from tests.queries_real.house import Scene

    Run = Callable[[Coroutine[Any, Any, None]], None]


class Bar:
    """An app whose handlers wait until they are told to go on."""

    def __init__(self) -> None:
        self.app = app = App("bar")
        self.began: list[object] = []
        self.ended: list[object] = []
        self.most = 0
        self.gate = asyncio.Event()

        @app.handler("drink")
        async def drink(name: int) -> int:
            self.began.append(name)
            self.most = max(self.most, len(self.began) - len(self.ended))
            try:
                await self.gate.wait()
            finally:
                self.ended.append(name)
            return name

        @app.handler("count")
        async def count(most: int) -> AsyncIterator[int]:
            for number in range(most):
                yield number

        @app.handler("spill")
        async def spill(why: str) -> None:
            raise ValueError(why)

    @property
    def running(self) -> int:
        return len(self.began) - len(self.ended)


@asynccontextmanager
async def opened(
    bar: Bar, policy: str = "adaptive", shedding: Shedding | None = None, shards: int = 1
) -> AsyncIterator[Scene]:
    queries = QuerySettings(policy=policy, shedding=shedding or Shedding())  # type: ignore[arg-type]
    async with scene(bar.app, shards, queues={"*": Queue(queries=queries)}) as made:
        yield made


def dispatcher_of(client: AsyncClient, queue: str = "drink") -> QueueDispatcher | None:
    return client.querying.dispatcher.queues.by_place.get(("bar", queue))


async def query_end(client: AsyncClient, workers: int, queue: str = "drink") -> QueueDispatcher:
    """Asks until the gateway has a roster with so many workers."""
    argument: object = 0 if queue != "spill" else "first"
    queue_dispatcher = dispatcher_of(client, queue)
    while queue_dispatcher is None or not queue_dispatcher.works:
        with suppress(QueryFailed):
            await client.query(f"bar/{queue}", argument)
        await asyncio.sleep(0.005)
        queue_dispatcher = dispatcher_of(client, queue)
    found = queue_dispatcher
    await until(lambda: len(found.policy.workers) == workers)
    return found


def is_by(queue: QueueDispatcher, policy: str) -> bool:
    return queue.policy_name == policy


def asked_workers(client: AsyncClient) -> set[str]:
    return {row.worker for row in client.querying.table.rows()}


async def outcome(asking: Coroutine[Any, Any, Any]) -> object:
    try:
        return await asking
    except Overloaded as problem:
        return "overloaded" if problem.retry_after else "nobody says when to come back"


def test_a_policy_that_is_set_live_reaches_gateways_and_workers(run: Run) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        # A gateway that reuses a slot does not ask, and hears of nothing.
        queue = Queue(queries=QuerySettings(again_seconds=0.0))
        async with scene(bar.app, queues={"*": queue}) as made:
            for name in ("one", "two"):
                await made.worker(name)
            client = await made.client()
            assert await client.query("bar/drink", 1) == 1
            assert dispatcher_of(client) is None

            async def set_policy(*policy: str) -> QueueControlled:
                name = "queries.policy"
                message = ControlQueue(*("bar", "drink", TASKS, 0, 0, "set", "a try"))
                message.settings = dict.fromkeys([name], policy[0]) if policy else {}
                message.unset = [] if policy else [name]
                return cast("QueueControlled", await client.request(message))

            for policy in ("adaptive", "round-robin"):
                changed = await set_policy(policy)
                assert (changed.told, changed.partitions) == (1, 1)
                found = await query_end(client, 2)
                await until(partial(is_by, found, policy))
                assert await client.query("bar/drink", 2) == 2
            description = await client.request(Describe("bar", "drink", TASKS, 0, 0))
            told = cast("PartitionDescription", description).all_settings["queries.policy"]
            assert (told.value, told.source, told.reason) == ("round-robin", "live", "a try")
            assert told.choices[:2] == ("idle", "adaptive")

            await set_policy()  # back to the settings file
            await until(lambda: dispatcher_of(client) is None)
            assert await client.query("bar/drink", 3) == 3

    run(main())


@pytest.mark.parametrize("policy", ["idle", *WORKER_POLICIES])
def test_every_policy_answers(run: Run, policy: str) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar, policy) as made:
            for name in ("one", "two"):
                await made.worker(name, slots=2)
            client = await made.client()
            if policy != "idle":
                await query_end(client, 2)
                await query_end(client, 2, "count")
                await query_end(client, 2, "spill")
            asked = client.querying.table.counts["waiting"]
            for number in range(10):
                assert await client.query("bar/drink", number) == number
            assert [row async for row in client.stream("bar/count", 5)] == [0, 1, 2, 3, 4]
            assert await client.query("bar/count", 3) == [0, 1, 2]
            with pytest.raises(QueryFailed):
                await client.query("bar/spill", "oh")
            assert client.querying.table.counts["waiting"] == asked + 13
            queues = client.querying.dispatcher.queues.by_place
            for one in queues.values():
                picked = one.policy
                assert one.policy_name == policy
                assert all(picked.in_flight(worker) == 0 for worker in picked.workers)
            assert bool(queues) == (policy != "idle")
            if policy == "round-robin":
                assert asked_workers(client) == {"one", "two"}
            elif policy in ("two-phase", "random"):
                # By lot: sooner or later, and the scene's patience bounds it.
                while asked_workers(client) != {"one", "two"}:
                    assert await client.query("bar/drink", 0) == 0

    run(main())


def test_workers_are_filled_and_no_further_and_the_rest_waits_or_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shedding_module, "RATE_WINDOW_SECONDS", 3600.0)  # the length alone decides

    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar, shedding=Shedding(length=4)) as made:
            for name in ("one", "two"):
                await made.worker(name, slots=2)
            client = await made.client()
            queue_dispatcher = await query_end(client, 2)
            bar.gate.clear()
            asked = [
                asyncio.create_task(outcome(client.query("bar/drink", number, priority=0)))
                for number in range(12)
            ]
            await until(lambda: bar.running == 4)
            await until(lambda: sum(task.done() for task in asked) == 4)
            assert len(queue_dispatcher.line) == 4
            bar.gate.set()
            found = await asyncio.gather(*asked)
            assert found.count("overloaded") == client.querying.dispatcher.queues.totals.shed == 4
            assert bar.most == 4

    run(main())


def test_low_priority_is_refused_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shedding_module, "RATE_WINDOW_SECONDS", 3600.0)  # the length alone decides

    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar, shedding=Shedding(length=10)) as made:
            await made.worker("one", slots=1)
            client = await made.client()
            await query_end(client, 1)
            bar.gate.clear()
            first = asyncio.create_task(client.query("bar/drink", 0))
            await until(lambda: bar.running == 1)
            low = [
                asyncio.create_task(outcome(client.query("bar/drink", n, priority=4)))
                for n in range(1, 11)
            ]
            await until(lambda: sum(task.done() for task in low) == 8)
            high = [
                asyncio.create_task(outcome(client.query("bar/drink", n, priority=0)))
                for n in range(11, 16)
            ]
            await asyncio.sleep(0)
            bar.gate.set()
            assert await first == 0
            assert await asyncio.gather(*high) == [*range(11, 16)]
            assert (await asyncio.gather(*low)).count("overloaded") == 8
            assert bar.began[-2:] == [1, 2], "and those that were let in come last"

    run(main())


@pytest.mark.parametrize("policy", ["idle", "adaptive", "random"])
def test_who_does_not_want_to_wait(run: Run, policy: str) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar, policy) as made:
            await made.worker("one", slots=1)
            client = await made.client()
            if policy != "idle":
                await query_end(client, 1)
            assert await client.query("bar/drink", 1, do_not_queue=True) == 1
            bar.gate.clear()
            first = asyncio.create_task(client.query("bar/drink", 2))
            await until(lambda: bar.running == 1)
            with pytest.raises(Overloaded) as refused:
                await client.query("bar/drink", 3, do_not_queue=True)
            assert not isinstance(refused.value, AtCapacity)
            assert refused.value.retry_after is not None
            bar.gate.set()
            assert await first == 2

    run(main())


def test_a_full_worker_refuses_and_the_other_serves(run: Run) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        # By lot, one run in a hundred would never fill the small one.
        async with opened(bar, "round-robin") as made:
            await made.worker("small", slots=1)
            await made.worker("large", slots=20)
            client = await made.client()
            await query_end(client, 2)
            bar.gate.clear()
            asked = [
                asyncio.create_task(outcome(client.query("bar/drink", number)))
                for number in range(10)
            ]
            await until(lambda: bar.running == 10)
            assert client.querying.dispatcher.queues.totals.refused_by_workers > 0
            bar.gate.set()
            assert await asyncio.gather(*asked) == [*range(10)]

    run(main())


def test_all_refuse(run: Run) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar, "round-robin") as made:
            for name in ("one", "two"):
                await made.worker(name, slots=1)
            client = await made.client()
            await query_end(client, 2)
            bar.gate.clear()
            asked = [asyncio.create_task(client.query("bar/drink", number)) for number in (1, 2)]
            await until(lambda: bar.running == 2)
            for _ in range(3):
                assert await outcome(client.query("bar/drink", 3)) == "overloaded"
            assert client.querying.dispatcher.queues.totals.refused_by_workers >= 4
            assert [row.status for row in client.querying.table.rows()][-1] == "refused"
            bar.gate.set()
            assert await asyncio.gather(*asked) == [1, 2]
            assert await client.query("bar/drink", 4) == 4

    run(main())


def test_a_worker_vanishes_and_another_comes(run: Run) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar) as made:
            first = await made.worker("first", slots=1)
            client = await made.client()
            queue_dispatcher = await query_end(client, 1)
            bar.gate.clear()
            plain = asyncio.create_task(client.query("bar/drink", 1))
            await until(lambda: bar.running == 1)
            again = asyncio.create_task(client.query("bar/drink", 2, idempotent=True))
            await until(lambda: len(queue_dispatcher.line) == 1)
            kill(first.worker)
            with pytest.raises(WorkerLost):
                await plain
            await first.stop()
            bar.gate.set()
            await made.worker("second", slots=1)
            assert await again == 2
            await until(lambda: len(queue_dispatcher.policy.workers) == 1)
            for number in range(3, 6):
                assert await client.query("bar/drink", number) == number
            assert client.querying.table.rows()[-1].worker == "second"

    run(main())


def test_two_gateways_share_the_workers(run: Run) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar, shards=2) as made:
            for name in ("one", "two"):
                await made.worker(name, slots=3)
            clients = [await made.client() for _ in range(2)]
            for client in clients:
                await query_end(client, 2)
            bar.began.clear()
            bar.ended.clear()
            bar.most = 0

            async def ask(client: AsyncClient, base: int) -> int:
                done = 0
                for number in range(base, base + 40):
                    done += await outcome(client.query("bar/drink", number)) == number
                return done

            found = await asyncio.gather(
                *(ask(client, 1_000 * at + 100 * n) for at, client in enumerate(clients)
                  for n in range(8))
            )  # fmt: skip
            assert bar.most <= 6
            assert sum(found) == len(bar.ended)
            assert all(found), "each of them got through"

    run(main())


def test_the_shard_is_started_again(run: Run) -> None:
    async def main() -> None:
        bar = Bar()
        bar.gate.set()
        async with opened(bar) as made:
            await made.worker("one", slots=2)
            client = await made.client()
            await query_end(client, 1)
            bar.gate.clear()
            running = asyncio.create_task(client.query("bar/drink", 1))
            await until(lambda: bar.running == 1)
            await made.house.stop(0)
            assert await_later(client, bar)
            bar.gate.set()
            assert await running == 1, "what runs does not notice"
            assert await client.query("bar/drink", 2) == 2, "nor does what is asked meanwhile"
            await made.house.start(0)
            queue = client.querying.dispatcher.queues.by_place["bar", "drink"]
            await until(lambda: queue.subscriptions[""].roster is not None)
            assert await client.query("bar/drink", 3) == 3
            await query_end(client, 1)

    run(main())


def await_later(client: AsyncClient, bar: Bar) -> bool:
    return bar.running == 1 and client.querying.under_way == 1


def test_another_policy_is_asked_by_a_hook_that_sees_every_query(run: Run) -> None:
    """A hook may send a query to another queue: its dispatcher, then."""

    async def main() -> None:
        from maitred.client.query_gateway import QueryGateway
        from maitred.settings import Querying as QueryingSettings
        from maitred.surroundings import Surroundings

        bar = Bar()
        bar.gate.set()

        def hook(ask: Ask) -> Ask:
            ask.queue = "drink"
            return ask

        async with opened(bar) as made:
            await made.worker("one", slots=2)
            client = await made.house.connect()
            querying = QueryGateway(client, QueryingSettings(), Surroundings.real(), hook=hook)
            client.ask_with(querying)
            for number in range(30):
                assert await client.query("bar/count", number) == number
            assert [*querying.dispatcher.queues.by_place] == [("bar", "drink")]
            await client.close()

    run(main())
