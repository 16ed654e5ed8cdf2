"""How much a worker takes: what it counts, the limit that follows, and what that bounds."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from maitred import App
from maitred.app.attempt import Attempt
from maitred.balancing.workers.estimator import LimitEstimator
from maitred.errors import AtCapacity
from maitred.settings import WorkerSettings
from maitred.worker.capacity import Capacity, Sender
from maitred.worker.gauges import Fixed, Knee, gauge
from maitred.worker.pools import CallPool
from maitred.worker.statistics import WorkerStatistics
from tests.node.in_process import in_a_loop, until
from tests.worker.querying import a_gateway
from tests.worker.running import a_worker
from tests.worker.test_passes import A, B, PassingNode, a_pass, known

if TYPE_CHECKING:
    from maitred.protocol.query_link import Load
    from maitred.worker.pools import Caller, PooledCall
    from maitred.worker.worker import Worker

PATIENCE_SECONDS = 30


class Nowhere:
    name = "q"
    partition = 0


def an_attempt() -> Attempt:
    return Attempt(Nowhere(), (0, 1))


# Pools, pure


@pytest.mark.parametrize("seed", range(20))
def test_a_pool_under_random_calls_counts_what_an_executor_would(seed: int) -> None:
    random = Random(seed)
    workers = random.randint(1, 4)
    moved: list[Caller] = []
    pool = CallPool(workers, moved.append)
    attempts = [an_attempt() for _ in range(3)]
    model: list[tuple[PooledCall, Attempt]] = []
    """In the order of submission: the first `workers` of them run."""
    for _ in range(300):
        if model and random.random() < 0.5:
            call, _attempt = model.pop(random.randrange(len(model)))
            pool.leave(call)
            pool.leave(call)  # a second time does nothing
        else:
            attempt = random.choice(attempts)
            model.append((pool.enter(attempt), attempt))
        running = Counter(id(attempt) for _, attempt in model[:workers])
        queued = Counter(id(attempt) for _, attempt in model[workers:])
        assert pool.active == min(len(model), workers)
        assert pool.waiting == max(0, len(model) - workers)
        for attempt in attempts:
            assert attempt.calls == running[id(attempt)]
            assert attempt.queued == queued[id(attempt)]


def test_an_executor_of_unknown_size_has_room_for_all() -> None:
    pool = CallPool(None, lambda _: None)
    attempt = an_attempt()
    for _ in range(1_000):
        pool.enter(attempt)
    assert (pool.active, pool.waiting, attempt.calls) == (1_000, 0, 1_000)


# Gauges, pure


def test_each_kind_of_limit_has_its_gauge() -> None:
    for settings, kind in (
        (WorkerSettings(slots=8), LimitEstimator),
        (WorkerSettings(slots=8, limit="knee"), Knee),
        (WorkerSettings(slots=8, limit="slots"), Fixed),
    ):
        made = gauge(settings, 0.0)
        assert type(made) is kind
        assert made.limit(0.0) == 8
    assert gauge(WorkerSettings(limit="knee", slots=500), 0.0).limit(0.0) == 16


def test_a_fixed_limit_stays_and_the_mean_is_measured_all_the_same() -> None:
    one = Fixed(8, 0.0)
    assert one.mean_service_seconds == 0.0
    now = 0.0
    for _ in range(5_000):
        one.observe(1, 0, now)
        now += 0.02
        assert one.observe_end(0, 0, now, good=True) == 8
        now += 0.01
    one.lagged(9.0)
    one.claimed(100, pressed=True)
    assert one.limit(now) == 8
    assert one.mean_service_seconds == pytest.approx(0.02)


def test_the_knee_is_found_by_what_comes_out() -> None:
    """A back end that serves 40 at a time, 20 ms each; 200 want to be in."""
    one = Knee(256, 0.0)
    now, inside = 0.0, 0
    ends: list[float] = []
    served_until = [0.0] * 40
    for _ in range(60_000):
        while inside < min(200, one.limit(now)):
            place = min(range(40), key=served_until.__getitem__)
            served_until[place] = max(now, served_until[place]) + 0.02
            ends.append(served_until[place])
            inside += 1
            one.observe(inside, 0, now)
        now = ends.pop(0)
        inside -= 1
        one.observe_end(inside, 0, now, good=True)
    assert 30 <= one.limit(now) <= 60


def test_a_limit_that_is_used_by_what_is_under_way_is_used() -> None:
    """Half of what the senders have in flight is on its way, there or back."""
    one, now = Knee(256, 0.0), 0.0
    for _ in range(60):
        half = one.limit(now) // 2
        for begun in range(half):
            one.observe(begun + 1, 0, now)
            one.claimed(2 * half)
        now += 0.02
        for left in reversed(range(half)):
            one.observe_end(left, 0, now, good=True)
    assert one.limit(now) > 100


# Counting


class Counted:
    """A capacity on its own."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401
        self.grown = 0
        self.statistics = WorkerStatistics(settings.get("slots", 32))
        self.capacity = Capacity(WorkerSettings(**settings), self.statistics, self._grew)

    def _grew(self) -> None:
        self.grown += 1

    def begin(self, now: float = 0.0) -> Attempt:
        attempt = an_attempt()
        self.statistics.busy += 1
        self.capacity.begun(attempt, now)
        return attempt

    def end(self, attempt: Attempt, *, good: bool = True) -> None:
        self.statistics.busy -= 1
        self.capacity.ended(attempt, self.capacity.loop.time(), good=good)


