"""What many queues on one worker cost: `python -m benchmarks.many_queues`, about two minutes.

A real node with two shards; producers, askers and the worker are in this process, over loopback.
Every goal is a ratio of two things measured in one run:

- one hot queue beside 31 idle ones against a worker with that queue alone: time for the same tasks
  and queries, and offers that the worker makes for them;
- all 32 queues busy: what the queue with the least work done gets, against an equal share;
- a thousand queues on one worker: each gets a task through.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import uvloop

import maitred
from benchmarks.measuring import Result, report
from benchmarks.node import node
from maitred import logs
from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SHARDS = 2
QUEUES = 32
SLOTS = 32
TASKS = 5_000
QUERIES = 3_000
IN_FLIGHT = 64
ROUNDS = 5
BUSY_SECONDS = 3.0
BUSY_TASK_SECONDS = 0.005
MOST_QUEUES = 1_000
"""As many as a namespace may have."""
READY_SECONDS = 300.0
"""For a worker to be known at all its queues; a node makes 20 new ones a second."""

HOT_TIMES = 1.25
OFFERS_TIMES = 1.5
FAIR_SHARE = 0.7


class WorkerSlots(NamedTuple):
    """A worker that runs, and how to reach it."""

    app: maitred.App
    worker: Worker
    called: dict[str, int]
    """How often each queue's handler was called."""


@asynccontextmanager
async def serving(
    url: str, queues: list[str], slots: int, seconds: float, namespace: str = "bench"
) -> AsyncIterator[WorkerSlots]:
    """A worker for these queues, whose handlers sleep for so long."""
    app = maitred.App(namespace, node=url)
    called = dict.fromkeys(queues, 0)

    def serve(queue: str) -> None:
        @app.handler(queue)
        async def handle(number: int) -> int:
            called[queue] += 1
            if seconds:
                await asyncio.sleep(seconds)
            return number

    for queue in queues:
        serve(queue)
    session = await app.session()
    settings = WorkerSettings(slots=slots, limit="slots")
    worker = Worker(
        session.client,
        list(app.handlers.values()),
        settings,
        "bench",
        Surroundings.real(),
        logs.silent(),
    )
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(worker.ready.wait(), READY_SECONDS)
        yield WorkerSlots(app, worker, called)
    finally:
        worker.stop()
        await running
        await app.close()


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for it, looking often."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.005)


async def tasks_through(bench: WorkerSlots, queue: str) -> tuple[float, float]:
    """Seconds for all tasks of the queue, and offers a task."""
    offers, before = bench.worker.statistics.offers, bench.worker.statistics.done
    started = time.perf_counter()
    handler = bench.app.handlers[queue]
    await handler.enqueue_many([handler.call(number) for number in range(TASKS)])
    await until(lambda: bench.worker.statistics.done >= before + TASKS)
    return (
        time.perf_counter() - started,
        (bench.worker.statistics.offers - offers) / TASKS,
    )


async def queries_through(bench: WorkerSlots, queue: str) -> tuple[float, float]:
    """Seconds for all queries of the queue, and offers a query."""
    offers = bench.worker.statistics.offers
    left = iter(range(QUERIES))
    handler = bench.app.handlers[queue]

    async def ask() -> None:
        for number in left:
            await handler.query(number)

    started = time.perf_counter()
    await asyncio.gather(*[ask() for _ in range(IN_FLIGHT)])
    return (
        time.perf_counter() - started,
        (bench.worker.statistics.offers - offers) / QUERIES,
    )


async def hot(url: str, names: list[str]) -> list[Result]:
    """One hot queue of many against one queue alone, in turns."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for label, queues in (("one", names[:1]), ("many", names)):
            async with serving(url, queues, SLOTS, 0.0) as bench:
                for kind, through in (("task", tasks_through), ("query", queries_through)):
                    found.setdefault(f"{label} {kind}", []).append(await through(bench, names[0]))
    results = []
    for kind, plural in (("task", "tasks"), ("query", "queries")):
        (one, one_offers), (many, many_offers) = (
            (min(seconds for seconds, _ in rounds), median(offers for _, offers in rounds))
            for rounds in (found[f"one {kind}"], found[f"many {kind}"])
        )
        results += [
            Result(
                f"{plural}: one hot queue of {QUEUES}, times one alone",
                many / one,
                HOT_TIMES,
                at_least=False,
                ours=f"{QUEUES} queues {many:.2f} s",
                peer=f"one {one:.2f} s",
            ),
            Result(
                f"{plural}: offers each, {QUEUES} queues times one",
                many_offers / one_offers,
                OFFERS_TIMES,
                at_least=False,
                ours=f"{QUEUES} queues {many_offers:.3f}",
                peer=f"one {one_offers:.3f}",
            ),
        ]
    return results


async def all_busy(url: str, names: list[str], slots: int, kind: str) -> Result:
    """All queues have more work than the worker can do."""
    async with serving(url, names, slots, BUSY_TASK_SECONDS) as bench:
        asking = []
        if kind == "tasks":
            enough = int(2 * BUSY_SECONDS * slots / BUSY_TASK_SECONDS / len(names)) + 50
            for queue in names:
                handler = bench.app.handlers[queue]
                await handler.enqueue_many([handler.call(one) for one in range(enough)])
        else:

            async def ask(queue: str) -> None:
                handler = bench.app.handlers[queue]
                while True:
                    await handler.query(0)

            each = max(2, 2 * slots // len(names))
            asking = [asyncio.create_task(ask(queue)) for queue in names for _ in range(each)]
        await until(lambda: sum(bench.called.values()) > slots)
        before = dict(bench.called)
        await asyncio.sleep(BUSY_SECONDS)
        counts = [bench.called[queue] - before[queue] for queue in names]
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        if kind == "tasks":
            await until(lambda: bench.worker.statistics.done >= enough * len(names), 300)
    fair = sum(counts) / len(counts)
    return Result(
        f"{kind}: {len(names)} busy queues, {slots} slots, least share",
        min(counts) / fair,
        FAIR_SHARE,
        at_least=True,
        ours=f"least {min(counts)}, most {max(counts)}",
        peer=f"fair {fair:.0f}",
    )


async def a_thousand(url: str) -> Result:
    """Every queue of a worker with a thousand of them is served."""
    names = [f"thousand-{number}" for number in range(MOST_QUEUES)]
    async with serving(url, names, SLOTS, 0.0, "thousand") as bench:
        started = time.perf_counter()
        for queue in names:
            await bench.app.handlers[queue].enqueue(1)
        await until(lambda: all(bench.called.values()))
        seconds = time.perf_counter() - started
        served = sum(map(bool, bench.called.values()))
    return Result(
        "queues of a thousand on one worker that are served",
        served / MOST_QUEUES,
        1.0,
        at_least=True,
        ours=f"{served:,} in {seconds:.1f} s",
        peer=f"of {MOST_QUEUES:,}",
    )


async def _measure(url: str) -> list[Result]:
    names = [f"many-{number}" for number in range(QUEUES)]
    results = await hot(url, names)
    for line in results:
        print(line, flush=True)
    for slots in (2, 8, 32):
        for kind in ("tasks", "queries"):
            busy = [f"{kind}-{slots}-{number}" for number in range(QUEUES)]
            results.append(await all_busy(url, busy, slots, kind))
            print(results[-1], flush=True)
    results.append(await a_thousand(url))
    return results


def measure() -> list[Result]:
    """All of it."""
    with node(SHARDS) as process:
        return uvloop.run(_measure(f"maitred://127.0.0.1:{process.port}"))


def main() -> int:
    results = measure()
    report("many_queues", results)
    return 0 if all(result.met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
