"""Asking the node for free slots: what is wanted in one turn of the loop is asked for together.

What is refused is refused for everybody who was asked for; what merely failed (a shard that is
started again, say) is asked for again after a pause, as old as it is by then.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from maitred.client.queues import QueueView
from maitred.dispatch.slot_demand import APART_SECONDS, SlotDemand
from maitred.errors import (
    Cancelled,
    ConnectionLost,
    CutOff,
    DeadlineExceeded,
    InvalidArgument,
    MaitredError,
    NodeUnreachable,
    NoWorker,
    PermissionDenied,
    ProtocolViolation,
    Unavailable,
    UnknownQueue,
)
from maitred.matching.records import PRIORITIES
from maitred.protocol.queries import SLOTS_MAX, Allocate, Allocated
from maitred.protocol.tasks import NEVER
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from maitred.client.client import AsyncClient
    from maitred.client.held import Held
    from maitred.client.running import Running
    from maitred.dispatch.slot_demand import DemandGroup
    from maitred.protocol.messages import AnyAnswer
    from maitred.protocol.queries import Allocation

    Problem = TypeVar("Problem", bound=MaitredError)
    Key = tuple[str, str, int, str, bool, bool]
    Place = tuple[str, str, str]
    """Namespace, queue and user."""

LINES_MAX: Final = 10_000
"""Queues, priorities and users that are remembered though nobody waits there."""

LEAST_SECONDS: Final = 0.001

AT_ONCE_SECONDS: Final = 1.0
"""How long the node may take to say that no slot is free now, to a gateway that can do without."""

SELECTION: Final = "weighted"

_AGAIN: Final = (ConnectionLost, CutOff, Unavailable, DeadlineExceeded, Cancelled)
"""Nothing was allocated, or nobody knows; unused slots are free again soon."""

_FINAL: Final = (NoWorker, NodeUnreachable)
"""Kinds of `Unavailable` that come after a grace: asking again at once changes nothing."""


class Line:
    """Queries that wait for the same thing."""

    __slots__ = ("at_once", "demand", "do_not_queue", "held", "key", "priority", "user", "view")

    def __init__(self, key: Key, view: QueueView) -> None:
        self.key = key
        self.view = view
        self.priority = key[2]
        self.user = key[3]
        self.do_not_queue = key[4]
        self.at_once = key[5]
        """Whether a request that fails is not made again: its queries can go another way."""
        self.demand: SlotDemand[Running] = SlotDemand(SLOTS_MAX)
        self.held: dict[DemandGroup[Running], Held] = {}


class Allocating:
    """All lines of one gateway."""

    def __init__(
        self,
        client: AsyncClient,
        session: bytes,
        random: Random,
        surplus: Callable[[Allocation], None],
        learned: Callable[[str, str, str, str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._session = session
        self._random = random
        self._surplus = surplus
        self._learned = learned
        self.lines: dict[Key, Line] = {}
        self._by_place: dict[Place, list[Line]] = {}
        """By place: the lines whose queries may wait there, the highest priority first."""
        self._views: dict[tuple[str, str], QueueView] = {}
        self._touched: dict[Line, None] = {}
        self._pauses: dict[DemandGroup[Running], asyncio.TimerHandle] = {}
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
    ) -> Line:
        """Where such a query waits; typed errors for what can be no queue."""
        key = (namespace, queue, priority, user, do_not_queue, at_once)
        line = self.lines.get(key)
        if line is not None:
            return line
        view = self._views.get((namespace, queue))
        if view is None:
            view = QueueView(QueueId(namespace, queue, TASKS), SELECTION, self._random)
            self._views[(namespace, queue)] = view
        if len(self.lines) >= LINES_MAX:
            self._forget()
        line = self.lines[key] = Line(key, view)
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

    def _forget_line(self, line: Line) -> None:
        if self.lines.get(line.key) is not line:
            return
        del self.lines[line.key]
        if not line.do_not_queue and not line.at_once:
            place = (*line.key[:2], line.user)
            self._by_place[place].remove(line)
            if not self._by_place[place]:
                del self._by_place[place]

    def add(self, line: Line, running: Running) -> None:
        """It waits for a slot from now on."""
        line.demand.add(running)
        running.line = line
        self._touch(line)

    def first(self, place: Place) -> Running | None:
        """Whose turn it is among those of a user who wait for the queue."""
        for line in self._by_place.get(place, ()):
            if line.demand.by_query:
                return line.demand.first()
        return None

    def remove(self, running: Running) -> None:
        """It does not need one any more."""
        line, running.line = running.line, None
        if line is None:
            return
        group = line.demand.remove(running)
        if group is not None:
            self._take_back(line, group)

    def _take_back(self, line: Line, group: DemandGroup[Running]) -> None:
        held = line.held.get(group)
        if held is not None:
            held.take_back()
        pause = self._pauses.pop(group, None)
        if pause is not None:
            pause.cancel()
            line.demand.failed(group)

    def close(self) -> None:
        """Ask for nothing more; whoever waits has been told."""
        self._closed = True
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for line in self.lines.values():
            for held in line.held.values():
                held.take_back()

    # Asking

    def _touch(self, line: Line) -> None:
        touched = self._touched
        if not touched:
            self._loop.call_soon(self._flush)
        touched[line] = None

    def _flush(self) -> None:
        touched, self._touched = self._touched, {}
        if self._closed:
            return
        now = self._loop.time()
        for line in touched:
            demand = line.demand
            for group in demand.to_ask(now):
                self._ask(line, group, now)
            if demand.gathers:
                self._loop.call_later(APART_SECONDS, self._touch, line)

    def _ask(self, line: Line, group: DemandGroup[Running], now: float) -> None:
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
            held = self._client.hold(message, seconds, patient=False)
        except MaitredError as problem:
            self._failed(line, group, problem)
            return
        line.held[group] = held
        held.tell(partial(self._told, line, group))

    def _told(
        self, line: Line, group: DemandGroup[Running], outcome: AnyAnswer | MaitredError
    ) -> None:
        line.held.pop(group, None)
        if isinstance(outcome, MaitredError):
            self._failed(line, group, outcome)
        elif isinstance(outcome, Allocated):
            with suppress(ProtocolViolation):  # the slots are good all the same
                line.view.learn(outcome.counts)
            if outcome.policy:
                self._learned(*line.key[:2], line.user, outcome.policy)
            self._given(line, group, outcome.allocations)
        else:
            self._failed(line, group, ProtocolViolation("The answer to ALLOCATE is another one's."))

    def _given(
        self, line: Line, group: DemandGroup[Running], allocations: list[Allocation]
    ) -> None:
        demand = line.demand
        own = len(group.members)
        given = demand.answered(group, len(allocations))
        if len(given) > own:  # others were served who were asked for as well
            for other in demand.in_vain():
                self._take_back(line, other)
        if len(demand):
            self._touch(line)
        for running, allocation in zip(given, allocations, strict=False):
            running.allocated(allocation)
        for allocation in allocations[len(given) :]:
            self._surplus(allocation)

    def _failed(self, line: Line, group: DemandGroup[Running], problem: MaitredError) -> None:
        demand = line.demand
        again = isinstance(problem, _AGAIN) and not isinstance(problem, _FINAL)
        if again and not line.at_once and not self._closed:
            if demand.failed(group):
                settings = self._client.settings
                pause = settings.backoff_first_seconds * 2 ** min(group.tries - 1, 30)
                pause = min(pause, settings.backoff_longest_seconds)
                pause *= 0.5 + 0.5 * self._random.random()
                self._pauses[group] = self._loop.call_later(pause, self._again, line, group)
            if len(demand):
                self._touch(line)  # others may have waited for this one to end
            return
        for running in demand.refused(group):
            running.line = None
            running.refused_by_node(another(problem))
        if len(demand):
            self._touch(line)
        elif isinstance(problem, UnknownQueue | PermissionDenied) and demand.idle:
            # Names that are no queues come without end; nothing is to be remembered of them.
            self._forget_line(line)
            if not any(one.view is line.view for one in self.lines.values()):
                self._views.pop(line.key[:2], None)

    def _again(self, line: Line, group: DemandGroup[Running]) -> None:
        self._pauses.pop(group, None)
        line.demand.again(group)
        self._touch(line)


def _priority(line: Line) -> int:
    return line.priority


def check_priority(priority: object) -> None:
    """`InvalidArgument` for what is none."""
    if type(priority) is not int or not 0 <= priority < PRIORITIES:
        raise InvalidArgument(
            f"A priority is a whole number from 0 to {PRIORITIES - 1}, not {priority!r}."
        )


def another(problem: Problem) -> Problem:
    """The same error once more: one that is raised in many tasks would gather their tracebacks."""
    kind = type(problem)
    made = kind.__new__(kind)
    made.args = problem.args
    made.__dict__.update(problem.__dict__)
    return made
