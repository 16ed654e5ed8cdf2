"""What gateways ask of a partition: slots for queries; and who is there to serve them.

Which order holds:

- Where queries and offers meet, queries go before tasks, by priority and then by age (`since`), the
  oldest first, whichever gateways they come from.
- In the tree a query that finds no slot at its own partition goes to the parent at once, and so on
  to the root, where all that wait stand in one line. While a partition has queries away, further
  ones follow them, and offers that come to it go up at once: nobody at home overtakes those who
  left. A query can only overtake one that waits at the root by means of a slot that has come to its
  own partition within the last `offer_wait_seconds` and the time of an exchange between two shards.
- A task of a partition with queries away lets an offer go to the parent for a moment first.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from maitred.errors import DeadlineExceeded, Draining, MaitredError, NoWorker, Overloaded
from maitred.matching.effects import (
    Allocate,
    AnswerAttend,
    PassWanted,
    RecallWanted,
    RefuseWanted,
)
from maitred.matching.queries import Reservation, Wanted
from maitred.matching.reservation_proofs import GRACE_SECONDS, ReservationProofs
from maitred.matching.subscribing import Subscribing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.matching.offers import Offer
    from maitred.matching.presence import Attendance, Order
    from maitred.matching.shared_supplies import SharedSupply
    from maitred.matching.task import Token

AWAY_FIRST_SECONDS = 0.02
"""So long an offer is for the queries that wait at the parent before it is for tasks at home: an
exchange between two shards takes less than a millisecond."""

RETRY_SHORTEST = 1.0
RETRY_LONGEST = 60.0
"""Seconds after which somebody who was refused for want of room may come again."""


class Allocating(Subscribing):
    """For those who bring queries."""

    def want(self, wanted: Wanted, now: float, user_waiting: int | None = None) -> None:
        """A gateway has queries; it hears of slots, or why there are none.

        Raises `Overloaded` if too many wait already, of all users or of this one, who may have a
        limit of his own. If there is room for some of them, the gateway will ask for the others
        again.
        """
        lines = self.wanted
        if lines.total or not self.offers.has(wanted.slots):
            limits = self.settings.queries
            theirs = limits.waiting_per_user
            if user_waiting is not None:
                theirs = min(theirs, user_waiting)
            self._make_room(wanted, lines.total, limits.waiting, "queries", now)
            waiting = lines.users.get(wanted.user, 0)
            self._make_room(wanted, waiting, theirs, "queries of this user", now)
        lines.add(wanted)
        self._seat_queries(now)
        if wanted.given:
            return
        if wanted.do_not_queue and self.parent is None:
            lines.close(wanted)
            raise self._nobody_is_free(now)
        self._set_timer(wanted.until, wanted)

    def _make_room(self, wanted: Wanted, waiting: int, most: int, whose: str, now: float) -> None:
        room = most - waiting + (0 if waiting else self.offers.free)
        if room <= 0:
            raise Overloaded(
                f"{waiting:,} {whose} wait for a worker already.",
                remedy="Come back later.",
                retry_after=self.retry_after(waiting, now),
            )
        wanted.slots = min(wanted.slots, room)

    def retry_after(self, waiting: int, now: float) -> float:
        """Until half of them are served, at the rate at which slots are given out."""
        rate = self.allocated.per_second(now)
        seconds = waiting / 2 / rate if rate else inf
        return min(max(seconds, RETRY_SHORTEST), RETRY_LONGEST)

    def want_no_more(self, wanted: Wanted) -> None:
        """Nobody waits for the answer. Slots of which nobody has heard yet are free again."""
        away = wanted.away
        if not self.wanted.close(wanted):
            return
        if away:
            self.effects.append(RecallWanted(wanted))
        for reservation in wanted.given:
            self.offers.give_back(reservation)
        wanted.given = []

    def wanted_answered(self, wanted: Wanted, outcome: Sequence[Any] | MaitredError) -> None:
        """What the parent had for one that was passed on."""
        if not self.wanted.close(wanted):
            return  # its slots are free again when their time is up
        if isinstance(outcome, MaitredError):
            self.effects.append(RefuseWanted(wanted, outcome))
        else:
            self.effects.append(Allocate(wanted, (), outcome))

    def _seat_queries(self, now: float, most: float = inf) -> float:
        """Seat as many as there are free slots, in the order of both, but no more than `most`;
        returns how many of those are left."""
        lines, offers, doubts = self.wanted, self.offers, self.doubts
        if lines.slots_away:
            return most  # who comes later follows those who went to the parent
        if offers.aside:
            self._take_up_offers(now)
        self._doubted_until = inf
        doubted = partial(self._is_doubted, now) if doubts else None
        while lines.slots and most > 0:
            wanted = lines.first()
            if wanted is None:
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
            token = self._new_token()
            proof = self._reservation_proof(token, offer, wanted, now) if wanted.permits else b""
            reservation = Reservation(token, offer, wanted, proof)
            offers.reserve(reservation)
            lines.take(reservation)
            doubts.given(offer.session, token, now, wanted.user)
        return most

    def _is_doubted(self, now: float, supply: SharedSupply) -> bool:
        """Whether the worker refused so many slots lately that it is given none for now."""
        if self.doubts.room(supply.session, self._workers, now) >= 1:
            return False
        again_at = self.doubts.room_at(supply.session, now)
        self._doubted_until = min(self._doubted_until, again_at)
        return True

    def _reservation_proof(self, token: bytes, offer: Offer, wanted: Wanted, now: float) -> bytes:
        """Let the worker prove later, to whichever shard owns this partition, that it has it."""
        proofs = self._reservation_proofs
        if proofs is None:
            proofs = self._reservation_proofs = ReservationProofs(self._signing_key, self.key)
        limits = self.settings.queries
        seconds = limits.reservation_seconds + limits.run_seconds + GRACE_SECONDS
        expires_at = now + self.ledger.wall + seconds
        return proofs.issue(offer.session, wanted.user, token, expires_at)

    def slots_refused(self, tokens: Iterable[bytes], now: float) -> None:
        """Workers refused these slots, which they had offered."""
        for token in tokens:
            self.doubts.refused(token, self._workers, now)

    @property
    def _workers(self) -> int:
        """How many there are; only the root hears of those that are busy, or leave."""
        return self.presence.count if self.parent is None else len(self.workers)

    def _take_up_offers(self, now: float) -> None:
        """Those that were set aside, as far as their workers may be given something by now."""
        for session in list(self.offers.aside):
            self.offers.take_up(session, self.doubts.room(session, self._workers, now))

    def _offers_taken_up_at(self, now: float) -> float:
        """When some will be for which somebody may wait."""
        if not (self.wanted.slots or self.backlog.ready):
            return inf
        return min((self.doubts.room_at(one, now) for one in self.offers.aside), default=inf)

    def _flush_queries(self, now: float) -> None:
        """Answer those that got something."""
        for wanted in self.wanted.answerable():
            if wanted.given and self.wanted.close(wanted):
                self.allocated.count(len(wanted.given), now)
                self.presence.seen = now
                self.effects.append(Allocate(wanted, wanted.given))
                wanted.given = []

    def _reservations_fall(self, reserved: list[Reservation], now: float) -> None:
        """Their offer is gone before anybody heard of them."""
        for reservation in reserved:
            self.wanted.put_back(reservation)
            self._set_timer(reservation.wanted.until, reservation.wanted)
        if reserved:
            self._seat_queries(now)
        for wanted in dict.fromkeys(one.wanted for one in reserved):
            if wanted.do_not_queue and self.parent is None and not wanted.given:
                self.wanted.close(wanted)
                self.effects.append(RefuseWanted(wanted, self._nobody_is_free(now)))

    def _pass_wanted(self) -> None:
        """Those that found nothing here go up the tree."""
        lines = self.wanted
        if self.parent is None or not lines.slots:
            return
        for wanted in list(lines.waiting()):
            if not wanted.given:
                lines.goes_away(wanted)
                self.effects.append(PassWanted(wanted))

    def _tasks_may_be_seated_at(self) -> float:
        """Until then an offer is for the queries at the parent."""
        first = self.offers.longest_waiting() if self.wanted.slots_away else None
        return -inf if first is None else first.since + AWAY_FIRST_SECONDS

    def _wanted_time_is_up(self, wanted: Wanted) -> None:
        if wanted.given:
            return  # it is answered in this very turn
        away = wanted.away
        if self.wanted.close(wanted):
            if away:
                self.effects.append(RecallWanted(wanted))
            self.effects.append(
                RefuseWanted(wanted, DeadlineExceeded("No worker was free in time."))
            )

    def refuse_wanted(self, problem: MaitredError) -> None:
        """All that wait are told."""
        for wanted in self.wanted.unanswered():
            if wanted.given:
                continue
            away = wanted.away
            if self.wanted.close(wanted):
                if away:
                    self.effects.append(RecallWanted(wanted))
                self.effects.append(RefuseWanted(wanted, problem))

    def _without_workers(self, now: float) -> float:
        """At the root, refuse those that wait for nobody; returns when to look again."""
        if self.parent is not None or not self.wanted.slots or self.presence.anybody:
            return inf
        seconds = self.settings.queries.no_worker_seconds
        at = self.presence.seen + seconds
        if now < at:
            return at
        self.refuse_wanted(self._nobody_serves())
        return inf

    def _nobody_serves(self) -> NoWorker:
        key, seconds = self.key, self.settings.queries.no_worker_seconds
        return NoWorker(
            f"Nobody serves the queue {key.namespace}/{key.queue}.",
            remedy=f"Start a worker for it; queries wait {seconds:g} s for one.",
        )

    def _nobody_is_free(self, now: float) -> MaitredError:
        """Why one that does not wait gets nothing."""
        presence = self.presence
        if not presence.anybody and now >= presence.seen + self.settings.queries.no_worker_seconds:
            return self._nobody_serves()
        return Overloaded(
            "No worker is free, and the query is not to wait.",
            remedy="Come back later, or let it wait.",
            retry_after=self.retry_after(self.wanted.total + 1, now),
        )

    # Who is there

    def attend(self, told: Attendance, now: float) -> None:
        """A worker is there; its token hears of an order, or that its time is up.

        Whoever is new hears at once that it is known, and whoever does not know how the others do,
        if that matters to it.
        """
        known, earlier = self.presence.attend(told, now)
        if earlier is not None:
            self.effects.append(AnswerAttend(earlier, ""))
        order = self.presence.order_now(known, now)
        if order or known is told or self.presence.shares.is_news(known):
            self._answer_attend(known, order, now)
        else:
            self._set_timer(known.deadline, known)
            if known.passes:
                self.presence.rosters.untold[known] = None

    def _tell_of_the_best(self, now: float) -> None:
        """Those who fail much hear how the others do, if that is another matter by now."""
        shares = self.presence.shares
        if shares.news:
            for one in shares.to_tell():
                self._answer_attend(one, "", now)

    def attend_no_more(self, session: bytes, token: Token, now: float) -> None:
        """Its connection is lost, or it has taken its request back."""
        known = self.presence.workers.get(session)
        if known is not None and known.token is token:
            self.presence.answered(known, now)
            self._set_timer(known.deadline, known)

    def _attendance_rings(self, one: Attendance, now: float) -> None:
        self._tell_timer_rings(one, now)
        if now < one.deadline:
            return  # it has another timer
        if one.token is None:
            self.presence.gives_up(one)
        else:
            self._answer_attend(one, "", now)

    def order(self, named: str, order: Order, now: float) -> list[Attendance]:
        """A person wants these workers offline, or back; raises `UnknownWorker`."""
        found = self.presence.find(named)
        for one in found:
            self.presence.order(one, order)
            told = self.presence.order_now(one, now)
            if told:
                self._answer_attend(one, told, now)
        return found

    # The end

    def _stop_queries(self) -> None:
        self.refuse_wanted(Draining("The node is stopping.", remedy="Ask again later."))
        self._stop_subscriptions()
        for one in self.presence.workers.values():
            if one.token is not None:
                token, one.token = one.token, None
                self.effects.append(AnswerAttend(token, ""))

    def _query_tokens(self) -> list[Token]:
        """Those who wait for slots or for news, or attend."""
        waiting = [wanted.token[0] for wanted in self.wanted.unanswered()]
        attending = (one.token for one in self.presence.workers.values())
        subscribed = [one.token for one in self.presence.rosters.held]
        return [*waiting, *subscribed, *(token for token in attending if token is not None)]
