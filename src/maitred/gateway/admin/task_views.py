"""Shows single tasks: lists, the history of one, and dead letters by error.

Private data are asked of the node only for callers that may see them. A filter by argument, and by
the text of an error, needs private data as well; then they are asked for and left out of the
answer, unless the caller wanted to see them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import structs

from maitred.client.dead_groups import DeadGroupCount
from maitred.client.task_lists import EVERY_STATE, argument_filter, list_tasks, show_task
from maitred.client.task_rows import shown_row, task_row
from maitred.gateway.admin.answers import (
    DeadGroups,
    HistoryRow,
    ListedTasks,
    TaskHistory,
    TaskRow,
)
from maitred.gateway.admin.page_cursors import read_page, write_page
from maitred.gateway.admin.told_errors import unreachable
from maitred.protocol.inspection import LISTED_MAX, TaskFilter
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.client.answers import Silent
    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway
    from maitred.protocol.inspection import ListedTask

SCAN_SECONDS: Final = 1.0
"""How long one request looks through dead letters."""

SCANNED_MAX: Final = 20_000
"""Most dead letters that one request looks through."""

PAGE: Final = 100
"""Tasks of a page unless the caller says otherwise."""


class TaskViews:
    """The views of tasks."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def tasks(
        self, caller: AdminCaller, params: Mapping[str, Any], namespace: str, queue: str
    ) -> ListedTasks:
        """Return a page of the tasks of a queue."""
        wanted = filter_of(params)
        sight = sight_of(caller, namespace, wanted, asked=params.get("reveal", False))
        state = params.get("state")
        page_of = ("tasks", namespace, queue, state, structs.astuple(wanted))
        page = await list_tasks(
            self._gateway.requester(),
            QueueId(namespace, queue, TASKS),
            EVERY_STATE if state is None else (state,),
            wanted,
            reveal=sight.asks,
            most=params.get("most", PAGE),
            cursor=read_page(params.get("cursor"), *page_of),
        )
        return ListedTasks(
            [row_of(QueueId(namespace, queue, TASKS), one, sight) for one in page.tasks],
            write_page(page.cursor, *page_of),
            page.more,
            unreachable("partition", page.silent),
        )

    async def history(
        self,
        caller: AdminCaller,
        params: Mapping[str, Any],
        namespace: str,
        queue: str,
        partition: int,
        sequence: int,
    ) -> TaskHistory:
        """Return everything that is known of a task."""
        sight = sight_of(caller, namespace, TaskFilter(), asked=params.get("reveal", False))
        id_ = QueueId(namespace, queue, TASKS)
        shown = await show_task(
            self._gateway.requester(), id_, partition, sequence, reveal=sight.asks
        )
        if sight.is_denied:
            shown.result_withheld = "permission"
        told = shown_row(id_, shown)
        told["task"] = row_of(id_, shown.task, sight)
        told["events"] = [HistoryRow(**structs.asdict(one)) for one in shown.events]
        return TaskHistory(**told)  # type: ignore[arg-type]

    async def dead_groups(
        self, caller: AdminCaller, params: Mapping[str, Any], namespace: str, queue: str
    ) -> DeadGroups:
        """Return groups among the dead letters of a queue, after looking through some of them."""
        sight = sight_of(caller, namespace, TaskFilter(), asked=True)
        page_of = ("dead groups", namespace, queue)
        place = read_page(params.get("cursor"), *page_of)
        client, id_ = self._gateway.requester(), QueueId(namespace, queue, TASKS)
        groups = DeadGroupCount()
        silent: dict[int, Silent] = {}
        loop = asyncio.get_running_loop()
        until = loop.time() + SCAN_SECONDS
        while True:
            page = await list_tasks(
                client, id_, ("dead",), reveal=sight.asks, most=LISTED_MAX, cursor=place
            )
            groups.add(page.tasks)
            silent |= page.silent
            place = page.cursor
            if place is None or groups.looked_at >= SCANNED_MAX or loop.time() >= until:
                break
        return DeadGroups(
            groups.ordered(),
            groups.looked_at,
            place is not None,
            write_page(place, *page_of),
            unreachable("partition", silent),
        )


class Sight(NamedTuple):
    """What a caller sees of private data."""

    asks: bool
    """Whether the node is asked for them."""
    shows: bool
    """Whether the answer has them."""
    is_denied: bool
    """Whether the caller wants them and may not see them."""


def sight_of(caller: AdminCaller, namespace: str, wanted: TaskFilter, *, asked: bool) -> Sight:
    """Return what the caller sees; raise `PermissionDenied` for a filter by argument without the
    permission `reveal`: which tasks are listed would tell the argument."""
    if wanted.argument is not None:
        caller.require(namespace, "reveal")
    may = caller.allows(namespace, "reveal")
    needs = wanted.argument is not None or bool(wanted.error)
    return Sight(may and (asked or needs), may and asked, asked and not may)


def filter_of(params: Mapping[str, Any]) -> TaskFilter:
    """Return the filter that the parameters of a request say."""
    argument = params.get("argument")
    return TaskFilter(
        worker=params.get("worker", ""),
        error=params.get("error", ""),
        by=params.get("by", ""),
        added_after=params.get("added_after", 0.0),
        added_before=params.get("added_before", 0.0),
        argument=None if argument is None else argument_filter(argument),
    )


def row_of(queue: QueueId, task: ListedTask, sight: Sight) -> TaskRow:
    """Return the row of a task as its caller may see it."""
    if not sight.shows:
        withheld: Any = "permission" if sight.is_denied else ""
        task = structs.replace(task, message="", arguments=None, withheld=withheld)
    return TaskRow(**task_row(queue, task))  # type: ignore[arg-type]
