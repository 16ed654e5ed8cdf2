"""Obtains slots for queries: a warm slot, or slot requests to the node (ALLOCATE).

Queries of the same queue, priority and user wait in one *line*. Those that come in one turn of the
loop are a *group*, which is requested together and is as old as its oldest query. A group that
receives fewer slots than it has queries is requested again, with the same age: the node serves the
oldest request first, so queries are served in the order of their arrival over all gateways. Slots
that a group does not need any more go to the oldest other group; the rest is given back.

When many groups are requested already, another request would not be served sooner. Queries that
come within a moment of each other then join one group, so that a long line costs few messages. Only
a line of hundreds of groups is joined whatever the ages, and then the order across gateways is as
coarse as that.

A refusal counts for all queries of the group. A request that merely failed (a shard is restarted,
say) is sent again after a pause, with the age that its queries have by then.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec.structs import replace

from maitred.backoff import backoff_seconds
from maitred.dispatch.warm_slots import WarmSlots
from maitred.errors import (
    InvalidArgument,
    MaitredError,
    NodeUnreachable,
    NoWorker,
    Overloaded,
    PermissionDenied,
    ProtocolViolation,
    UnknownQueue,
)
from maitred.matching.records import PRIORITIES
from maitred.protocol.queries import SLOTS_MAX, Allocate, Allocated
from maitred.protocol.tasks import NEVER
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.interface import RandomSource
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.effects import Effects, NodeRequest, PartitionView, Wakeup
    from maitred.protocol.messages import AnyAnswer
    from maitred.protocol.queries import Allocation

    Problem = TypeVar("Problem", bound=MaitredError)
    Key = tuple[str, str, str, int, bool, bool]
    """Namespace, queue, user, priority, `do_not_queue` and `at_once`."""

GATHERED_FROM: Final = 16
"""With this many slot requests under way, further queries are gathered for a moment: behind sixteen
groups they do not wait longer for it."""

GROUPS_MAX: Final = 512
"""Slot requests that one line has under way: half of the streams that a connection has by default.
At a hundredth of a second each they are more than five seconds of waiting."""

APART_SECONDS: Final = 0.01
"""Queries that came further apart than this do not join one group: a group that is requested again
takes no younger query with it to the front."""

LINES_MAX: Final = 10_000
"""Lines that are kept; at this number, those without queries are dropped."""

LEAST_SECONDS: Final = 0.001

AT_ONCE_SECONDS: Final = 1.0
"""Deadline of a request for a slot that is free now: its query can also go another way."""

_FINAL: Final = (Overloaded, NoWorker, NodeUnreachable)
"""Transient errors that the caller hears at once: a limit is reached, or a grace has passed. After
all others the slots are requested again: nothing was allocated, or unused slots are free soon."""


class WaitingQuery(Protocol):
    """A query that needs a slot."""

    line: SlotLine | None
    """The line in which it waits for a slot."""

    @property
    def ask(self) -> Ask:
        """The query with its caller's wishes."""

    @property
    def since(self) -> float:
        """When the query began to wait, in the loop's time."""

    @property
    def deadline(self) -> float:
        """The time at which the caller stops waiting."""

    @property
    def tries(self) -> int:
        """How often it had to ask for another slot."""

    @property
    def allocation(self) -> Allocation:
        """The last slot that it got."""

    def allocated(self, allocation: Allocation, now: float, *, warm: bool = False) -> None:
        """Use a slot: send the query to its worker."""

    def refused_by_node(self, problem: MaitredError, now: float) -> None:
        """Answer with the refusal: the query gets no slot."""


class QueryGroup:
    """Queries for which slots are requested together."""

    __slots__ = ("asked", "members", "pause", "request", "since", "tries")

    def __init__(self, since: float) -> None:
        self.since = since
        """When the oldest query came."""
        self.members: dict[WaitingQuery, None] = {}
        """In the order in which they are served."""
        self.asked = False
        """Whether a request is under way, or will be sent again after a pause."""
        self.request: NodeRequest | None = None
        self.pause: Wakeup | None = None
        """Set while the group waits before it is requested again."""
        self.tries = 0
        """How many requests in a row have failed."""


