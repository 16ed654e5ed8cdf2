"""Gateways that pick workers themselves, with a fake node and fake workers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

from maitred.balancing.workers import QueryOutcome
from maitred.balancing.workers import worker_policy as real_policy
from maitred.client.query_gateway import QueryGateway, Rows, Whole
from maitred.dispatch import queue_dispatcher
from maitred.dispatch.ask import Ask
from maitred.errors import (
    AtCapacity,
    Cancelled,
    DeadlineExceeded,
    InvalidReservation,
    Overloaded,
    PermissionDenied,
    QueryFailed,
    Unavailable,
    WorkerLost,
)
from maitred.protocol.queries import SheddingTerms
from maitred.protocol.query_link import Load
from maitred.protocol.tasks import DONE, STOPPED
from maitred.settings import Querying as Settings
from maitred.surroundings import Surroundings
from tests.client.waiters import FakeFloor, FakeRun, FakeWorker, floor, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.balancing.interface import RandomSource
    from maitred.balancing.workers import Dispatch, WorkerPolicy
    from maitred.client.client import AsyncClient
    from maitred.dispatch.queue_dispatcher import QueueDispatcher
    from maitred.dispatch.roster_subscription import RosterSubscription
    from tests.client.conftest import Run

POLICIES = (
    "adaptive",
    "two-phase",
    "random",
    "round-robin",
    "least-active",
    "weighted-least-connections",
    "p2c-peak-ewma",
)


class Ledger:
    """A policy that writes down what it is told of every query."""

    def __init__(
        self, policy: WorkerPolicy, ends: list[QueryOutcome], under_way: list[Dispatch]
    ) -> None:
        self.policy = policy
        self.ends = ends
        self.under_way = under_way
        self.limits: list[int | None] = []
        self.reports: list[Any] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self.policy, name)

    def sent(self, worker: str, now: float) -> Dispatch:
        dispatch = self.policy.sent(worker, now)
        self.under_way.append(dispatch)
        return dispatch

    def ended(
        self, dispatch: Dispatch, outcome: QueryOutcome, now: float, limit: int | None = None
    ) -> None:
        assert dispatch in self.under_way, "everything ends once"
        self.under_way.remove(dispatch)
        self.ends.append(outcome)
        self.limits.append(limit)
        self.policy.ended(dispatch, outcome, now, limit)

    def reported(self, worker: str, report: Any, now: float) -> None:  # noqa: ANN401
        self.reports.append(report)
        self.policy.reported(worker, report, now)


class Scene:
    """A node, workers, a gateway that has a roster, and what the policy heard."""

    def __init__(
        self,
        node: FakeFloor,
        workers: list[FakeWorker],
        client: AsyncClient,
        querying: QueryGateway,
    ) -> None:
        self.node = node
        self.workers = workers
        self.client = client
        self.querying = querying
        self.queues = querying.dispatcher.queues

    @property
    def queue(self) -> QueueDispatcher:
        return self.queues.by_place["n", "q"]

    @property
    def subscriptions(self) -> dict[str, RosterSubscription]:
        return self.queues.by_place["n", "q"].subscriptions

    @property
    def ledger(self) -> Ledger:
        made = self.queue.policy
        assert isinstance(made, Ledger)
        return made

    @property
    def runs(self) -> list[FakeRun]:
        return [fake_run for worker in self.workers for fake_run in worker.runs]

    def ask(self, *args: object, seconds: float = 10, **fields: Any) -> Ask:  # noqa: ANN401
        deadline = asyncio.get_running_loop().time() + seconds
        known: dict[str, Any] = {"namespace": "n", "queue": "q", "deadline": deadline}
        return Ask(**{"payload": msgpack.encode(args), **known, **fields})

    async def answer(self, *args: object, **fields: Any) -> object:  # noqa: ANN401
        outcome = await self.querying.begin(self.ask(*args, **fields)).answer()
        assert isinstance(outcome, Whole)
        return msgpack.decode(outcome.body)

    def hold(self) -> None:
        """The workers answer nothing by themselves."""
        for worker in self.workers:
            worker.serve = lambda _: None

    async def known(self, user: str = "") -> None:
        """Ask once, so that the roster is there; forget about it."""
        await self.answer(user=user)
        await until(
            lambda: (
                ("n", "q") in self.queues.by_place
                and user in self.subscriptions
                and self.subscriptions[user].passes
            )
        )
        for worker in self.workers:
            worker.runs.clear()
        self.node.asked.clear()


@asynccontextmanager
async def scene(
    workers: int = 2,
    policy: str = "adaptive",
    shedding: SheddingTerms | None = None,
    slots: int = 4,
    **settings: Any,  # noqa: ANN401 - of querying
) -> AsyncIterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:

        def ledger(name: str, random: RandomSource) -> Ledger:
            return Ledger(real_policy(name, random), ends, under_way)

        ends: list[QueryOutcome] = []
        under_way: list[Dispatch] = []
        patch.setattr("maitred.dispatch.queue_dispatcher.worker_policy", ledger)
        async with floor(workers) as (node, made), node.connect(close_seconds=0.05) as client:
            node.policy = policy
            node.slots = slots
            node.shedding = shedding or SheddingTerms()
            querying = QueryGateway(client, Settings(**settings), Surroundings.real())
            client.ask_with(querying)
            yield Scene(node, made, client, querying)
            await querying.close()
            assert querying.under_way == 0
            assert under_way == [], "whatever was sent has ended"
            assert querying.dispatcher.queues.queued == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_after_the_first_query_nobody_asks_the_node(run: Run, policy: str) -> None:
    async def main() -> None:
        async with scene(policy=policy) as here:
            await here.known()
            for number in range(20):
                assert await here.answer(number) == [number]
            assert here.node.asked == []
            assert len(here.runs) == 20
            for worker in here.workers:
                assert all(one.message.token == here.node.token(worker) for one in worker.runs)
                assert worker.released == []
            assert here.ledger.ends == [QueryOutcome.DONE] * 20

    run(main())


def test_the_gateway_says_what_it_has_in_flight_and_whether_others_wait(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=2) as here:
            await here.known()
            here.hold()
            asked = [here.querying.begin(here.ask(number)) for number in range(3)]
            await until(lambda: len(here.runs) == 2)
            assert here.queues.queued == 1
            assert [one.message.in_flight for one in here.runs] == [1, 2]
            assert not any(one.message.pressed for one in here.runs)
            fourth = here.querying.begin(here.ask(4))
            here.runs[0].end(DONE, 0)
            await until(lambda: len(here.runs) == 3)
            assert here.runs[2].message.pressed, "the fourth waits still"
            here.workers[0].serve = lambda one: one.end(DONE, 0)  # the fourth
            for one in here.runs[1:]:
                one.end(DONE, 0)
            for running in (*asked, fourth):
                await running.answer()

    run(main())


def test_who_finds_no_room_waits_in_the_line_the_important_first(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=1) as here:
            await here.known()
            here.hold()
            order: list[int] = []
            asked = []
            for number, priority in enumerate((2, 4, 2, 0)):
                one = here.querying.begin(here.ask(number, priority=priority))
                one.then(lambda _, number=number: order.append(number))  # type: ignore[misc]
                asked.append(one)
            assert here.queues.queued == 3
            for count in range(1, 5):
                await until(lambda count=count: len(here.runs) == count)  # type: ignore[misc]
                here.runs[-1].end(DONE, None)
            for one in asked:
                await one.answer()
            assert order == [0, 3, 2, 1]

    run(main())


def test_low_priority_is_refused_first_and_told_when_to_come_back(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=1, shedding=SheddingTerms(length=5)) as here:
            await here.known()
            here.hold()
            running = [here.querying.begin(here.ask())]
            running += [here.querying.begin(here.ask(priority=4)) for _ in range(2)]
            with pytest.raises(Overloaded) as refused:
                await running[2].answer()
            assert refused.value.retry_after is not None
            running += [here.querying.begin(here.ask(priority=0)) for _ in range(5)]
            assert here.queues.queued == 5
            with pytest.raises(Overloaded):
                await running[-1].answer()
            assert here.queues.totals.shed == 2
            assert [row.status for row in here.querying.table.rows()][-1] == "refused"
            for one in running:
                one.cancel()
            assert here.queues.queued == 0

    run(main())


def test_one_that_is_not_to_wait_is_refused_at_once(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=1) as here:
            await here.known()
            here.hold()
            first = here.querying.begin(here.ask(do_not_queue=True))
            await until(lambda: here.runs)
            with pytest.raises(Overloaded) as refused:
                await here.answer(do_not_queue=True)
            assert refused.value.retry_after is not None
            first.cancel()

    run(main())


def test_one_that_is_not_to_wait_says_so_to_the_node(run: Run) -> None:
    async def main() -> None:
        async with scene(1, policy="") as here:
            assert await here.answer(1, do_not_queue=True) == [1]
            assert await here.answer(1) == [1]
            assert [one.do_not_queue for one in here.node.asked] == [True, False]
            here.node.problems.append(Overloaded("Nobody is free.", retry_after=0.5))
            with pytest.raises(Overloaded):
                await here.answer(1, do_not_queue=True)
            assert here.queues.by_place == {}
            assert here.node.subscribed == []

    run(main())


# Refusals


def test_a_full_worker_refuses_and_the_other_serves(run: Run) -> None:
    async def main() -> None:
        async with scene(policy="round-robin") as here:
            await here.known()
            here.workers[0].serve = lambda one: one.refuse(AtCapacity("Full.", limit=3))
            for number in range(10):
                assert await here.answer(number) == [number]
            ends = here.ledger.ends
            assert ends.count(QueryOutcome.DONE) == 10
            assert ends.count(QueryOutcome.REFUSED) == here.queues.totals.refused_by_workers >= 4
            assert 3 in here.ledger.limits
            assert here.queues.totals.shed == 0

    run(main())


def test_all_refuse(run: Run) -> None:
    async def main() -> None:
        async with scene(3, policy="random") as here:
            await here.known()
            for worker in here.workers:
                worker.serve = lambda one: one.refuse(AtCapacity("Full.", limit=1))
            with pytest.raises(Overloaded) as refused:
                await here.answer()
            assert refused.value.retry_after is not None
            assert len(here.runs) == 3, "each was asked once"
            assert here.ledger.ends == [QueryOutcome.REFUSED] * 3
            assert here.node.asked == []

    run(main())


def test_retries_have_a_budget(run: Run) -> None:
    async def main() -> None:
        shedding = SheddingTerms(retry_share=0.2, retries_per_second=1)
        async with scene(2, policy="random", shedding=shedding) as here:
            await here.known()
            for worker in here.workers:
                worker.serve = lambda one: one.refuse(AtCapacity("Full."))
            before = here.querying.loop.time()
            for _ in range(100):
                with pytest.raises(Overloaded):
                    await here.answer()
            elapsed = here.querying.loop.time() - before
            retries = len(here.runs) - 100
            assert 1 <= retries <= 1 + elapsed + 0.2 * 100

    run(main())


def test_a_refusal_after_the_last_moment_is_a_deadline(run: Run) -> None:
    async def main() -> None:
        async with scene(2) as here:
            await here.known()
            here.hold()
            asked = here.querying.begin(here.ask(seconds=0.05))
            with pytest.raises(DeadlineExceeded):
                await asked.answer()
            (fake_run,) = here.runs
            await until(lambda: fake_run.cancelled)
            assert here.ledger.ends == [], "the worker is busy until it says that it is not"
            fake_run.refuse(AtCapacity("Full.", limit=2))
            await until(lambda: here.ledger.ends)
            assert here.ledger.ends == [QueryOutcome.REFUSED]

    run(main())


def test_a_pass_that_is_not_known_is_asked_for_anew(run: Run) -> None:
    async def main() -> None:
        async with scene(2, policy="round-robin") as here:
            await here.known()
            problem = InvalidReservation("Unknown.")
            here.workers[0].serve = lambda one: one.refuse(problem)
            for number in range(4):
                assert await here.answer(number) == [number]
            await until(lambda: len(here.node.subscribed) > 2)
            assert [one.version for one in here.node.subscribed][:3] == [0, 1, 0]
            here.workers[0].serve = lambda one: one.end(DONE, one.arguments)
            await until(lambda: len(here.queue.policy.workers) == 2)

    run(main())


# Ends


def test_an_error_of_the_handler_is_no_success(run: Run) -> None:
    async def main() -> None:
        async with scene(1) as here:
            await here.known()
            here.workers[0].serve = lambda one: one.fail("ValueError", "no")
            with pytest.raises(QueryFailed):
                await here.answer()
            assert here.ledger.ends == [QueryOutcome.FAILED]

    run(main())


def test_who_leaves_is_counted_until_the_worker_is_done(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=1) as here:
            await here.known()
            here.hold()
            asked = here.querying.begin(here.ask(1))
            await until(lambda: here.runs)
            second = here.querying.begin(here.ask(2))
            asked.cancel()
            with pytest.raises(Cancelled):
                await asked.answer()
            await until(lambda: here.runs[0].cancelled)
            assert here.queues.queued == 1, "the slot is still taken"
            here.runs[0].end(STOPPED)
            await until(lambda: len(here.runs) == 2)
            here.runs[1].end(DONE, 2)
            await second.answer()
            assert here.ledger.ends == [QueryOutcome.CANCELLED, QueryOutcome.DONE]

    run(main())


def test_a_stream_is_in_flight_to_its_end(run: Run) -> None:
    async def main() -> None:
        async with scene(1) as here:
            await here.known()
            here.hold()
            asked = here.querying.begin(here.ask(1))
            await until(lambda: here.runs)
            here.runs[0].rows(1, 2)
            rows = await asked.answer()
            assert isinstance(rows, Rows)
            assert here.ledger.ends == []
            here.runs[0].end(DONE, None, streamed=True)
            assert [chunk async for chunk in rows] == [b"\x01\x02"]
            assert here.ledger.ends == [QueryOutcome.DONE]

    run(main())


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_worker_that_vanishes(
    run: Run, monkeypatch: pytest.MonkeyPatch, *, idempotent: bool
) -> None:
    monkeypatch.setattr(queue_dispatcher, "AWAY_FIRST_SECONDS", 60.0)  # three queries take less

    async def main() -> None:
        async with scene(2, policy="round-robin") as here:
            await here.known()
            here.workers[0].serve = lambda _: here.workers[0].kill()
            if idempotent:
                assert [await here.answer(n, idempotent=True) for n in range(3)] == [[0], [1], [2]]
            else:
                outcomes = []
                for number in range(3):
                    try:
                        outcomes.append(await here.answer(number))
                    except WorkerLost:
                        outcomes.append("lost")
                assert outcomes.count("lost") == 1
            assert here.ledger.ends.count(QueryOutcome.LOST) == 1
            assert len(here.queue.policy.workers) == 1

    run(main())


def test_a_worker_that_cannot_be_dialled_is_left_alone(run: Run) -> None:
    async def main() -> None:
        async with scene(2, policy="round-robin") as here:
            here.node.absent.append(here.workers[0])
            here.node.workers.reverse()  # the first query goes to the second worker
            await here.known()
            here.workers[0].kill()
            here.node.absent.clear()
            here.node.change()
            await until(lambda: len(here.queue.policy.workers) == 2)
            for number in range(4):
                assert await here.answer(number) == [number]
            assert len(here.queue.policy.workers) == 1
            assert here.node.asked == []

    run(main())


def test_the_last_one_is_gone_and_the_node_is_asked(run: Run) -> None:
    async def main() -> None:
        async with scene(2) as here:
            await here.known()
            here.hold()
            asked = [here.querying.begin(here.ask(number)) for number in range(20)]
            assert here.queues.queued == 12
            await until(lambda: len(here.runs) == 8)
            here.node.absent += here.workers
            here.node.change()
            await until(lambda: not here.queues.queued)
            await until(lambda: len(here.runs) == 20)
            assert sum(one.slots for one in here.node.asked) == 12
            for one in here.runs:
                one.end(DONE, None)
            for running in asked:
                await running.answer()

    run(main())


def test_what_waits_in_the_line_may_run_out_of_time(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=1) as here:
            await here.known()
            here.hold()
            first = here.querying.begin(here.ask(1))
            late = here.querying.begin(here.ask(2, seconds=0.05))
            assert here.queues.queued == 1
            with pytest.raises(DeadlineExceeded):
                await late.answer()
            assert here.queues.queued == 0
            first.cancel()

    run(main())


# Reports


def test_reports_raise_and_lower_what_is_sent(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=8) as here:
            await here.known()
            await here.answer()
            (worker,) = here.workers
            here.hold()
            worker.runs.clear()
            worker.report(Load(1, 2, 0, 0, 0.01, 0))
            await until(lambda: here.ledger.reports)
            asked = [here.querying.begin(here.ask(number)) for number in range(6)]
            await until(lambda: len(here.runs) == 2)
            assert here.queues.queued == 4
            worker.report(Load(2, 4, 2, 0, 0.01, 2))
            await until(lambda: len(here.runs) == 4)
            here.runs[0].end(DONE, 0, load=Load(3, 6, 4, 0, 0.01, 4))
            await until(lambda: len(here.runs) == 6)
            for one in here.runs[1:]:
                one.end(DONE, 0)
            for running in asked:
                await running.answer()

    run(main())


@pytest.mark.parametrize("limit", [0, -5, 2**40])
def test_a_worker_that_lies_is_served_and_tried(run: Run, limit: int) -> None:
    async def main() -> None:
        async with scene(2) as here:
            await here.known()
            for worker in here.workers:
                worker.serve = lambda one: one.end(
                    DONE, one.arguments, load=Load(1, limit, -1, 2**33, -1.0, -7, -1)
                )
            for number in range(20):
                assert await here.answer(number) == [number]

    run(main())


def test_a_report_that_cannot_be_read_ends_the_link(run: Run) -> None:
    async def main() -> None:
        async with scene(1) as here:
            await here.known()
            await here.answer()
            here.workers[0].report("nonsense")  # type: ignore[arg-type]
            await until(lambda: not here.querying.links.open)
            assert await here.answer(1) == [1]

    run(main())


# Rosters


def test_a_roster_that_says_idle(run: Run) -> None:
    async def main() -> None:
        async with scene(1) as here:
            await here.known()
            here.node.policy = ""
            here.node.change()
            await until(lambda: not here.queues.by_place)
            assert await here.answer(1) == [1]
            assert len(here.node.asked) == 1
            here.node.policy = "two-phase"
            await here.known()
            assert here.queue.policy_name == "two-phase"

    run(main())


def test_another_policy_and_another_line(run: Run) -> None:
    async def main() -> None:
        async with scene(1, slots=1) as here:
            await here.known()
            here.hold()
            asked = [here.querying.begin(here.ask(number)) for number in range(4)]
            await until(lambda: here.runs)
            here.node.policy = "two-phase"
            here.node.slots = 3
            here.node.shedding = SheddingTerms(length=2)
            here.node.change()
            await until(lambda: len(here.runs) == 4)
            for one in here.runs:
                one.end(DONE, None)
            for running in asked:
                await running.answer()

    run(main())


def test_each_user_has_passes_of_his_own(run: Run) -> None:
    async def main() -> None:
        async with scene(1) as here:
            for user in ("alice", "bob"):
                await here.known(user)
                assert await here.answer(user, user=user) == [user]
                assert here.runs[-1].message.token == here.node.token(here.workers[0], user)
            assert {one.user for one in here.node.subscribed} == {"alice", "bob"}
            here.node.roster_problems = [PermissionDenied("No."), PermissionDenied("No.")]
            here.node.change()
            await until(lambda: not here.queues.by_place)
            here.node.problems.append(PermissionDenied("No."))
            with pytest.raises(PermissionDenied):
                await here.answer(user="bob")

    run(main())


def test_a_user_who_has_to_ask_for_each_slot_disturbs_nobody(run: Run) -> None:
    async def main() -> None:
        async with scene(1) as here:
            here.node.idle_users.append("eve")
            await here.known("alice")
            for number in range(5):
                assert await here.answer(number, user="eve") == [number]
                assert await here.answer(number, user="alice") == [number]
            assert [one.user for one in here.node.asked] == ["eve"] * 5
            assert [one.user for one in here.node.subscribed].count("eve") == 1

    run(main())


def test_a_root_that_is_away_for_a_while(run: Run) -> None:
    async def main() -> None:
        async with scene(1, unreachable_seconds=0.1) as here:
            await here.known()
            here.node.roster_problems = [Unavailable("Not now.")] * 1_000
            here.node.change()
            assert await here.answer(1) == [1]
            assert here.node.asked == [], "the last roster counts"
            await until(lambda: here.subscriptions[""].roster is None)
            assert await here.answer(2) == [2]
            assert len(here.node.asked) == 1
            here.node.roster_problems.clear()
            await until(lambda: here.subscriptions[""].passes)
            assert await here.answer(3) == [3]
            assert len(here.node.asked) == 1

    run(main())


def test_a_roster_that_nobody_uses_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maitred.dispatch.roster_subscription.UNUSED_SECONDS", 0.0)

    async def main() -> None:
        async with scene(1) as here:
            await here.answer()
            await until(lambda: here.node.subscribed and not here.queues.by_place)
            assert await here.answer(1) == [1]
            assert len(here.node.asked) == 2

    run(main())


def test_a_policy_of_a_later_version_is_left_to_the_node(run: Run) -> None:
    async def main() -> None:
        async with scene(1, policy="clairvoyant") as here:
            for number in range(3):
                assert await here.answer(number) == [number]
            assert here.node.subscribed == []

    run(main())
