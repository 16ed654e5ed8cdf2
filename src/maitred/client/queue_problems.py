"""What is wrong with queues, why, and what helps.

The decision is made here once, for the command line, the HTTP API and the console, from what shards
tell of all queues and from the errors of a few. It knows five problems, the most urgent first:

- `unserved`: tasks are ready, and no worker attends;
- `failing`: tasks have used up their attempts, and are dead letters;
- `retrying`: a fifth of the attempts fail, and retries wait;
- `behind`: workers attend, and a task waits for a minute or will, at the present speed;
- `paused`: an operator has paused the queue.

Rejected: a bound for how long a handler may run. An hour is right for a film and wrong for a mail;
a handler is too slow when its tasks have to wait for it. These may be tasks of other queues: a
handler that hangs keeps slots from all queues of its worker. So a queue that is behind names the
queue whose tasks hold its slots, and for how long the oldest of these has run.
"""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from heapq import nlargest
from time import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from msgspec import Struct

from maitred.client.answers import ROOT, described
from maitred.client.dead_groups import DeadGroup, DeadGroupCount
from maitred.client.queue_states import ListedQueue, QueuePages
from maitred.client.task_lists import list_tasks
from maitred.client.task_words import duration_words, two_digits
from maitred.client.worker_lists import list_workers, worker_tasks
from maitred.errors import MaitredError, printable
from maitred.protocol.inspection import LISTED_MAX
from maitred.protocol.queue_overview import STATES_MAX
from maitred.protocol.worker_overview import TASKS_MAX
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from maitred.client.client import AsyncClient
    from maitred.client.queue_states import Name
    from maitred.client.statistics import Unreachable
    from maitred.protocol.queue_overview import QueueSort

WAIT_SECONDS: Final = 60.0
"""A queue that works well begins a task within seconds; a minute of waiting is worth a look."""

FAILING_SHARE: Final = 0.2
"""Share of failed attempts from which on a queue fails, as in the alert `MaitredTasksFailing`."""

HIGHEST: Final = 100
"""Queues that are looked at in each order, if there are more than one page of them by name."""

ORDERS: Final[tuple[QueueSort, ...]] = ("backlog", "oldest", "dead", "added")

CAUSES_QUEUES: Final = 10
"""Queues whose errors are looked up: each reads up to a thousand tasks of the store."""

CAUSES_TOLD: Final = 3
"""Errors that are told of a queue, the most frequent first."""

MESSAGE_CHARACTERS: Final = 200
"""Longest message of an error that is told."""

DELAYS_QUEUES: Final = 10
"""Queues that are behind whose roots and workers are asked why."""

WORKERS_ASKED: Final = 10
"""Workers of such a queue that are asked what they run."""

HOLDING_SHARE: Final = 0.5
"""Share of the slots of its workers from which on another queue holds up a queue."""

RATE_SHARE: Final = 0.8
"""A queue that hands out this share of its rate is slow because of the rate."""

CAUSES_SECONDS: Final = 10.0
"""For how long the errors of a queue, and what holds it up, are remembered, for pages that are kept
up to date."""

REMEMBERED_MAX: Final = 200
"""Queues whose errors are remembered at a time."""

COMPARED_QUEUES: Final = 10
"""Queues without workers whose names are compared with those of served ones, those with the longest
backlog: to compare one name with a thousand similar ones takes some eight milliseconds."""

ProblemKind = Literal["unserved", "failing", "retrying", "behind", "paused"]
"""The most urgent first."""


class QueueProblem(Struct, kw_only=True):
    """Something that is wrong with a queue."""

    kind: ProblemKind
    namespace: str
    queue: str
    tasks: int
    """How many tasks suffer from it: they wait, or are dead letters."""
    what: str
    """What is wrong, as in `30 tasks wait, the oldest for 2 min`."""
    why: str
    """Why, as far as is known; empty if not. Messages of errors are private data: for users without
    the permission `reveal` there is only the class of each error."""
    remedy: str
    """What helps."""


class SlotHolder(NamedTuple):
    """A queue whose tasks hold most slots of another queue's workers."""

    name: Name
    tasks: int
    longest_seconds: float
    """For how long the first of them has run."""
    slots: int
    """Of the workers that were asked, at most `TASKS_MAX` of each."""


class QueueDelay(NamedTuple):
    """What holds up a queue that is behind, as far as its root and its workers tell."""

    rate: float | None = None
    """Most tasks that it hands out per second; None: no limit, or not known."""
    holder: SlotHolder | None = None


NO_DELAY: Final = QueueDelay()


