"""The handle of a task: its id, its result, its history, and what can be done to it.

An id is text that can be stored and passed on: `app.task(id)`, or `handler.task(id)` for a typed
handle, makes a handle of it again, in any process.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

import msgspec

from maitred.app.task_actions import change_task
from maitred.app.task_views import history_of, status_of
from maitred.client.task_lists import show_task
from maitred.errors import (
    DeadlineExceeded,
    InvalidHandler,
    InvalidResult,
    InvalidTaskId,
    MaitredError,
    StoreUnavailable,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskPurged,
)
from maitred.protocol.tasks import Await, Failure, Outcome, Revoke, Revoked, Signatures
from maitred.routing.keys import check_partition
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.app.session import SessionOwner
    from maitred.app.task_views import TaskStatus, TaskTimeline
    from maitred.client.client import AsyncClient
    from maitred.client.task_changes import Place
    from maitred.protocol.inspection import TaskAction, TaskShown
    from maitred.protocol.tasks import SignaturesFound

Result = TypeVar("Result")

Fate = Literal["cancelled", "cancelling", "over"]
"""What cancelling achieved. `cancelled`: the task will not begin, by this call or an earlier one.
`cancelling`: it runs, and its worker is told to stop it. `over`: it had ended otherwise."""

SLICE_SECONDS: Final = 60.0
"""Longest single request for a result: well below the longest timeout of a request, and short
enough for proxies that close idle connections."""

AWAY_SECONDS: Final = 2.0
"""`result()` keeps asking for this long while the node reports its store as unavailable, so that
one failed commit does not reach the caller."""

PAUSED_SECONDS: Final = 0.5
"""How much longer than its timeout `result()` may take to find out that the queue is paused."""

ROOT: Final = 0
"""The partition that knows whether its queue is paused."""

_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_LONGEST_SECONDS: Final = 5.0

_read_anything: Final = msgspec.msgpack.Decoder().decode
_read_failure: Final = msgspec.msgpack.Decoder(Failure).decode


class Task(msgspec.Struct, Generic[Result], eq=False):
    """The handle of a task that was added, now or earlier."""

    _app: SessionOwner
    queue: str
    partition: int
    sequence: int
    _read: Callable[[bytes], Any] = _read_anything
    _result: bytes | None = None
    """The encoded result, if it came with the answer to `enqueue`: `result()` then asks no node."""

    @property
    def id(self) -> str:
        """Identifies the task among all tasks of all queues of the node."""
        return f"{self._app.namespace}/{self.queue}/{self.partition}/{self.sequence}"

    def __repr__(self) -> str:
        return f"<Task {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and other.id == self.id

    def __hash__(self) -> int:
        return hash((self.queue, self.partition, self.sequence))

    async def result(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
    ) -> Result:
        """Wait for the task and return what its handler returned; without a timeout, however long
        it takes.

        Raises `TaskFailed`, `TaskCancelled` or `TaskExpired` if there is no result, `TaskForgotten`
        if the task has ended and its result is no longer kept, `UnknownTask` if the task does not
        exist, `StoreUnavailable` if the node's store is unavailable and only the store knows the
        result, and `DeadlineExceeded`, which is a `TimeoutError`, if the task has not ended in
        time. After the last two the caller can ask again.
        """
        body = self._result
        if body is None:
            outcome = await self._outcome(timeout)
            if outcome.status != "done":
                raise error_of(self.id, outcome)
            body = outcome.body
        try:
            return cast("Result", self._read(body))
        except msgspec.DecodeError as problem:
            raise InvalidResult(f"The result of {self.id} is not msgpack: {problem}.") from None

    async def cancel(self) -> Fate:
        """Cancel the task: it is not run, or it is stopped if it runs."""
        session = await self._app.session()
        message = Revoke(self._app.namespace, self.queue, TASKS, self.partition, 0, self.sequence)
        return cast("Revoked", await session.client.request(message)).state

    async def retry(self, reason: str = "") -> None:
        """Try a dead letter again, with all its attempts.

        This and the other actions need the permission `operate`, and are in the audit log, with the
        reason. They raise `TaskNotChanged` if the task is in another state than they are for, and
        `UnknownTask` and `TaskForgotten` as `result` does.
        """
        await self._change("retry", reason)

    async def run_now(self, reason: str = "") -> None:
        """Run a delayed task now, instead of at the end of its delay or of the wait for a retry."""
        await self._change("run-now", reason)

    async def drop(self, reason: str = "") -> None:
        """Delete a dead letter, for good."""
        await self._change("drop", reason)

    async def again(self, *args: Any, **kwargs: Any) -> Task[Result]:  # noqa: ANN401 - the handler's
        """Add a new task like this one, which is over or a dead letter, and return its handle.

        Without arguments it has the arguments and the options of this one, whose history has to be
        kept still. With arguments, which are those of the handler, it is a task with the options of
        the handler, which the app has to have.
        """
        if args or kwargs:
            handler = self._app.handlers.get(self.queue)
            if handler is None:
                raise InvalidHandler(
                    f"The app has no handler for the queue {self.queue!r} and its arguments.",
                    remedy="Leave the arguments out, or add the task with the app that has it.",
                )
            added: Task[Result] = await handler.enqueue(*args, **kwargs)
            return added
        place = await self._change("again", "")
        if place is None:
            raise InvalidResult(f"The node has not said which task runs {self.id} again.")
        return Task(self._app, self.queue, *place, self._read)

    async def _change(self, action: TaskAction, reason: str) -> Place | None:
        queue = QueueId(self._app.namespace, self.queue, TASKS)
        place = (self.partition, self.sequence)
        return await change_task(self._app, queue, place, action, reason)

    async def status(self) -> TaskStatus:
        """Return the state of the task: how many attempts began, at which worker, why they failed.

        The user needs the permission `read`, and `reveal` to see arguments, messages of errors and
        tracebacks. Raises `UnknownTask` and `TaskForgotten` as `result` does.
        """
        shown = await self._shown()
        return status_of(self.id, self.queue, shown.task, shown.traceback)

    async def history(self) -> TaskTimeline:
        """Return what happened to the task, and what is planned; `print` shows it as a timeline.
        Permissions and errors are those of `status`."""
        return history_of(self.id, self.queue, await self._shown())

    async def _shown(self) -> TaskShown:
        session = await self._app.session()
        queue = QueueId(self._app.namespace, self.queue, TASKS)
        return await show_task(session.client, queue, self.partition, self.sequence, reveal=True)

    async def _outcome(self, seconds: float | None) -> Outcome:
        session = await self._app.session()
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        pause = _PAUSE_FIRST_SECONDS
        store_away_at = inf
        left = SLICE_SECONDS if seconds is None else seconds
        while True:
            message = Await(
                self._app.namespace, self.queue, TASKS, self.partition, 0, self.sequence
            )
            try:
                answer = await session.client.request(
                    message, min(left, SLICE_SECONDS), patient=True
                )
                return cast("Outcome", answer)
            except MaitredError as cut:
                if not cut.transient:
                    raise
                problem = cut
            if not isinstance(problem, StoreUnavailable):
                store_away_at = inf
            elif loop.time() > (store_away_at := min(store_away_at, loop.time())) + AWAY_SECONDS:
                raise problem
            if not isinstance(problem, DeadlineExceeded):
                await asyncio.sleep(pause if end is None else min(pause, end - loop.time()))
                pause = min(2 * pause, _PAUSE_LONGEST_SECONDS)
            if end is not None:
                left = end - loop.time()
                if left <= 0:
                    break
        why = "" if isinstance(problem, DeadlineExceeded) else f" ({problem.sentence.rstrip('.')})"
        paused = await self._paused_seconds_ago(session.client)
        if paused is not None:
            raise DeadlineExceeded(
                f"The task {self.id} did not end within {seconds:g} s{why}: its queue has been "
                f"paused for {paused:,.0f} s.",
                remedy="It runs when an operator resumes the queue; ask for its result again then.",
            )
        raise DeadlineExceeded(
            f"The task {self.id} did not end within {seconds:g} s{why}.",
            remedy="Ask for its result again later; the task goes on.",
        )

    async def _paused_seconds_ago(self, client: AsyncClient) -> float | None:
        """Return for how long the queue has been paused; None if it is not, or if the node does not
        tell at once."""
        message = Signatures(self._app.namespace, self.queue, TASKS, ROOT, 0)
        try:
            answer = await client.request(message, PAUSED_SECONDS)
        except MaitredError:
            return None
        return cast("SignaturesFound", answer).paused_seconds_ago


def error_of(task_id: str, outcome: Outcome) -> MaitredError:
    """Return the error that tells why a task ended without a result."""
    if outcome.status == "cancelled" and outcome.body:
        return TaskPurged(f"The task {task_id} was dropped: an operator purged its queue.")
    if outcome.status == "cancelled":
        return TaskCancelled(f"The task {task_id} was cancelled.")
    if outcome.status == "expired":
        return TaskExpired(f"The task {task_id} expired before it began.")
    try:
        failure = _read_failure(outcome.body)
    except msgspec.DecodeError:
        failure = Failure("unknown", "The failure cannot be decoded.")
    tries = "1 attempt" if outcome.attempts == 1 else f"{outcome.attempts} attempts"
    return TaskFailed(
        f"The task {task_id} failed after {tries}: {failure.kind}: {failure.message}",
        kind=failure.kind,
        message=failure.message,
        remote_traceback=failure.traceback,
        attempts=outcome.attempts,
    )


class SyncTask(Generic[Result]):
    """The handle of a task for synchronous code."""

    __slots__ = ("_app", "_task")

    def __init__(self, app: SessionOwner, task: Task[Result]) -> None:
        self._app = app
        self._task = task

    @property
    def id(self) -> str:
        """See `Task.id`."""
        return self._task.id

    def __repr__(self) -> str:
        return f"<SyncTask {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SyncTask) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self._task)

    def result(self, timeout: float | None = None) -> Result:
        """See `Task.result`."""
        return self._app.sync.run(lambda: self._task.result(timeout))

    def cancel(self) -> Fate:
        """See `Task.cancel`."""
        return self._app.sync.run(self._task.cancel)

    def retry(self, reason: str = "") -> None:
        """See `Task.retry`."""
        self._app.sync.run(lambda: self._task.retry(reason))

    def run_now(self, reason: str = "") -> None:
        """See `Task.run_now`."""
        self._app.sync.run(lambda: self._task.run_now(reason))

    def drop(self, reason: str = "") -> None:
        """See `Task.drop`."""
        self._app.sync.run(lambda: self._task.drop(reason))

    def again(self, *args: Any, **kwargs: Any) -> SyncTask[Result]:  # noqa: ANN401 - the handler's
        """See `Task.again`."""
        task = self._app.sync.run(lambda: self._task.again(*args, **kwargs))
        return SyncTask(self._app, task)

    def status(self) -> TaskStatus:
        """See `Task.status`."""
        return self._app.sync.run(self._task.status)

    def history(self) -> TaskTimeline:
        """See `Task.history`."""
        return self._app.sync.run(self._task.history)


def parse_id(namespace: str, text: str) -> tuple[str, int, int]:
    """Return queue, partition and sequence number of a task of that namespace; raise
    `InvalidTaskId`."""
    problem = InvalidTaskId(
        f"{text!r:.120} is not the id of a task in the namespace {namespace!r}.",
        remedy="Ids are namespace/queue/partition/number, as Task.id has them.",
    )
    if not str(text).startswith(f"{namespace}/"):
        raise problem
    # Split from the right: names may have slashes.
    parts = text[len(namespace) + 1 :].rsplit("/", 2)
    if len(parts) != 3 or not parts[0] or not all(map(_is_number, parts[1:])):
        raise problem
    partition, sequence = int(parts[1]), int(parts[2])
    try:
        check_partition(partition)
    except MaitredError:
        raise problem from None
    if sequence >= 2**63:
        raise problem
    return parts[0], partition, sequence


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
