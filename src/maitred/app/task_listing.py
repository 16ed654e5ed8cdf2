"""Finds the tasks of an app's queues: `app.tasks(state="dead", since=timedelta(hours=1))`.

The arguments are checked at the call. The tasks come page by page, as the caller goes on: a queue
may have ten million of them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from maitred.app.task_views import TaskStatus, status_of
from maitred.client.task_lists import EVERY_STATE, list_tasks, ordered
from maitred.errors import InvalidArgument, Unavailable, UnknownChoice, UnknownQueue
from maitred.protocol.inspection import ArgumentFilter, TaskFilter
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence

    from maitred.app.session import SessionOwner
    from maitred.client.answers import Silent
    from maitred.protocol.inspection import ListedState

PAGE: Final = 200
"""Tasks of one request: few enough that the first ones come at once."""

Moment = datetime | timedelta | float
"""A time: a datetime, or how long ago, as a timedelta or in seconds."""


class TaskFilters(TypedDict, total=False):
    """Which tasks are listed; all, unless filters are given."""

    state: ListedState | Sequence[ListedState]
    """One or several of `running`, `waiting`, `delayed`, `dead`, `ended` (all that are over), or
    `done`, `cancelled`, `expired`."""
    since: Moment
    """Only tasks that were added since then: a datetime (one without a zone is local time), or how
    long ago, as a timedelta or in seconds."""
    until: Moment
    """Only tasks that were added before then."""
    worker: str
    """Name of the worker that has the task, or had it last."""
    error: str
    """Part of the class, the code or the message of the last failure."""
    by: str
    """User who added the task."""
    argument: tuple[str, Any]
    """Name of a parameter (or its place) and its value, as in `("size", 128)`."""


FILTERS: Final = tuple(TaskFilters.__annotations__)


class SelectedTasks:
    """Which tasks a program means, checked."""

    def __init__(self, filters: TaskFilters) -> None:
        for name in filters:
            if name not in FILTERS:
                raise UnknownChoice.named("filter of tasks", name, FILTERS)
        state = filters.get("state")
        self.states = (
            () if state is None else ordered((state,) if isinstance(state, str) else state)
        )
        """The states that are named; none: all that make sense."""
        self._since = _checked("since", filters.get("since"))
        self._until = _checked("until", filters.get("until"))
        self._filter = TaskFilter(
            worker=_text("worker", filters.get("worker", "")),
            error=_text("error", filters.get("error", "")),
            by=_text("by", filters.get("by", "")),
            argument=_argument(filters.get("argument")),
        )

    def filter(self, now: float) -> TaskFilter:
        """Return what the node filters by, if it is now this unix time."""
        return msgspec.structs.replace(
            self._filter,
            added_after=_unix(self._since, now),
            added_before=_unix(self._until, now),
        )


class TaskListing:
    """The tasks that a program asks for, page by page."""

    def __init__(
        self,
        app: SessionOwner,
        queues: Sequence[str],
        filters: TaskFilters,
        *,
        has_handlers: bool,
    ) -> None:
        """`has_handlers`: the app has handlers for the queues, so that one that does not exist yet
        has no tasks and is no mistake."""
        self._app = app
        self._queues = [QueueId(app.namespace, queue, TASKS) for queue in queues]
        self._has_handlers = has_handlers
        self._selected = SelectedTasks(filters)
        self._filter = TaskFilter()
        self._at = 0
        """Number of the queue that comes next."""
        self._cursor: str | None = None
        self._without: set[int] = set()
        """Partitions of this queue that did not answer, and are not asked again."""
        self._silent: dict[str, Silent] = {}
        """Why partitions did not answer, by their names."""

    async def next_page(self) -> list[TaskStatus] | None:
        """Return the next tasks; None at the end. Raises `Unavailable` at the end if some
        partitions did not answer."""
        session = await self._app.session()
        if self._at == 0 and self._cursor is None:
            self._filter = self._selected.filter(session.wall_clock())
        if self._at == len(self._queues):
            self._raise_missing()
            return None
        queue = self._queues[self._at]
        try:
            page = await list_tasks(
                session.client,
                queue,
                self._selected.states or EVERY_STATE,
                self._filter,
                reveal=True,
                most=PAGE,
                cursor=self._cursor,
                without=self._without,
            )
        except UnknownQueue:
            if not self._has_handlers:
                raise
            self._at += 1
            return []
        for partition, silent in page.silent.items():
            self._silent[f"{queue.namespace}/{queue.queue}/{partition}"] = silent
            self._without.add(partition)
        self._cursor = page.cursor
        if page.cursor is None:
            self._at += 1
            self._without.clear()
        prefix = f"{queue.namespace}/{queue.queue}"
        return [
            status_of(f"{prefix}/{one.partition}/{one.sequence}", queue.queue, one)
            for one in page.tasks
        ]

    def _raise_missing(self) -> None:
        if self._silent:
            name, silent = next(iter(self._silent.items()))
            more = len(self._silent) - 1
            others = f" and {more} other partition{'' if more == 1 else 's'}" if more else ""
            raise Unavailable(
                f"The tasks of the partition {name}{others} are missing: {silent.error.sentence}",
                remedy="List them again later; those that came before are complete otherwise.",
            ) from silent.error


async def each_task(listing: TaskListing) -> AsyncIterator[TaskStatus]:
    """Yield the tasks one by one."""
    while (page := await listing.next_page()) is not None:
        for one in page:
            yield one


def each_task_waiting(
    listing: TaskListing, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
) -> Iterator[TaskStatus]:
    """Yield the tasks one by one; `run` waits for a coroutine of the app."""
    while (page := run(listing.next_page)) is not None:
        yield from page


def _text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"The filter {name!r} is {text!r:.80}; it has to be text.")
    return text


def _argument(argument: object) -> ArgumentFilter | None:
    if argument is None:
        return None
    if not isinstance(argument, tuple) or len(argument) != 2 or not isinstance(argument[0], str):
        raise InvalidArgument(
            f"The filter 'argument' is {argument!r:.80}; it has to be a name and a value.",
            remedy='Write argument=("size", 128).',
        )
    try:
        return ArgumentFilter(argument[0], msgspec.msgpack.encode(argument[1]))
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidArgument(
            f"The value of the filter 'argument' cannot be serialised: {problem}."
        ) from None


def _checked(name: str, moment: object) -> Moment | None:
    if moment is None or isinstance(moment, datetime | timedelta):
        return moment
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not isfinite(moment):
        raise InvalidArgument(
            f"The filter {name!r} is {moment!r:.80}.",
            remedy="Give a datetime, or how long ago: a timedelta, or seconds.",
        )
    return float(moment)


def _unix(moment: Moment | None, now: float) -> float:
    """Return the time as unix time; 0 for None."""
    if moment is None:
        return 0.0
    if isinstance(moment, datetime):
        return moment.timestamp()
    seconds = moment.total_seconds() if isinstance(moment, timedelta) else moment
    return now - seconds