class FoundProblems(NamedTuple):
    """The problems of all queues that were looked at."""

    problems: list[QueueProblem]
    looked_at: int
    """Queues that were looked at: all, or those that have the most to do."""
    total: int
    """Queues that there are."""
    unreachable: list[Unreachable]
    """Shards and nodes that did not answer."""


def problems_of(
    queues: Iterable[ListedQueue],
    causes: Mapping[Name, Sequence[DeadGroup]],
    delays: Mapping[Name, QueueDelay] | None = None,
) -> list[QueueProblem]:
    """Return what is wrong with these queues, the most urgent first.

    `causes` has the errors of those that fail, `delays` what holds up those that are behind, as far
    as they are known.
    """
    states = list(queues)
    served = [(one.namespace, one.queue) for one in states if one.workers]
    unserved = [one for one in states if _is_unserved(one)]
    compared = {id(one) for one in nlargest(COMPARED_QUEUES, unserved, key=lambda one: one.backlog)}
    found = []
    for state in states:
        if state.pause is not None:
            found.append(_paused(state))
        elif _is_unserved(state):
            found.append(_unserved(state, served if id(state) in compared else ()))
        elif is_behind(state):
            found.append(_behind(state, (delays or {}).get(_name(state), NO_DELAY)))
        if is_failing(state):
            found.append(_failing(state, causes.get(_name(state), ())))
    urgency = get_args(ProblemKind)
    found.sort(key=lambda one: (urgency.index(one.kind), -one.tasks, one.namespace, one.queue))
    return found


def _is_unserved(state: ListedQueue) -> bool:
    return state.pause is None and state.backlog > state.delayed and not state.workers


def is_failing(state: ListedQueue) -> bool:
    """Whether tasks of the queue fail: there are dead letters, or retries wait and a fifth of the
    attempts failed lately."""
    if state.dead:
        return True
    failed = state.recent_failed
    return bool(failed and state.delayed) and failed >= FAILING_SHARE * max(state.recent_ended, 1)


def seconds_to_empty(state: ListedQueue, rate: float | None = None) -> float:
    """Return how long the tasks that are ready take at the present speed; 0 if that is not known.

    The speed is the better of two: how many tasks end per second, and how many run at a time by how
    long one usually takes. The first is low when a burst has just begun, the second when the moment
    of the look has few tasks running. It is never higher than the rate of the queue.
    """
    ready = state.backlog - state.delayed
    usual = state.run_p50_seconds
    if ready <= 0 or not usual:
        return 0.0
    # A burst that has just begun may have none running. Where tasks wait for long, none has a slot.
    running = state.running if state.oldest_seconds >= WAIT_SECONDS else max(state.running, 1)
    per_second = max(state.finished_per_second, running / usual)
    if rate is not None:
        per_second = min(per_second, rate)
    return ready / per_second if per_second else 0.0


def is_behind(state: ListedQueue) -> bool:
    """Whether a task has waited for a minute, or will at the present speed."""
    return max(state.oldest_seconds, seconds_to_empty(state)) >= WAIT_SECONDS


def _name(state: ListedQueue) -> Name:
    return state.namespace, state.queue


def _label(state: ListedQueue) -> str:
    return f"{state.namespace}/{state.queue}"


