"""A producer as a process: `python -m tests.cluster.producer JSON`, until SIGTERM.

It sends requests at a fixed rate, whether earlier ones were answered or not, and writes down what
came of each: tasks, tasks with a result that it waits for, and queries. It repeats nothing itself:
what fails here would fail at a user's.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import Literal

import msgspec

from maitred.errors import MaitredError
from tests.cluster.ledger import LEDGER_VARIABLE, Book
from tests.cluster.shop import QUERIES_OF, TASKS_OF, app

OF_ONE_PRODUCER = 1_000_000_000
IN_FLIGHT_MAX = 3_000
"""Beyond it the producer waits: it measures nothing then but its own memory."""
BEHIND_MAX_SECONDS = 1.0
"""A producer that was stopped for longer does not send at once what it should have sent."""
RESULT_SECONDS = 60.0
"""How long it waits for a result or an answer."""

Kind = Literal["enqueue", "result", "query"]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer is to do."""

    number: int
    rate: float
    """Requests a second, all queues together."""
    kinds: dict[Kind, float]
    """The share of each kind of request."""
    durations: tuple[float, ...] = (0.0,)
    """How long tasks and queries take, in seconds; one is chosen at random for each."""
    seed: int = 1
    queues: tuple[int, int] = (0, 0)
    """From the first to before the last; all if both are 0."""


class Producer:
    """Sends requests until it is told to stop."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._book = Book(os.environ[LEDGER_VARIABLE], f"producer{orders.number}")
        self._choose = random.Random(orders.seed)
        self._under_way: set[asyncio.Task[None]] = set()
        first, last = orders.queues
        self._tasks = TASKS_OF[first : last or None]
        self._queries = QUERIES_OF[first : last or None]

    async def run(self) -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        await app.session()
        print("ready", flush=True)
        number = self._orders.number * OF_ONE_PRODUCER
        due = time.monotonic()
        kinds, shares = list(self._orders.kinds), list(self._orders.kinds.values())
        while not stopping.is_set():
            due += 1 / self._orders.rate
            pause = due - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            elif pause < -BEHIND_MAX_SECONDS:
                due = time.monotonic()
            if len(self._under_way) >= IN_FLIGHT_MAX:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
                due = time.monotonic()
            number += 1
            kind = self._choose.choices(kinds, shares)[0]
            task = asyncio.create_task(self._one(kind, number))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        if self._under_way:
            await asyncio.wait(self._under_way)
        await app.close()
        print("done", flush=True)

    async def _one(self, kind: Kind, number: int) -> None:
        queue = self._choose.randrange(len(self._tasks))
        seconds = self._choose.choice(self._orders.durations)
        began = time.monotonic()
        op: str = kind
        id_ = ""
        try:
            if kind == "query":
                asked = self._queries[queue]
                answer = await asyncio.wait_for(asked.query(number, seconds), RESULT_SECONDS)
                self._came(number, asked.queue, "answered", began, right=answer == 2 * number)
                return
            handler = self._tasks[queue]
            op = "enqueue"
            task = await handler.enqueue(number, seconds)
            id_ = task.id
            self._book.note("acked", n=number, q=handler.queue, task=task.id, sent=began)
            if kind == "result":
                op = "result"
                began = time.monotonic()
                result = await task.result(RESULT_SECONDS)
                self._came(number, handler.queue, "resulted", began, right=result == number)
        except (MaitredError, TimeoutError) as problem:
            self._book.note(
                "failed",
                op=op,
                n=number,
                q=queue,
                task=id_,
                code=getattr(problem, "code", "timeout"),
                outcome=getattr(problem, "outcome", "unknown"),
                text=str(problem),
                sent=began,
            )

    def _came(self, number: int, queue: str, what: str, began: float, *, right: bool) -> None:
        self._book.note(what if right else "wrong", n=number, q=queue, sent=began)


if __name__ == "__main__":
    asyncio.run(Producer(msgspec.json.decode(sys.argv[1], type=Orders)).run())
