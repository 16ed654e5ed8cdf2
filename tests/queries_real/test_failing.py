"""A worker that answers errors at once, beside one that works: real ones, at a real node."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from maitred import App
from maitred.errors import QueryFailed
from maitred.settings import QuerySettings, Queue
from tests.client.waiters import until
from tests.queries_real.house import scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from maitred import AsyncClient
    from maitred.worker.worker import Worker

    Run = Callable[[Coroutine[Any, Any, None]], None]

WORK_SECONDS = 0.02
ASKERS = 8
"""At once: as many as both workers have slots."""


class Cook:
    """Cooks for a moment, or raises at once."""

    def __init__(self, *, works: bool) -> None:
        self.app = app = App("kitchen")
        self.works = works
        self.asked = 0

        @app.handler("cook")
        async def cook() -> str:
            self.asked += 1
            if not self.works:
                raise OSError("no gas")
            await asyncio.sleep(WORK_SECONDS)
            return "done"


async def ask(client: AsyncClient) -> bool:
    with suppress(QueryFailed):
        return bool(await client.query("kitchen/cook", timeout=20))
    return False


async def ask_all(client: AsyncClient, times: int) -> int:
    """How many were answered well, of so many."""

    async def some() -> int:
        return sum([await ask(client) for _ in range(times // ASKERS)])

    return sum(await asyncio.gather(*(some() for _ in range(ASKERS))))


@asynccontextmanager
async def asking(client: AsyncClient) -> AsyncIterator[None]:
    """All the time."""

    async def on_and_on() -> None:
        while True:
            await ask(client)

    tasks = [asyncio.create_task(on_and_on()) for _ in range(ASKERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_held_back(worker: Worker) -> bool:
    return worker._served[0].held_back


def test_under_idle_it_attracts_nothing_and_is_used_again_when_it_works(run: Run) -> None:
    async def main() -> None:
        good, bad = Cook(works=True), Cook(works=False)
        async with scene(
            good.app, queues={"*": Queue(queries=QuerySettings(policy="idle"))}
        ) as made:
            await made.worker("good")
            broken = (await made.worker("bad", app=bad.app)).worker
            client = await made.client()
            async with asking(client):
                await until(lambda: is_held_back(broken))
            before = bad.asked
            done = await ask_all(client, 160)
            assert done >= 140
            assert bad.asked - before <= 20, "a probe now and then: at 20, 40, 80, ... ms"
            bad.works = True
            async with asking(client):
                await until(lambda: not is_held_back(broken))
            before = bad.asked
            assert await ask_all(client, 160) == 160
            assert bad.asked - before > 40, "about half of them"

    run(main())


def test_what_fails_everywhere_holds_nobody_back(run: Run) -> None:
    async def main() -> None:
        cooks = [Cook(works=False), Cook(works=False)]
        async with scene(cooks[0].app) as made:
            workers = [(await made.worker("alone")).worker]
            client = await made.client()
            await ask_all(client, 400)
            assert workers[0].statistics.held_back == 0
            workers.append((await made.worker("second", app=cooks[1].app)).worker)
            async with asking(client):
                await until(lambda: all(one._served[0].health.good < 0.2 for one in workers))
                await until(lambda: not any(map(is_held_back, workers)))
                counts = [one.statistics.held_back for one in workers]
                asked = sum(cook.asked for cook in cooks)
                await until(lambda: sum(cook.asked for cook in cooks) > asked + 1_000)
            assert [one.statistics.held_back for one in workers] == counts

    run(main())
