"""Gives free slots to the queries of gateways.

The order of queries:

- Where queries and offers meet, queries go before tasks, by priority and then by age (`since`), the
  oldest first, whichever gateways they come from.
- In the tree a query that finds no slot at its own partition goes to the parent at once, and so on
  to the root, where all that wait stand in one line. While a partition has queries away, further
  ones follow them, and offers that come to it go up at once, so that no query at home overtakes
  those that left. A query can only overtake one that waits at the root with a slot that came to its
  own partition within the last `offer_wait_seconds` and the time of an exchange between two shards.
- A task of a partition with queries away lets an offer go to the parent for a moment first.
"""

from __future__ import annotations

from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from maitred.balancing.workers.doubt import Doubts
from maitred.errors import DeadlineExceeded, Draining, MaitredError, NoWorker, Overloaded
from maitred.matching.effects import (
    AllocateSlot,
    PassSlotRequest,
    RecallSlotRequest,
    RefuseSlotRequest,
)
from maitred.matching.hand_out import not_trusted
from maitred.matching.measures import Rate
from maitred.matching.reservation_proofs import GRACE_SECONDS, ReservationProofs
from maitred.matching.slot_requests import SlotRequestLines
from maitred.matching.slots import AllocatedSlot, SlotRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.matching.partition_state import PartitionState
    from maitred.matching.slots import SharedSupply, WaitingOffer
    from maitred.matching.task import Token
    from maitred.settings import QuerySettings

AWAY_FIRST_SECONDS = 0.02
"""How long an offer is kept for the queries that wait at the parent before tasks at home may have
it: an exchange between two shards takes less than a millisecond."""

RETRY_SHORTEST = 1.0
RETRY_LONGEST = 60.0
"""Bounds of the seconds after which a gateway that was refused for want of room may ask again."""


