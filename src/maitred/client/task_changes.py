"""Cancels, retries, drops or repeats tasks of a queue: named ones, or all that match a filter.

A queue may have ten million matching tasks. So a change by filter is made of steps, each of which
lists and changes tasks page by page for about a second, and returns a cursor with which the next
one goes on. Partitions follow one another: there is one place to go on, and whoever stops after a
step knows what was done.

A change makes tasks move: one that is run now may fail at once and be delayed again; one that is
cancelled frees a slot, and another one runs. What happened after the change began in a partition is
therefore left out, by the clock of that partition's shard. So a change ends, and does not take
tasks that nobody has meant.
"""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, cast

from msgspec import Meta, Struct

from maitred.client.answers import ROOT, Silent, described, each, inspect, is_refusal
from maitred.client.cursors import read_cursor, write_cursor
from maitred.client.merged_tasks import BEGINNING, check_listed
from maitred.client.task_lists import DESCENDING, Natural, check_filter, ordered
from maitred.errors import InvalidArgument, MaitredError, UnknownQueue
from maitred.protocol.inspection import (
    CHANGED_MAX,
    EVERY_TASK,
    ChangeTasks,
    ListedState,
    ListTasks,
)
from maitred.routing.keys import PARTITIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.client.requester import Requester
    from maitred.protocol.inspection import (
        ListedTask,
        TaskAction,
        TaskFilter,
        TasksChanged,
        TasksListed,
    )
    from maitred.routing.names import QueueId

Place = tuple[int, int]
"""A task of a queue: its partition, and its number there."""

APPLIES: Final[dict[TaskAction, tuple[ListedState, ...]]] = {
    "cancel": ("delayed", "waiting", "running"),
    "retry": ("dead",),
    "run-now": ("delayed",),
    "drop": ("dead",),
    "again": ("dead", "ended", "done", "cancelled", "expired"),
}
"""The states of the tasks that an action applies to, in the order in which a change goes through
them. Cancelling meets each task in its last state: a delayed one may begin to wait meanwhile, and a
waiting one to run."""

STEP_SECONDS: Final = 1.0
"""How long a step works: a person sees progress, and a request over HTTP is answered in time."""


class TasksChange(NamedTuple):
    """What came of a change."""

    done: list[Place]
    """The tasks to which it was done, those that are being stopped included."""
    left: dict[Place, str]
    """Why it was not done to others; see `TasksChanged.left`."""
    added: dict[Place, Place]
    """For `again`: the new task, by the old one."""
    silent: dict[int, Silent]
    """The partitions that did not answer. What was done there is not known."""

    @classmethod
    def nothing(cls) -> TasksChange:
        """Return a change of no tasks."""
        return cls([], {}, {}, {})

    def add(self, partition: int, changed: TasksChanged) -> None:
        """Add the answer of a partition."""
        self.done.extend((partition, sequence) for sequence in changed.done)
        self.left.update({(partition, one): why for one, why in changed.left.items()})
        self.added.update(
            {(partition, old): (partition, new) for old, new in changed.added.items()}
        )


class ChangeStep(NamedTuple):
    """What one step of a change by filter has done."""

    matched: int
    """Tasks that passed the filter."""
    changed: TasksChange
    """Nothing, if it was a dry run."""
    cursor: str | None
    """Where the next step goes on; None: the change has ended."""


