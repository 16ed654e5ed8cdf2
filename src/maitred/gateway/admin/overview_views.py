"""Shows many queues at once, as far as the caller may see them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from maitred.client.queue_problems import ProblemFinder
from maitred.client.queue_states import QueuePages
from maitred.client.series import gather_series
from maitred.errors import InvalidArgument
from maitred.gateway.admin.answers import ListedQueues, QueueProblems, QueueRow, SeriesState
from maitred.gateway.admin.page_cursors import read_page, write_page
from maitred.gateway.admin.told_errors import unreachable_shards
from maitred.metrics.points import STEP_SECONDS, STEPS
from maitred.routing.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maitred.client.queue_states import ListedQueue
    from maitred.client.statistics import Unreachable
    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway


PAGE: Final = 100
"""Queues of a page unless the caller says otherwise."""

SCAN_SECONDS: Final = 1.0
"""How long one request looks for queues that need attention."""

_ONLY: Final[dict[str, Callable[[ListedQueue], bool]]] = {
    "paused": lambda one: one.pause is not None,
    "unserved": lambda one: one.backlog > 0 and not one.workers,
    "dead": lambda one: one.dead > 0,
}

ONLY: Final = tuple(_ONLY)
"""What a list of queues can be restricted to."""


class OverviewViews:
    """The views of many queues."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway
        self._pages: QueuePages | None = None
        self._finder: ProblemFinder | None = None

    async def queues(self, caller: AdminCaller, params: Mapping[str, Any]) -> ListedQueues:
        """Return a page of the queues."""
        namespace, match = params.get("namespace", ""), params.get("match", "")
        if namespace:
            check_name("namespace", namespace)
        sort, only = params.get("sort", "name"), params.get("only")
        within = caller.namespaces("read", namespace)
        page_of = ("queues", namespace, match, sort, only)
        place = read_page(params.get("cursor"), *page_of)
        pages = self._queue_pages()
        loop = asyncio.get_running_loop()
        until = loop.time() + SCAN_SECONDS
        silent: dict[tuple[str, int | None], Unreachable] = {}
        while True:
            page = await pages.page(
                namespace=namespace,
                match=match,
                sort=sort,
                most=params.get("most", PAGE),
                cursor=place,
                within=within,
            )
            silent |= {(one.address, one.shard): one for one in page.unreachable}
            found = page.queues if only is None else list(filter(_ONLY[only], page.queues))
            place = page.cursor
            if found or place is None or loop.time() >= until:
                break
        return ListedQueues(
            [_row(one) for one in found],
            await pages.namespaces(caller.namespaces("read")),
            write_page(place, *page_of),
            unreachable_shards(silent.values()),
        )

    async def problems(self, caller: AdminCaller, params: Mapping[str, Any]) -> QueueProblems:
        """Return what is wrong with the queues that the caller may see."""
        namespace = params.get("namespace", "")
        if namespace:
            check_name("namespace", namespace)
        if self._finder is None:
            self._finder = ProblemFinder(self._gateway.requester(), self._queue_pages())
        found = await self._finder.find(
            namespace,
            within=caller.namespaces("read", namespace),
            reveal=lambda one: caller.allows(one, "reveal"),
        )
        return QueueProblems(
            found.problems, found.looked_at, found.total, unreachable_shards(found.unreachable)
        )

    def _queue_pages(self) -> QueuePages:
        if self._pages is None:
            self._pages = QueuePages(self._gateway.requester())
        return self._pages

    async def series(self, caller: AdminCaller, params: Mapping[str, Any]) -> SeriesState:
        """Return the last hour of a queue, of a namespace, or of all that the caller may see."""
        namespace, queue = named_queue(params)
        found = await gather_series(
            self._gateway.requester(),
            namespace=namespace,
            queue=queue,
            seconds=params.get("seconds", STEPS * STEP_SECONDS),
            within=caller.namespaces("read", namespace),
        )
        return SeriesState(
            found.step_seconds, found.start, found.points, unreachable_shards(found.unreachable)
        )


def _row(one: ListedQueue) -> QueueRow:
    return QueueRow(
        namespace=one.namespace,
        queue=one.queue,
        backlog=one.backlog,
        oldest_seconds=one.oldest_seconds,
        running=one.running,
        slots_free=one.slots_free,
        added_per_second=one.added_per_second,
        finished_per_second=one.finished_per_second,
        failed=one.failed,
        died=one.died,
        dead=one.dead,
        paused=one.pause,
        partitions=one.partitions,
        workers=one.workers,
        queries_waiting=one.queries_waiting,
        delayed=one.delayed,
        recent_ended=one.recent_ended,
        recent_failed=one.recent_failed,
        run_p50=one.run_p50_seconds,
        run_p99=one.run_p99_seconds,
    )


def named_queue(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the namespace and the queue that the parameters name, or empty texts; raise
    `InvalidArgument` for a queue without its namespace."""
    namespace, queue = params.get("namespace", ""), params.get("queue", "")
    if namespace:
        check_name("namespace", namespace)
    if queue:
        check_name("queue", queue)
        if not namespace:
            raise InvalidArgument(
                "The parameter 'queue' goes with 'namespace'.", remedy="Give both."
            )
    return namespace, queue
