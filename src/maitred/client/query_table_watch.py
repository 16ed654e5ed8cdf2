"""A gateway's long poll (WATCH) for the orders of operators: to list or cancel its queries.

Operators ask every node for the query tables of its gateways. In a cluster each gateway keeps a
long poll at shard 0 of one member, and at another one when that member has left; otherwise at shard
0 of each node of its address. The gateway carries the orders of an answer out at once, and reports
to the node in a request of its own, while the next long poll is already waiting.
"""

from __future__ import annotations

import asyncio
from functools import partial
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
    from collections.abc import Callable

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
        self._loop = asyncio.get_running_loop()
        self._tasks = BackgroundTasks(self._loop)
        self._watching: dict[str, asyncio.Task[None]] = {}
        """The long poll at each node, by the node's name."""
        self._unfollow: Callable[[], None] | None = None

    def start(self) -> None:
        """Start a long poll at each node that is to have one, and follow the cluster."""
        self._unfollow = self._client.follow_routes(self._rerouted)
        self._rerouted()

    async def stop(self) -> None:
        """End the long polls."""
        if self._unfollow is not None:
            self._unfollow()
        watching = list(self._watching.values())
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)
        await self._tasks.stop()

    def _rerouted(self) -> None:
        """Begin and end long polls, so that there is one at each node that is to have one."""
        nodes = self._client.watched_nodes()
        if len(nodes) == 1 and len(self._watching) == 1 and self._is_known(*self._watching):
            return  # one of several members is as good as another
        for node in [node for node in self._watching if node not in nodes]:
            self._watching.pop(node).cancel()
        for node in nodes:
            if node not in self._watching:
                task = self._watching[node] = self._loop.create_task(self._watch(node))
                task.add_done_callback(partial(self._ended, node))

    def _is_known(self, node: str) -> bool:
        return any(one.address == node and one.covered for one in self._client.nodes())

    def _ended(self, node: str, task: asyncio.Task[None]) -> None:
        if self._watching.get(node) is task:
            del self._watching[node]

    async def _watch(self, node: str) -> None:
        querying = self._querying
        while self._watching.get(node) is asyncio.current_task():
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
                self._rerouted()  # the member may be gone, and others alive
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
