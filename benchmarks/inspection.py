"""What scans of a large queue cost: `python -m benchmarks.inspection [TASKS]`, some six minutes.

A real node of one shard gets ten million waiting tasks in one queue. Then they are listed with and
without filters, shown one by one, counted by a dry run of a bulk cancel, and purged. All the while
a producer and a worker in another process use a second queue of the same shard. Windows with scans
alternate with windows without: what is compared is the time from before the call that enqueues to
the first line of the handler.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, cast

import uvloop

import maitred
from benchmarks.backlog import IN_FLIGHT, node
from benchmarks.many_queues import READY_SECONDS, serving
from benchmarks.measuring import Result, report
from benchmarks.node import cpu_seconds
from maitred import logs
from maitred.client.cursors import write_cursor
from maitred.client.merged_tasks import TaskPlace
from maitred.client.task_changes import change_matching
from maitred.client.task_lists import ListCursor, argument_filter, list_tasks, show_task
from maitred.protocol.inspection import TaskFilter
from maitred.protocol.tasks import Add, Added, Purged, PurgeTasks
from maitred.routing.names import TASKS, QueueId
from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.backlog import Started
    from maitred.client.client import AsyncClient

WAITING = 10_000_000
NAMESPACE, QUEUE, OTHER = "bench", "large", "served"
ID = QueueId(NAMESPACE, QUEUE, TASKS)
ARGUMENTS = 1_000
"""Different arguments: a filter by one of them finds a task of a thousand."""
PROBES_PER_SECOND = 100
WINDOW_SECONDS = 3.0
ROUNDS = 4
"""Windows of each scan, as many as windows without."""
P50_TIMES, P99_TIMES = 4.0, 10.0
"""A slice of a scan takes the shard about a millisecond, and a task passes the shard a few times on
its way. On two busy cores, a shard that has work at all waits for its turn as well: the waits
beside a process that computes, in the same run, show how much of the p99 that is."""
PAGE_SECONDS = 3.0
"""A page ends after two seconds, full or not, and after what the request then under way takes."""
ADDED_MEGABYTES = 120.0
"""What scans may add to the memory of the shard, whatever the number of tasks: the store's cache of
16 MiB, the pieces that are read, answers, and what the allocator keeps of them."""
NO_MATCH = "no such error"


class Window(NamedTuple):
    """What was done from one moment to another, by the monotonic clock."""

    name: str
    begin: float
    end: float
    shard_cpu: float
    """CPU time of the shard's process in these seconds."""


class Scan(NamedTuple):
    """One way to look at the queue, or to change it."""

    name: str
    page: Callable[[], Awaitable[int]]
    """Asks for the next page; returns the number of tasks that were looked at."""


# The other queue


