"""A queue in memory that lists, shows and changes its tasks as the partitions of a node do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import msgpack
from msgspec.structs import replace

from maitred.errors import MaitredError, UnknownQueue, UnknownTask
from maitred.protocol.inspection import (
    ChangeTasks,
    HistoryEvent,
    ListedTask,
    ListTasks,
    ShowTask,
    TasksChanged,
    TaskShown,
    TasksListed,
)
from maitred.protocol.tasks import Counts, Describe, PartitionDescription
from maitred.routing.names import QueueId

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.inspection import TaskFilter, TaskState

MAILS = QueueId("shop", "mails", 1)
OVER = ("done", "cancelled", "expired")
FIRST = 2**32
"""The first number that a task can have."""


def task(partition: int, number: int, state: TaskState = "waiting", **fields: Any) -> ListedTask:  # noqa: ANN401
    """A task of that state, with the least that belongs to it."""
    moment = float(number)
    states: dict[str, dict[str, Any]] = {
        "running": {"started_at": moment, "attempts": 1, "worker": "ant"},
        "waiting": {"due_at": moment},
        "delayed": {"due_at": 1_000 + moment},
        "dead": {"ended_at": moment, "attempts": 4, "reason": "failed", "error": "ValueError"},
    }
    needed = states.get(state, {"ended_at": moment, "attempts": 1})
    return ListedTask(
        partition=partition,
        sequence=FIRST + number,
        state=state,
        **{"added_at": 1.0, "arguments": b"\x90", **needed, **fields},
    )


def described(partition: int = 0, read: int = 1, **changes: Any) -> PartitionDescription:  # noqa: ANN401
    """What a partition says of itself; of no interest but for the counts."""
    numbers = (
        *("range_id", "read_level", "ack_level", "backlog", "backlog_age_seconds", "running"),
        *("later", "dead", "offers", "added", "added_per_second", "finished"),
        *("finished_per_second", "failed", "lost", "matched_at_once", "never_written"),
        *("forwarded_tasks", "forwarded_offers", "wait_p50_seconds", "wait_p99_seconds"),
    )
    told: dict[str, Any] = {
        **dict.fromkeys(numbers, 0),
        "partition": partition,
        "node": "node",
        "shard": 0,
        "state": "writable",
        "counts": Counts(read, read, 0),
        "workers": ["ant"],
    }
    return PartitionDescription(**told | changes)


class InspectedQueue:
    """Answers as the partitions of one queue, one message after the other."""

    def __init__(self, tasks: list[ListedTask], read: int = 1, looks: int = 5_000) -> None:
        self.tasks = {(one.partition, one.sequence): one for one in tasks}
        self.read = read
        self.partitions = {*range(read), *(one.partition for one in tasks)}
        """The partitions that exist: more than those to read, if some were removed."""
        self.looks = looks
        """Tasks that one answer compares with the filter."""
        self.silent: dict[int, MaitredError] = {}
        """Partitions that answer with this."""
        self.asked: list[Any] = []
        self.under_way = self.most_under_way = 0
        self.now = 1e6
        self.may_reveal = True
        self.changes: dict[str, Any] = {}
        """What the root says of itself."""
        self.shown: dict[tuple[int, int], TaskShown] = {}
        self.before: Callable[[Any], None] = lambda _: None
        """Called before each answer; it may raise."""
        self.then: Callable[[ChangeTasks], None] = lambda _: None
        """Called after each change."""

    def heard(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.asked if isinstance(one, kind)]

    async def request(self, message: Any, timeout: float | None = None, **_: Any) -> Any:  # noqa: ANN401, ARG002, ASYNC109
        """As a client would, but the message goes through its encoding."""
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return self.answer(msgpack.decode(msgpack.encode(message), type=type(message)))

    def answer(self, message: Any) -> Any:  # noqa: ANN401 - any request
        self.asked.append(message)
        self.before(message)
        partition = message.partition
        name = f"{message.namespace}/{message.queue}"
        if name != "shop/mails":
            raise UnknownQueue(f"The queue {name} does not exist.", remedy="Did you mean 'mails'?")
        if partition in self.silent:
            raise self.silent[partition]
        if partition not in self.partitions:
            raise UnknownQueue(f"Partition {partition} of the queue shop/mails does not exist.")
        if isinstance(message, Describe):
            return described(partition, self.read, **self.changes)
        if isinstance(message, ListTasks):
            return self._list(message)
        if isinstance(message, ShowTask):
            return self._show(message)
        assert isinstance(message, ChangeTasks), message
        changed = self._change(message)
        self.then(message)
        return changed

    def _list(self, message: ListTasks) -> TasksListed:
        reveal = message.reveal and self.may_reveal
        states = OVER if message.state == "ended" else (message.state,)
        sign = -1 if message.state in (*OVER, "ended") else 1

        def key(at: tuple[float, int]) -> tuple[float, int]:
            return sign * at[0], sign * at[1]

        mine = [
            replace(one, at=place_of(one))
            for (partition, _), one in self.tasks.items()
            if partition == message.partition and one.state in states
        ]
        behind = sorted(
            (one for one in mine if message.after == (0.0, 0) or key(one.at) > key(message.after)),
            key=lambda one: key(one.at),
        )
        found: list[ListedTask] = []
        at, looked = None, 0
        for one in behind:
            if looked == self.looks or len(found) == message.most:
                return TasksListed(found, at, looked, self.now)
            looked += 1
            at = one.at
            if passes(one, message.filter, reveal=reveal):
                found.append(one if reveal else veiled(one))
        return TasksListed(found, None, looked, self.now)

    def _show(self, message: ShowTask) -> TaskShown:
        place = (message.partition, message.sequence)
        if place not in self.tasks:
            raise UnknownTask("There is no such task.")
        one = self.tasks[place]
        added = HistoryEvent(at=one.added_at, what="added", by=one.by)
        shown = self.shown.get(place, TaskShown(task=one, events=[added], node="node"))
        if message.reveal and self.may_reveal:
            return replace(shown, task=replace(shown.task))
        return replace(
            shown,
            task=veiled(shown.task),
            events=[replace(event, message="") for event in shown.events],
            traceback="",
            result=None,
        )

    def _change(self, message: ChangeTasks) -> TasksChanged:
        changed = TasksChanged([])
        for sequence in message.sequences:
            place = (message.partition, sequence)
            one = self.tasks.get(place)
            why = "unknown" if one is None else self._one(place, one, message, changed)
            if why:
                changed.left[sequence] = why
            else:
                changed.done.append(sequence)
        return changed

    def _one(
        self, place: tuple[int, int], one: ListedTask, message: ChangeTasks, changed: TasksChanged
    ) -> str:
        action = message.action
        if action == "cancel" and one.state == "running":
            self.tasks[place] = replace(one, cancelling=True)
        elif action == "cancel" and one.state in ("waiting", "delayed"):
            self.tasks[place] = replace(one, state="cancelled", ended_at=self.now)
        elif action == "run-now" and one.state == "delayed":
            self.tasks[place] = replace(one, state="waiting", due_at=self.now)
        elif action == "retry" and one.state == "dead":
            self.tasks[place] = replace(one, state="waiting", due_at=self.now, ended_at=0.0)
        elif action == "drop" and one.state == "dead":
            del self.tasks[place]
        elif action == "again" and one.state in (*OVER, "dead"):
            new = max(sequence for _, sequence in self.tasks) + 1
            changed.added[place[1]] = new
            self.tasks[place[0], new] = ListedTask(
                partition=place[0], sequence=new, state="waiting", added_at=self.now
            )
        else:
            return {"retry": "not-dead", "drop": "not-dead", "run-now": "not-delayed"}.get(
                action, "over"
            )
        return ""


def place_of(one: ListedTask) -> tuple[float, int]:
    moments = {
        "running": one.started_at,
        "delayed": one.due_at,
        "waiting": float(one.priority),
        "dead": 0.0,
    }
    return moments.get(one.state, one.ended_at), one.sequence


def passes(one: ListedTask, wanted: TaskFilter, *, reveal: bool) -> bool:
    texts = one.error + (one.message if reveal else "")
    if wanted.argument is not None:
        given = None if one.arguments is None else msgpack.decode(one.arguments)
        value = given.get(wanted.argument.name) if isinstance(given, dict) else None
        if not reveal or value != msgpack.decode(wanted.argument.value):
            return False
    return (
        (not wanted.worker or one.worker == wanted.worker)
        and wanted.error.lower() in texts.lower()
        and (not wanted.by or one.by.partition("@")[0] == wanted.by)
        and one.added_at >= wanted.added_after
        and (not wanted.added_before or one.added_at < wanted.added_before)
    )


def veiled(one: ListedTask) -> ListedTask:
    """The task as users without `reveal` get it: a shard does not say why."""
    return replace(one, arguments=None, message="", withheld="")
