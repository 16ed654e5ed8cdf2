"""Lists the tasks of a queue, page by page, whatever the number of its partitions and tasks.

Every partition answers for its own tasks, with a bounded amount of work. Running, delayed and ended
tasks are merged into one order (`merged_tasks.py`): an operator asks what ran longest, what is due
next, what ended last. Waiting tasks and dead letters come partition by partition, because nothing
orders them across partitions. Several states come one after the other. A partition that does not
answer is named in the page, and the others are listed all the same.
"""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, cast

from msgspec import Meta, MsgspecError, Struct, json, msgpack

from maitred.client.answers import (
    AT_ONCE,
    ROOT,
    Answers,
    Silent,
    described,
    each,
    inspect,
    is_refusal,
)
from maitred.client.cursors import read_cursor, write_cursor
from maitred.client.merged_tasks import BEGINNING, MergedTasks, TaskPlace, check_listed
from maitred.errors import InvalidArgument, PermissionDenied, UnknownQueue
from maitred.matching.controls import NAME_CHARACTERS
from maitred.protocol.inspection import (
    EVERY_TASK,
    LISTED_MAX,
    ArgumentFilter,
    ListedState,
    ListTasks,
    ShowTask,
)
from maitred.routing.keys import PARTITIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maitred.client.merged_tasks import After
    from maitred.client.requester import Requester
    from maitred.protocol.inspection import ListedTask, TaskFilter, TaskShown, TasksListed
    from maitred.routing.names import QueueId

EVERY_STATE: Final[tuple[ListedState, ...]] = ("running", "waiting", "delayed", "dead", "ended")
"""All states, in the order in which a list has them: what happens now, next, later, and is over."""

STATES: Final[tuple[ListedState, ...]] = (*EVERY_STATE, "done", "cancelled", "expired")

OVER: Final = frozenset[ListedState](("done", "cancelled", "expired"))
"""The states that `ended` stands for."""

MERGED: Final = frozenset[ListedState](("running", "delayed", "ended", *OVER))
"""States whose tasks are merged over the partitions."""

DESCENDING: Final = frozenset[ListedState](("ended", *OVER))
"""States that are listed with the last moment first."""

LOOKED_MAX: Final = 50_000
"""Tasks that are compared with the filter for one page, before it ends although it is not full:
some hundred milliseconds of the shards."""

PAGE_SECONDS: Final = 2.0
"""How long the making of a page may take, before it ends although it is not full: as long as a
person waits without a sign."""

