"""People ask a node for the query tables of all gateways; so each gateway waits there for orders.

One request is held at shard 0 of each node. What it brings is done at once, and told in a request
of its own, while the next one is already waiting.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from maitred.dispatch.query_states import UNDER_WAY
from maitred.errors import (
    Closed,
    DeadlineExceeded,
    MaitredError,
    PermissionDenied,
    UnknownRequest,
)
from maitred.protocol.queries import Report, Watch, Watched

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from maitred.client.client import AsyncClient
    from maitred.client.query_gateway import QueryGateway
    from maitred.protocol.queries import Order, QueryRow

HOLD_SECONDS: Final = 60.0
"""How long one request waits for orders."""

PAUSE_SECONDS: Final = 1.0
"""After one that failed."""

REFUSED_SECONDS: Final = 60.0
"""After one that was refused: by a node that knows no queries, or for want of permission."""

REPORT_SECONDS: Final = 5.0


class QueryTableWatch:
    """Waits for orders at every node."""

    def __init__(self, client: AsyncClient, querying: QueryGateway) -> None:
        self._client = client
        self._querying = querying
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self) -> None:
        """Begin; at the nodes of the client's address."""
        for node in self._client.nodes():
            self._spawn(self._watch(node.address))

    async def stop(self) -> None:
        """Wait for nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _spawn(self, running: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(running)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _watch(self, node: str) -> None:
        querying = self._querying
        while True:
            try:
                message = Watch(0, 0, querying.session, querying.name)
                answer = await self._client.request(message, HOLD_SECONDS, node=node, patient=True)
            except DeadlineExceeded:
                continue
            except Closed:
                return
            except (UnknownRequest, PermissionDenied):
                await asyncio.sleep(REFUSED_SECONDS)
                continue
            except MaitredError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if isinstance(answer, Watched):
                for order in answer.orders:
                    self._spawn(self._report(node, order.number, self._obey(order)))

    def _obey(self, order: Order) -> list[QueryRow]:
        querying = self._querying
        rows = querying.table.rows(order.filter)
        if order.action != "cancel":
            return rows
        stopped = [row for row in rows if row.status in UNDER_WAY]
        for row in stopped:
            querying.cancel(row.sequence)
        return stopped

    async def _report(self, node: str, number: int, rows: list[QueryRow]) -> None:
        message = Report(0, 0, self._querying.session, number, rows)
        try:
            await self._client.request(message, REPORT_SECONDS, node=node)
        except MaitredError:
            return  # whoever asked was told that we are silent