class ChangeCursor(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where a change goes on, as its cursor says."""

    version: Annotated[int, Meta(ge=1, le=1)]
    state: ListedState
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)] = 0
    after: tuple[float, Natural] = BEGINNING
    began: float = 0.0
    """When the change began with the state in this partition, by the clock of its shard; 0: it has
    not."""


async def change_tasks(
    client: Requester,
    queue: QueueId,
    action: TaskAction,
    places: Iterable[Place],
    *,
    reason: str = "",
    user: str = "",
    source: str = "",
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with each request
) -> TasksChange:
    """Do this to tasks that are named; raise `UnknownQueue` if there is no such queue.

    `user` and `source` are for gateways, which act for others.
    """
    by_partition: dict[int, list[int]] = {}
    for partition, sequence in sorted(set(places)):
        by_partition.setdefault(partition, []).append(sequence)
    pieces = [
        (partition, tuple(sequences[begin : begin + CHANGED_MAX]))
        for partition, sequences in by_partition.items()
        for begin in range(0, len(sequences), CHANGED_MAX)
    ]

    async def change(piece: tuple[int, tuple[int, ...]]) -> TasksChanged:
        partition, sequences = piece
        message = ChangeTasks(*queue, partition, 0, action, list(sequences), reason, user, source)
        return cast("TasksChanged", await inspect(client, message, timeout))

    answers = await each(pieces, change)
    change_made = TasksChange.nothing()
    for (partition, _), changed in answers.found.items():
        change_made.add(partition, changed)
    for (partition, sequences), silent in answers.silent.items():
        if is_refusal(silent.error):
            raise silent.error
        if isinstance(silent.error, UnknownQueue):
            await described(client, queue, ROOT, timeout)  # raises if it is the queue
            change_made.left.update({(partition, one): "unknown" for one in sequences})
        else:
            change_made.silent[partition] = silent
    return change_made


async def change_matching(
    client: Requester,
    queue: QueueId,
    action: TaskAction,
    states: Sequence[ListedState] = (),
    tasks: TaskFilter = EVERY_TASK,
    *,
    reveal: bool,
    dry_run: bool = False,
    cursor: str | None = None,
    seconds: float = STEP_SECONDS,
    reason: str = "",
    user: str = "",
    source: str = "",
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with each request
) -> ChangeStep:
    """Do this to tasks that are in one of these states and pass the filter, for about `seconds`.

    Call it again with the cursor until that is None. Without states, all are meant that the action
    applies to. `reveal` says whether the caller may see private data, which a filter by argument
    needs. A dry run counts the tasks and changes nothing. Raises what `list_tasks` raises.
    """
    wanted = applicable(action, states)
    check_filter(tasks, reveal=reveal)
    at = ChangeCursor(1, wanted[0]) if cursor is None else _resumed(cursor, wanted)
    known = (await described(client, queue, ROOT, timeout)).counts.read
    reveal = reveal and (tasks.argument is not None or bool(tasks.error))
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    matched = 0
    changed = TasksChange.nothing()
    while True:
        try:
            listed = await _list(client, queue, at, tasks, timeout, reveal=reveal)
            began = at.began or listed.now
            meant = [one.sequence for one in listed.tasks if _is_meant(one, action, began)]
            matched += len(meant)
            if meant and not dry_run:
                message = ChangeTasks(*queue, at.partition, 0, action, meant, reason, user, source)
                answer = await inspect(client, message, timeout)
                changed.add(at.partition, cast("TasksChanged", answer))
        except MaitredError as problem:
            if is_refusal(problem):
                raise
            if not isinstance(problem, UnknownQueue):
                changed.silent[at.partition] = Silent(problem)
            is_last = at.partition >= known
            following = _following(at, wanted, is_last=is_last)
        else:
            following = (
                _following(at, wanted)
                if listed.cursor is None
                else ChangeCursor(1, at.state, at.partition, listed.cursor, began)
            )
        if following is None:
            return ChangeStep(matched, changed, None)
        at = following
        if loop.time() >= until:
            return ChangeStep(matched, changed, write_cursor(at))


def applicable(action: TaskAction, states: Sequence[ListedState]) -> tuple[ListedState, ...]:
    """Return the states in the order in which a change goes through them, all that the action
    applies to if none are given; raise `InvalidArgument` for one that it does not apply to."""
    applies = APPLIES[action]
    if not states:
        if action == "again":
            raise InvalidArgument(
                "Nothing says which tasks to run again.",
                remedy=f"Name a state: {', '.join(applies)}.",
            )
        return applies
    chosen = ordered(states)
    for state in chosen:
        if state not in applies:
            raise InvalidArgument(
                f"The action {action} does not apply to {state} tasks.",
                remedy=f"It applies to tasks that are {', '.join(applies)}.",
            )
    return tuple(state for state in applies if state in chosen)


def _resumed(text: str, wanted: Sequence[ListedState]) -> ChangeCursor:
    cursor = read_cursor(text, ChangeCursor)
    numbers = (cursor.after[0], cursor.began)
    if cursor.state not in wanted or not all(isfinite(one) and one >= 0 for one in numbers):
        raise InvalidArgument(
            f"{text[:60]!r} is no cursor of this change.",
            remedy="Go on with the same action and states as in the step before.",
        )
    return cursor


def _following(
    at: ChangeCursor, wanted: Sequence[ListedState], *, is_last: bool = False
) -> ChangeCursor | None:
    """Return where a change goes on that is done with this partition; None: nowhere."""
    if not is_last:
        return ChangeCursor(1, at.state, at.partition + 1)
    later = wanted[wanted.index(at.state) + 1 :]
    return ChangeCursor(1, later[0]) if later else None


async def _list(
    client: Requester,
    queue: QueueId,
    at: ChangeCursor,
    tasks: TaskFilter,
    timeout: float | None,  # noqa: ASYNC109 - it travels with the request
    *,
    reveal: bool,
) -> TasksListed:
    message = ListTasks(*queue, at.partition, 0, at.state, tasks, at.after, CHANGED_MAX, reveal)
    listed = cast("TasksListed", await inspect(client, message, timeout))
    check_listed(at.partition, at.after, listed, descending=at.state in DESCENDING)
    return listed


def _is_meant(task: ListedTask, action: TaskAction, began: float) -> bool:
    """Whether the change is about this task: it did not come, begin or end after the change began,
    and is not being cancelled already."""
    is_later = max(task.added_at, task.started_at, task.ended_at) > began > 0
    return not is_later and not (action == "cancel" and task.cancelling)