@in_a_loop
async def test_an_attempt_that_ends_while_it_waits_leaves_no_trace() -> None:
    one = Counted()
    attempt = one.begin()
    one.capacity.wait(attempt)
    one.capacity.wait(attempt)
    assert (one.capacity.serving, one.capacity.waiting) == (0, 1)
    one.end(attempt)
    one.capacity.go_on(attempt)
    one.capacity.go_on(attempt)
    assert (one.capacity.serving, one.capacity.waiting) == (0, 0)
    one.capacity.stop()


@in_a_loop
async def test_what_senders_say_they_have_in_flight_is_no_more_than_that() -> None:
    one = Counted(slots=10)
    capacity = one.capacity
    now = capacity.loop.time()
    heard: list[Load] = []
    first, second = Sender(heard.append), Sender(heard.append)
    assert capacity.asked(first, 2**40, now, pressed=False)
    assert capacity._claims == 10  # nobody has more than all slots
    capacity.entered(first)
    capacity.asked(second, 3, now, pressed=True)
    capacity.entered(second)
    assert (capacity._claims, capacity.load(first).senders) == (13, 2)
    for _ in range(20):
        capacity.answered(first)
    assert capacity._claims == 3
    capacity.left(first)
    capacity.left(second)
    assert (first.inside, second.inside, capacity._claims) == (0, 0, 2)
    capacity.gone(second)
    capacity.gone(second)
    assert (capacity._claims, capacity.load(first).senders) == (0, 1)
    capacity.stop()


@in_a_loop
async def test_a_late_timer_lowers_the_limit_and_growth_is_told() -> None:
    one = Counted(slots=100)
    capacity = one.capacity
    attempts = [one.begin(capacity.loop.time()) for _ in range(100)]
    capacity._due = capacity.loop.time() - 1.0  # as if the loop had been blocked for a second
    capacity._tick()
    if capacity.limit == 100:  # the window, of ten milliseconds, was not over
        capacity._look(capacity.loop.time() + 1.0)
    assert capacity.limit == 90
    assert capacity.room == -10
    assert one.grown == 0
    capacity._look(capacity.loop.time() + 2.0)
    assert capacity.limit > 90
    assert one.grown == 1
    for attempt in attempts:
        one.end(attempt)
    capacity.stop()


# At a worker


