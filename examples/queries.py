"""Queries: asking, streams, deadlines, a handler's own errors, cancelling, the query table.

The same file is the app that `maitred worker queries:app` serves, and the program that asks.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import maitred
from maitred import App
from maitred.errors import DeadlineExceeded, QueryFailed, UnknownQueue

app = App("desk")

PRICES = {"FDP": 100.0, "ACME": 50.0}


@app.handler("price")
async def price(symbol: str, size: int = 1) -> float:
    return size * PRICES[symbol]


@app.handler("report")
def report(seconds: float) -> str:
    """An ordinary function: it runs in a thread, and looks itself whether anybody waits."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if maitred.current().cancelled:
            return "stopped"
        time.sleep(0.01)
    return "finished"


@app.handler("ticks")
async def ticks(symbol: str, count: int) -> AsyncIterator[float]:
    """A generator: its rows come as a stream, and its slot is taken to the end of it."""
    for number in range(count):
        yield PRICES[symbol] + number


async def ask() -> None:
    async with app:
        print("one:", await price.query("FDP", size=3))

        answers = await asyncio.gather(*(price.query("ACME", size) for size in range(1_000)))
        print("many:", sum(answers))

        urgent = price.options(priority=0, timeout=5, idempotent=True)
        print("urgent:", await urgent.query("ACME"))

        print("stream:", [tick async for tick in ticks.stream("FDP", 3)])
        async for tick in ticks.stream("FDP", 1_000_000):
            print("left early:", tick)
            break

        try:
            await price.query("NONE")
        except QueryFailed as problem:
            print("its own error:", problem.kind, problem.message)

        try:
            await report.options(timeout=0.2).query(60)
        except DeadlineExceeded as problem:
            print("too late:", problem.code)

        waiting = asyncio.create_task(report.query(60))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        print("taken back:", waiting.cancelled())


async def ask_by_name(url: str) -> None:
    """Without the app: a queue's name, and arguments. The client is a gateway of its own."""
    async with maitred.connect(url) as client:
        print("by name:", await client.query("desk/price", named={"symbol": "FDP"}, timeout=5))
        try:
            await client.query("desk/prize", "FDP")
        except UnknownQueue as problem:
            print("unknown:", problem.code, "price" in str(problem))
        command = [*MAITRED, "admin", "query", "list", "--json", "--url", url]
        listing = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        shown = json.loads((await listing.communicate())[0])["queries"]
        mine = [row for row in shown if row["queue"] in ("price", "prize")]
        print("the table:", sorted(Counter(row["status"] for row in mine).items()))


MAITRED = [sys.executable, "-m", "maitred"]


def main() -> None:
    with tempfile.TemporaryDirectory() as data, contextlib.ExitStack() as processes:
        node = processes.enter_context(
            subprocess.Popen(  # noqa: S603 - it is our own command
                [*MAITRED, "up", "--json", "--shards", "2", "--port", "0", "--data", data],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        processes.callback(node.terminate)
        assert node.stdout  # noqa: S101
        url = os.environ["MAITRED_URL"] = json.loads(node.stdout.readline())["url"]
        worker = processes.enter_context(
            subprocess.Popen(  # noqa: S603 - it is our own command
                [*MAITRED, "worker", "queries:app", "--slots", "8"],
                cwd=Path(__file__).parent,
                stderr=subprocess.DEVNULL,
            )
        )
        processes.callback(worker.terminate)
        wait_for_workers(url)
        asyncio.run(ask())
        asyncio.run(ask_by_name(url))


def wait_for_workers(url: str) -> None:
    """A queue that nobody ever served is unknown; this one is about to be."""
    command = [*MAITRED, "admin", "worker", "list", "--json", "--url", url]
    while True:
        shown = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - our own
        if json.loads(shown.stdout)["workers"]:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()

# Prints:
# | one: 300.0
# | many: 24975000.0
# | urgent: 50.0
# | stream: [100.0, 101.0, 102.0]
# | left early: 100.0
# | its own error: KeyError 'NONE'
# | too late: deadline-exceeded
# | taken back: True
# | by name: 100.0
# | unknown: unknown-queue True
# | the table: [('done', 1), ('refused', 1)]