class SlotLine:
    """Queries that wait for slots of the same queue, with one priority and of one user."""

    __slots__ = ("_groups", "at_once", "key", "queries", "view")

    def __init__(self, key: Key, view: PartitionView) -> None:
        self.key = key
        self.view = view
        self.at_once = key[5]
        """Whether a request that fails is not sent again: its queries can go another way."""
        self.queries: dict[WaitingQuery, QueryGroup] = {}
        """The queries that wait, with their groups."""
        self._groups: dict[QueryGroup, None] = {}

    def __repr__(self) -> str:
        namespace, queue, user, priority, *_ = self.key
        return f"<SlotLine {namespace}/{queue} {priority} of {user!r}, {len(self.queries)} queries>"

    @property
    def idle(self) -> bool:
        """Whether no query waits and no request is under way."""
        return not self._groups

    @property
    def gathers(self) -> bool:
        """Whether the newest group is not requested yet."""
        newest = next(reversed(self._groups), None)
        return newest is not None and not newest.asked

    def add(self, query: WaitingQuery) -> None:
        """Add the query to the newest group that is not requested yet, or to a new one."""
        group = None
        since = query.since
        for one in reversed(self._groups):
            if one.asked:
                break
            if abs(one.since - since) <= APART_SECONDS or len(self._groups) >= GROUPS_MAX:
                group = one
                break
        if group is None or len(group.members) >= SLOTS_MAX:
            group = QueryGroup(since)
            self._groups[group] = None
        elif since < group.since:
            group.since = since
        group.members[query] = None
        self.queries[query] = group

    def first(self) -> WaitingQuery:
        """Return the next query of the oldest group, in a line that has queries."""
        oldest = min((one for one in self._groups if one.members), key=_age)
        return next(iter(oldest.members))

    def remove(self, query: WaitingQuery) -> QueryGroup | None:
        """Remove the query; returns its group if that is requested in vain now."""
        group = self.queries.pop(query, None)
        if group is None:
            return None
        del group.members[query]
        if group.members:
            return None
        if group.asked:
            return group
        self._groups.pop(group, None)
        return None

    def to_ask(self, now: float = inf) -> list[QueryGroup]:
        """Return the groups to request now; they count as requested from here on."""
        under_way = sum(group.asked for group in self._groups)
        found: list[QueryGroup] = []
        for group in self._groups:
            if group.asked:
                continue
            many = under_way + len(found)
            if many < GATHERED_FROM or (many < GROUPS_MAX and now - group.since >= APART_SECONDS):
                found.append(group)
        for group in found:
            group.asked = True
        return found

    def answered(self, group: QueryGroup, slots: int) -> list[WaitingQuery]:
        """Return the queries that get the slots of an answer: those of the group, then the oldest
        others. The group's queries without a slot have to be requested again (`to_ask`)."""
        group.asked = False
        group.tries = 0
        given = self._take(group, slots)
        if len(given) < slots:
            for other in sorted(self._groups, key=_age):
                if other is not group:
                    given += self._take(other, slots - len(given))
                    if not other.asked:
                        self._tidy(other)
                if len(given) == slots:
                    break
        self._tidy(group)
        return given

    def in_vain(self) -> list[QueryGroup]:
        """Return the groups that are requested and have no queries any more."""
        return [group for group in self._groups if group.asked and not group.members]

    def failed(self, group: QueryGroup) -> bool:
        """Count a failed request; returns whether the group has to be requested again."""
        group.tries += 1
        if not group.members:
            self._groups.pop(group, None)
            return False
        return True

    def again(self, group: QueryGroup) -> None:
        """Let `to_ask` return the group again, after its pause."""
        group.asked = False
        self._tidy(group)

    def refused(self, group: QueryGroup) -> list[WaitingQuery]:
        """Remove the group; returns its queries."""
        self._groups.pop(group, None)
        return self._take(group, len(group.members))

    def _take(self, group: QueryGroup, most: int) -> list[WaitingQuery]:
        members = group.members
        taken = list(members) if most >= len(members) else list(islice(members, most))
        for query in taken:
            del members[query]
            del self.queries[query]
        return taken

    def _tidy(self, group: QueryGroup) -> None:
        if not group.members:
            self._groups.pop(group, None)


