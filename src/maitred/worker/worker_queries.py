"""Queries at a worker: matches the queries of gateways with the node's reservations and passes.

A reservation takes a slot as soon as the worker hears of it, so no task and no other query gets
that slot; the query that shows the reservation runs in it. One alarm serves all deadlines.

A query with a pass has no slot reserved: it gets one if the worker has room, and is refused at once
if not.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from maitred.errors import AtCapacity, InvalidArguments, Overloaded, SlotTaken
from maitred.metrics.histogram import SHORTEST_WORK, WORK_BOUNDS
from maitred.protocol.tasks import Reserved
from maitred.trace_context import NOT_RECORDED
from maitred.wire.alarm import Alarm
from maitred.wire.complaints import Complaints
from maitred.worker import outcomes, reservations
from maitred.worker.early_queries import EarlyQueries, EarlyQuery
from maitred.worker.lifecycle import SERVING
from maitred.worker.passes import Passes
from maitred.worker.permit_reports import PermitReports
from maitred.worker.query import Query
from maitred.worker.relayed_queries import RelayedQueries
from maitred.worker.reservations import Reservation, Reservations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.client.call import CallConnection
    from maitred.errors import MaitredError
    from maitred.protocol.queries import Pass
    from maitred.protocol.query_link import RunQuery
    from maitred.worker.capacity import Sender
    from maitred.worker.context import WorkerContext
    from maitred.worker.pulse import Pulse
    from maitred.worker.query import Asker
    from maitred.worker.served import Served
    from maitred.worker.slots import WorkerSlots


TOKEN_BYTES: Final = 16
TOKENS_AT_ONCE: Final = 64
REPLACED: Final = 1_024
"""Most lost attempts of queries that are remembered, about a hundred bytes each: a frame that is
still on its way on a connection that its gateway gave up arrives within seconds."""
FULL: Final = "This worker serves as many queries as it can."
LEAVING: Final = "This worker takes no more queries."


class WorkerQueries:
    """The queries of this worker: it matches each with its reservation or pass, runs its handler,
    and frees its slot at the end."""

    def __init__(
        self,
        context: WorkerContext,
        slots: WorkerSlots,
        pulse: Pulse,
        secret: Callable[[int], bytes],
        *,
        judged: Callable[[Served], None],
        freed: Callable[[], None],
    ) -> None:
        settings = context.settings
        self.loop = asyncio.get_running_loop()
        self.pulse = pulse
        self.threads = slots.threads
        self.capacity = slots.capacity
        self.tracing = context.tracing
        self.failures = slots.failures
        self.chunk_bytes = settings.chunk_bytes
        self.count = slots.count
        self.running: dict[Query, None] = {}
        """Queries whose handlers have not ended."""
        self.relayed = RelayedQueries(context, self, freed)
        self.permits = PermitReports(context)
        self.complaints = Complaints(self.loop, context.log)
        self._judged = judged
        """Called with a queue whose queries do not all end well."""
        self._fetch_seconds = settings.fetch_seconds if settings.host is not None else 0.0
        """How long after its reservation a query is asked for at the node; 0 without a listener."""
        self.warm_seconds = settings.warm_seconds
        """How long a slot is kept warm for the gateway that has just used it."""
        self._secret = secret
        self._tokens: list[bytes] = []
        """Random tokens for warm slots; the system is asked for many at once."""
        self._early_seconds = settings.early_seconds
        self._slots = slots
        self._statistics = context.statistics
        self._log = context.log
        self._worker = context.name
        self._book: Reservations[Served] = Reservations()
        self._passes: Passes[Served] = Passes()
        self._early = EarlyQueries(settings.early_queries, settings.early_bytes)
        self._replaced: OrderedDict[tuple[bytes, int], None] = OrderedDict()
        """Attempts that a later attempt of the same query has replaced, by token and number, the
        oldest first: one that arrives after its replacement does not begin."""
        self._alarm = Alarm(self.loop, self._look)

    def __repr__(self) -> str:
        waiting = f"{self.reservations} reserved, {self._early.count} early"
        return f"<WorkerQueries {len(self.running)} running, {waiting}>"

    # From the node

    def reserved(
        self, served: Served, terms: Reserved, now: float, link: CallConnection | None = None
    ) -> None:
        """Accept a reservation that came over a connection, which voids it if it is lost: take a
        slot for its query, which may have come already."""
        book, token = self._book, terms.token
        if token in book.known:
            return  # told twice
        if book.is_over(token):
            if terms.proof:
                self.permits.told_again(served, terms)
            return  # its gateway gave it back already, or it was told twice
        first: EarlyQuery | None = None
        if token in self._early.waiting:
            first, *others = self._early.take(token)
            for other in others:
                self._refuse(other.asker, other.stream, reservations.twice())
        expires_at = now + terms.reservation_seconds
        if now > self.pulse.in_time_until:
            expires_at -= self.pulse.behind(now)
        if (
            book.is_outranked(served, terms, now)
            or expires_at <= now
            or (link is not None and link.has_ended)
            or not self._room_for(served, terms)
        ):
            # It expires at once if the loop was blocked while the reservation lay in a socket; the
            # connection may have been lost in this turn of the loop.
            book.refuse(token)
            if first is not None:
                self._refuse(first.asker, first.stream, reservations.taken())
            self._over(served, terms)
            return
        if terms.proof:
            self.permits.has(served, terms)
        again_until = now + terms.again_seconds
        if first is None:
            fetch_at = now + self._fetch_seconds
            book.add(Reservation(terms, served, expires_at, fetch_at, link, again_until))
            self._alarm.by(min(fetch_at, expires_at))
        else:
            book.used_at_once(token)
            self._begin(
                first.asker, first.stream, first.message, served, terms, now, None, again_until
            )

    def _room_for(self, served: Served, terms: Reserved) -> bool:
        """Take a slot for a reservation: a free one, or that of a reservation which an earlier
        owner of the partition made and whose query has not come."""
        if self._slots.has_room and self._slots.take():
            return True
        if self._slots.lifecycle.phase is not SERVING:
            return False
        yielding = self._book.yielding(served, terms)
        if yielding is None:
            return False
        if yielding.fetch_at is None:
            self.relayed.arrived(yielding.terms.token)
        self._over(yielding.where, yielding.terms)
        return True

    def link_lost(self, link: CallConnection) -> None:
        """Free the slots of the reservations that came over a connection that was lost."""
        for reservation in self._book.void(link):
            if reservation.fetch_at is None:
                self.relayed.arrived(reservation.terms.token)
            self._over(reservation.where, reservation.terms)
            self._slots.leave()

    def passes(self, served: Served, told: Sequence[Pass], now: float) -> None:
        """Accept passes of gateways, or renew them."""
        for terms in told:
            if self._passes.add(terms, served, now):
                for early in self._early.take(terms.token):
                    self._run_by_pass(early.asker, early.stream, early.message, served, terms, now)

    # From gateways

    def run(self, asker: Asker, stream: int, message: RunQuery, now: float) -> bytes | None:
        """Run a query, or refuse it; return its token if it waits for its reservation or pass."""
        token = message.token
        if (message.lost or self._replaced) and not self._is_only_attempt(
            asker, stream, message, now
        ):
            return None
        known = self._passes.find(token, now)
        if known is not None:
            self._run_by_pass(asker, stream, message, known.where, known.terms, now)
            return None
        reservation = self._book.use(token)
        if reservation is not None:
            if reservation.fetch_at is None:
                self.relayed.arrived(token)
            if reservation.expires_at <= now:
                # The loop was blocked: the alarm that ends reservations is late as well.
                self._expired(reservation)
                self._refuse(asker, stream, reservation.problem)
                return None
            terms, again_until = reservation.terms, reservation.again_until
            self._begin(asker, stream, message, reservation.where, terms, now, None, again_until)
            return None
        problem = self._book.why_not(token)
        if problem is None:
            until = now + self._early_seconds
            if self._early.park(EarlyQuery(asker, stream, message, until)):
                self._alarm.by(until)
                return token
            problem = Overloaded("Too many queries wait here for the word of their reservation.")
        self._refuse(asker, stream, problem)
        return None

    def _is_only_attempt(self, asker: Asker, stream: int, message: RunQuery, now: float) -> bool:
        """Refuse an attempt of a query while another attempt of it counts; True if none does.

        A gateway that lost its connection sends an idempotent query again, perhaps to the same
        worker, which may still run the first attempt, or be about to. The last attempt counts: the
        others are stopped, and it begins when none of them runs any more. Until then it is refused,
        so that the gateway asks again, for a slot of any worker.
        """
        sequence, replaced = message.sequence, self._replaced
        if (message.token, sequence) in replaced:
            self._decline(asker, stream, reservations.replaced())
            return False
        for token in message.lost or ():
            replaced[token, sequence] = None
            if len(replaced) > REPLACED:
                replaced.popitem(last=False)
            for early in self._early.drop(token, lambda one: one.message.sequence == sequence):
                self._decline(early.asker, early.stream, reservations.replaced())
        runs = False
        for query in list(self.running):
            if query.sequence == sequence and (query.terms.token, sequence) in replaced:
                query.abandon()
                runs = True
        if runs:
            if self._passes.find(message.token, now) is None:
                self.release(message.token)
            self._decline(asker, stream, reservations.still_runs())
        return not runs

    def release(self, token: bytes) -> None:
        """Give up a reservation that will not be used, whether it is known or not."""
        for early in self._early.take(token):
            self._refuse(early.asker, early.stream, reservations.released())
        reservation = self._book.release(token)
        if reservation is not None:
            self.relayed.arrived(token)
            self._over(reservation.where, reservation.terms)
            self._slots.leave()

    def forget(self, asker: Asker, stream: int, token: bytes) -> None:
        """Forget a query that waits for the node's word of its token: its caller is gone."""
        self._early.drop(token, lambda one: one.asker is asker and one.stream == stream)
        if token not in self._early.waiting:
            self.release(token)

    @property
    def reservations(self) -> int:
        """Number of reservations that wait for their query."""
        return len(self._book.known)

    def is_known(self, token: bytes) -> bool:
        """Whether this reservation still waits for its query."""
        return token in self._book.known

    def under_way(self, served: Served) -> int:
        """Return the number of queries of that queue, and of reservations that wait for theirs."""
        known = self._book.known.values()
        return sum(one.where is served for one in known) + sum(
            one.served is served for one in self.running
        )

    # The end of a query

    def judge(self, served: Served, begun_at: float, now: float, *, done: bool) -> None:
        """Note how a query ended, if its handler was the reason and not its caller."""
        health = served.health
        if done:
            health.done(now - begun_at, now)
        else:
            health.failed(now)
        if health.good < 1.0:
            self._judged(served)

    def ended(self, query: Query, now: float, *, good: bool) -> None:
        """Free the slot of a query whose handler has ended."""
        self.running.pop(query, None)
        runs, seconds = query.served.runs, now - query.begun_at
        # `Histogram.add`, without a call for each query.
        runs.counts[0 if seconds <= SHORTEST_WORK else bisect_left(WORK_BOUNDS, seconds)] += 1
        runs.total += seconds
        if query.sender is not None:
            self.capacity.left(query.sender)
        self.capacity.ended(query, now, good=good)
        terms = query.terms
        if isinstance(terms, Reserved) and terms.proof:
            self.permits.is_over(query.served, terms)
        if query.told or not good or not self._kept_warm(query, now):
            self._slots.leave()

    def _kept_warm(self, query: Query, now: float) -> bool:
        """Grant the gateway the slot again, if other slots are on offer; return whether it was.

        So no waiting query is overtaken, and most queries of a gateway that asks one by one need no
        partition at all. After a failure the next query should find another worker.
        """
        terms = query.terms
        if (
            not self.warm_seconds
            or not query.again_until
            or not query.served.has_offers
            or query.served.health.sick
            or self._slots.lifecycle.phase is not SERVING
            or self.capacity.room <= 0
            or not isinstance(terms, Reserved)
        ):
            return False
        expires_at = now + self.warm_seconds
        if expires_at > query.again_until:
            return False
        if not self._tokens:
            self._draw_tokens()
        query.again = token = self._tokens.pop()
        kept = replace(terms, token=token)
        self._book.add(Reservation(kept, query.served, expires_at, inf, None, query.again_until))
        if expires_at < self._alarm.at:
            self._alarm.by(expires_at)
        return True

    def _draw_tokens(self) -> None:
        drawn = self._secret(TOKENS_AT_ONCE * TOKEN_BYTES)
        self._tokens = [drawn[at : at + TOKEN_BYTES] for at in range(0, len(drawn), TOKEN_BYTES)]

    def stop(self) -> None:
        """Stop all queries without an answer: the end of the link tells the gateways."""
        self._alarm.stop()
        self.permits.stop()
        self.relayed.stop()
        for query in list(self.running):
            query.abandon()

    # Inside

    def _run_by_pass(
        self, asker: Asker, stream: int, message: RunQuery, served: Served, terms: Pass, now: float
    ) -> None:
        capacity, sender = self.capacity, asker.sender
        if sender is None:  # a pass is for a link: a relayed query has a reservation
            self._refuse(asker, stream, reservations.unknown())
            return
        room = capacity.asked(sender, message.in_flight, now, pressed=message.pressed)
        closed = self._slots.lifecycle.phase is not SERVING
        if closed or not room or not self._slots.take():
            capacity.answered(sender)
            self._statistics.full += 1
            sentence = LEAVING if closed else FULL
            asker.refused(stream, AtCapacity(sentence, limit=0 if closed else capacity.limit))
            return
        capacity.entered(sender)
        self._begin(asker, stream, message, served, terms, now, sender)

    def _begin(
        self,
        asker: Asker,
        stream: int,
        message: RunQuery,
        served: Served,
        terms: Reserved | Pass,
        now: float,
        sender: Sender | None = None,
        again_until: float = 0.0,
    ) -> None:
        if asker.sender is None or message.pressed:
            again_until = (
                0.0  # only the node may allocate a slot that is relayed, or that others want
            )
        query = Query(self, asker, stream, message, served, terms, now, sender, again_until)
        self._statistics.queries += 1
        self.running[query] = None
        self.capacity.begun(query, now)
        asker.begun(stream, query)
        if served.hidden is not None:
            query.hide(served.hidden, message.payload)
        if self.tracing is not None and message.trace != NOT_RECORDED:
            queue = f"{served.view.id.namespace}/{served.view.id.queue}"
            query.span = self.tracing.answers(
                message.trace, queue, query.query_id, worker=self._worker
            )
        try:
            args, named = served.read(message.payload)
        except InvalidArguments as problem:
            query.fail(outcomes.misfit(problem))
            return
        except Exception as problem:  # noqa: BLE001 - a user's class
            query.fail(outcomes.raised(problem))
            return
        if query.deadline < self._alarm.at:
            self._alarm.by(query.deadline)
        query.begin(message, args, named)

    def _refuse(self, asker: Asker, stream: int, problem: MaitredError) -> None:
        if not isinstance(problem, SlotTaken):
            self.complaints.say("a query was refused", asker.gateway, problem)
        self._decline(asker, stream, problem)

    def _decline(self, asker: Asker, stream: int, problem: MaitredError) -> None:
        """Refuse a query without a complaint in the log: no party is at fault."""
        self._statistics.refused += 1
        asker.refused(stream, problem)

    def _over(self, served: Served, terms: Reserved) -> None:
        """Report the end of a counted reservation."""
        if terms.proof:
            self.permits.is_over(served, terms)

    def _expired(self, reservation: Reservation[Served]) -> None:
        """Free the slot of a reservation whose query did not come in time."""
        if not reservation.is_kept:
            self._statistics.unused += 1
            self._log.debug("no query came for a reservation", queue=reservation.where.name)
        self._over(reservation.where, reservation.terms)
        self._slots.leave()

    def _look(self, now: float) -> float | None:
        expired, to_fetch = self._book.due(now)
        for early in self._early.late(now):
            self._refuse(early.asker, early.stream, reservations.unknown())
        for reservation in expired:
            self._expired(reservation)
        for reservation in to_fetch:
            self.relayed.begin(reservation)
        following = self._book.next_at()
        parked = self._early.next_at()
        if parked is not None and (following is None or parked < following):
            following = parked
        for query in list(self.running):
            if query.cancelled:
                continue
            if query.deadline <= now:
                query.time_is_over()
            elif following is None or query.deadline < following:
                following = query.deadline
        return following
