"""Tasks as operators get them: rows of lists, and the history of one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, msgpack

from maitred.matching.task import GIVEN, WAITING
from maitred.matching.task_history import past_attempts
from maitred.protocol.inspection import HistoryEvent, ListedTask
from maitred.protocol.tasks import Failure

if TYPE_CHECKING:
    from maitred.matching.sighted_task import SightedTask
    from maitred.matching.task import QueueTask
    from maitred.node.task_privacy import ShownValue
    from maitred.protocol.inspection import EventKind, TaskFilter

LISTED_ARGUMENT_BYTES: Final = 2_048
"""Longest arguments, as msgpack, that a row of a list has; `SHOW_TASK` has them whole."""

_NO_FAILURE: Final = Failure("", "")
_decode_failure: Final = msgpack.Decoder(Failure).decode


def failure_of(task: QueueTask) -> Failure:
    """Return why the last failed attempt failed; all fields are empty if none has."""
    if not task.failure:
        return _NO_FAILURE
    try:
        return _decode_failure(task.failure)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return Failure("unknown", "The failure cannot be decoded.")


class TaskView:
    """One task of a partition, on its way to an operator."""

    __slots__ = ("_failure", "_partition", "_sighting", "_wall", "task")

    def __init__(self, sighting: SightedTask, partition: int, wall: float) -> None:
        self._sighting = sighting
        self._partition = partition
        self._wall = wall
        self.task = sighting.task
        self._failure: Failure | None = None

    @property
    def failure(self) -> Failure:
        """Why the last failed attempt failed."""
        if self._failure is None:
            self._failure = failure_of(self.task)
        return self._failure

    def passes(self, wanted: TaskFilter, *, reveal: bool) -> bool:
        """Return whether the task passes the filter, its argument aside."""
        task = self.task
        if wanted.worker and self._last_attempt()[0] != wanted.worker:
            return False
        if wanted.by and wanted.by not in (task.by, task.by.rpartition("@")[0]):
            return False
        added = task.added + self._wall
        if added < wanted.added_after or (wanted.added_before and added >= wanted.added_before):
            return False
        if not wanted.error:
            return True
        failure, part = self.failure, wanted.error.lower()
        reason = self._sighting.reason
        if part in failure.kind.lower() or part in reason.lower():
            return True
        return reveal and part in failure.message.lower()

    def row(self, *, reveal: bool) -> ListedTask:
        """Return the row of the task in a list, without arguments."""
        task, sighting, wall = self.task, self._sighting, self._wall
        is_running = task.state is GIVEN or sighting.state == "running"
        is_over = sighting.state in ("done", "cancelled", "expired", "failed")
        was_running = sighting.state == "cancelled" and task.given_at > 0
        began = is_running or was_running or sighting.state == "done"
        ended_at = sighting.died_at or (task.ended + wall if task.ended and is_over else 0.0)
        is_open = not is_over and sighting.state != "dead"
        worker, started_at = self._last_attempt()
        return ListedTask(
            partition=self._partition,
            sequence=task.sequence,
            state=sighting.state,
            priority=task.priority,
            added_at=task.added + wall if task.added or task.by else 0.0,
            by=task.by,
            attempts=task.attempt + began,
            retries=max(task.terms.retries - task.attempt, 0) if is_open else 0,
            due_at=self._due_at(),
            expires_at=task.expires + wall if task.expires else 0.0,
            worker=worker,
            started_at=started_at,
            ended_at=ended_at,
            kept_until=ended_at + task.terms.retention if is_over and ended_at else 0.0,
            cancelling=task.revoked and not is_over,
            reason=sighting.reason,
            error=self.failure.kind,
            message=self.failure.message if reveal else "",
            payload_bytes=task.payload_gone or len(task.payload),
            at=sighting.at,
        )

    def _last_attempt(self) -> tuple[str, float]:
        """Return the worker that has the task or had it last, and since when."""
        task = self.task
        if task.given_at:
            return task.worker, task.given_at + self._wall
        for attempt in past_attempts(task.past).attempts[-1:]:
            return task.worker or attempt.worker, attempt.started_at
        return task.worker, 0.0

    def _due_at(self) -> float:
        task, state = self.task, self._sighting.state
        if state == "delayed":
            return task.due + self._wall
        return task.ready + self._wall if state == "waiting" and task.ready else 0.0

    def listed(self, arguments: ShownValue | None, *, reveal: bool) -> ListedTask:
        """Return the row of the task with its arguments; None: they were not asked for."""
        row = self.row(reveal=reveal)
        if arguments is None:
            return row
        if arguments.body is not None and len(arguments.body) > LISTED_ARGUMENT_BYTES:
            row.withheld = "size"
        else:
            row.arguments, row.withheld = arguments.body, arguments.withheld
        return row

    # History

    def events(self, *, reveal: bool) -> list[HistoryEvent]:
        """Return what happened to the task, and what is planned, in that order."""
        task, state, wall = self.task, self._sighting.state, self._wall
        events: list[HistoryEvent] = []
        if task.added or task.by:
            events.append(HistoryEvent(at=task.added + wall, what="added", by=task.by))
        omitted, attempts = past_attempts(task.past)
        for attempt in attempts:
            if attempt.started_at:
                events.append(
                    HistoryEvent(
                        at=attempt.started_at,
                        what="started",
                        attempt=attempt.attempt,
                        worker=attempt.worker,
                        forwarded=attempt.forwarded,
                        omitted=omitted,
                    )
                )
                omitted = 0
            events.append(
                HistoryEvent(
                    at=attempt.ended_at,
                    what=_ENDS.get(attempt.how, "failed"),
                    attempt=attempt.attempt,
                    worker=attempt.worker,
                    error=attempt.error,
                    message=attempt.message if reveal else "",
                    omitted=omitted,
                )
            )
            omitted = 0
        present = task.attempt + 1
        # A cancelled task may have the note of its last attempt and what it was given for it. The
        # numbers alone do not tell: a dead letter that is tried again counts from 1 once more.
        is_noted = any(
            one.attempt == present
            and one.how != "returned"
            and one.ended_at >= task.given_at + wall
            for one in attempts[-1:]
        )
        if task.given_at and not is_noted:
            events.append(
                HistoryEvent(
                    at=task.given_at + wall,
                    what="started",
                    attempt=present,
                    worker=task.worker,
                    forwarded=task.forwarded,
                )
            )
        events += self._ends(present if task.given_at else 0, reveal=reveal)
        if state == "delayed" and task.state is WAITING:
            is_retry = task.attempt > 0
            events.append(
                HistoryEvent(
                    at=task.due + wall,
                    what="retry" if is_retry else "due",
                    attempt=present if is_retry else 0,
                )
            )
        return events

    def _ends(self, attempt: int, *, reveal: bool) -> list[HistoryEvent]:
        task, sighting, wall = self.task, self._sighting, self._wall
        state = sighting.state
        if state == "dead":
            message = self.failure.message if reveal else ""
            error = self.failure.kind
            return [HistoryEvent(at=sighting.died_at, what="dead", error=error, message=message)]
        if state in ("done", "cancelled", "expired") and task.ended:
            ended_at = task.ended + wall
            worker = task.worker if attempt else ""
            return [
                HistoryEvent(at=ended_at, what=state, attempt=attempt, worker=worker),
                HistoryEvent(at=ended_at + task.terms.retention, what="forgotten"),
            ]
        return []


_ENDS: Final[dict[str, EventKind]] = {
    "failed": "failed",
    "timed-out": "timed-out",
    "lost": "lost",
    "returned": "returned",
    "stopped": "stopped",
}
