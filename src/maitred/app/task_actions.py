"""What programs do to tasks: to one by its handle, or to all of a queue that pass a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.app.task_listing import SelectedTasks
from maitred.client.changed_tasks import ChangedTasks
from maitred.client.task_changes import APPLIES, applicable, change_matching, change_tasks
from maitred.client.task_words import LEFT_WORDS
from maitred.errors import (
    InvalidArgument,
    MaitredError,
    TaskForgotten,
    TaskNotChanged,
    Unavailable,
    UnknownChoice,
    UnknownTask,
)
from maitred.protocol.tasks import REASON_CHARACTERS

if TYPE_CHECKING:
    from maitred.app.session import SessionOwner
    from maitred.app.task_listing import TaskFilters
    from maitred.client.task_changes import Place
    from maitred.protocol.inspection import TaskAction
    from maitred.routing.names import QueueId

_GONE: Final = {"unknown": UnknownTask, "forgotten": TaskForgotten}


async def change_task(
    app: SessionOwner, queue: QueueId, place: Place, action: TaskAction, reason: str = ""
) -> Place | None:
    """Do this to one task; return the new one, if the action adds one.

    Raises `TaskNotChanged` if the action does not apply to the state of the task, `UnknownTask` and
    `TaskForgotten` if nothing is known of it, and `Unavailable` if its partition does not answer.
    """
    session = await app.session()
    changed = await change_tasks(session.client, queue, action, [place], reason=_checked(reason))
    for silent in changed.silent.values():
        raise silent.error
    for why in changed.left.values():
        name = f"{queue.namespace}/{queue.queue}/{place[0]}/{place[1]}"
        told = LEFT_WORDS.get(why, f"refused: {why}")
        raise _GONE.get(why, TaskNotChanged)(f"Not done to {name}, {action}: {told}.")
    return changed.added.get(place)


async def change_selected(
    app: SessionOwner,
    queue: QueueId,
    action: TaskAction,
    filters: TaskFilters,
    *,
    dry_run: bool,
    reason: str,
) -> ChangedTasks:
    """Do this to all tasks of a queue that pass the filters, to the end.

    Raises `Unavailable` at the end if partitions did not answer: what was done there is not known.
    A note of an error that ends the change early says how many tasks were changed before.
    """
    if action not in APPLIES:
        raise UnknownChoice.named("action on tasks", action, tuple(APPLIES))
    selected = SelectedTasks(filters)
    states = applicable(action, selected.states)
    reason = _checked(reason)
    session = await app.session()
    wanted = selected.filter(session.wall_clock())
    changed = ChangedTasks()
    cursor: str | None = None
    while True:
        try:
            step = await change_matching(
                session.client,
                queue,
                action,
                states,
                wanted,
                reveal=True,
                dry_run=dry_run,
                cursor=cursor,
                reason=reason,
            )
        except MaitredError as problem:
            if changed.done:
                problem.add_note(
                    f"Before that, {changed.done:,} tasks were changed. {_rest(action)}"
                )
            raise
        changed.matched += step.matched
        changed.add(queue, step.changed)
        cursor = step.cursor
        if cursor is None:
            break
    for name, silent in changed.silent.items():
        raise Unavailable(
            f"{len(changed.silent):,} partitions did not answer, {name} first: "
            f"{silent.error.sentence} Of the others, {changed.done:,} tasks were changed.",
            remedy=_rest(action),
        ) from silent.error
    return changed


def _rest(action: TaskAction) -> str:
    """Say how the rest can be changed, after a part of the tasks was."""
    if action == "again":
        return "Calling it again would add these once more; the audit log has their ids."
    return "Call it again later: it goes on with the rest."


def _checked(reason: str) -> str:
    if len(reason) > REASON_CHARACTERS:
        raise InvalidArgument(f"The reason has to be text of at most {REASON_CHARACTERS} letters.")
    return reason