SHARE_MIN: Final = 10
"""Least number of tasks that a partition is asked for first, when a page is merged from many."""

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ListCursor(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where a list goes on, as its cursor says."""

    version: Annotated[int, Meta(ge=1, le=1)]
    """Another version of this program might use other places."""
    state: ListedState
    place: tuple[float, Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)], Natural] | None
    """A `TaskPlace`: behind this task in the list of the state; None: at its beginning. For waiting
    tasks and dead letters, the moment is what their partition orders them by first."""


class TaskPage(NamedTuple):
    """Some tasks of a list, and where it goes on."""

    tasks: list[ListedTask]
    cursor: str | None
    """None: the list has ended."""
    more: bool
    """Whether the page has ended early: it is not full, and yet there may be more tasks."""
    silent: dict[int, Silent]
    """The partitions that did not answer, whose tasks are missing."""
    looked_at: int
    """How many tasks were compared with the filter."""


async def list_tasks(
    client: Requester,
    queue: QueueId,
    states: Sequence[ListedState] = EVERY_STATE,
    tasks: TaskFilter = EVERY_TASK,
    *,
    reveal: bool,
    most: int = 100,
    cursor: str | None = None,
    without: Collection[int] = (),
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with each request
) -> TaskPage:
    """Return a page of the tasks that are in one of these states and pass the filter.

    A partition that does not answer takes the time of a request. It is asked once for a page;
    `without` names those that did not answer for earlier pages, and are not asked again.
    A page is no snapshot, and neither are all pages together: a task that changes its state between
    two requests may be missed, or be listed in both states. Raises `InvalidArgument` for a cursor
    of another list, `PermissionDenied` for a filter that the user may not use, and `UnknownQueue`
    with the most similar name.
    """
    check_filter(tasks, reveal=reveal)
    if not 1 <= most <= LISTED_MAX:
        raise InvalidArgument(
            f"A page cannot have {most:,} tasks.", remedy=f"Ask for 1 to {LISTED_MAX:,}."
        )
    wanted = ordered(states)
    state, place = wanted[0], None
    if cursor is not None:
        state, place = _resumed(cursor, wanted)
    known = (await described(client, queue, ROOT, timeout)).counts.read
    page = _Page(client, queue, known, tasks, most, reveal=reveal, without=without, timeout=timeout)
    while True:
        await (page.merge(state, place) if state in MERGED else page.follow(state, place))
        place = page.place
        if place is None:
            following = wanted[wanted.index(state) + 1 :]
            if not following:
                return page.made(None)
            state = following[0]
        if place is not None or page.is_full or page.is_over_budget:
            return page.made(write_cursor(ListCursor(1, state, place)))


async def show_task(
    client: Requester,
    queue: QueueId,
    partition: int,
    sequence: int,
    *,
    reveal: bool,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
) -> TaskShown:
    """Return everything that is known of one task; raise `UnknownTask` or `UnknownQueue`."""
    message = ShowTask(*queue, partition, 0, sequence, reveal)
    shown = cast("TaskShown", await inspect(client, message, timeout))
    if reveal:
        _say_why(shown.task)
        if shown.task.state == "done" and shown.result is None and not shown.result_withheld:
            shown.result_withheld = "permission"
    return shown


def argument_filter(text: str) -> ArgumentFilter:
    """Return the filter that `NAME=JSON` says; raise `InvalidArgument`."""
    name, _, value = text.partition("=")
    try:
        found = ArgumentFilter(name, msgpack.encode(json.decode(value)))
    except (ValueError, MsgspecError):
        found = None
    if not name or found is None:
        raise InvalidArgument(
            f"{text[:60]!r} is no argument with its value in JSON.",
            remedy="""Write NAME=JSON, as in size=128 or url="https://example.org".""",
        )
    return found


def check_filter(tasks: TaskFilter, *, reveal: bool) -> None:
    """Raise `InvalidArgument` for a text that is too long, and `PermissionDenied` for a filter by
    argument unless private data may be seen: its answers would tell the arguments, too."""
    name = tasks.argument.name if tasks.argument is not None else ""
    for text in (tasks.worker, tasks.error, tasks.by, name):
        if len(text) > NAME_CHARACTERS:
            raise InvalidArgument(
                f"A filter has {len(text):,} characters.",
                remedy=f"Search for at most {NAME_CHARACTERS}.",
            )
    if tasks.argument is not None and not reveal:
        raise PermissionDenied(
            "To find tasks by their arguments, a user needs the permission 'reveal'.",
            remedy="Ask to reveal them, or search without arguments.",
        )


def ordered(states: Iterable[ListedState]) -> tuple[ListedState, ...]:
    """Return the states in the order in which a list has them, each task in one of them; raise
    `InvalidArgument` for another word."""
    chosen = set(states)
    for state in chosen:
        if state not in STATES:
            raise InvalidArgument(
                f"{str(state)[:60]!r} is no state of tasks.", remedy=f"States: {', '.join(STATES)}."
            )
    if not chosen:
        raise InvalidArgument("Nothing says tasks of which state.")
    if "ended" in chosen or chosen >= OVER:
        chosen = (chosen - OVER) | {"ended"}
    return tuple(state for state in STATES if state in chosen)


def _say_why(task: ListedTask) -> None:
    """Say why a task has no arguments: a shard that gives no reason took back the wish to see
    them, because the user may not."""
    if task.arguments is None and not task.withheld:
        task.withheld = "permission"


def _resumed(text: str, wanted: Sequence[ListedState]) -> tuple[ListedState, TaskPlace | None]:
    cursor = read_cursor(text, ListCursor)
    place = None if cursor.place is None else TaskPlace(*cursor.place)
    if cursor.state not in wanted or (
        place is not None and not (isfinite(place.moment) and place.moment >= 0)
    ):
        raise InvalidArgument(
            f"{text[:60]!r} is no cursor of this list.",
            remedy="Ask for the next page with the same states as for the page before.",
        )
    return cursor.state, place


class _Page:
    """One page while it is made."""

    def __init__(
        self,
        client: Requester,
        queue: QueueId,
        known: int,
        tasks: TaskFilter,
        most: int,
        *,
        reveal: bool,
        without: Collection[int],
        timeout: float | None,
    ) -> None:
        self.place: TaskPlace | None = None
        """Where the list of the last state goes on; None: it has ended."""
        self._client = client
        self._queue = queue
        self._known = known
        """Number of partitions; those of higher numbers are removed ones."""
        self._filter = tasks
        self._most = most
        self._reveal = reveal
        self._without = set(without)
        """Partitions that are not asked: they have not answered before."""
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + PAGE_SECONDS
        self._tasks: list[ListedTask] = []
        self._silent: dict[int, Silent] = {}
        self._looked_at = 0

    @property
    def is_full(self) -> bool:
        """Whether the page has as many tasks as were asked for."""
        return len(self._tasks) >= self._most

    @property
    def is_over_budget(self) -> bool:
        """Whether the page has to end, full or not."""
        return self._looked_at >= LOOKED_MAX or self._loop.time() >= self._until

    def made(self, cursor: str | None) -> TaskPage:
        """Return the tasks that were gathered, and where the next page begins."""
        more = cursor is not None and not self.is_full
        return TaskPage(self._tasks, cursor, more, self._silent, self._looked_at)

    async def merge(self, state: ListedState, place: TaskPlace | None) -> None:
        """Add tasks of a state that is merged over the partitions."""
        left = self._most - len(self._tasks)
        merged = MergedTasks(place, left, descending=state in DESCENDING)
        share = min(left, max(SHARE_MIN, 2 * left // self._known))
        asked = {one: merged.begins(one) for one in range(self._known)}
        merged.answered((await self._ask(state, asked, share)).found)
        removed = self._known
        while found := (await self._ask(state, {removed: merged.begins(removed)}, share)).found:
            merged.answered(found)
            removed += 1
        merged.take()
        while (asked := merged.wanted()) and not self.is_over_budget:
            share = min(left, 2 * share)
            answers = await self._ask(state, asked, share)
            merged.answered(answers.found)
            merged.lost(answers.silent)
            merged.take()
        self._tasks += merged.tasks
        self.place = merged.place

    async def follow(self, state: ListedState, place: TaskPlace | None) -> None:
        """Add tasks of a state that is listed partition by partition.

        Empty partitions are passed in leaps: after each of them, twice as many are asked at once.
        """
        partition = 0 if place is None else place.partition
        after = BEGINNING if place is None else (place.moment, place.sequence)
        leap = 1
        while True:
            group = range(partition, max(partition + 1, min(partition + leap, self._known)))
            asked = dict.fromkeys(group, BEGINNING) | {partition: after}
            answers = await self._ask(state, asked, self._most - len(self._tasks))
            leap = min(2 * leap, AT_ONCE)
            for one, begin in asked.items():
                partition, after = one, begin
                if self.is_full:
                    break
                listed = answers.found.get(one)
                if listed is None and one >= self._known:
                    self.place = None
                    return
                on = None if listed is None else self._add(listed)
                if on is not None:
                    after = on
                    leap = 1
                    break
            else:
                partition, after = partition + 1, BEGINNING
            if self.is_full or self.is_over_budget:
                self.place = TaskPlace(after[0], partition, after[1])
                return

    def _add(self, listed: TasksListed) -> After | None:
        """Add the tasks of a partition as long as there is room; return where its list goes on."""
        taken = listed.tasks[: self._most - len(self._tasks)]
        self._tasks += taken
        return listed.cursor if len(taken) == len(listed.tasks) else taken[-1].at

    async def _ask(
        self, state: ListedState, places: Mapping[int, After], most: int
    ) -> Answers[int, TasksListed]:
        """Ask some partitions from these places on, and check that their answers lead on.

        Those that do not answer are noted for the page. A partition that does not exist has never
        been used, or was never made: nothing of it is missing.
        """

        async def ask(partition: int) -> TasksListed:
            after = places[partition]
            message = ListTasks(
                *self._queue, partition, 0, state, self._filter, after, most, self._reveal
            )
            listed = cast("TasksListed", await inspect(self._client, message, self._timeout))
            self._looked_at += listed.looked_at
            check_listed(partition, after, listed, descending=state in DESCENDING)
            if self._reveal:
                for task in listed.tasks:
                    _say_why(task)
            return listed

        answers = await each([one for one in places if one not in self._without], ask)
        for partition, silent in answers.silent.items():
            if is_refusal(silent.error):
                raise silent.error
            if not isinstance(silent.error, UnknownQueue):
                self._silent[partition] = silent
                self._without.add(partition)
        return answers
