"""A gateway's long poll (WATCH) for the orders of operators: to list or cancel its queries.

Operators ask a node for the query tables of all gateways, so each gateway keeps a long poll at
shard 0 of each node. The gateway carries the orders of an answer out at once, and reports to the
node in a request of its own, while the next long poll is already waiting.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from maitred.dispatch.query_states import UNDER_WAY
from maitred.errors import (
    Closed,
    DeadlineExceeded,
    MaitredError,
    PermissionDenied,
    UnknownRequest,
)
from maitred.protocol.queries import Report, Watch, Watched
from maitred.wire.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    from maitred.client.requester import Requester
    from maitred.dispatch.query_table import QueryTable
    from maitred.protocol.queries import Order, QueryRow

HOLD_SECONDS: Final = 60.0
"""Deadline of one long poll."""

PAUSE_SECONDS: Final = 1.0
"""Pause after a long poll that failed."""

REFUSED_SECONDS: Final = 60.0
"""Pause after a long poll that was refused: by a node without queries, or without permission."""

REPORT_SECONDS: Final = 5.0


class WatchedGateway(Protocol):
    """The part of a gateway that carries out the orders of operators."""

    @property
    def name(self) -> str:
        """The gateway's name for operators; empty if it has none."""

    @property
    def session(self) -> bytes:
        """Identifies the gateway until it closes."""

    @property
    def table(self) -> QueryTable:
        """The gateway's queries, under way and ended."""

    def cancel(self, sequence: int) -> bool:
        """Cancel the query of that number; return False if it is over, or does not exist."""


class QueryTableWatch:
    """Receives orders from every node, and carries them out."""

    def __init__(self, client: Requester, querying: WatchedGateway) -> None:
        self._client = client
        self._querying = querying
        self._tasks = BackgroundTasks(asyncio.get_running_loop())

    def start(self) -> None:
        """Start a long poll at each node of the client's address."""
        for node in self._client.nodes():
            self._tasks.start(self._watch(node.address))

    async def stop(self) -> None:
        """End the long polls."""
        await self._tasks.stop()

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
                    self._tasks.start(self._report(node, order.number, self._obey(order)))

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
            return  # the node tells the operator that this gateway is silent