class Told(Fixed):
    """A limit that the test sets."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, 0.0)

    def set(self, worker: Worker, limit: int) -> None:
        self._slots = limit
        worker.capacity._look(0.0)


def with_limit(worker: Worker, limit: int) -> Told:
    worker.capacity._gauge = told = Told(limit)
    told.set(worker, limit)
    return told


def an_app() -> tuple[App, asyncio.Event]:
    app = App("desk")
    go_on = asyncio.Event()

    @app.handler("held")
    async def held() -> str:
        await go_on.wait()
        return "held"

    return app, go_on


@in_a_loop
async def test_the_limit_bounds_what_is_taken_by_a_pass() -> None:
    app, go_on = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=32) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        told = with_limit(worker, 3)
        held = [gateway.run(A) for _ in range(3)]
        problem = await gateway.error(gateway.run(A))
        assert isinstance(problem, AtCapacity)
        assert problem.limit == 3
        told.set(worker, 4)
        held.append(gateway.run(A))
        await until(lambda: worker.statistics.busy == 4)
        go_on.set()
        for stream in held:
            query_end = await gateway.over(stream)
            assert query_end.load is not None
            assert query_end.load.limit == 4


@in_a_loop
async def test_a_large_limit_has_a_little_slack_and_slots_have_none() -> None:
    app, go_on = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=20) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        told = with_limit(worker, 16)
        assert worker.capacity.most == 18
        told.set(worker, 19)
        assert worker.capacity.most == 20
        for _ in range(20):
            gateway.run(A)
        await until(lambda: worker.statistics.busy == 20)
        assert isinstance(await gateway.error(gateway.run(A)), AtCapacity)
        go_on.set()


@in_a_loop
async def test_the_limit_bounds_what_is_on_offer_and_growth_is_offered() -> None:
    app, go_on = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=32) as worker,
        a_gateway(worker) as gateway,
    ):
        (served,) = worker._served
        await until(lambda: served.on_offer == 32)
        node.hand_out(a_pass())
        await known(worker)
        told = with_limit(worker, 4)
        held = [gateway.run(A) for _ in range(4)]
        # Nothing more can be taken, so what was on offer is taken back.
        await until(lambda: worker.statistics.busy == 4)
        worker._slot_freed()
        await until(lambda: served.on_offer == 0)
        told.set(worker, 10)
        await until(lambda: served.on_offer == 6)
        go_on.set()
        assert [await gateway.result(stream) for stream in held] == ["held"] * 4


@in_a_loop
async def test_what_waits_for_a_thread_waits() -> None:
    app = App("desk")
    go_on = threading.Event()

    @app.handler("held")
    def held() -> None:
        assert go_on.wait(PATIENCE_SECONDS)

    async with (
        PassingNode() as node,
        a_worker(node, app, slots=8, threads=2, limit="slots") as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        streams = [gateway.run(A) for _ in range(5)]
        streams.append(gateway.run(node.reserve("held")))
        await until(lambda: worker.capacity.waiting == 4)
        assert worker.capacity.serving == 2
        go_on.set()
        loads = [(await gateway.over(stream)).load for stream in streams]
        assert loads[-1] is None  # it came by a reservation
        assert all(load is not None and load.waiting <= 4 for load in loads[:-1])
        assert (worker.capacity.serving, worker.capacity.waiting) == (0, 0)
        assert worker.capacity.threads.active == 0


@in_a_loop
async def test_fewer_threads_than_slots_the_limit_is_found_and_what_is_beyond_it_refused() -> None:
    """The whole way, with the real estimator: two threads, and a gateway that wants it all."""
    app = App("desk")
    turns = threading.Semaphore(0)
    slots = 64

    @app.handler("held")
    def held() -> None:
        assert turns.acquire(timeout=PATIENCE_SECONDS)

    async with (
        PassingNode() as node,
        a_worker(node, app, slots=slots, threads=2) as worker,
        a_gateway(worker) as gateway,
    ):
        node.hand_out(a_pass())
        await known(worker)
        streams = [gateway.run(A) for _ in range(slots)]
        # 62 wait, so the limit falls towards what runs in parallel, within a window or two.
        await until(lambda: worker.capacity.limit <= 8)
        problem = await gateway.error(gateway.run(A))
        assert isinstance(problem, AtCapacity)
        assert problem.limit is not None
        assert 1 <= problem.limit <= 8
        turns.release(slots)
        # A machine that is busy elsewhere may let the limit fall before the worker has read all of
        # them. Those that it read before are served, and the rest is refused.
        outcomes = []
        for stream in streams:
            try:
                ended = await gateway.over(stream)
            except AtCapacity:
                outcomes.append("refused")
            else:
                assert ended.how == 0
                outcomes.append("served")
        served = outcomes.count("served")
        assert served >= 2, "as many as there are threads"
        assert outcomes == ["served"] * served + ["refused"] * (slots - served)


@in_a_loop
async def test_two_gateways_hear_their_own_numbers_with_their_answers() -> None:
    app, go_on = an_app()
    async with (
        PassingNode() as node,
        a_worker(node, app, slots=8) as worker,
        a_gateway(worker) as one,
        a_gateway(worker) as two,
    ):
        node.hand_out(a_pass(A), a_pass(B))
        await known(worker, B)
        first = one.run(A)
        second = two.run(B, timeout=0.05)
        stopped = await two.over(second)
        assert stopped.load is not None
        assert stopped.load.senders == 2
        go_on.set()
        query_end = await one.over(first)
        assert query_end.load is not None
        assert (query_end.load.yours, query_end.load.senders) == (0, 2)
