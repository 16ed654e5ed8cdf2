"""A shop with six handlers: one fails at times, one is slow, one is not served. Which, and why?

`maitred admin problems` says it, GET /v1/problems and the console's overview say the same. The same
file is the app that `maitred worker troubleshooting:app` serves, and the program that finds the
problems and mends them.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from maitred import App

app = App("shop")

ORDERS = 24
REPORTS = 2_000
"""Of 0.3 s each: one slot needs ten minutes for them."""


def rates() -> dict[str, float]:
    """Read the exchange rates; Swiss francs were forgotten."""
    found: dict[str, float] = json.loads(Path(os.environ["SHOP_RATES"]).read_text())
    return found


@app.handler("orders")
async def confirm(order: int) -> int:
    return order


@app.handler("mails")
async def mail(order: int, to: str) -> str:
    return f"{to}: we have your order {order}"


@app.handler("stock")
async def reserve(order: int, article: str) -> str:
    return f"a {article} for order {order}"


@app.handler("payments", retries=1, backoff=0.01)
async def charge(cents: int, currency: str) -> float:
    if currency not in rates():
        raise LookupError(f"no exchange rate for {currency}")
    return rates()[currency] * cents


@app.handler("reports")
async def report(order: int) -> int:
    await asyncio.sleep(0.3)  # whatever takes so long
    return order


@app.handler("invoices")
async def invoice(order: int) -> int:
    return order


async def sell() -> None:
    """Add the tasks of a morning."""
    async with app:
        for order in range(ORDERS):
            await confirm.enqueue(order)
            await mail.enqueue(order, "ann@example.com")
            await reserve.enqueue(order, "chair")
            await charge.enqueue(4_900, "CHF" if order % 3 == 0 else "EUR")
            await invoice.enqueue(order)
        await report.enqueue_many([report.call(order) for order in range(REPORTS)])


MAITRED = [sys.executable, "-m", "maitred"]


def started(processes: contextlib.ExitStack, *arguments: str) -> "subprocess.Popen[str]":
    """Start a process of maitred that ends with the program."""
    process = processes.enter_context(
        subprocess.Popen(  # noqa: S603 - it is our own command
            [*MAITRED, *arguments],
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    )
    processes.callback(process.terminate)
    return process


def work(processes: contextlib.ExitStack, slots: int, *queues: str) -> None:
    """Start a worker for some of the queues."""
    options = [part for queue in queues for part in ("--queue", queue)]
    fixed = ["--slots", str(slots), "--limit", "slots"]
    started(processes, "worker", "troubleshooting:app", *fixed, *options)


def admin(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [*MAITRED, "admin", *arguments]
    return subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603


def problems_when(is_there: "set[str]") -> "list[dict[str, str]]":
    """Ask what is wrong until it is these kinds of problems."""
    while True:
        found: list[dict[str, str]] = json.loads(admin("problems", "--json").stdout)["problems"]
        if {one["kind"] for one in found} == is_there:
            return found
        time.sleep(0.1)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as processes:
        file = Path(directory, "rates.json")
        file.write_text('{"EUR": 1.0}')
        os.environ["SHOP_RATES"] = str(file)
        options = ["--json", "--shards", "1", "--port", "0", "--data", f"{directory}/data"]
        node = started(processes, "up", *options)
        assert node.stdout  # noqa: S101
        os.environ["MAITRED_URL"] = json.loads(node.stdout.readline())["url"]
        work(processes, 8, "orders", "mails", "stock", "payments")
        work(processes, 1, "reports")
        asyncio.run(sell())

        for one in problems_when({"unserved", "failing", "behind"}):
            # How long it takes, and how much waits, is different each time.
            why = one["why"].split(" takes")[0]
            print(f"{one['queue']} is {one['kind']}: {why}")

        work(processes, 8, "invoices")
        file.write_text('{"EUR": 1.0, "CHF": 0.93}')
        print(admin("task", "retry", "shop/payments", "--all", "--yes").stdout.strip())
        work(processes, 500, "reports")

        problems_when(set())
        print(admin("problems").stdout.strip())


if __name__ == "__main__":
    main()

# Prints:
# | invoices is unserved: no worker serves it
# | payments is failing: LookupError: no exchange rate for CHF (8)
# | reports is behind: an attempt
# | 8 tasks will be tried again.
# | Nothing is wrong: looked at 6 queues.
