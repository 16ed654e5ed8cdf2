"""What a page of the console costs at scale: `python -m benchmarks.console`.

A real node of one shard with its gateway has 10,000 queues, 1,000 workers, and a queue with 200,000
dead letters. Chromium opens one page after another, and scrolls it. Then each answer that the page
follows is asked for a few times: the least CPU time of shard and gateway, by the pause that the
gateway makes between two looks, is what an open page costs. At last, all dead letters of one error
are retried in bulk, with a dry run first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import uvloop
from msgspec import msgpack
from playwright.sync_api import sync_playwright
from tests.debian import installed

import maitred
from benchmarks.measuring import Result, report
from benchmarks.node import cpu_seconds
from maitred import logs
from maitred.client.task_changes import change_matching
from maitred.gateway.http.live import pause_after
from maitred.matching.records import Terms
from maitred.protocol.inspection import TaskFilter
from maitred.protocol.tasks import FAILED, Add, End, Failure, Finish, Offer, Offered
from maitred.routing.names import TASKS, QueueId
from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from playwright.sync_api import Browser, Request

QUEUES, WORKERS, DEAD = 10_000, 1_000, 200_000
NAMESPACE = "bench"
ID = QueueId(NAMESPACE, "dead", TASKS)
ERRORS = ("ConnectionRefusedError", "ValueError", "TimeoutError", "KeyError")
BATCH, AT_ONCE = 1_000, 64
PAGE_SHARE = 0.02
"""Share of a core that an open page may cost, by issue 17."""
LONGEST_SECONDS = 0.1
TINY = 1e-6
"""Stands for nothing: a ratio cannot be 0."""
ELEMENTS_MOST = 4_000
"""Elements of the document, however many rows there are."""
LOOKS = 5
ROUNDS = 2
SETTLED_MS = 2_000
SCROLLS = 40
PAGES = {
    "overview": ("#/", "Overview"),
    "queues": ("#/queues?sort=name", "Queues"),
    "a queue": ("#/queues/bench/dead", "bench/dead"),
    "workers": ("#/workers", "Workers"),
    "dead letters by error": ("#/dead/bench/dead", "Dead letters"),
    "dead letters": ("#/tasks/bench/dead?state=dead", "bench/dead"),
    "nodes": ("#/nodes", "Nodes"),
}
FRAMES = """async count => {
    const box = document.querySelector('.scroller') ?? document.scrollingElement;
    const longest = [];
    const observer = new PerformanceObserver(list => {
        for (const one of list.getEntries()) longest.push(one.duration);
    });
    observer.observe({entryTypes: ['longtask']});
    for (let step = 0; step < count; step++) {
        box.scrollTop += 400;
        if (step % 10 === 9) await new Promise(done => setTimeout(done, 100));
        else await new Promise(done => requestAnimationFrame(done));
    }
    await new Promise(done => setTimeout(done, 300));
    observer.disconnect();
    return [Math.max(0, ...longest), document.querySelectorAll('*').length];
}"""


class Started(NamedTuple):
    """The processes of a node."""

    url: str
    console: str
    shard: int
    gateway: int


@contextmanager
def node(data: Path) -> Iterator[Started]:
    """`maitred up` with one shard and a gateway, which takes any number of new queues."""
    config = data / "maitred.toml"
    config.write_text(
        f"[limits]\nnew_queues = {2 * QUEUES}\nnew_queues_per_second = 100_000\n"
        f"[namespaces.{NAMESPACE}]\nqueues = {2 * QUEUES}\n"
    )
    command = [str(Path(sys.executable).parent / "maitred"), "up", "--json", "--port", "0"]
    command += ["--shards", "1", "--data", str(data), "--config", str(config)]
    command += ["--set", "gateway.port=0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        shard = int(ready["shards"][0]["pid"])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        others = [int(one) for one in children if int(one) != shard]
        gateway = next(one for one in others if _is_gateway(one))
        yield Started(str(ready["url"]), str(ready["console"]), shard, gateway)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def _is_gateway(pid: int) -> bool:
    return b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()


# What the node has


async def _fill(url: str, queues: int, dead: int) -> None:
    async with maitred.connect(url, timeout_seconds=60) as client:
        turn = asyncio.Semaphore(AT_ONCE)

        async def queue(number: int) -> None:
            async with turn:
                await client.request(Add(NAMESPACE, f"queue-{number:05}", 1, 0, 0, 0, [b"\x90"]))

        await asyncio.gather(*map(queue, range(queues)))
        terms = Terms(retries=0, hidden=())
        for first in range(0, dead, BATCH):
            payloads = [msgpack.encode([first + one, "x" * 100]) for one in range(BATCH)]
            await client.request(Add(*ID, 0, 0, 0, payloads, terms=terms))
            offer = Offer(*ID, 0, 0, 0, bytes(16), "worker", BATCH)
            given = cast("Offered", await client.request(offer)).tasks
            ends = [
                End(
                    one.sequence,
                    one.attempt,
                    one.proof,
                    FAILED,
                    msgpack.encode(
                        Failure(ERRORS[at % len(ERRORS)], "it failed", "a traceback " * 20)
                    ),
                )
                for at, one in enumerate(given)
            ]
            await client.request(Finish(*ID, 0, 0, bytes(16), ends))


def _work(url: str, count: int, parent: Connection) -> None:
    uvloop.run(_serve(url, count, parent))


async def _serve(url: str, count: int, parent: Connection) -> None:
    """Workers with connections of their own, each for one of a hundred queues."""

    async def one(number: int) -> tuple[maitred.App, Worker, asyncio.Task[bool]]:
        app = maitred.App(NAMESPACE, node=url)

        @app.handler(f"served-{number % 100:03}")
        async def handle() -> None:
            pass

        session = await app.session()
        settings = WorkerSettings(slots=8, limit="slots")
        worker = Worker(
            session.client,
            list(app.handlers.values()),
            settings,
            f"worker-{number:04}",
            Surroundings.real(),
            logs.silent(),
        )
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.ready.wait(), 120)
        return app, worker, running

    started = []
    for first in range(0, count, 20):
        started += await asyncio.gather(*map(one, range(first, min(first + 20, count))))
    parent.send("ready")
    await asyncio.gather(*(running for _, _, running in started))  # until the process is killed


# Pages


class Cost(NamedTuple):
    """What a page costs, and how smooth it is."""

    look: float
    """CPU seconds of the shard and the gateway for one look at all that the page follows."""
    share: float
    """The share of a core that looks take, with the pauses between them."""
    longest_task_seconds: float
    """While the page was scrolled. Shorter ones than 50 ms are no long tasks, and are 0."""
    elements: int
    shown_seconds: float


def _look(started: Started, path: str) -> tuple[float, float]:
    """Return the CPU seconds and the seconds that an answer takes: the least of a few."""
    http = started.console.partition("/console")[0]
    found = []
    for _ in range(LOOKS):
        cpu, began = cpu_seconds([started.shard, started.gateway]), time.monotonic()
        with urllib.request.urlopen(http + path, timeout=60) as answer:  # noqa: S310 - this node
            answer.read()
        took = time.monotonic() - began
        found.append((cpu_seconds([started.shard, started.gateway]) - cpu, took))
        time.sleep(0.2)
    return min(cpu for cpu, _ in found), min(took for _, took in found)


def _share(started: Started, stream: str) -> tuple[float, float]:
    """Return the CPU seconds of one look of a stream, and the share of a core of all."""
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(stream).query)
    views = asked["view"][0].split("\n")
    looks = [_look(started, view) for view in views]
    cpu, took = (sum(one[at] for one in looks) for at in (0, 1))
    return cpu, cpu / (took + pause_after(took, float(asked["interval"][0]), is_whole=True))


def _cost(browser: Browser, started: Started, name: str) -> Cost:
    place, heading = PAGES[name]
    # The policy of the page forbids what waits for a condition.
    context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    streams: dict[str, None] = {}
    ended: set[str] = set()

    def asked(request: Request) -> None:
        if "/v1/live?" in request.url:
            streams[request.url] = None

    page.on("request", asked)
    page.on("requestfailed", lambda one: ended.add(one.url))
    began = time.monotonic()
    page.goto(f"{started.console}{place}")
    page.get_by_role("heading", level=1, name=heading).wait_for()
    page.wait_for_function("!document.body.innerText.includes('Loading')")
    shown = time.monotonic() - began
    page.wait_for_timeout(SETTLED_MS)
    longest, elements = page.evaluate(FRAMES, SCROLLS)
    page.wait_for_timeout(SETTLED_MS)
    followed = [one for one in streams if one not in ended]
    assert followed, name
    context.close()
    looks = [_share(started, one) for one in followed]
    cpu, share = (sum(one[at] for one in looks) for at in (0, 1))
    return Cost(cpu, share, longest / 1e3, elements, shown)


def _pages(started: Started, rounds: int) -> list[Result]:
    results = []
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=installed("chromium"), args=flags)
        for name in PAGES:
            costs = [_cost(browser, started, name) for _ in range(rounds)]
            best = Cost(*map(min, zip(*costs, strict=True)))
            print(
                f"{name}: {best.share:.2%} of a core, {best.look * 1e3:.0f} ms for each look; "
                f"longest task while scrolling {best.longest_task_seconds * 1e3:.0f} ms; "
                f"{best.elements:,} elements; shown after {best.shown_seconds:.1f} s",
                flush=True,
            )
            for label, value, goal in (
                ("share of a core", best.share, PAGE_SHARE),
                ("longest task while scrolling, s", best.longest_task_seconds, LONGEST_SECONDS),
                ("elements", best.elements, ELEMENTS_MOST),
            ):
                results.append(
                    Result(
                        f"{name}: {label}",
                        max(value, TINY),
                        goal,
                        at_least=False,
                        ours=f"{value:.3g}",
                        peer=f"{best.look * 1e3:.0f} ms for each look",
                    )
                )
        browser.close()
    return results


async def _bulk(url: str) -> None:
    """Count, and then retry, the dead letters of one error."""
    async with maitred.connect(url, timeout_seconds=60) as client:
        for dry_run in (True, False):
            began, cursor, matched, steps = time.monotonic(), None, 0, []
            while True:
                step_began = time.monotonic()
                step = await change_matching(
                    client,
                    ID,
                    "retry",
                    ["dead"],
                    TaskFilter(error="ValueError"),
                    reveal=True,
                    dry_run=dry_run,
                    cursor=cursor,
                )
                steps.append(time.monotonic() - step_began)
                cursor = step.cursor
                matched += step.matched
                if cursor is None:
                    break
            print(
                f"{'dry run of a retry' if dry_run else 'retry'}: {matched:,} dead letters in "
                f"{time.monotonic() - began:.1f} s, longest step {max(steps):.2f} s",
                flush=True,
            )


def measure(given: Any) -> list[Result]:  # noqa: ANN401 - the arguments
    """Fill, open the pages, and retry in bulk."""
    with tempfile.TemporaryDirectory(prefix="console-") as place, node(Path(place)) as started:
        began = time.monotonic()
        asyncio.run(_fill(started.url, given.queues, given.dead))
        print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        workers = context.Process(
            target=_work, args=(started.url, given.workers, theirs), daemon=True
        )
        workers.start()
        try:
            assert ours.recv() == "ready"
            print(f"workers after {time.monotonic() - began:.0f} s", flush=True)
            results = _pages(started, given.rounds)
        finally:
            workers.kill()
            workers.join()
        asyncio.run(_bulk(started.url))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console")
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--dead", type=int, default=DEAD)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    results = measure(parser.parse_args())
    report("console", results)
    return 0 if all(result.met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
