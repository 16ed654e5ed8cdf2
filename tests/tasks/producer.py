"""A producer as a process: `python -m tests.tasks.producer NUMBER FILE`, until SIGTERM.

It adds tasks in bursts, and writes the number of each into the file as soon as `enqueue` has
returned: those must never be lost, whoever is killed. Errors are what a killed node gives; each is
counted by its code and printed at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

from maitred.errors import MaitredError
from tests.tasks.shop import app, order, printed

if TYPE_CHECKING:
    from maitred.app.handler import Handler

OF_ONE_PRODUCER = 1_000_000
BURST_MAX = 10
PAUSE_SECONDS = 0.04
LONG_RUN_SECONDS = 0.2


async def produce(number: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    choose = random.Random(number)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    problems: Counter[str] = Counter()

    async def one(handler: Handler, which: int, seconds: float) -> None:  # type: ignore[type-arg]
        try:
            await handler.enqueue(which, seconds)
        except MaitredError as problem:
            problems[problem.code] += 1
        else:
            os.write(file, f"{which}\n".encode())

    print("ready", flush=True)
    which = number * OF_ONE_PRODUCER
    while not stopping.is_set():
        burst = []
        for _ in range(choose.randint(1, BURST_MAX)):
            seconds = choose.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0.01, LONG_RUN_SECONDS))
            handler = order if choose.random() < 0.8 else printed
            burst.append(one(handler, which, seconds))
            which += 1
        await asyncio.gather(*burst)
        await asyncio.sleep(PAUSE_SECONDS)
    print(dict(problems))
    await app.close()


if __name__ == "__main__":
    asyncio.run(produce(int(sys.argv[1]), sys.argv[2]))