class Allocator:
    """Reserves free slots for the gateways that ask for them."""

    def __init__(self, state: PartitionState) -> None:
        self._key = state.key
        self._limits = state.settings.queries
        self._is_root = state.is_root
        self._hand_out = state.hand_out
        self._signing_key = state.signing_key
        self._ledger = state.ledger
        self._offers = state.offers
        self._presence = state.presence
        self._sightings = state.worker_sightings.workers
        self._tokens = state.tokens
        self._timers = state.timers
        self._effects = state.effects
        self._meter = state.meter
        self._proofs: ReservationProofs | None = None
        """Created with the first reservation that is counted."""
        self.lines = SlotRequestLines()
        self.doubts: Doubts[bytes, bytes] = Doubts()
        """Workers, by session, that refused slots they had offered."""
        self.doubted_until = inf
        """When the first worker whose shared slots were passed over may be given queries again."""
        self.allocated = Rate(state.loaded_at)
        """Slots that this partition gave to queries."""
        state.timers.register(SlotRequest, ring=self._time_is_up, waits=attrgetter("is_open"))

    def limit_to(self, limits: QuerySettings) -> None:
        """Go by these settings from now on."""
        self._limits = limits

    def request(self, request: SlotRequest, now: float, user_waiting: int | None = None) -> None:
        """Queue a gateway's request for slots. It is answered with slots, or with the reason why
        there are none.

        Raises `Overloaded` if too many queries wait, of all users or of this one, who may have a
        limit of their own. If there is room for some of the queries, the request is cut to those,
        and the gateway asks for the others again.
        """
        lines = self.lines
        if lines.total or not self._offers.has(request.slots):
            limits = self._limits
            theirs = limits.waiting_per_user
            if user_waiting is not None:
                theirs = min(theirs, user_waiting)
            self._make_room(
                request, waiting=lines.total, most=limits.waiting, whose="queries", now=now
            )
            waiting = lines.users.get(request.user, 0)
            self._make_room(
                request, waiting=waiting, most=theirs, whose="queries of this user", now=now
            )
        lines.add(request)
        self.allocate(now)
        if request.given:
            return
        if request.do_not_queue and self._is_root:
            lines.close(request)
            raise not_trusted() if self._hand_out.withholds else self._none_free(now)
        self._timers.set(request.until, request)

    def _make_room(
        self, request: SlotRequest, *, waiting: int, most: int, whose: str, now: float
    ) -> None:
        room = most - waiting + (0 if waiting else self._offers.free)
        if room <= 0:
            raise Overloaded(
                f"{waiting:,} {whose} wait for a worker already.",
                remedy="Come back later.",
                retry_after=self.retry_after(waiting, now),
            )
        request.slots = min(request.slots, room)

    def retry_after(self, waiting: int, now: float) -> float:
        """Return in how many seconds half of the waiting queries are served, at the present rate of
        allocation."""
        rate = self.allocated.per_second(now)
        seconds = waiting / 2 / rate if rate else inf
        return min(max(seconds, RETRY_SHORTEST), RETRY_LONGEST)

    def withdraw(self, request: SlotRequest) -> None:
        """Close a request whose gateway no longer waits. Slots that it was given in this turn, and
        that neither side has heard of, are free again."""
        away = request.away
        if not self.lines.close(request):
            return
        if away:
            self._effects.append(RecallSlotRequest(request))
        for reservation in request.given:
            self._offers.give_back(reservation)
        request.given = []

    def parent_answered(self, request: SlotRequest, outcome: Sequence[Any] | MaitredError) -> None:
        """Answer a request that was passed on with the slots or the problem of the parent."""
        if not self.lines.close(request):
            return  # the parent's slots are free again when their reservations expire
        if isinstance(outcome, MaitredError):
            self._effects.append(RefuseSlotRequest(request, outcome))
        else:
            self._effects.append(AllocateSlot(request, (), outcome))

    def allocate(self, now: float, most: float = inf) -> float:
        """Give free slots to the requests, in the order of both, but no more than `most`; return
        how many of `most` are left."""
        lines, offers, doubts = self.lines, self._offers, self.doubts
        if lines.slots_away:
            return most  # later requests follow those that went to the parent
        self.doubted_until = inf
        if self._hand_out.withholds:
            return most
        if offers.aside:
            self.take_up_offers(now)
        doubted = partial(self._is_doubted, now) if doubts else None
        while lines.slots and most > 0:
            request = lines.first()
            if request is None:
                return most
            offer = offers.first(doubted)
            if offer is None:
                return most
            if (
                doubts
                and offer.shared is None
                and doubts.room(offer.session, self._workers, now) < 1
            ):
                offers.set_aside(offer)
                continue
            most -= 1
            token = self._tokens.new()
            proof = self._reservation_proof(token, offer, request, now) if request.permits else b""
            reservation = AllocatedSlot(token, offer, request, proof)
            offers.reserve(reservation)
            lines.take(reservation)
            doubts.given(offer.session, token, now, request.user)
        return most

    def _is_doubted(self, now: float, supply: SharedSupply) -> bool:
        """Return whether the worker refused so many slots lately that it is given none for now."""
        if self.doubts.room(supply.session, self._workers, now) >= 1:
            return False
        again_at = self.doubts.room_at(supply.session, now)
        self.doubted_until = min(self.doubted_until, again_at)
        return True

    def _reservation_proof(
        self, token: bytes, offer: WaitingOffer, request: SlotRequest, now: float
    ) -> bytes:
        """Return a proof with which the worker shows any later owner of the partition that it has
        this reservation."""
        proofs = self._proofs
        if proofs is None:
            proofs = self._proofs = ReservationProofs(self._signing_key, self._key)
        limits = self._limits
        seconds = limits.reservation_seconds + limits.run_seconds + GRACE_SECONDS
        expires_at = now + self._ledger.wall + seconds
        return proofs.issue(offer.session, request.user, token, expires_at)

    def slots_refused(self, tokens: Iterable[bytes], now: float) -> None:
        """Note that workers refused these slots, which they had offered."""
        for token in tokens:
            self.doubts.refused(token, self._workers, now)

    @property
    def _workers(self) -> int:
        """The number of workers. Only the root knows of those that are busy or have left."""
        return self._presence.count if self._is_root else len(self._sightings)

    def take_up_offers(self, now: float) -> None:
        """Use the offers again that were set aside, as far as their workers may be given queries
        by now."""
        for session in list(self._offers.aside):
            self._offers.take_up(session, self.doubts.room(session, self._workers, now))

    def offers_taken_up_at(self, now: float, *, tasks_wait: bool) -> float:
        """Return when the next offer that was set aside can be used; infinity if no query or task
        waits for it."""
        if not (self.lines.slots or tasks_wait):
            return inf
        return min((self.doubts.room_at(one, now) for one in self._offers.aside), default=inf)

    def flush(self, now: float) -> None:
        """Answer the requests that were given slots in this turn."""
        for request in self.lines.answerable():
            if request.given and self.lines.close(request):
                self.allocated.count(len(request.given), now)
                self._meter.allocated += len(request.given)
                self._presence.noticed(now)
                self._effects.append(AllocateSlot(request, request.given))
                request.given = []

    def reservations_fall(self, reserved: list[AllocatedSlot], now: float) -> None:
        """Queue the requests of these reservations again: their offer was withdrawn in the same
        turn, before a gateway or a worker heard of them."""
        for reservation in reserved:
            self.lines.put_back(reservation)
            self._timers.set(reservation.request.until, reservation.request)
        if reserved:
            self.allocate(now)
        for request in dict.fromkeys(one.request for one in reserved):
            if request.do_not_queue and self._is_root and not request.given:
                self.lines.close(request)
                self._effects.append(RefuseSlotRequest(request, self._none_free(now)))

    def pass_up(self) -> None:
        """Pass the requests that found no slot here on to the parent."""
        lines = self.lines
        if self._is_root or not lines.slots:
            return
        for request in list(lines.waiting()):
            if not request.given:
                lines.goes_away(request)
                self._effects.append(PassSlotRequest(request))

    def tasks_may_be_matched_at(self) -> float:
        """Return until when the offers are kept for the queries at the parent."""
        first = self._offers.longest_waiting() if self.lines.slots_away else None
        return -inf if first is None else first.since + AWAY_FIRST_SECONDS

    def _time_is_up(self, request: SlotRequest, _now: float) -> None:
        if request.given:
            return  # it is answered at the end of this turn
        away = request.away
        if self.lines.close(request):
            if away:
                self._effects.append(RecallSlotRequest(request))
            self._effects.append(
                RefuseSlotRequest(request, DeadlineExceeded("No worker was free in time."))
            )

    def refuse_all(self, problem: MaitredError) -> None:
        """Refuse all requests that wait, with this problem."""
        for request in self.lines.unanswered():
            if request.given:
                continue
            away = request.away
            if self.lines.close(request):
                if away:
                    self._effects.append(RecallSlotRequest(request))
                self._effects.append(RefuseSlotRequest(request, problem))

    def refuse_without_workers(self, now: float) -> float:
        """At the root, refuse all requests if no worker has served the queue for
        `no_worker_seconds`; return when to look again."""
        if not self._is_root or not self.lines.slots or self._presence.count:
            return inf
        seconds = self._limits.no_worker_seconds
        at = self._presence.seen + seconds
        if now < at:
            return at
        self.refuse_all(self._no_worker())
        return inf

    def _no_worker(self) -> NoWorker:
        key, seconds = self._key, self._limits.no_worker_seconds
        return NoWorker(
            f"No worker serves the queue {key.namespace}/{key.queue}.",
            remedy=f"Start a worker for it; queries wait {seconds:g} s for one.",
        )

    def _none_free(self, now: float) -> MaitredError:
        """Return the problem of a query that does not wait and finds no free slot."""
        presence = self._presence
        if not presence.count and now >= presence.seen + self._limits.no_worker_seconds:
            return self._no_worker()
        return Overloaded(
            "No worker is free, and the query is not to wait.",
            remedy="Come back later, or let it wait.",
            retry_after=self.retry_after(self.lines.total + 1, now),
        )

    # The end

    def stop(self) -> None:
        """Refuse all requests that wait: the node is stopping."""
        self.refuse_all(Draining("The node is stopping.", remedy="Ask again later."))

    def answer_without_slots(self) -> None:
        """Answer all requests that wait with no slots: their gateways ask again at once, and find
        the next owner of the partition."""
        for request in self.lines.unanswered():
            if request.given:
                continue
            away = request.away
            if self.lines.close(request):
                if away:
                    self._effects.append(RecallSlotRequest(request))
                self._effects.append(AllocateSlot(request, ()))

    def tokens(self) -> list[Token]:
        """Return the tokens of all requests that wait."""
        return [request.token[0] for request in self.lines.unanswered()]
