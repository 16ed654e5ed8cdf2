"""What Python programs see of tasks: the status of one, and its history.

Moments are aware datetimes in UTC; None means never, or not known. Arguments, messages of errors
and tracebacks are there only for users who may see private data, and without the arguments that
their handler hides.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from maitred.client.task_words import PLANNED, duration_words, event_words
from maitred.errors import printable
from maitred.protocol.inspection import (
    EventKind,
    HistoryEvent,
    TaskState,
    Withheld,
)

if TYPE_CHECKING:
    from maitred.protocol.inspection import ListedTask, TaskShown

_read_anything: Final = msgspec.msgpack.Decoder().decode


class TaskStatus(Struct, frozen=True, kw_only=True):
    """The state of a task when the node was asked."""

    id: str
    """Makes a handle of it: `app.task(status.id)`."""
    queue: str
    state: TaskState
    priority: int
    attempts: int
    """Attempts that began, with the present one."""
    retries: int
    """Attempts that may still follow."""
    by: str
    """User who added it and the address from which it came, as in `alice@10.0.0.7`."""
    added_at: datetime | None
    due_at: datetime | None
    """When a delayed task is due; when a waiting one became ready to run."""
    expires_at: datetime | None
    """When it is dropped unless it has begun."""
    worker: str
    """Name of the worker that has it, or had it last; empty: none."""
    started_at: datetime | None
    """When that worker was given it."""
    ended_at: datetime | None
    """When it ended or became a dead letter."""
    kept_until: datetime | None
    """Until when its result is kept."""
    cancelling: bool
    """Whether its worker has been told, or will be, to stop."""
    reason: str
    """Why a dead letter died: `failed`, `timed-out`, `lost`."""
    error: str
    """Class of the exception of the last failed attempt, or its code."""
    message: str
    traceback: str
    """The traceback of the last failure. `Task.status` tells it; the tasks of a list have none."""
    arguments: Any
    """A dict by name, if the names are known, else a list; hidden ones are "[hidden]". None: see
    `withheld`."""
    withheld: Withheld
    """Why there are no arguments: `permission`, `size` (a list has short ones only), `unknown` (no
    worker has said which are hidden), `unreadable`, `forgotten`."""
    payload_bytes: int

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.state not in ("running", "waiting", "delayed")

    def __str__(self) -> str:
        tries = f", {self.attempts} attempt{'' if self.attempts == 1 else 's'}"
        told = f"{self.id}: {self.state}{tries if self.attempts else ''}"
        if self.worker and self.state == "running":
            told += f", at {self.worker}"
        if self.error:
            told += f", {': '.join(filter(None, (self.error, self.message)))}"
        return printable(told)


class TimelineEvent(Struct, frozen=True, kw_only=True):
    """Something that happened to a task, or will."""

    at: datetime
    what: EventKind
    """`added`, `started` (a worker was given it), `failed`, `timed-out`, `lost`, `returned` (given
    back without having begun), `stopped`, `done`, `cancelled`, `expired`, `dead`. Planned are
    `retry` (the next attempt is due), `due` (its delay ends), `forgotten` (its result is no longer
    kept)."""
    attempt: int
    """0: it is about no attempt."""
    worker: str
    by: str
    error: str
    message: str
    forwarded: bool
    """Whether the worker waited at a parent partition."""
    omitted: int
    """So many events before this one are no longer known."""
    planned: bool
    """Whether it is still to come."""

    def __str__(self) -> str:
        told = HistoryEvent(
            at=0.0,
            what=self.what,
            attempt=self.attempt,
            worker=self.worker,
            by=self.by,
            error=self.error,
            message=self.message,
            forwarded=self.forwarded,
        )
        return f"{_second(self.at)}  {event_words(told)}"


class TaskTimeline(list[TimelineEvent]):
    """What happened to a task, in order; what is planned comes last. Its text is a timeline."""

    def __init__(self, status: TaskStatus, events: list[TimelineEvent]) -> None:
        super().__init__(events)
        self.status: Final = status
        """The task's status at the same time."""

    def __repr__(self) -> str:
        return f"<TaskTimeline of {self.status.id}: {len(self)} events>"

    def __str__(self) -> str:
        lines = [str(self.status)]
        before: datetime | None = None
        for event in self:
            if event.omitted:
                lines.append(f"  ... {event.omitted:,} earlier events are no longer known")
            passed = None if before is None else (event.at - before).total_seconds()
            since = "" if passed is None else f"+{duration_words(passed)}"
            lines.append(f"  {since:>9}  {event}{' (planned)' if event.planned else ''}")
            before = event.at
        return "\n".join(lines)


def status_of(id_: str, queue: str, task: ListedTask, traceback: str = "") -> TaskStatus:
    """Return the status of a task as the node told it."""
    arguments, withheld = None, task.withheld
    if task.arguments is not None:
        try:
            arguments = _read_anything(task.arguments)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            withheld = "unreadable"
    return TaskStatus(
        id=id_,
        queue=queue,
        state=task.state,
        priority=task.priority,
        attempts=task.attempts,
        retries=task.retries,
        by=task.by,
        added_at=moment(task.added_at),
        due_at=moment(task.due_at),
        expires_at=moment(task.expires_at),
        worker=task.worker,
        started_at=moment(task.started_at),
        ended_at=moment(task.ended_at),
        kept_until=moment(task.kept_until),
        cancelling=task.cancelling,
        reason=task.reason,
        error=task.error,
        message=task.message,
        traceback=traceback,
        arguments=arguments,
        withheld=withheld,
        payload_bytes=task.payload_bytes,
    )


def history_of(id_: str, queue: str, shown: TaskShown) -> TaskTimeline:
    """Return the history of a task as the node told it."""
    events = [
        TimelineEvent(
            at=datetime.fromtimestamp(event.at, UTC),
            what=event.what,
            attempt=event.attempt,
            worker=event.worker,
            by=event.by,
            error=event.error,
            message=event.message,
            forwarded=event.forwarded,
            omitted=event.omitted,
            planned=event.what in PLANNED,
        )
        for event in shown.events
    ]
    return TaskTimeline(status_of(id_, queue, shown.task, shown.traceback), events)


def moment(unix: float) -> datetime | None:
    """Return the time; None for 0."""
    return datetime.fromtimestamp(unix, UTC) if unix else None


def _second(at: datetime) -> str:
    """Return the time to the millisecond."""
    return at.isoformat(" ", "milliseconds").removesuffix("+00:00") + "Z"
