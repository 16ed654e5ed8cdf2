"""A worker that offers slots and refuses them, beside one that works: real ones, at a real node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from maitred import App
from maitred.settings import QuerySettings, Queue
from tests.queries_real.house import PATIENCE_SECONDS, scene

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred import AsyncClient
    from maitred.worker.worker import Worker

    Run = Callable[[Coroutine[Any, Any, None]], None]

ASKERS = 4
"""At once: as many as either worker has slots."""
QUEUES = {"*": Queue(queries=QuerySettings(policy="idle"))}


class Kiosk:
    """Sells, and counts."""

    def __init__(self) -> None:
        self.app = app = App("kiosk")
        self.sold = 0

        @app.handler("sell")
        async def sell() -> str:
            self.sold += 1
            await asyncio.sleep(0)
            return "sold"


class Liar:
    """A worker that says that its slots are free, and means it only when it is told to."""

    def __init__(self, worker: Worker) -> None:
        self.honest = False
        self.refused = 0
        self._take = worker._slots.take
        worker._slots.take = self.take  # type: ignore[method-assign]

    def take(self) -> bool:
        if self.honest:
            return self._take()
        self.refused += 1
        return False


async def ask_all(client: AsyncClient, times: int) -> None:
    async def some() -> None:
        for _ in range(times // ASKERS):
            assert await client.query("kiosk/sell", timeout=20) == "sold"

    await asyncio.gather(*(some() for _ in range(ASKERS)))


def test_the_other_gets_nearly_everything_and_it_is_used_again_when_it_is_honest(run: Run) -> None:
    async def main() -> None:
        good, bad = Kiosk(), Kiosk()
        async with scene(good.app, queues=QUEUES) as made:
            await made.worker("good", warm_seconds=0.0)
            serving = await made.worker("bad", app=bad.app, warm_seconds=0.0)
            liar = Liar(serving.worker)
            client = await made.client()
            await ask_all(client, 200)
            before = liar.refused
            assert before >= 18
            await ask_all(client, 400)
            assert liar.refused - before <= 20, "a slot is tried now and then: at 50, 100, ... ms"
            assert (good.sold, bad.sold) == (600, 0)
            liar.honest = True
            sold = -1
            async with asyncio.timeout(PATIENCE_SECONDS):
                while bad.sold - sold <= 50:  # of 200, in which both have a part
                    sold = bad.sold
                    await ask_all(client, 200)

    run(main())
