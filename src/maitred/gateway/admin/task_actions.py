"""Changes tasks for callers of the gateway: those that are named, or all that pass a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import msgpack, structs

from maitred.client.task_changes import change_matching, change_tasks
from maitred.client.task_rows import parse_place, place_text
from maitred.errors import InvalidArgument
from maitred.gateway.admin.answers import ActedTasks
from maitred.gateway.admin.page_cursors import read_page, write_page
from maitred.gateway.admin.told_errors import unreachable
from maitred.protocol.inspection import ArgumentFilter, TaskFilter
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from maitred.client.task_changes import TasksChange
    from maitred.gateway.admin.bodies import FilterBody, TaskActionBody
    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway


class TaskActions:
    """The actions on tasks."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def act(
        self, caller: AdminCaller, body: TaskActionBody, namespace: str, queue: str
    ) -> ActedTasks:
        """Do something to tasks, for about a second."""
        id_ = QueueId(namespace, queue, TASKS)
        if body.ids is not None:
            return await self._act_on_named(caller, body, body.ids, id_)
        wanted = _filter_of(body.filter)
        if wanted.argument is not None:
            caller.require(namespace, "reveal")
        page_of = ("act", namespace, queue, body.action, body.state, body.dry_run)
        page_of += structs.astuple(wanted)
        step = await change_matching(
            self._gateway.requester(),
            id_,
            body.action,
            () if body.state is None else (body.state,),
            wanted,
            reveal=caller.allows(namespace, "reveal"),
            dry_run=body.dry_run,
            cursor=read_page(body.cursor, *page_of),
            reason=body.reason,
            user=caller.user,
            source=caller.source,
        )
        return _told(step.changed, step.matched, write_page(step.cursor, *page_of))

    async def _act_on_named(
        self, caller: AdminCaller, body: TaskActionBody, ids: list[str], queue: QueueId
    ) -> ActedTasks:
        if body.filter is not None or body.state is not None or body.cursor is not None:
            raise InvalidArgument(
                "The body names tasks, and a filter as well.",
                remedy="Give either 'ids', or 'state' and 'filter'.",
            )
        if body.dry_run:
            raise InvalidArgument("A dry run is for a filter: of named tasks, all are meant.")
        places = [parse_place(one) for one in ids]
        changed = await change_tasks(
            self._gateway.requester(),
            queue,
            body.action,
            places,
            reason=body.reason,
            user=caller.user,
            source=caller.source,
        )
        return _told(changed, len(set(places)), None)


def _filter_of(body: FilterBody | None) -> TaskFilter:
    if body is None:
        return TaskFilter()
    argument = body.argument
    return TaskFilter(
        body.worker,
        body.error,
        body.by,
        body.added_after,
        body.added_before,
        None if argument is None else ArgumentFilter(argument.name, msgpack.encode(argument.value)),
    )


def _told(changed: TasksChange, matched: int, cursor: str | None) -> ActedTasks:
    return ActedTasks(
        len(changed.done),
        {place_text(place): why for place, why in changed.left.items()},
        {place_text(old): place_text(new) for old, new in changed.added.items()},
        matched,
        cursor,
        unreachable("partition", changed.silent),
    )