class SlotRequests:
    """The lines of one gateway, and its warm slots."""

    def __init__(
        self,
        *,
        effects: Effects,
        session: bytes,
        random: RandomSource,
        backoff: tuple[float, float],
        new_view: Callable[[QueueId], PartitionView],
        learned: Callable[[tuple[str, str], str, str, float], None],
    ) -> None:
        self._effects = effects
        self._session = session
        self._random = random
        self._backoff = backoff
        self._new_view = new_view
        self._learned = learned
        self.lines: dict[Key, SlotLine] = {}
        self._by_place: dict[tuple[str, str, str], list[SlotLine]] = {}
        """By namespace, queue and user: the lines whose queries may use a warm slot, the highest
        priority first."""
        self._views: dict[tuple[str, str], PartitionView] = {}
        self._warm_slots = WarmSlots()
        self._touched: dict[SlotLine, None] = {}
        """Lines to look at when this turn of the loop ends."""
        self._closed = False

    def __repr__(self) -> str:
        waiting = sum(len(line.queries) for line in self.lines.values())
        return f"<SlotRequests {waiting} queries in {len(self.lines)} lines>"

    # Queries

    def add(self, query: WaitingQuery, now: float, *, at_once: bool = False) -> None:
        """Give the query a warm slot, or queue it until the partition allocates a slot.

        With `at_once`, ask for a slot that is free now, once. Raises typed errors for invalid
        names.
        """
        ask = query.ask
        key = (
            ask.namespace,
            ask.queue,
            ask.user,
            ask.priority,
            at_once or ask.do_not_queue,
            at_once,
        )
        line = self.lines.get(key)
        if line is None:
            line = self._new_line(key)
        if self._warm_slots.kept and not (query.tries or at_once or line.queries):
            warm = self._warm_slots.take(key[:3], now)
            if warm is not None:
                query.allocated(warm, now, warm=True)
                return
        line.add(query)
        query.line = line
        self._touch(line)

    def keep_warm(self, query: WaitingQuery, token: bytes, seconds: float, now: float) -> None:
        """Use the slot that the query's worker keeps for the gateway: for a query that waits, or
        for one that comes within `seconds`."""
        place = (query.ask.namespace, query.ask.queue, query.ask.user)
        allocation = replace(query.allocation, token=token)
        for line in self._by_place.get(place, ()):
            if line.queries:
                waiting = line.first()
                # A slot is requested for it as well; that one goes to the next query.
                self.remove(waiting)
                waiting.allocated(allocation, now, warm=True)
                return
        self._warm_slots.keep(place, allocation, seconds, now)

    def remove(self, query: WaitingQuery) -> None:
        """Take the query out of its line: it does not need a slot any more."""
        line, query.line = query.line, None
        if line is None:
            return
        group = line.remove(query)
        if group is not None:
            self._take_back(line, group)

    def _take_back(self, line: SlotLine, group: QueryGroup) -> None:
        if group.request is not None:
            group.request.take_back()
        if group.pause is not None:
            group.pause.cancel()
            group.pause = None
            line.failed(group)

    def close(self) -> None:
        """Send no more requests. Every query is over, so those under way are taken back."""
        self._closed = True

    # Lines

    def _new_line(self, key: Key) -> SlotLine:
        namespace, queue, user, *_ = key
        view = self._views.get((namespace, queue))
        if view is None:
            view = self._new_view(QueueId(namespace, queue, TASKS))
            self._views[(namespace, queue)] = view
        if len(self.lines) >= LINES_MAX:
            for idle in [line for line in self.lines.values() if line.idle]:
                self._forget(idle)
            used = {line.view.id[:2] for line in self.lines.values()}
            self._views = {place: known for place, known in self._views.items() if place in used}
            self._views[(namespace, queue)] = view
        line = self.lines[key] = SlotLine(key, view)
        if not key[4]:
            lines = self._by_place.setdefault((namespace, queue, user), [])
            lines.append(line)
            lines.sort(key=_priority)
        return line

    def _forget(self, line: SlotLine) -> None:
        if self.lines.get(line.key) is not line:
            return
        del self.lines[line.key]
        if not line.key[4]:
            place = line.key[:3]
            self._by_place[place].remove(line)
            if not self._by_place[place]:
                del self._by_place[place]

    # Requests

    def _touch(self, line: SlotLine) -> None:
        touched = self._touched
        if not touched:
            self._effects.soon(self._flush)
        touched[line] = None

    def _flush(self, now: float) -> None:
        """Send a request for each group that is due."""
        touched, self._touched = self._touched, {}
        if self._closed:
            return
        for line in touched:
            view = line.view
            namespace, queue, user, priority, do_not_queue, at_once = line.key
            for group in line.to_ask(now):
                message = Allocate(
                    namespace,
                    queue,
                    TASKS,
                    view.to_write(now),
                    0,
                    view.counts.version,
                    self._session,
                    len(group.members),
                    priority,
                    min(NEVER, max(0.0, now - group.since)),
                    user,
                    do_not_queue=do_not_queue,
                )
                seconds = max(one.deadline for one in group.members) - now
                seconds = max(LEAST_SECONDS, min(seconds, AT_ONCE_SECONDS) if at_once else seconds)
                told = partial(self._told, line, group)
                try:
                    group.request = self._effects.ask_node(message, seconds, told, patient=False)
                except MaitredError as problem:
                    self._failed(line, group, problem, now)
            if line.gathers:
                self._effects.wake_at(now + APART_SECONDS, partial(self._gathered, line))

    def _gathered(self, line: SlotLine, now: float) -> None:  # noqa: ARG002
        self._touch(line)

    def _told(
        self, line: SlotLine, group: QueryGroup, outcome: AnyAnswer | MaitredError, now: float
    ) -> None:
        """Give the allocated slots to the queries of the line, and surplus slots back."""
        group.request = None
        if not isinstance(outcome, Allocated):
            if not isinstance(outcome, MaitredError):
                outcome = ProtocolViolation("The answer to ALLOCATE is another one's.")
            self._failed(line, group, outcome, now)
            return
        if outcome.counts is not None:
            with suppress(ProtocolViolation):  # the slots are valid all the same
                line.view.learn(outcome.counts)
        if outcome.policy:
            self._learned(line.key[:2], line.key[2], outcome.policy, now)
        allocations = outcome.allocations
        own = len(group.members)
        given = line.answered(group, len(allocations))
        if len(given) > own:  # queries of other groups, for which requests are under way as well
            for other in line.in_vain():
                self._take_back(line, other)
        if line.queries:
            self._touch(line)
        for query, allocation in zip(given, allocations, strict=False):
            query.allocated(allocation, now)
        for allocation in allocations[len(given) :]:
            self._effects.give_back(allocation, now)

    def _failed(self, line: SlotLine, group: QueryGroup, problem: MaitredError, now: float) -> None:
        again = problem.transient and not isinstance(problem, _FINAL)
        if again and not line.at_once and not self._closed:
            if line.failed(group):
                pause = backoff_seconds(group.tries, *self._backoff, self._random)
                again_at = partial(self._again, line, group)
                group.pause = self._effects.wake_at(now + pause, again_at)
            if line.queries:
                self._touch(line)  # other groups may have waited for this one to end
            return
        for query in line.refused(group):
            query.line = None
            query.refused_by_node(another(problem), now)
        if line.queries:
            self._touch(line)
        elif isinstance(problem, UnknownQueue | PermissionDenied) and line.idle:
            # There is no end of names that are not queues: keep nothing of them.
            self._forget(line)
            if not any(one.view is line.view for one in self.lines.values()):
                self._views.pop(line.key[:2], None)

    def _again(self, line: SlotLine, group: QueryGroup, now: float) -> None:  # noqa: ARG002
        group.pause = None
        line.again(group)
        self._touch(line)


def _age(group: QueryGroup) -> float:
    return group.since


def _priority(line: SlotLine) -> int:
    return line.key[3]


def check_priority(priority: object) -> None:
    """Raise `InvalidArgument` unless the value is a valid priority."""
    if type(priority) is not int or not 0 <= priority < PRIORITIES:
        raise InvalidArgument(
            f"A priority is a whole number from 0 to {PRIORITIES - 1}, not {priority!r}."
        )


def another(problem: Problem) -> Problem:
    """Return a copy of the error: one error that is raised in many tasks would gather their
    tracebacks."""
    kind = type(problem)
    made = kind.__new__(kind)
    made.args = problem.args
    made.__dict__.update(problem.__dict__)
    return made
