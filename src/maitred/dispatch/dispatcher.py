"""Every decision about the queries of one gateway: the only place where they are made.

Events come in, each with `now`: a query begins, its caller leaves, a worker answers or reports, a
link opens or ends, an alarm rings, the node answers. What has to be done goes out by `effects.py`.
There is no loop, socket, future or clock in here, so the client, the gateway, simulations and tests
drive the same code.

A query is entered into the table and admitted. If its queue's policy lets the gateway pick the
worker, the dispatcher of that queue does (`dispatched_queues.py`); otherwise the query takes a warm
slot, or waits for one that the node allocates (`slot_requests.py`). `pending_query.py` has the rest
of its life.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from maitred.backoff import backoff_seconds
from maitred.dispatch.admission import Admission
from maitred.dispatch.dispatched_queues import DispatchedQueues
from maitred.dispatch.pending_query import PendingQuery
from maitred.dispatch.query_states import WITHOUT_WORKER, Accident
from maitred.dispatch.query_table import QueryTable
from maitred.dispatch.slot_requests import SlotRequests, check_priority
from maitred.dispatch.worker_reports import WorkerReports
from maitred.errors import Closed, DeadlineExceeded, MaitredError, PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.balancing.interface import RandomSource
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.effects import AnswerReceiver, Effects, PartitionView, Wakeup
    from maitred.dispatch.worker_reports import Place
    from maitred.routing.names import QueueId
    from maitred.settings import Querying, QueryLimits, QuerySettings

LOOK_SECONDS: Final = 0.005
"""Least time between two checks of the deadlines of all queries."""

AGAIN_FIRST_SECONDS: Final = 0.02
AGAIN_LONGEST_SECONDS: Final = 1.0
"""Pause before the third and each further attempt of a query, with 50 % jitter. The second attempt
follows at once."""


class Dispatcher:
    """Dispatches the queries of one gateway."""

    def __init__(
        self,
        settings: Querying,
        *,
        effects: Effects,
        session: bytes,
        name: str,
        frame_bytes: int,
        backoff: tuple[float, float],
        random: RandomSource,
        new_view: Callable[[QueueId], PartitionView],
        limits: Callable[[str], QueryLimits | None] | None = None,
        queue_limits: Callable[[str, str], QuerySettings | None] = lambda _, __: None,
    ) -> None:
        self.effects = effects
        self.table = QueryTable(settings, session.hex()[:8], name)
        self.admission = None if limits is None else Admission(limits, queue_limits)
        self.window_bytes = settings.window_bytes
        self.frame_bytes = frame_bytes
        self.uses_warm_slots = settings.warm
        self.reports = WorkerReports(effects, settings.unreachable_seconds)
        self.queues = DispatchedQueues(
            effects=effects,
            session=session,
            random=random,
            backoff=backoff,
            unreachable_seconds=settings.unreachable_seconds,
        )
        """Queues whose workers the gateway picks."""
        self.slot_requests = SlotRequests(
            effects=effects,
            session=session,
            random=random,
            backoff=backoff,
            new_view=new_view,
            learned=self.queues.learned,
        )
        self._random = random
        self._under_way: dict[int, PendingQuery] = {}
        self._pauses: dict[PendingQuery, Wakeup] = {}
        self._alarm: Wakeup | None = None
        self._alarm_at = inf
        """When the alarm rings: at the earliest deadline, or before."""
        self._payload_bytes = 0
        self._draining = False

    def __repr__(self) -> str:
        return (
            f"<Dispatcher {self.table.gateway}, {len(self._under_way)} queries under way, "
            f"{self.waiting} without a worker>"
        )

    # A query begins

    def begin(
        self,
        query: PendingQuery,
        now: float,
        prepare: Callable[[PendingQuery, float], None] | None = None,
    ) -> None:
        """Have the query answered; raises an error, and ends it, if it is refused at once.

        With `prepare`, that is called in place of `dispatch`; it calls `dispatch`, at once or
        later.
        """
        if self.admission is not None:
            try:
                self.admission.enter(*query.counted, now)
            except MaitredError as problem:
                text = f"{problem.code}: {problem.sentence}"
                self.table.move(query.entry, "refused", query.entry.received_at, text)
                raise
        self._under_way[query.sequence] = query
        deadline = query.deadline
        try:
            if deadline <= now:
                raise DeadlineExceeded("The query's time was over before it began.")
            (prepare or self.dispatch)(query, now)
        except MaitredError as problem:
            late = isinstance(problem, DeadlineExceeded)
            query.happen(Accident.DEADLINE if late else Accident.REFUSED, problem, now)
            raise
        if deadline < self._alarm_at:
            self._set_alarm(deadline)

    def dispatch(self, query: PendingQuery, now: float) -> None:
        """Find a worker for the query; raises an error for one that no worker would take."""
        ask = query.ask
        check_priority(ask.priority)  # before anything takes 2.0 or True for one that it knows
        if len(ask.payload) > self._payload_bytes:
            self._check_size(ask.payload)
        if not self.queues.takes(query, now):
            self.slot_requests.add(query, now)

    def change(self, query: PendingQuery, ask: Ask) -> None:
        """Replace the query by what a hook made of it, before it is dispatched."""
        # A hook does not choose the user and the connection.
        ask.user, ask.connection = query.counted[0], query.entry.connection
        query.ask = ask
        self.table.changed(query.entry, ask)

    def _check_size(self, payload: bytes) -> None:
        self._payload_bytes = most = self.effects.payload_bytes_max()
        if most and len(payload) > most:
            raise PayloadTooLarge(
                f"Arguments of {len(payload):,} bytes are more than the {most:,} "
                "that the node allows for a query.",
                remedy="Put them into a store and send a reference, or raise limits.payload_bytes.",
            )

    def ask_again(self, query: PendingQuery, now: float) -> None:
        """Find another worker for the query, which keeps its age."""
        if self.queues.retries(query, now):
            return
        if query.tries <= 1:
            self._wait_again(query, now)
            return
        failures = query.tries - 1
        pause = backoff_seconds(failures, AGAIN_FIRST_SECONDS, AGAIN_LONGEST_SECONDS, self._random)
        again = partial(self._wait_again, query)
        self._pauses[query] = self.effects.wake_at(now + pause, again)

    def _wait_again(self, query: PendingQuery, now: float) -> None:
        self._pauses.pop(query, None)
        if not self.queues.takes(query, now):
            query.ask_node(now)

    # A query ends

    def cancel(self, sequence: int, now: float) -> bool:
        """Cancel the query of that number; False if it is over, or does not exist."""
        query = self._under_way.get(sequence)
        if query is None:
            return False
        query.leave(now)
        return True

    def left(self, query: PendingQuery, now: float, *, waited: bool) -> None:
        """Forget a query that has ended; `waited` tells whether it had no worker."""
        self._under_way.pop(query.sequence, None)
        if query.line is not None:
            self.slot_requests.remove(query)
        if query.attempt is not None:
            query.attempt.queue.leave(query.attempt, now)
        if self._pauses:
            pause = self._pauses.pop(query, None)
            if pause is not None:
                pause.cancel()
        if self.admission is not None:
            self.admission.leave(*query.counted, waited=waited)
        if self._draining and not self._under_way:
            self.effects.drained()

    @property
    def under_way(self) -> int:
        """Return the number of queries that have not ended."""
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        """Return the number of queries under way that no worker has yet."""
        return sum(one.status in WITHOUT_WORKER for one in self._under_way.values())

    def drain(self) -> None:
        """Call `Effects.drained` when every query has ended."""
        self._draining = True

    def close(self, now: float) -> None:
        """End every query, and send no more requests."""
        self.reports.close()
        for query in list(self._under_way.values()):
            query.happen(Accident.REFUSED, Closed("The client was closed."), now)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.slot_requests.close()
        self.queues.close(now)

    def link_ended(
        self, session: bytes, receivers: Iterable[AnswerReceiver], now: float, *, hung: bool
    ) -> None:
        """Avoid a worker whose link ended while these receivers had queries there; `hung` if the
        worker does not answer at all."""
        queries = tuple(receivers)
        if queries or hung:
            self.queues.unreachable(session, now, for_long=hung)
        if hung:
            places: set[Place] = set()
            worker = ""
            for query in queries:
                if isinstance(query, PendingQuery):
                    worker = query.allocation.worker
                    places.add(query.place)
            self.effects.worker_hangs(worker, session)
            self.reports.hangs(session, places, now)

    # Deadlines have one alarm, set to the earliest: most queries are over long before theirs.

    def _set_alarm(self, moment: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = moment
        self._alarm = self.effects.wake_at(moment, self._look_at_deadlines)

    def _look_at_deadlines(self, now: float) -> None:
        self._alarm, self._alarm_at = None, inf
        for query in [one for one in self._under_way.values() if one.deadline <= now]:
            query.expired(now)
        earliest = min((one.deadline for one in self._under_way.values()), default=inf)
        if earliest < self._alarm_at < inf or (earliest < inf and self._alarm is None):
            self._set_alarm(max(earliest, now + LOOK_SECONDS))