@contextmanager
def probing(url: str) -> Iterator[Callable[[], list[tuple[float, float]]]]:
    """Use the other queue from another process; the function that is yielded stops that and returns
    when each task was enqueued and how long it took to its handler."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(url, theirs), daemon=True)
    process.start()
    try:
        assert ours.recv() == "ready"

        def stop() -> list[tuple[float, float]]:
            ours.send("stop")
            found: list[tuple[float, float]] = ours.recv()
            return found

        yield stop
    finally:
        process.kill()
        process.join()


def _probe(url: str, parent: Connection) -> None:
    uvloop.run(_probe_until_told(url, parent))


async def _probe_until_told(url: str, parent: Connection) -> None:
    waits: list[tuple[float, float]] = []
    app = maitred.App(NAMESPACE, node=url)

    @app.handler(OTHER)
    async def handle(sent: float) -> None:
        waits.append((sent, time.monotonic() - sent))

    session = await app.session()
    worker = Worker(
        session.client,
        list(app.handlers.values()),
        WorkerSettings(slots=8, limit="slots"),
        "probe",
        Surroundings.real(),
        logs.silent(),
    )
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(worker.ready.wait(), READY_SECONDS)
        await app.handlers[OTHER].enqueue(time.monotonic())
        parent.send("ready")
        under_way: set[asyncio.Task[object]] = set()
        due = time.monotonic()
        while not parent.poll():
            one = asyncio.ensure_future(app.handlers[OTHER].enqueue(time.monotonic()))
            under_way.add(one)
            one.add_done_callback(under_way.discard)
            due += 1 / PROBES_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*under_way)
        await asyncio.sleep(1.0)  # for the handlers of the last ones
        parent.send(waits)
    finally:
        worker.stop()
        await running
        await app.close()


# The large queue


async def _fill(url: str, tasks: int) -> None:
    """A worker tells the names of the arguments; when it has gone, the tasks come."""
    async with serving(url, [QUEUE], 1, 0.0, NAMESPACE) as bench:
        handler = bench.app.handlers[QUEUE]
        payloads = [handler.call(number).payload for number in range(ARGUMENTS)]
    async with maitred.connect(url, timeout_seconds=60) as client:
        under_way = asyncio.Semaphore(IN_FLIGHT)

        async def add(first: int) -> None:
            async with under_way:
                found = await client.request(Add(*ID, 0, 0, 0, payloads[: tasks - first]))
                assert cast("Added", found).first >= 0

        await asyncio.gather(*map(add, range(0, tasks, ARGUMENTS)))


def _lists(client: AsyncClient, middle: int) -> Iterator[Scan]:
    """Lists of waiting tasks, from the start and from the middle on."""

    def listed(name: str, wanted: TaskFilter, begin: str | None = None) -> Scan:
        cursor = begin

        async def page() -> int:
            nonlocal cursor
            found = await list_tasks(
                client, ID, ["waiting"], wanted, reveal=True, most=200, cursor=cursor
            )
            cursor = found.cursor or begin
            return found.looked_at

        return Scan(name, page)

    yield listed("list", TaskFilter())
    begin = write_cursor(ListCursor(1, "waiting", TaskPlace(2.0, 0, middle)))
    yield listed("list from the middle", TaskFilter(), begin)
    yield listed("list by argument, one of a thousand", _by_argument("number=7"))
    yield listed("list by argument, none", _by_argument("number=-7"))
    yield listed("list by error, none", TaskFilter(error=NO_MATCH))
    yield listed("list by time, none", TaskFilter(added_before=1.0))


def _by_argument(text: str) -> TaskFilter:
    return TaskFilter(argument=argument_filter(text))


def _scans(client: AsyncClient, numbers: range) -> Iterator[Scan]:
    yield Scan("no scan, a process that computes", _compute)
    yield from _lists(client, numbers[len(numbers) // 2])
    chance = random.Random(1)

    async def show() -> int:
        await show_task(client, ID, 0, chance.choice(numbers), reveal=True)
        return 1

    yield Scan("status of a random task", show)
    cursor: str | None = None

    async def count(wanted: TaskFilter) -> int:
        nonlocal cursor
        step = await change_matching(
            client, ID, "cancel", ["waiting"], wanted, reveal=True, dry_run=True, cursor=cursor
        )
        cursor = step.cursor
        return step.matched

    yield Scan("dry run of a cancel of all", lambda: count(TaskFilter()))
    yield Scan("dry run of a cancel by argument", lambda: count(_by_argument("number=7")))


async def _compute() -> int:
    """Use a core as the scans do, but nothing of the shard: what the machine makes of that."""
    until = time.monotonic() + 0.005
    while time.monotonic() < until:
        pass
    await asyncio.sleep(0)
    return 0


def _purge(client: AsyncClient) -> Scan:
    message = PurgeTasks(*ID, 0, 0, "waiting")

    async def purge() -> int:
        found = cast("Purged", await client.request(message))
        message.until, message.cursor = found.until, found.cursor
        return found.tasks

    return Scan("purge", purge)


# Windows


class Bench:
    """Scans in turns with nothing, and what each page took."""

    def __init__(self, started: Started) -> None:
        self._shard = started
        self.windows: list[Window] = []
        self.pages: dict[str, list[float]] = {}
        self.looked_at: dict[str, int] = {}
        self.memory_bytes = 0

    async def window(self, name: str, seconds: float, scan: Scan | None = None) -> None:
        """Repeat a scan, or nothing, for this long."""
        begin, cpu = time.monotonic(), cpu_seconds([self._shard.shard])
        while time.monotonic() < begin + seconds:
            if scan is None:
                await asyncio.sleep(0.1)
                continue
            page_began = time.monotonic()
            looked_at = await scan.page()
            self.pages.setdefault(name, []).append(time.monotonic() - page_began)
            self.looked_at[name] = self.looked_at.get(name, 0) + looked_at
            self.memory_bytes = max(self.memory_bytes, self._shard.memory_bytes)
        end = time.monotonic()
        cpu = cpu_seconds([self._shard.shard]) - cpu
        self.windows.append(Window(name, begin, end, cpu))

    def waits(self, name: str, found: Sequence[tuple[float, float]]) -> list[float]:
        """Return the waits in the windows of this name."""
        windows = [one for one in self.windows if one.name == name]
        return [wait for sent, wait in found if any(one.begin <= sent < one.end for one in windows)]


def _p99(waits: Sequence[float]) -> float:
    return sorted(waits)[len(waits) * 99 // 100]


async def _scanned(bench: Bench, url: str, tasks: int, rounds: int, seconds: float) -> None:
    """All scans in turns, and the purge at last, beside a window without anything each."""
    async with maitred.connect(url, timeout_seconds=60) as client:
        [first] = (await list_tasks(client, ID, ["waiting"], reveal=False, most=1)).tasks
        scans = list(_scans(client, range(first.sequence, first.sequence + tasks)))
        for _ in range(rounds):
            for scan in scans:
                await bench.window("nothing", seconds)
                await bench.window(scan.name, seconds, scan)
        purge = _purge(client)
        for _ in range(rounds):
            await bench.window("nothing", seconds)
            await bench.window(purge.name, seconds, purge)


def measure(
    tasks: int = WAITING, rounds: int = ROUNDS, seconds: float = WINDOW_SECONDS
) -> list[Result]:
    """Fill, scan and purge; what the other queue noticed of it."""
    with tempfile.TemporaryDirectory(prefix="inspection-") as place, node(Path(place)) as started:
        began = time.monotonic()
        asyncio.run(_fill(started.url, tasks))
        print(f"{tasks:,} tasks in {time.monotonic() - began:.0f} s", flush=True)
        memory = started.memory_bytes
        bench = Bench(started)
        with probing(started.url) as stop:
            asyncio.run(_scanned(bench, started.url, tasks, rounds, seconds))
            found = stop()
    return _results(bench, found, memory)


def _results(bench: Bench, found: Sequence[tuple[float, float]], memory: int) -> list[Result]:
    without = bench.waits("nothing", found)
    results = []
    for name, pages in bench.pages.items():
        waits = bench.waits(name, found)
        spent = [one.shard_cpu / (one.end - one.begin) for one in bench.windows if one.name == name]
        print(
            f"{name}: {len(pages)} pages of {bench.looked_at[name] / len(pages):,.0f} tasks, "
            f"median {median(pages):.3f} s, longest {max(pages):.3f} s; "
            f"shard {median(spent):.2f} cores; wait of the other queue "
            f"p50 {median(waits) * 1e3:.1f} ms, p99 {_p99(waits) * 1e3:.1f} ms, "
            f"longest {max(waits) * 1e3:.0f} ms, times {median(waits) / median(without):.2f} and "
            f"{_p99(waits) / _p99(without):.2f} those without",
            flush=True,
        )
        for label, of, goal in (("p50", median, P50_TIMES), ("p99", _p99, P99_TIMES)):
            results.append(
                Result(
                    f"{name}: {label} of the other queue's waits, times those without",
                    of(waits) / of(without),
                    goal,
                    at_least=False,
                    ours=f"{of(waits) * 1e3:.1f} ms",
                    peer=f"{of(without) * 1e3:.1f} ms",
                )
            )
        results.append(
            Result(
                f"{name}: longest page, s",
                max(pages),
                PAGE_SECONDS,
                at_least=False,
                ours=f"{len(pages)} pages",
                peer=f"median {median(pages):.3f} s",
            )
        )
    results.append(
        Result(
            "memory that the scans added, MB",
            max(bench.memory_bytes - memory, 1) / 1e6,
            ADDED_MEGABYTES,
            at_least=False,
            ours=f"{bench.memory_bytes / 1e6:.0f} MB",
            peer=f"{memory / 1e6:.0f} MB before",
        )
    )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspection")
    parser.add_argument("tasks", nargs="?", type=int, default=WAITING)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=WINDOW_SECONDS)
    given = parser.parse_args()
    results = measure(given.tasks, given.rounds, given.seconds)
    report("inspection", results)
    return 0 if all(result.met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
