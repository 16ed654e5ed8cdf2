"""Requests to the node for free slots; what is wanted in one turn of the loop shares a request.

A refusal counts for all queries of the request. A request that merely failed (a shard is started
again, say) is made again after a pause, with the age that its queries have by then.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from maitred.backoff import backoff_seconds
from maitred.dispatch.slot_demand import APART_SECONDS, SlotDemand
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
    from maitred.dispatch.effects import Effects, NodeRequest, PartitionView, Wakeup
    from maitred.dispatch.pending_query import PendingQuery
    from maitred.dispatch.slot_demand import DemandGroup
    from maitred.protocol.messages import AnyAnswer
    from maitred.protocol.queries import Allocation

    Problem = TypeVar("Problem", bound=MaitredError)
    Key = tuple[str, str, int, str, bool, bool]
    """Namespace, queue, priority, user, `do_not_queue` and `at_once`."""
    Place = tuple[str, str, str]
    """Namespace, queue and user."""
    Group = DemandGroup[PendingQuery]

LINES_MAX: Final = 10_000
"""Queues, priorities and users that are remembered while no query waits there."""

LEAST_SECONDS: Final = 0.001

AT_ONCE_SECONDS: Final = 1.0
"""How long the node may take to say that no slot is free now, to a gateway that can do without."""

_TOLD: Final = (Overloaded, NoWorker, NodeUnreachable)
"""Transient errors that the caller hears at once: a limit is reached, or a grace has passed. After
all others the slots are asked for again: nothing was allocated, or unused slots are free soon."""


class SlotLine:
    """Queries that wait for slots of the same queue, with one priority and of one user."""

    __slots__ = ("at_once", "demand", "do_not_queue", "key", "priority", "requests", "user", "view")

    def __init__(self, key: Key, view: PartitionView) -> None:
        self.key = key
        self.view = view
        self.priority = key[2]
        self.user = key[3]
        self.do_not_queue = key[4]
        self.at_once = key[5]
        """Whether a request that fails is not made again: its queries can go another way."""
        self.demand: SlotDemand[PendingQuery] = SlotDemand(SLOTS_MAX)
        self.requests: dict[Group, NodeRequest] = {}


class SlotRequests:
    """All queries of one gateway that wait for slots."""

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
        self._by_place: dict[Place, list[SlotLine]] = {}
        """The lines whose queries may wait there, the highest priority first."""
        self._views: dict[tuple[str, str], PartitionView] = {}
        self._touched: dict[SlotLine, None] = {}
        self._pauses: dict[Group, Wakeup] = {}
        self._closed = False

    def line(
        self,
        namespace: str,
        queue: str,
        priority: int,
        user: str,
        *,
        do_not_queue: bool = False,
        at_once: bool = False,
    ) -> SlotLine:
        """The line in which such a query waits; raises typed errors for names that are invalid."""
        key = (namespace, queue, priority, user, do_not_queue, at_once)
        line = self.lines.get(key)
        if line is not None:
            return line
        view = self._views.get((namespace, queue))
        if view is None:
            view = self._new_view(QueueId(namespace, queue, TASKS))
            self._views[(namespace, queue)] = view
        if len(self.lines) >= LINES_MAX:
            self._forget()
        line = self.lines[key] = SlotLine(key, view)
        if not do_not_queue and not at_once:
            lines = self._by_place.setdefault((namespace, queue, user), [])
            lines.append(line)
            lines.sort(key=_priority)
        return line

    def _forget(self) -> None:
        for line in [line for line in self.lines.values() if line.demand.idle]:
            self._forget_line(line)
        used = {line.view.id[:2] for line in self.lines.values()}
        self._views = {key: view for key, view in self._views.items() if key in used}

    def _forget_line(self, line: SlotLine) -> None:
        if self.lines.get(line.key) is not line:
            return
        del self.lines[line.key]
        if not line.do_not_queue and not line.at_once:
            place = (*line.key[:2], line.user)
            self._by_place[place].remove(line)
            if not self._by_place[place]:
                del self._by_place[place]

    def add(self, line: SlotLine, query: PendingQuery) -> None:
        """Queue this query until the partition allocates a slot."""
        line.demand.add(query)
        query.line = line
        self._touch(line)

    def first(self, place: Place) -> PendingQuery | None:
        """The query that is next among those of a user that wait for the queue."""
        for line in self._by_place.get(place, ()):
            if line.demand.by_query:
                return line.demand.first()
        return None

    def remove(self, query: PendingQuery) -> None:
        """The query does not need a slot any more."""
        line, query.line = query.line, None
        if line is None:
            return
        group = line.demand.remove(query)
        if group is not None:
            self._take_back(line, group)

    def _take_back(self, line: SlotLine, group: Group) -> None:
        request = line.requests.get(group)
        if request is not None:
            request.take_back()
        pause = self._pauses.pop(group, None)
        if pause is not None:
            pause.cancel()
            line.demand.failed(group)

    def close(self) -> None:
        """Ask for nothing more; every query is over."""
        self._closed = True
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for line in self.lines.values():
            for request in line.requests.values():
                request.take_back()

    # Asking

    def _touch(self, line: SlotLine) -> None:
        touched = self._touched
        if not touched:
            self._effects.soon(self._flush)
        touched[line] = None

    def _flush(self, now: float) -> None:
        touched, self._touched = self._touched, {}
        if self._closed:
            return
        for line in touched:
            demand = line.demand
            for group in demand.to_ask(now):
                self._ask(line, group, now)
            if demand.gathers:
                self._effects.wake_at(now + APART_SECONDS, partial(self._gathered, line))

    def _gathered(self, line: SlotLine, now: float) -> None:  # noqa: ARG002
        self._touch(line)

    def _ask(self, line: SlotLine, group: Group, now: float) -> None:
        view = line.view
        namespace, queue, queue_type = view.id
        message = Allocate(
            namespace,
            queue,
            queue_type,
            view.to_write(now),
            0,
            view.counts.version,
            self._session,
            len(group.members),
            line.priority,
            min(NEVER, max(0.0, now - group.since)),
            line.user,
            do_not_queue=line.do_not_queue,
        )
        try:
            seconds = max(LEAST_SECONDS, group.deadline - now)
            if line.at_once:
                seconds = min(seconds, AT_ONCE_SECONDS)
            line.requests[group] = self._effects.ask_node(
                message, seconds, partial(self._told, line, group), patient=False
            )
        except MaitredError as problem:
            self._failed(line, group, problem, now)

    def _told(
        self, line: SlotLine, group: Group, outcome: AnyAnswer | MaitredError, now: float
    ) -> None:
        line.requests.pop(group, None)
        if isinstance(outcome, MaitredError):
            self._failed(line, group, outcome, now)
        elif isinstance(outcome, Allocated):
            with suppress(ProtocolViolation):  # the slots are good all the same
                line.view.learn(outcome.counts)
            if outcome.policy:
                self._learned(line.key[:2], line.user, outcome.policy, now)
            self._given(line, group, outcome.allocations, now)
        else:
            problem = ProtocolViolation("The answer to ALLOCATE is another one's.")
            self._failed(line, group, problem, now)

    def _given(
        self, line: SlotLine, group: Group, allocations: list[Allocation], now: float
    ) -> None:
        demand = line.demand
        own = len(group.members)
        given = demand.answered(group, len(allocations))
        if len(given) > own:  # queries of other groups were served that were asked for as well
            for other in demand.in_vain():
                self._take_back(line, other)
        if len(demand):
            self._touch(line)
        for query, allocation in zip(given, allocations, strict=False):
            query.allocated(allocation, now)
        for allocation in allocations[len(given) :]:
            self._effects.give_back(allocation, now)

    def _failed(self, line: SlotLine, group: Group, problem: MaitredError, now: float) -> None:
        demand = line.demand
        again = problem.transient and not isinstance(problem, _TOLD)
        if again and not line.at_once and not self._closed:
            if demand.failed(group):
                pause = backoff_seconds(group.tries, *self._backoff, self._random)
                again_at = partial(self._again, line, group)
                self._pauses[group] = self._effects.wake_at(now + pause, again_at)
            if len(demand):
                self._touch(line)  # others may have waited for this one to end
            return
        for query in demand.refused(group):
            query.line = None
            query.refused_by_node(another(problem), now)
        if len(demand):
            self._touch(line)
        elif isinstance(problem, UnknownQueue | PermissionDenied) and demand.idle:
            # Names that are no queues come without end; nothing is to be remembered of them.
            self._forget_line(line)
            if not any(one.view is line.view for one in self.lines.values()):
                self._views.pop(line.key[:2], None)

    def _again(self, line: SlotLine, group: Group, now: float) -> None:  # noqa: ARG002
        self._pauses.pop(group, None)
        line.demand.again(group)
        self._touch(line)


def _priority(line: SlotLine) -> int:
    return line.priority


def check_priority(priority: object) -> None:
    """Raise `InvalidArgument` unless the value is a valid priority."""
    if type(priority) is not int or not 0 <= priority < PRIORITIES:
        raise InvalidArgument(
            f"A priority is a whole number from 0 to {PRIORITIES - 1}, not {priority!r}."
        )


def another(problem: Problem) -> Problem:
    """A copy of the error: one error that is raised in many tasks would gather their tracebacks."""
    kind = type(problem)
    made = kind.__new__(kind)
    made.args = problem.args
    made.__dict__.update(problem.__dict__)
    return made
