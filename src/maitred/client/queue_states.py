"""Pages of all queues, in the order of their names or of a number, over all shards of all nodes.

Each shard tells pages of its own. By name they are merged: whatever is on the page of all shards is
on that of each. By a number it is harder, because that of a queue is the sum over its shards, and a
queue can be high in the sum and high at no shard. So the shards are asked for the highest, and each
for the queues that others named. A queue that no shard has named yet can have no more than the sum
of the last numbers that the shards named; all above that are in order (the threshold algorithm of
Fagin, Lotem and Naor). Queues without any follow by name.

Queues that no shard has loaded and that have nothing in the store are known by name alone. A node
lists those of its store, which takes it some milliseconds, so the names are remembered for a while.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections import Counter
from heapq import nsmallest
from itertools import islice
from math import inf
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from msgspec import DecodeError, msgpack

from maitred.client.requester import ShardRequester
from maitred.client.statistics import Unreachable
from maitred.errors import InvalidArgument, MaitredError
from maitred.metrics.histogram import WORK_BOUNDS
from maitred.metrics.points import quantile
from maitred.protocol.queue_overview import (
    STATES_MAX,
    ListQueueStates,
    QueueSort,
    QueueStateRow,
    QueueStatesListed,
)
from maitred.protocol.tasks import Queues, QueuesFound

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from maitred.matching.controls import Pause
    from maitred.protocol.messages import AnyAnswer, AnyRequest

NAMES_SECONDS: Final = 10.0
"""For how long the names of the queues of the store are remembered. A queue that is deleted is
listed for so long, without anything; one that is loaded is listed at once."""

PAGE: Final = 200
"""Queues that a shard is asked for at a time."""

ROUNDS_MAX: Final = 200
"""How often the shards are asked for one page at most: 40,000 queues of each, twice as many as a
node has by default."""

CURSOR_MAX: Final = 2_000
"""Longest cursor in letters: names are shorter."""

Name = tuple[str, str]
"""Namespace and name of a queue."""

_Shard = tuple[str, int]
"""The address of a node and the number of a shard; -1 for a node that has not told how many it
has."""

_Place = tuple[float, str, str]
"""A number with the opposite sign, a namespace and a name: the lowest place comes first."""


class ListedQueue(NamedTuple):
    """What a queue has now, over all shards that answered."""

    namespace: str
    queue: str
    backlog: int = 0
    oldest_seconds: float = 0.0
    running: int = 0
    slots_free: int = 0
    added_per_second: float = 0.0
    finished_per_second: float = 0.0
    failed: int = 0
    """Attempts that failed, timed out or whose worker was lost, since the shards began."""
    died: int = 0
    """Tasks that became dead letters since the shards began."""
    dead: int = 0
    """Dead letters in the store."""
    pause: Pause | None = None
    partitions: int = 0
    """0: not known, because none is loaded."""
    loaded: int = 0
    """Partitions that are loaded."""
    workers: int = 0
    queries_waiting: int = 0
    delayed: int = 0
    """Tasks of the backlog that wait for their time: delays and retries."""
    recent_failed: int = 0
    """Attempts that failed in the last five to ten minutes."""
    recent_runs: tuple[int, ...] = ()
    """How many of the attempts of these minutes ran how long, by bucket."""

    @property
    def recent_ended(self) -> int:
        """Attempts that ended in the last five to ten minutes."""
        return sum(self.recent_runs)

    @property
    def run_p50_seconds(self) -> float | None:
        """The median of their run times; None: none has ended."""
        return quantile(self.recent_runs, 0.5)

    @property
    def run_p99_seconds(self) -> float | None:
        """The 99th percentile of their run times; None: none has ended."""
        return quantile(self.recent_runs, 0.99)

    def plus(self, row: QueueStateRow) -> ListedQueue:
        """Add what another shard has of the queue."""
        return ListedQueue(
            self.namespace,
            self.queue,
            backlog=self.backlog + row.backlog,
            oldest_seconds=max(self.oldest_seconds, row.oldest_seconds),
            running=self.running + row.running,
            slots_free=self.slots_free + row.slots_free,
            added_per_second=round(self.added_per_second + row.added_per_second, 3),
            finished_per_second=round(self.finished_per_second + row.finished_per_second, 3),
            failed=self.failed + row.failed,
            died=self.died + row.died,
            dead=self.dead + row.dead,
            pause=self.pause or row.pause,
            partitions=max(self.partitions, row.partitions),
            loaded=self.loaded + row.loaded,
            workers=self.workers + row.workers,
            queries_waiting=self.queries_waiting + row.queries_waiting,
            delayed=self.delayed + row.delayed,
            recent_failed=self.recent_failed + row.recent_failed,
            recent_runs=_added(self.recent_runs, row.recent_runs),
        )


_NUMBERS: Final[dict[QueueSort, Callable[[ListedQueue], float]]] = {
    "name": lambda _: 0.0,
    "backlog": lambda state: state.backlog,
    "oldest": lambda state: state.oldest_seconds,
    "added": lambda state: state.added_per_second,
    "dead": lambda state: state.dead,
}


def _added(runs: tuple[int, ...], more: Sequence[int]) -> tuple[int, ...]:
    """Add the runs of another shard, unless it is of a release that has other buckets."""
    if len(more) != len(WORK_BOUNDS) + 1:
        return runs
    return tuple(map(add, runs, more)) if runs else tuple(more)


class QueueStatesPage(NamedTuple):
    """Some of the queues, in the order that was asked for."""

    queues: list[ListedQueue]
    cursor: str | None
    """Where the next page begins; None: there are no more."""
    total: int
    """How many queues match, as far as is known."""
    unreachable: list[Unreachable]
    """Shards, and nodes whose names are missing, that did not answer."""


class QueueLister(ShardRequester, Protocol):
    """Asks all shards, and nodes for the names of their queues; `AsyncClient` does."""

    async def request(
        self,
        message: AnyRequest,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
        *,
        node: str | None = None,
    ) -> AnyAnswer:
        """Send the request to a node, and wait for the answer."""

    def watched_nodes(self) -> tuple[str, ...]:
        """Return one member of a cluster, or else every node of the address."""


class QueuePages:
    """Lists the queues of the nodes of one client."""

    def __init__(self, client: QueueLister) -> None:
        self._client = client
        self._names: frozenset[Name] = frozenset()
        self._names_until = -inf
        self._silent_nodes: list[Unreachable] = []
        self._asking = asyncio.Lock()

    async def page(
        self,
        *,
        namespace: str = "",
        match: str = "",
        sort: QueueSort = "name",
        most: int = 100,
        cursor: str | None = None,
        within: Sequence[str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the requests
    ) -> QueueStatesPage:
        """Return a page of at most `most` queues, 1 to 500.

        `match` is a part of the name. `within` are the namespaces that the caller of a gateway may
        read, None meaning all; for other clients the node fills it in. Raises `InvalidArgument` for
        a cursor that is not one of this order, and the first error if no shard answers.
        """
        if not 1 <= most <= STATES_MAX:
            raise InvalidArgument(f"A page has 1 to {STATES_MAX} queues, not {most}.")
        after = None if cursor is None else _place(cursor, sort)
        asked = _Asked(namespace, match, sort, None if within is None else list(within), timeout)
        names = sorted(filter(asked.passes, await self._known_names(timeout)))
        gathering = _Gathering(self._client, asked)
        if sort == "name":
            states, more = await gathering.by_name(names, after, most)
        else:
            states, more = await gathering.by_number(names, after, most)
        return QueueStatesPage(
            states,
            _cursor(sort, _place_of(sort, states[-1])) if more else None,
            max(len(names), gathering.total),
            [*gathering.silent.values(), *self._silent_nodes],
        )

    async def named(
        self,
        names: Sequence[Name],
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the requests
    ) -> dict[Name, ListedQueue]:
        """Return what these queues have now, over the shards that answer."""
        gathering = _Gathering(self._client, _Asked("", "", "name", None, timeout))
        return await gathering.of(names)

    async def namespaces(
        self,
        within: Sequence[str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the requests
    ) -> dict[str, int]:
        """Return how many queues of the store each namespace has, as far as the caller may read
        them."""
        names = await self._known_names(timeout)
        counts = Counter(namespace for namespace, _ in names)
        return {name: counts[name] for name in sorted(counts) if within is None or name in within}

    async def _known_names(self, seconds: float | None) -> Collection[Name]:
        """Return the names of the queues of the store, loaded or not; of several stores if the
        nodes are not a cluster."""
        async with self._asking:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._names_until:
                await self._ask_names(seconds)
                self._names_until = loop.time() + NAMES_SECONDS
            return self._names

    async def _ask_names(self, seconds: float | None) -> None:
        async def ask(node: str) -> QueuesFound | Unreachable:
            try:
                answer = await self._client.request(Queues(0, 0), seconds, node=node)
            except MaitredError as problem:
                return Unreachable(address=node, shard=None, error=problem)
            return cast("QueuesFound", answer)

        answers = await asyncio.gather(*map(ask, self._client.watched_nodes()))
        self._silent_nodes = [one for one in answers if isinstance(one, Unreachable)]
        found = [one for one in answers if not isinstance(one, Unreachable)]
        if found:
            self._names = frozenset(
                (namespace, queue) for one in found for namespace, queue, _ in one.queues
            )


class _Asked(NamedTuple):
    """Which queues a caller wants to see."""

    namespace: str
    match: str
    sort: QueueSort
    within: list[str] | None
    timeout: float | None

    def passes(self, name: Name) -> bool:
        namespace, queue = name
        return (
            (not self.namespace or namespace == self.namespace)
            and (self.within is None or namespace in self.within)
            and (not self.match or self.match.lower() in queue.lower())
        )

    def next(self, shard: int, after: _Place | None, most: int) -> ListQueueStates:
        """Return the request for the next queues of a shard."""
        place = None if after is None else (-after[0], after[1], after[2])
        return ListQueueStates(
            *(shard, 0, self.namespace, self.match, self.sort, place, most), within=self.within
        )

    def named(self, shard: int, names: Sequence[Name]) -> ListQueueStates:
        """Return the request for what a shard has of these queues."""
        return ListQueueStates(shard, 0, names=list(names), within=self.within)


class _Told:
    """What one shard has told."""

    def __init__(self) -> None:
        self.rows: dict[Name, QueueStateRow] = {}
        self.asked: set[Name] = set()
        """The queues that it has told of, or does not have."""
        self.last: _Place | None = None
        """The place after which it has more; None: it has told all that have a number."""

    def take(self, rows: Iterable[QueueStateRow]) -> None:
        self.rows |= {(row.namespace, row.queue): row for row in rows}
        self.asked |= self.rows.keys()


class _Gathering:
    """Asks the shards for one page."""

    def __init__(self, client: QueueLister, asked: _Asked) -> None:
        self._client = client
        self._asked = asked
        self.silent: dict[_Shard, Unreachable] = {}
        """Shards that did not answer, and are not asked again."""
        self.total = 0
        """How many queues match at the shard where most do."""
        self._told: dict[_Shard, _Told] = {}

    async def by_name(
        self, names: Sequence[Name], after: _Place | None, most: int
    ) -> tuple[list[ListedQueue], bool]:
        """Return the page, and whether there are more queues after it."""
        await self._ask_next(after, most)
        begin = 0 if after is None else bisect_right(names, after[1:])
        found = sorted(self._named().union(names[begin : begin + most + 1]))
        more = len(found) > most or any(one.last for one in self._told.values())
        return [self._state(name) for name in found[:most]], more

    async def by_number(
        self, names: Sequence[Name], after: _Place | None, most: int
    ) -> tuple[list[ListedQueue], bool]:
        """Return the page, and whether there are more queues after it: first those that have a
        number, the highest first, then the others by name."""
        states: list[ListedQueue] = []
        if after is None or after[0] < 0:
            states = await self._highest(after, most + 1)
            after = None
        begin = 0 if after is None else bisect_right(names, after[1:])
        while len(states) <= most and begin < len(names):
            some = names[begin : begin + PAGE]
            begin += PAGE
            await self._complete(some)
            zeros = (state for state in map(self._state, some) if not self._number(state))
            states += islice(zeros, most + 1 - len(states))
        return states[:most], len(states) > most

    async def of(self, names: Sequence[Name]) -> dict[Name, ListedQueue]:
        """Return what these queues have."""
        await self._complete(names)
        return {name: self._state(name) for name in names}

    async def _highest(self, after: _Place | None, most: int) -> list[ListedQueue]:
        """Return the first queues after this place that have a number, at most so many."""
        known: dict[Name, tuple[_Place, ListedQueue]] = {}
        found: list[tuple[_Place, ListedQueue]] = []
        for _ in range(ROUNDS_MAX):
            await self._ask_next(None, most)
            names = self._named() - known.keys()
            await self._complete(names)
            for name in names:
                state = self._state(name)
                known[name] = self._place(state), state
            bound = self._bound()
            found = [
                one
                for one in known.values()
                if one[0] <= bound and one[0][0] < 0 and (after is None or one[0] > after)
            ]
            if len(found) >= most or not self._more:
                break
        return [state for _, state in nsmallest(most, found)]

    def _number(self, state: ListedQueue) -> float:
        return _NUMBERS[self._asked.sort](state)

    def _place(self, state: ListedQueue) -> _Place:
        return _place_of(self._asked.sort, state)

    def _bound(self) -> _Place:
        """Return a place that no queue precedes which no shard has told of.

        At each shard that has more, such a queue comes after the last one that was told. If its
        number is as high as it can be, so is the number at each of these shards, or, where the
        highest counts, at one of them, and its name comes after the names there.
        """
        lasts = [one.last for one in self._told.values() if one.last is not None]
        if not lasts:
            return inf, "", ""
        if self._asked.sort == "oldest":
            return min(lasts)
        _, namespace, queue = max(lasts, key=lambda last: last[1:])
        return sum(last[0] for last in lasts), namespace, queue

    @property
    def _more(self) -> bool:
        return any(one.last is not None for one in self._told.values())

    def _named(self) -> set[Name]:
        return {name for one in self._told.values() for name in one.rows}

    def _state(self, name: Name) -> ListedQueue:
        state = ListedQueue(*name)
        for one in self._told.values():
            row = one.rows.get(name)
            if row is not None:
                state = state.plus(row)
        return state

    # Requests

    async def _ask_next(self, after: _Place | None, most: int) -> None:
        """Ask every shard for its next queues: at first for those after this place."""

        def message(shard: _Shard) -> ListQueueStates | None:
            told = self._told.get(shard)
            if told is None:
                return self._asked.next(shard[1], after, min(most, STATES_MAX))
            return None if told.last is None else self._asked.next(shard[1], told.last, PAGE)

        for shard, listed in await self._ask(message):
            told = self._told.setdefault(shard, _Told())
            told.take(listed.rows)
            place = listed.cursor
            told.last = None if place is None else (-place[0], place[1], place[2])
            self.total = max(self.total, listed.total)

    async def _complete(self, names: Iterable[Name]) -> None:
        """Ask every shard for those of these queues that it has not told of."""
        wanted = list(names)
        for start in range(0, len(wanted), STATES_MAX):
            some = wanted[start : start + STATES_MAX]

            def message(shard: _Shard, some: Sequence[Name] = some) -> ListQueueStates | None:
                told = self._told.get(shard)
                missing = [name for name in some if told is None or name not in told.asked]
                return self._asked.named(shard[1], missing) if missing else None

            for shard, listed in await self._ask(message):
                told = self._told.setdefault(shard, _Told())
                told.take(listed.rows)
                told.asked.update(some)

    async def _ask(
        self, message: Callable[[_Shard], ListQueueStates | None]
    ) -> list[tuple[_Shard, QueueStatesListed]]:
        """Ask the shards for which there is a message, unless they were silent before."""

        def make(address: str, shard: int) -> ListQueueStates | None:
            return None if (address, shard) in self.silent else message((address, shard))

        found = []
        for one in await self._client.ask_shards(make, self._asked.timeout):
            shard = (one.address, -1 if one.shard is None else one.shard)
            if isinstance(one, Unreachable):
                self.silent[shard] = one
            else:
                found.append((shard, cast("QueueStatesListed", one.answer)))
        if self.silent and not found and not self._told:
            raise next(iter(self.silent.values())).error
        return found


def _place_of(sort: QueueSort, state: ListedQueue) -> _Place:
    return -_NUMBERS[sort](state), state.namespace, state.queue


def _cursor(sort: QueueSort, place: _Place) -> str:
    return urlsafe_b64encode(msgpack.encode((sort, place))).rstrip(b"=").decode()


def _place(cursor: str, sort: QueueSort) -> _Place:
    """Return the place that a cursor names; raise `InvalidArgument` if it names none."""
    try:
        order, place = _read_cursor(urlsafe_b64decode(cursor[:CURSOR_MAX].encode() + b"=="))
    except (ValueError, DecodeError):
        order, place = "", (0.0, "", "")
    if order != sort:
        raise InvalidArgument(
            f"{cursor[:40]!r} is no cursor of a list of queues in this order.",
            remedy="Use the cursor of the page before, with the same order, or none.",
        )
    return place


_read_cursor: Final = msgpack.Decoder(tuple[str, _Place]).decode
