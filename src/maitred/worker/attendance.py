"""Presence: the root of every queue that the worker serves knows the worker, busy or not.

One ATTEND, a long poll, always waits at each root. The root answers the first one at once, and the
others after a few seconds or with an operator's order, to go offline or to come back. The order is
for the whole worker: its queues share its slots, and the machine that the operator looks after. The
answer also brings the passes of gateways, and how well the other workers of the queue do. What the
worker says of itself counts: a node that was restarted learns from it which workers are offline.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, cast

from maitred.errors import Cancelled, DeadlineExceeded, MaitredError, UnknownRequest
from maitred.protocol.queries import Attend, Attended
from maitred.worker.lifecycle import OFFLINE, SERVING, WorkerEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.client.long_poll import LongPoll
    from maitred.protocol.queries import Pass, WorkerState
    from maitred.worker.capacity import Capacity
    from maitred.worker.context import WorkerContext
    from maitred.worker.served import Served

ROOT: Final = 0
ATTENDANCE: Final = -1
"""The number by which `Outage` knows attendance beside the partitions, whose offers may well be
answered while the root does not answer ATTEND."""

UNANSWERED_MAX: Final = 3
"""Unanswered ATTENDs in a row from which on the log says so: a root answers just before the
deadline, and a busy one may be late."""

ORDERS: Final = {"offline": WorkerEvent.GO_OFFLINE, "online": WorkerEvent.GO_ONLINE}

HASTY_SECONDS: Final = 0.1
"""Seconds between two ATTENDs that a root answers at once without news, as a stopping node does."""


class AttendanceSender:
    """Keeps one ATTEND under way at the root of each queue that the worker serves, so that the node
    knows the worker and can give it orders."""

    def __init__(
        self,
        context: WorkerContext,
        capacity: Capacity,
        *,
        ordered: Callable[[], None],
        passes: Callable[[Served, list[Pass], float], None],
        welcomed: Callable[[], None],
        compared: Callable[[Served], None],
        counts_changed: Callable[[], None],
    ) -> None:
        self._context = context
        self._lifecycle = context.lifecycle
        self._statistics = context.statistics
        self._outage = context.outage
        self._log = context.log
        self._capacity = capacity
        self._ordered = ordered
        """Called when an operator's order has changed the worker's phase."""
        self._passes = passes
        self._welcomed = welcomed
        """Called once the roots of all queues know the worker."""
        self._compared = compared
        """Called when the other workers of a queue may do better, or worse, than was known."""
        self._counts_changed = counts_changed
        """Called when a queue has another number of partitions than was known."""
        self._strange: dict[str, None] = {}
        """Queues whose root has not answered yet."""
        self._loop = asyncio.get_running_loop()
        self._held: dict[LongPoll, Served] = {}
        self._telling: dict[str, asyncio.TimerHandle] = {}
        """By queue: the timer that tells its root how its queries end."""
        self._tasks: list[asyncio.Task[None]] = []
        self._told: WorkerState = "online"
        """The state that the roots were told last."""

    def start(self, queues: Sequence[Served]) -> None:
        """Announce the worker at the roots of all its queues."""
        self._strange = dict.fromkeys(one.name for one in queues)
        self._tasks = [self._loop.create_task(self._attend(one)) for one in queues]

    def tell_all(self) -> None:
        """Tell every root what has changed: the next ATTEND follows at once and has the news."""
        for held in list(self._held):
            held.take_back()

    def changed(self) -> None:
        """Tell every root the worker's state, if it is another one than they know."""
        if self.state != self._told:
            self._told = self.state
            if self._told == "offline":
                self._log.info(
                    "offline: no handler runs any more; waits for the order to go online"
                )
            self.tell_all()

    def judged(self, served: Served) -> None:
        """Tell the root how this queue's queries end here, if that makes a difference."""
        at = served.health.tell_at
        if at < inf and served.name not in self._telling:
            self._telling[served.name] = self._loop.call_at(at, self._tell, served)

    def _tell(self, served: Served) -> None:
        del self._telling[served.name]
        if served.health.tell_at < inf:
            for held, where in list(self._held.items()):
                if where is served:
                    held.take_back()

    def stop(self) -> None:
        """Stop announcing the worker."""
        for task in self._tasks:
            task.cancel()
        for timer in self._telling.values():
            timer.cancel()

    @property
    def state(self) -> WorkerState:
        """The worker's state, as operators see it: offline only once nothing runs any more."""
        phase = self._lifecycle.phase
        if phase is SERVING:
            return "online"
        return "offline" if phase is OFFLINE and not self._statistics.busy else "draining"

    async def _attend(self, served: Served) -> None:
        longest = self._context.client.settings.backoff_longest_seconds
        unanswered = 0
        while True:
            asked_at, reroutes = self._loop.time(), self._context.reroutes
            try:
                attended = await self._ask(served)
            except Cancelled:
                continue
            except DeadlineExceeded as problem:
                unanswered += 1
                if unanswered >= UNANSWERED_MAX:
                    await self._rest(served, problem, reroutes)
                continue
            except UnknownRequest:
                # An older node, which has no queries; the next node may have them.
                self._known_at(served)
                await asyncio.sleep(longest)
                continue
            except MaitredError as problem:
                await self._rest(served, problem, reroutes)
                continue
            unanswered = 0
            self._outage.worked(served.name, ATTENDANCE)
            if attended.best is not None:
                served.health.compare(attended.best, self._loop.time())
                self._compared(served)
            if attended.passes:
                self._passes(served, attended.passes, self._loop.time())
            news = self._known_at(served)
            news = self._obey(attended.order) or bool(attended.passes) or news
            if not news and self._loop.time() - asked_at < HASTY_SECONDS:
                await asyncio.sleep(HASTY_SECONDS)

    async def _rest(self, served: Served, problem: MaitredError, reroutes: int) -> None:
        """Wait after a failure, unless the root may have got another owner since it was asked."""
        seconds = self._outage.failed(served.name, ATTENDANCE, problem)
        await self._context.rest(seconds, reroutes)

    def _known_at(self, served: Served) -> bool:
        """Note that the root of this queue has answered; return whether it is the first time."""
        if served.name not in self._strange:
            return False
        del self._strange[served.name]
        if not self._strange:
            self._welcomed()
        return True

    async def _ask(self, served: Served) -> Attended:
        context, statistics = self._context, self._statistics
        message = Attend(
            *served.view.id,
            ROOT,
            0,
            context.secret,
            context.name,
            context.address,
            statistics.slots,
            statistics.busy,
            self.state,
            served.health.tell(self._loop.time()),
            "",
            min(self._capacity.limit, statistics.slots),
            self._capacity.reason,
            statistics.blocked,
            signature=served.signature,
        )
        held = context.client.hold(message, context.settings.attend_seconds)
        self._held[held] = served
        try:
            attended = cast("Attended", await held.answer())
        finally:
            del self._held[held]
        before = served.view.counts.read
        served.view.learn(attended.counts)
        if served.view.counts.read != before:
            self._counts_changed()
        return attended

    def _obey(self, order: str) -> bool:
        """Carry out an operator's order; return whether it changed the worker's phase."""
        if not order or not self._lifecycle.happen(ORDERS[order]):
            return False
        event = "put back online" if order == "online" else "taken offline"
        self._log.info(event, running=self._statistics.busy)
        self._ordered()
        self.changed()
        return True
