"""Durable tasks: a queue served by a function, options, results, retries, dead letters, cancelling.

The same file is the app that `maitred worker tasks:app` serves, and the program that uses it.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from maitred import App
from maitred.errors import (
    InvalidArguments,
    NoHandlerFits,
    TaskCancelled,
    TaskFailed,
    UnknownQueue,
)

app = App("shop")


@app.handler("thumbnails", retries=3, timeout=30)
async def thumbnail(url: str, size: int) -> str:
    return f"{url} at {size} x {size}"


@app.handler("invoices")
def invoice(order: int, amounts: list[float]) -> float:
    """An ordinary function: it runs in a thread."""
    return order + sum(amounts)


@app.handler("mails", retries=1, backoff=0.01)
async def mail(to: str) -> None:
    raise ConnectionError(f"no answer from {to}")


older = App("shop")


@older.handler("thumbnails")
async def thumbnail_before(url: str) -> str:
    """As a program that was not updated has it: no worker takes this any more."""
    raise NotImplementedError


@older.handler("posters", require_worker=True)
async def poster(url: str) -> str:
    """No worker serves this queue."""
    raise NotImplementedError


async def produce() -> None:
    async with app:
        task = await thumbnail.enqueue("https://example.com/a.png", size=128)
        print("one:", await task.result(timeout=10))

        calls = [invoice.call(order, [1.5, order]) for order in range(1_000)]
        tasks = await invoice.enqueue_many(calls)
        print("many:", sum(await asyncio.gather(*(task.result(timeout=30) for task in tasks))))

        urgent = thumbnail.options(priority=0, retention=3600)
        print("urgent:", await (await urgent.enqueue("b.png", 64)).result(timeout=10))

        tomorrow = await thumbnail.options(delay=86_400).enqueue("c.png", 64)
        print("cancelled:", await tomorrow.cancel())
        with contextlib.suppress(TaskCancelled):
            await tomorrow.result(timeout=10)

        try:
            await (await mail.enqueue("nobody@example.com")).result(timeout=10)
        except TaskFailed as problem:
            print("failed:", problem.kind, "after", problem.attempts, "attempts")

        try:
            await thumbnail.enqueue("d.png", size="large")  # type: ignore[arg-type]
        except InvalidArguments as problem:
            print("refused:", problem.code)

    async with older:
        try:
            await thumbnail_before.enqueue("e.png")
        except NoHandlerFits as problem:
            print("refused:", problem.sentence)
        try:
            await poster.enqueue("f.png")
        except UnknownQueue as problem:
            print("refused:", problem.code)


def main() -> None:
    with tempfile.TemporaryDirectory() as data, contextlib.ExitStack() as processes:
        maitred = [sys.executable, "-m", "maitred"]
        node = processes.enter_context(
            subprocess.Popen(  # noqa: S603 - it is our own command
                [*maitred, "up", "--json", "--shards", "2", "--port", "0", "--data", data],
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
                [*maitred, "worker", "tasks:app", "--slots", "8"],
                cwd=Path(__file__).parent,
                stderr=subprocess.DEVNULL,
            )
        )
        processes.callback(worker.terminate)
        asyncio.run(produce())
        dead = [*maitred, "admin", "queue", "dead", "list", "shop/mails", "--json", "--url", url]
        shown = subprocess.run(dead, capture_output=True, check=True)  # noqa: S603 - our own command
        print("dead letters:", len(json.loads(shown.stdout)["letters"]))


if __name__ == "__main__":
    main()

# Prints:
# | one: https://example.com/a.png at 128 x 128
# | many: 1000500.0
# | urgent: b.png at 64 x 64
# | cancelled: cancelled
# | failed: ConnectionError after 2 attempts
# | refused: invalid-arguments
# | refused: thumbnail lacks its argument 'size'.
# | refused: unknown-queue
# | dead letters: 1
