"""How tasks are named on the command line.

A task's id is `namespace/queue/partition/number`, as `Task.id` and lists have it. After a QUEUE, it
may be cut to `partition/number`. Names may have slashes: a queue whose name ends like an id is
named with `--namespace`, and then the first word is always a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from maitred.cli.admin_names import TASKS, label, queue_id, sequence_number
from maitred.cli.output import shortened
from maitred.errors import InvalidArgument
from maitred.routing.keys import PARTITIONS_MAX
from maitred.routing.names import QueueId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Command = TypeVar("_Command", bound="Callable[..., Any]")

namespace_option = click.option(
    "--namespace", metavar="NAME", help="Of the queue, if QUEUE is only a name."
)


class TaskName(NamedTuple):
    """One task, printed and typed as its id."""

    queue: QueueId
    partition: int
    sequence: int

    def __str__(self) -> str:
        return f"{label(self.queue)}/{self.partition}/{self.sequence}"


class NamedTasks(NamedTuple):
    """What the words of a command name: a queue, or tasks, or tasks of that queue."""

    queue: QueueId | None
    tasks: list[TaskName]


def named_tasks(words: Sequence[str], namespace: str | None) -> NamedTasks:
    """Return what `[QUEUE] [ID]...` names; raise `InvalidArgument` or `InvalidName`."""
    if not words:
        return NamedTasks(None, [])
    if namespace is None and _whole(words[0]) is not None:
        return NamedTasks(None, [_found(word, _whole(word)) for word in words])
    if namespace is None and _cut(words[0]) is not None:
        raise InvalidArgument(
            f"{shortened(words[0])} does not say in which queue the task is.",
            remedy=f"Write NAMESPACE/QUEUE/{words[0]}, or NAMESPACE/QUEUE {words[0]}.",
        )
    queue = queue_id(words[0], namespace)
    return NamedTasks(queue, [_of_queue(queue, word) for word in words[1:]])


def one_task(words: Sequence[str], namespace: str | None) -> TaskName:
    """Return the only task that the words name."""
    tasks = named_tasks(words, namespace).tasks
    if len(tasks) != 1:
        raise InvalidArgument(
            f"That names {len(tasks)} tasks instead of one.",
            remedy="Write its id, as in shop/mails/0/4294967296, or shop/mails 0/4294967296.",
        )
    return tasks[0]


def _of_queue(queue: QueueId, word: str) -> TaskName:
    place = _cut(word)
    if place is not None:
        return TaskName(queue, *place)
    prefix = f"{label(queue)}/"
    place = _cut(word[len(prefix) :]) if word.startswith(prefix) else None
    return _found(word, None if place is None else TaskName(queue, *place))


def _found(word: str, task: TaskName | None) -> TaskName:
    if task is None:
        raise InvalidArgument(
            f"{shortened(word)} is no task's id.",
            remedy="An id is NAMESPACE/QUEUE/PARTITION/NUMBER, as `task list` prints them.",
        )
    return task


def _whole(word: str) -> TaskName | None:
    parts = word.rsplit("/", 2)
    if len(parts) < 3:
        return None
    place = _cut(f"{parts[1]}/{parts[2]}")
    namespace, _, queue = parts[0].partition("/")
    if place is None or not namespace or not queue:
        return None
    return TaskName(QueueId(namespace, queue, TASKS), *place)


def _cut(word: str) -> tuple[int, int] | None:
    first, _, second = word.partition("/")
    partition, sequence = sequence_number(first), sequence_number(second)
    if partition is None or sequence is None or partition >= PARTITIONS_MAX:
        return None
    return partition, sequence
