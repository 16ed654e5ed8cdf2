"""Every decision about the queries of one gateway: the only place where they are made.

Events come in, each with `now`: a query begins, its caller leaves, a worker answers or reports, a
link opens or ends, an alarm rings, the node answers. What is to be done goes out by `effects.py`.
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

from msgspec.structs import replace

from maitred.backoff import backoff_seconds
from maitred.dispatch.admission import Admission
from maitred.dispatch.dispatched_queues import DispatchedQueues
from maitred.dispatch.hung_workers import HungWorkers
from maitred.dispatch.pending_query import PendingQuery
from maitred.dispatch.query_states import Accident, Stage
from maitred.dispatch.query_table import QueryTable
from maitred.dispatch.refused_slots import RefusedSlots
from maitred.dispatch.relayed_query import RelayedQuery
from maitred.dispatch.slot_requests import SlotRequests, check_priority
from maitred.dispatch.warm_slots import WarmSlots
from maitred.errors import Closed, DeadlineExceeded, MaitredError, PayloadTooLarge
from maitred.protocol.queries import Suspect
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.balancing.interface import RandomSource
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.effects import AnswerReceiver, Effects, PartitionView, Wakeup
    from maitred.dispatch.hung_workers import Place
    from maitred.dispatch.query_table import QueryEntry
    from maitred.protocol.queries import Allocation
    from maitred.routing.names import QueueId
    from maitred.settings import Querying, QueryLimits, QuerySettings

LOOK_SECONDS: Final = 0.005
"""Least time between two looks at the deadlines of all queries."""

AGAIN_FIRST_SECONDS: Final = 0.02
AGAIN_LONGEST_SECONDS: Final = 1.0
"""Before a query is asked for a third time and more: whoever refused it twice may refuse it again.
The second time is at once."""

SUSPECT_SECONDS: Final = 5.0

_WITHOUT_WORKER: Final = (Stage.WAITING, Stage.CONNECTING)


class Dispatcher:
    """The queries of one gateway, from the first to the last."""

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
        self.hung = HungWorkers(settings.unreachable_seconds)
        """Workers that do not answer."""
        self.queues = DispatchedQueues(
            effects=effects,
            session=session,
            random=random,
            backoff=backoff,
            unreachable_seconds=settings.unreachable_seconds,
        )
        """Queues whose workers are picked here."""
        self.slot_requests = SlotRequests(
            effects=effects,
            session=session,
            random=random,
            backoff=backoff,
            new_view=new_view,
            learned=self.queues.learned,
        )
        self._random = random
        self._unreachable_seconds = settings.unreachable_seconds
        self._refused_slots = RefusedSlots(effects)
        self._warm_slots = WarmSlots()
        self._under_way: dict[int, PendingQuery] = {}
        self._pauses: dict[PendingQuery, Wakeup] = {}
        self._alarm: Wakeup | None = None
        self._alarm_at = inf
        """The moment for which the alarm is set: the earliest deadline, or sooner."""
        self._payload_bytes = 0
        self._draining = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<Dispatcher {self.table.gateway}, {len(self._under_way)} queries under way>"

    # A query begins

    def enter(self, ask: Ask, wall: float) -> QueryEntry:
        """Enter a query into the table; raises `Overloaded` if too many are under way."""
        table = self.table
        if table.under_way >= table.most_under_way:
            table.check_room()
        return table.enter(ask, wall)

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
                self.table.fail(query.entry, "refused", text, query.entry.received_at)
                raise
        self._under_way[query.sequence] = query
        deadline = query.deadline
        try:
            (prepare or self.dispatch)(query, now)
            if deadline <= now:
                raise DeadlineExceeded("The query's time was over before it began.")
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
            self.ask_node(query, now)

    def change(self, query: PendingQuery, ask: Ask) -> None:
        """A hook made another query of it, before it was dispatched."""
        # Its user, and its connection, are not the hook's to say.
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

    # Slots

    def ask_node(self, query: PendingQuery, now: float) -> None:
        """Use a warm slot for the query, or have it wait for one that the node allocates."""
        ask = query.ask
        requests = self.slot_requests
        namespace, queue, user = ask.namespace, ask.queue, ask.user
        line = requests.lines.get(
            (namespace, queue, ask.priority, user, ask.do_not_queue, False)
        ) or requests.line(namespace, queue, ask.priority, user, do_not_queue=ask.do_not_queue)
        if not query.tries and not line.demand.by_query:
            warm = self._warm_slots.take((namespace, queue, user), now)
            if warm is not None:
                query.allocated(warm, now, warm=True)
                return
        requests.add(line, query)

    def ask_node_at_once(self, query: PendingQuery) -> None:
        """Ask the node for a slot that is free now, once."""
        ask = query.ask
        requests = self.slot_requests
        line = requests.line(
            ask.namespace, ask.queue, ask.priority, ask.user, do_not_queue=True, at_once=True
        )
        requests.add(line, query)

    def keep_warm(self, query: PendingQuery, token: bytes, seconds: float, now: float) -> None:
        """The worker keeps the query's slot for the next one, for a moment."""
        ask = query.ask
        key = (ask.namespace, ask.queue, ask.user)
        waiting = self.slot_requests.first(key)
        if waiting is not None:
            # A request for it is under way; the slot that comes of that goes to the next.
            self.slot_requests.remove(waiting)
            waiting.allocated(replace(query.allocation, token=token), now, warm=True)
            return
        self._warm_slots.keep(key, query.allocation, token, seconds, now)

    def ask_again(self, query: PendingQuery, now: float) -> None:
        """The query needs another slot, with the age that it has."""
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

    def relay(self, query: PendingQuery, now: float) -> None:
        """The query's worker cannot be reached directly: have the node carry it."""
        relayed = RelayedQuery(self.effects, query, self.window_bytes)
        try:
            relayed.begin(query.encode(now), now)
        except MaitredError as problem:
            query.refused(problem, now)
            return
        query.sent(relayed, now, relayed=True)

    # A query ends

    def cancel(self, sequence: int, now: float) -> bool:
        """Cancel the query of that number; False if it is over, or does not exist."""
        query = self._under_way.get(sequence)
        if query is None:
            return False
        query.leave(now)
        return True

    def left(self, query: PendingQuery, now: float, *, waited: bool) -> None:
        """The query is over; `waited` if it had no worker."""
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
        """Queries that are not over."""
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        """Return the number of queries under way that no worker has yet."""
        return sum(one.stage in _WITHOUT_WORKER for one in self._under_way.values())

    def drain(self) -> None:
        """Say when every query has ended (`Effects.drained`)."""
        self._draining = True

    def close(self, now: float) -> None:
        """End every query, and ask for nothing more."""
        self._closed = True
        for query in list(self._under_way.values()):
            query.happen(Accident.REFUSED, Closed("The client was closed."), now)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.slot_requests.close()
        self.queues.close(now)

    # Workers that are not as they should be

    def link_ended(
        self, session: bytes, receivers: Iterable[AnswerReceiver], now: float, *, hung: bool
    ) -> None:
        """A link ended, on which these had queries; `hung` if the worker did not answer at all."""
        queries = tuple(receivers)
        if queries or hung:
            self.queues.link_ended(session, now, hung=hung)
        if hung:
            self._found_hung(session, queries, now)

    def _found_hung(
        self, session: bytes, receivers: tuple[AnswerReceiver, ...], now: float
    ) -> None:
        places: dict[Place, None] = {}
        worker = ""
        for query in receivers:
            if isinstance(query, PendingQuery):
                worker = query.allocation.worker
                places[(query.ask.namespace, query.ask.queue, query.allocation.partition)] = None
        self.effects.worker_hangs(worker, session)
        self.hung.found(session, set(places), now)
        for place in places:
            self.suspect(place, session)

    def still_hangs(self, place: Place, allocation: Allocation, now: float) -> bool:
        """Whether this slot is of a worker that hangs, and its partition did not know."""
        session = allocation.session
        if self.effects.is_connected(allocation) or not self.hung.is_news(session, place, now):
            return False
        self.suspect(place, session)
        return True

    def suspect(self, place: Place, session: bytes) -> None:
        """Tell this partition that the worker does not answer."""
        if not self._closed:
            namespace, queue, partition = place
            # If that fails, the node finds out by itself when the worker's presence is over.
            message = Suspect(namespace, queue, TASKS, partition, 0, session)
            self.effects.tell_node(message, SUSPECT_SECONDS)

    def slot_refused(self, place: Place, allocation: Allocation) -> None:
        """Tell this partition that the worker did not take a slot which it had offered."""
        if not self._closed:
            self._refused_slots.add(place, allocation)

    def cannot_reach(self, allocation: Allocation, now: float, *, for_long: bool) -> None:
        """A worker that was picked here is not where it was said to be."""
        seconds = self._unreachable_seconds if for_long else None
        self.queues.unreachable(allocation.session, now, seconds)

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
