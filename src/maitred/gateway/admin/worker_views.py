"""Shows the workers that serve queues, and what they run.

A worker may serve queues of several namespaces: a caller sees the worker, but of its queues, tasks
and queries only those in namespaces that it may read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from maitred.client.cursors import read_cursor, write_cursor
from maitred.client.gauge_series import SECONDS_MAX, gather_worker_series
from maitred.client.task_rows import place_text
from maitred.client.worker_lists import BEGINNING, list_workers, worker_tasks
from maitred.gateway.admin.answers import ListedWorker, ListedWorkers, RunningItem, WorkerPast
from maitred.gateway.admin.overview_views import named_queue
from maitred.gateway.admin.page_cursors import read_page, write_page
from maitred.gateway.admin.told_errors import unreachable_shards
from maitred.metrics.points import STEP_SECONDS
from maitred.protocol.queries import QueryFilter
from maitred.protocol.tasks import WorkerName  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maitred.client.worker_lists import WorkerPlace
    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway
    from maitred.protocol.queries import WorkerRow
    from maitred.protocol.worker_overview import WorkerTask

PAGE: Final = 100
"""Workers of a page unless the caller says otherwise."""

QUERIES_MAX: Final = 1_000
"""Most running queries that are looked through for one page."""


class WorkerCursor(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Behind which worker a list goes on."""

    worker: WorkerName
    session: Annotated[bytes, Meta(max_length=16)]


class WorkerViews:
    """The views of workers."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def workers(self, caller: AdminCaller, params: Mapping[str, Any]) -> ListedWorkers:
        """Return a page of the workers."""
        namespace, queue = named_queue(params)
        match = params.get("match", "")
        within = caller.namespaces("read", namespace)
        page_of = ("workers", namespace, queue, match)
        client = self._gateway.requester()
        page = await list_workers(
            client,
            namespace=namespace,
            queue=queue,
            match=match,
            after=_resumed(read_page(params.get("cursor"), *page_of)),
            most=params.get("most", PAGE),
            within=within,
        )
        sessions = [one.row.session for one in page.workers]
        tasks, silent = await worker_tasks(client, sessions, namespace=namespace, within=within)
        queries = self._queries(namespace, within)
        rows = []
        for one in page.workers:
            row = worker_of(one.row, one.queues, one.queue_count)
            row.running = [_task(task) for task in tasks.get(one.row.session, ())]
            row.running += queries.get(one.row.worker, [])
            rows.append(row)
        at = None if page.after is None else write_cursor(WorkerCursor(*page.after))
        silent_shards = {(one.address, one.shard): one for one in (*page.unreachable, *silent)}
        return ListedWorkers(
            rows, write_page(at, *page_of), unreachable_shards(silent_shards.values())
        )

    async def series(
        self, caller: AdminCaller, params: Mapping[str, Any], session: str
    ) -> WorkerPast:
        """Return the last hour of a worker."""
        found = await gather_worker_series(
            self._gateway.requester(),
            bytes.fromhex(session),
            seconds=params.get("seconds", SECONDS_MAX),
            within=caller.namespaces("read"),
        )
        return WorkerPast(
            STEP_SECONDS, found.start, found.points, unreachable_shards(found.unreachable)
        )

    def _queries(self, namespace: str, within: list[str] | None) -> dict[str, list[RunningItem]]:
        """Return the queries of this gateway that run, by the name of their worker."""
        found: dict[str, list[RunningItem]] = {}
        table = self._gateway.ask().table
        for status in ("running", "streaming"):
            wanted = QueryFilter(namespace=namespace, status=status, most=QUERIES_MAX)
            for one in table.rows(wanted):
                if within is None or one.namespace in within:
                    item = RunningItem(
                        queue=f"{one.namespace}/{one.queue}", since=one.sent_at, query=one.sequence
                    )
                    found.setdefault(one.worker, []).append(item)
        return found


def worker_of(
    row: WorkerRow, queues: Sequence[tuple[str, str]], queue_count: int | None = None
) -> ListedWorker:
    """Return a worker as callers see it, with the queues that they may see."""
    return ListedWorker(
        worker=row.worker,
        session=row.session.hex(),
        address=row.address,
        queues=[f"{namespace}/{queue}" for namespace, queue in queues],
        queue_count=len(queues) if queue_count is None else queue_count,
        slots=row.slots,
        busy=row.busy,
        limit=row.limit,
        limit_reason=row.limit_reason,
        state=row.state,
        online=row.state == "online",
        heard_seconds=row.heard_seconds,
        suspected=row.suspected,
        good=row.good,
        blocked=row.blocked,
    )


def _task(task: WorkerTask) -> RunningItem:
    return RunningItem(
        queue=f"{task.namespace}/{task.queue}",
        since=task.since,
        task=place_text((task.partition, task.sequence)),
        attempt=task.attempt,
    )


def _resumed(text: str | None) -> WorkerPlace:
    if text is None:
        return BEGINNING
    cursor = read_cursor(text, WorkerCursor)
    return cursor.worker, cursor.session
