"""What tests of queries have: a fake node, fake workers, a client and its gateway."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import msgpack

from maitred.client.query_gateway import QueryGateway
from maitred.dispatch.ask import Ask
from maitred.settings import Querying as Settings
from maitred.settings import QueryLimits
from maitred.surroundings import Surroundings
from tests.client.waiters import FakeFloor, FakeWorker, floor, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from maitred.client.client import AsyncClient


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **_fields: Any) -> None:  # noqa: ANN401 - as Log has it
        self.lines.append(event)

    info = warning


class Table:
    """Everything that a test of queries has: a node, workers, a client, its gateway."""

    def __init__(
        self,
        node: FakeFloor,
        workers: list[FakeWorker],
        client: AsyncClient,
        querying: QueryGateway,
    ) -> None:
        self.node = node
        self.workers = workers
        self.worker = workers[0]
        self.client = client
        self.querying = querying
        self.log = Log()

    def status(self, sequence: int = 1) -> str:
        return next(row.status for row in self.querying.table.rows() if row.sequence == sequence)

    def ask(self, *args: object, seconds: float = 10, **fields: Any) -> Ask:  # noqa: ANN401
        deadline = asyncio.get_running_loop().time() + seconds
        known: dict[str, Any] = {"namespace": "n", "queue": "q", "deadline": deadline}
        return Ask(**{"payload": msgpack.encode(args), **known, **fields})


@asynccontextmanager
async def table(
    workers: int = 1,
    *,
    hook: Callable[[Ask], Ask | Awaitable[Ask]] | None = None,
    limits: Callable[[str], QueryLimits | None] | None = None,
    **settings: Any,  # noqa: ANN401 - of querying
) -> AsyncIterator[Table]:
    async with floor(workers) as (node, made), node.connect(close_seconds=0.05) as client:
        log = Log()
        querying = QueryGateway(
            client,
            Settings(**settings),
            Surroundings.real(),
            log,
            name="gate",
            hook=hook,
            limits=limits,
        )
        client.ask_with(querying)
        scene = Table(node, made, client, querying)
        scene.log = log
        yield scene
        if not querying.closed:
            assert querying.under_way == 0, "everything came to an end"
            assert querying.table.under_way == 0
            requests = querying.dispatcher.slot_requests
            assert not querying.dispatcher._pauses
            lines = requests.lines.values()
            await until(lambda: all(line.idle for line in lines))


def hold(scene: Table) -> None:
    """The workers answer nothing by themselves."""
    for worker in scene.workers:
        worker.serve = lambda _: None