def _counted(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _waits(state: ListedQueue) -> str:
    """Say how many tasks wait, and since when."""
    oldest = f", the oldest for {duration_words(state.oldest_seconds)}"
    waits = _counted(state.backlog, "task waits", "tasks wait")
    return waits + (oldest if state.oldest_seconds else "")


def _problem(
    kind: ProblemKind, state: ListedQueue, tasks: int, what: str, why: str, remedy: str
) -> QueueProblem:
    return QueueProblem(
        kind=kind,
        namespace=state.namespace,
        queue=state.queue,
        tasks=tasks,
        what=what,
        why=why,
        remedy=remedy,
    )


def _paused(state: ListedQueue) -> QueueProblem:
    pause = state.pause
    by = f" by {printable(pause.by)}" if pause is not None and pause.by else ""
    reason = f": {printable(pause.reason)}" if pause is not None and pause.reason else ""
    what = _waits(state) if state.backlog else "no task waits"
    remedy = f"`maitred admin queue resume {_label(state)}`"
    return _problem("paused", state, state.backlog, what, f"it is paused{by}{reason}", remedy)


def _unserved(state: ListedQueue, served: Sequence[Name]) -> QueueProblem:
    names = [queue for namespace, queue in served if namespace == state.namespace]
    near = get_close_matches(state.queue, names, n=1)
    similar = f" ({state.namespace}/{near[0]}, which is served, is similar)" if near else ""
    remedy = (
        f"`maitred worker MODULE:APP --queue {state.queue}` starts a worker; if the name is "
        f"wrong{similar}, `maitred admin queue purge {_label(state)}` drops the tasks"
    )
    why = "no worker serves it"
    return _problem("unserved", state, state.backlog, _waits(state), why, remedy)


def _behind(state: ListedQueue, delay: QueueDelay) -> QueueProblem:
    seconds = seconds_to_empty(state, delay.rate)
    what = _waits(state)
    if seconds:
        what += f"; at this speed they take {duration_words(seconds)}"
    why, remedy = _limited(state, delay.rate) or _slow(state, delay.holder)
    return _problem("behind", state, state.backlog, what, why, remedy)


def _limited(state: ListedQueue, rate: float | None) -> tuple[str, str] | None:
    """Say why and what helps if the queue is slow because of its rate; else return None."""
    if rate is None or not (state.slots_free or state.finished_per_second >= RATE_SHARE * rate):
        return None
    added = two_digits(state.added_per_second)
    why = f"its rate_per_second lets {rate:g} tasks through per second, and {added} are added"
    set_rate = f"maitred admin queue set {_label(state)} rate_per_second=NUMBER"
    return why, f"`{set_rate}` raises the rate, and `none` ends it"


def _slow(state: ListedQueue, holder: SlotHolder | None) -> tuple[str, str]:
    """Say why a queue is slow that its rate does not slow down, and what helps."""
    run = ""
    if state.run_p50_seconds is not None and state.run_p99_seconds is not None:
        p50, p99 = duration_words(state.run_p50_seconds), duration_words(state.run_p99_seconds)
        run = f"an attempt takes {p50} (p50) to {p99} (p99), and "
    why = f"{run}{_counted(state.running, 'task runs', 'tasks run')} at a time; "
    if state.slots_free:
        free = _counted(state.slots_free, "slot is free", "slots are free")
        remedy = f"`maitred admin queue describe {_label(state)}` shows its partitions and workers"
        return why + free, remedy
    if holder is None:
        remedy = "more slots: another worker, or one with a higher --slots"
        return why + "no slot is free", remedy
    other, longest = "/".join(holder.name), duration_words(holder.longest_seconds)
    why += (
        f"no slot is free: {holder.tasks:,} of the {holder.slots:,} slots of its workers run "
        f"{other}, the longest for {longest}"
    )
    remedy = (
        f"`maitred admin task list {other} --state running` shows these, and `maitred admin task "
        f"cancel ID` stops one that hangs; `maitred worker MODULE:APP --queue {state.queue}` "
        "starts a worker for this queue alone"
    )
    return why, remedy


def _failing(state: ListedQueue, causes: Sequence[DeadGroup]) -> QueueProblem:
    told = [_counted(state.dead, "dead letter")] if state.dead else []
    if state.recent_failed:
        ended = max(state.recent_ended, state.recent_failed)
        told.append(f"{state.recent_failed:,} of the last {_counted(ended, 'attempt')} failed")
    label = _label(state)
    kind: ProblemKind = "failing" if state.dead else "retrying"
    if state.dead:
        remedy = f"mend the cause, then `maitred admin task retry {label} --all`"
    else:
        remedy = f"mend the cause; `maitred admin task list {label} --state delayed` shows them"
    why = "; ".join(_cause(one) for one in causes[:CAUSES_TOLD])
    if len(causes) > CAUSES_TOLD:
        why += f"; and {_counted(len(causes) - CAUSES_TOLD, 'other error')}"
    looked_at = sum(one.count for one in causes)
    if causes and looked_at < state.dead:
        why += f"; of the first {looked_at:,}"
    tasks = state.dead or state.delayed
    return _problem(kind, state, tasks, "; ".join(told), why, remedy)


def _cause(group: DeadGroup) -> str:
    message = group.message
    if len(message) > MESSAGE_CHARACTERS:
        message = message[:MESSAGE_CHARACTERS] + "..."
    told = ": ".join(filter(None, (group.error or group.reason, message)))
    return f"{printable(told)} ({group.count:,})"


class ProblemFinder:
    """Looks for problems of the queues of the nodes of one client."""

    def __init__(self, client: AsyncClient, pages: QueuePages | None = None) -> None:
        self._client = client
        self._pages = QueuePages(client) if pages is None else pages
        self._causes: dict[tuple[Name, bool], tuple[float, int, list[DeadGroup]]] = {}
        self._delays: dict[tuple[Name, tuple[str, ...] | None], tuple[float, QueueDelay]] = {}

    async def find(
        self,
        namespace: str = "",
        *,
        within: Sequence[str] | None = None,
        reveal: Callable[[str], bool] = lambda _: True,
    ) -> FoundProblems:
        """Return what is wrong with the queues of a namespace, or of all.

        `within` are the namespaces that the caller of a gateway may read, and `reveal` says in
        which it may see private data; for other clients the node decides. Raises the first error if
        no shard answers.
        """
        states: dict[Name, ListedQueue] = {}
        silent: dict[tuple[str, int | None], Unreachable] = {}
        total = 0
        orders: tuple[QueueSort, ...] = ("name", *ORDERS)
        for sort in orders:
            most = STATES_MAX if sort == "name" else HIGHEST
            page = await self._pages.page(namespace=namespace, sort=sort, most=most, within=within)
            silent |= {(one.address, one.shard): one for one in page.unreachable}
            states |= {(one.namespace, one.queue): one for one in page.queues}
            if sort == "name":
                total = page.total
                if page.cursor is None:
                    break
        failing = sorted(filter(is_failing, states.values()), key=lambda one: -one.dead)
        some = failing[:CAUSES_QUEUES]
        found = await asyncio.gather(*(self._errors(one, reveal(one.namespace)) for one in some))
        causes = {_name(one): groups for one, groups in zip(some, found, strict=True)}
        slow = [one for one in states.values() if one.workers and not one.pause and is_behind(one)]
        slow = sorted(slow, key=lambda one: -one.backlog)[:DELAYS_QUEUES]
        told = await asyncio.gather(*(self._delay(one, within) for one in slow))
        delays = {_name(one): delay for one, delay in zip(slow, told, strict=True)}
        problems = problems_of(states.values(), causes, delays)
        return FoundProblems(problems, len(states), max(total, len(states)), [*silent.values()])

    async def _errors(self, state: ListedQueue, reveal: bool) -> list[DeadGroup]:
        """Return the errors of dead letters, or else of tasks that wait for a retry; none if the
        queue does not answer. They are not asked again for a while, if as many tasks have died."""
        now = asyncio.get_running_loop().time()
        key = ((state.namespace, state.queue), reveal)
        until, dead, groups = self._causes.get(key, (0.0, -1, []))
        if now < until and dead == state.dead:
            return groups
        count = DeadGroupCount()
        try:
            page = await list_tasks(
                self._client,
                QueueId(state.namespace, state.queue, TASKS),
                ("dead",) if state.dead else ("delayed",),
                reveal=reveal,
                most=LISTED_MAX,
            )
        except MaitredError:
            return []
        count.add(one for one in page.tasks if one.error or one.state == "dead")
        if len(self._causes) >= REMEMBERED_MAX:
            self._causes.clear()
        self._causes[key] = (now + CAUSES_SECONDS, state.dead, count.ordered())
        return count.ordered()

    async def _delay(self, state: ListedQueue, within: Sequence[str] | None) -> QueueDelay:
        """Return what holds a queue up; it is not asked again for a while."""
        now = asyncio.get_running_loop().time()
        key = (_name(state), None if within is None else tuple(within))
        until, delay = self._delays.get(key, (0.0, NO_DELAY))
        if now < until:
            return delay
        try:
            root = await described(self._client, QueueId(*_name(state), TASKS), ROOT)
            holder = None if state.slots_free else await self._holder(state, within)
        except MaitredError:
            return NO_DELAY
        delay = QueueDelay(root.rate_limit_per_second, holder)
        if len(self._delays) >= REMEMBERED_MAX:
            self._delays.clear()
        self._delays[key] = (now + CAUSES_SECONDS, delay)
        return delay

    async def _holder(self, state: ListedQueue, within: Sequence[str] | None) -> SlotHolder | None:
        """Return the queue whose tasks hold most slots of the workers of this one; None if no
        other queue does."""
        namespace, queue = _name(state)
        page = await list_workers(
            self._client, namespace=namespace, queue=queue, most=WORKERS_ASKED, within=within
        )
        sessions = [one.row.session for one in page.workers]
        tasks, _ = await worker_tasks(self._client, sessions, within=within)
        return slot_holder(
            _name(state),
            sum(min(one.row.slots, TASKS_MAX) for one in page.workers),
            [((one.namespace, one.queue), one.since) for some in tasks.values() for one in some],
            time(),
        )


def slot_holder(
    waiting: Name, slots: int, tasks: Iterable[tuple[Name, float]], now: float
) -> SlotHolder | None:
    """Return the queue that has at least half of these slots, unless it is the waiting one itself.

    `tasks` has the queue of each task that runs, and since when.
    """
    begun: dict[Name, list[float]] = {}
    for name, since in tasks:
        begun.setdefault(name, []).append(since)
    name = max(begun, key=lambda one: (len(begun[one]), one), default=waiting)
    if name == waiting or len(begun[name]) < HOLDING_SHARE * slots:
        return None
    return SlotHolder(name, len(begun[name]), max(0.0, now - min(begun[name])), slots)
