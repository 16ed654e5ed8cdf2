"""Faults that seeds of the soak found in queries, each told as a story of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack

from maitred.client.query_gateway import QueryGateway, Whole
from maitred.dispatch.ask import Ask
from maitred.simulation.loop import LoopLimits
from maitred.simulation.scenarios.queries import KINDS, QueriesRun
from maitred.simulation.scenarios.queries_people import NAMESPACE, QUERYING, QUOTES
from maitred.simulation.scenarios.queries_record import QueryStory
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.client.asked_query import AskedQuery


LIMITS = LoopLimits(max_events=100_000, max_virtual_seconds=600.0)


class Caller:
    """A gateway that asks what the test tells it to, in a run without other traffic."""

    def __init__(self, run: QueriesRun) -> None:
        self.run = run
        self.gateway = run.gateways[0]
        self.querying: QueryGateway

    async def start(self) -> None:
        client = await self.gateway.connected(self.gateway.app_of(NAMESPACE))
        surroundings = self.gateway.host.surroundings
        self.querying = QueryGateway(
            client, QUERYING, surroundings, self.run.record.log(), name="caller"
        )

    def ask(self, seconds: float, *, idempotent: bool = False) -> tuple[QueryStory, AskedQuery]:
        """Ask a query that runs for so long."""
        now = self.querying.loop.time()
        story = self.run.record.asked(
            QueryStory(
                number=0,
                gateway="caller",
                priority=2,
                idempotent=idempotent,
                rows=0,
                runs_seconds=seconds,
                asked_at=now,
                deadline=now + 60.0,
            )
        )
        ask = Ask(
            namespace=NAMESPACE,
            queue=QUOTES,
            payload=msgpack.encode([story.number]),
            deadline=story.deadline,
            idempotent=idempotent,
        )
        return story, self.querying.begin(ask)


def played(
    policy: str, listening: list[bool], story: Callable[[QueriesRun, Caller], Awaitable[None]]
) -> None:
    """Run the story in a calm world with a node and so many workers, some with an address."""
    with World(1, limits=LIMITS) as world:
        run = QueriesRun(world, replace(KINDS["calm"], workers=len(listening)), policy)

        async def main() -> None:
            run.node.start()
            for worker, listens in zip(run.workers, listening, strict=True):
                worker.listens = listens
                worker.start()
            await asyncio.sleep(2.0)  # the workers have offered their slots
            caller = Caller(run)

            async def act() -> None:
                await caller.start()
                await story(run, caller)

            await run.gateways[0].host.spawn(act(), name="caller").wait()
            run.record.check()

        world.run(main())


def test_a_query_sent_again_does_not_join_its_earlier_run() -> None:
    """Seeds 89, 189, 9200027 and 9200028: the gateway's connection broke, the worker did not hear
    of it, and the idempotent query was sent to the same worker, where its first run was open."""

    async def story(_run: QueriesRun, caller: Caller) -> None:
        told, running = caller.ask(10.0, idempotent=True)
        while not told.runs:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        # The path of this connection is lost: the worker does not even hear of its end.
        transport = running._carrier.transport  # type: ignore[union-attr]
        transport.outgoing.silent = True
        transport.abort()
        answer = await running.answer()
        assert isinstance(answer, Whole)
        first, last = told.runs[0], told.runs[-1]
        assert first is not last, "the query was sent again"
        assert first.ended_at is not None
        assert first.ended_at <= last.began_at, "one run at a time"

    played("idle", [True], story)


@pytest.mark.parametrize("policy", ["adaptive", "two-phase"])
def test_a_worker_that_only_the_node_reaches_helps_when_the_others_are_full(policy: str) -> None:
    """Seeds 179 and 31000158: every slot of the worker with an address had a long query, the other
    worker was idle, and the gateway refused what it was asked instead of asking the node."""

    async def story(run: QueriesRun, caller: Caller) -> None:
        reached, relayed = run.workers
        while len(caller.querying.dispatcher.queues.by_place) == 0:
            _, running = caller.ask(0.0)
            await running.answer()
        queue = caller.querying.dispatcher.queues.by_place[NAMESPACE, QUOTES]
        while not queue.works:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        stories = [caller.ask(10.0) for _ in range(reached.slots)]
        await asyncio.sleep(1.0)
        assert all(told.runs[0].worker.startswith(reached.host.name) for told, _ in stories)
        for _ in range(20):
            told, running = caller.ask(0.05)
            assert isinstance(await running.answer(), Whole)
            assert told.runs[0].worker.startswith(relayed.host.name)

    played(policy, [True, False], story)
