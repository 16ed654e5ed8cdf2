"""A partition: tasks and offers meet here. Pure: time comes in, effects go out.

Every method takes the loop's time and leaves what is to be done in `effects`; whoever drives the
partition carries that out and calls `look` at the latest when `next_look` says. What has to be
written is in the `ledger`; whoever drives it commits batches and reports with `committed`,
`not_committed`.

Tasks are seated in the order of their priorities and, within one, in the order in which they came.
A task whose attempt failed or whose worker was lost comes back later and joins the end of its line.
"""

from __future__ import annotations

from heapq import heappop
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from msgspec import msgpack

from maitred.errors import OutcomeUnknown
from maitred.matching.attempt_proofs import session_of
from maitred.matching.core import HeldBeat
from maitred.matching.effects import (
    Beat,
    NothingFor,
    NothingForShared,
    Read,
    ReadLater,
    RecallOffer,
    VisitorUnwanted,
)
from maitred.matching.offers import Offer
from maitred.matching.presence import SUSPECT_SECONDS, Attendance
from maitred.matching.queries import Wanted
from maitred.matching.recalling import Recalling
from maitred.matching.records import TASK_BYTES
from maitred.matching.rosters import Subscriber
from maitred.matching.signatures import SIGNATURES_ROW
from maitred.matching.task import (
    ON_END,
    OVER,
    READY,
    Task,
    Ticket,
)

if TYPE_CHECKING:
    from maitred.matching.task import Token

LOST = msgpack.encode(("lost", "Its worker was not heard of any more.", ""))
"""The failure of an attempt whose worker is gone, as workers put theirs."""


class Partition(Recalling):
    """One partition, as its owner has it."""

    def look(self, now: float) -> float:
        """Do what is due; returns when to look again, at the latest."""
        if self.recovering and now >= self.recovering_until:
            self.recovering_until = -inf
        self._leases_end(now)
        self._become_due(now)
        self._timers_ring(now)
        if self.offers.aside:
            self._take_up_offers(now)
        self._seat(now)
        if now >= self._unsafe_until:
            self._answer_unsafe(now)
        wanted = self.backlog.wanted()
        while wanted is not None:
            self.effects.append(Read(wanted))
            wanted = self.backlog.wanted()
        if not self.ledger.stored and self.ledger.under_way is None and not self.later.reading:
            self.later.known_until = inf  # the store has nothing at all
        before = self.later.read_wanted(now)
        if before:
            size = self.later.read_size(len(self.tasks))
            self.effects.append(ReadLater(before, size, self.later.read_bytes(self.tasks.values())))
        self._tell_rosters(now)
        self._tell_of_the_best(now)
        self._pass_wanted()
        without = self._without_workers(now)
        return min(self._next_look(now, self._pass_on(now)), without)

    def _next_look(self, now: float, passing: float) -> float:
        at = min(passing, self._next_due(), self.later.read_wanted_at())
        if self.recovering:
            at = min(at, self.recovering_until)
        elif self.away and now < self._home_by and self.offers.any_free:
            at = min(at, self._home_by)
        elif self._limit is not None and self.backlog.ready and self.offers.any_free:
            at = min(at, self._limit.next_at(now))
        if self.leases:
            at = min(at, next(iter(self.leases.values())).lease_until)
        if self.wanted.slots_away and self.offers.slots and self.backlog.ready:
            first = self._tasks_may_be_seated_at()
            at = min(at, first if first > now else inf)
        if self._timers:
            at = min(at, self._timers[0][0])
        if self.offers.aside:
            at = min(at, self._offers_taken_up_at(now))
        if self._doubted_until < inf and self.wanted.slots:
            at = min(at, self._doubted_until)
        at = min(at, self._rosters_at, self._unsafe_until)
        return max(at, now)

    def _leases_end(self, now: float) -> None:
        leases = self.leases
        silent = set()
        while leases:
            task = next(iter(leases.values()))
            if task.lease_until > now:
                break
            del leases[task.sequence]
            self.lost += 1
            silent.add(task.holder)
            self._try_again(task, "lost", LOST, None, now)
        if silent:
            # What a worker offered before it fell silent would only swallow more; one that lives
            # asks again.
            heard = now - self.settings.lease_seconds
            for offer in self.offers.unanswered():
                if offer.holder in silent and offer.since <= heard:
                    self._offer_time_is_up(offer)
            for shared in self.offers.silent(silent, heard):
                self.effects.append(NothingForShared(shared))
        claims = self._claims
        while claims and next(iter(claims.values()))[3] <= now:
            claims.popitem(last=False)

    def _next_due(self) -> float:
        """When there is something to do about those who wait for their time."""
        # Without room for it, nothing: room comes with an event, and every event is a look.
        first = self.later.first(self.backlog.room)
        return inf if first is None else first.due

    def _timers_ring(self, now: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, waiting = heappop(timers)
            if isinstance(waiting, Offer):
                self.presence.seen = now
                self._offer_time_is_up(waiting)
            elif isinstance(waiting, Wanted):
                self._wanted_time_is_up(waiting)
            elif isinstance(waiting, Attendance):
                self._attendance_rings(waiting, now)
            elif isinstance(waiting, Subscriber):
                self._subscriber_rings(waiting, now)
            elif isinstance(waiting, HeldBeat):
                self._beat_time_is_up(waiting)
            else:
                self._visit_time_is_up(waiting)

    def _beat_time_is_up(self, held: HeldBeat) -> None:
        if self._beats.get(held.holder) is held:
            del self._beats[held.holder]
            self.effects.append(Beat(held.token, [], []))

    def _offer_time_is_up(self, offer: Offer) -> None:
        if offer.is_open and offer.untouched:
            self.offers.close(offer)
            if offer.away:
                self.effects.append(RecallOffer(offer))
            self.effects.append(NothingFor(offer))

    def _visit_time_is_up(self, task: Task) -> None:
        if task.state is READY:
            self.backlog.left(task)
            task.state = ON_END[task.state]
            self.effects.append(VisitorUnwanted(task))

    def suspect(self, session: bytes, now: float) -> int | None:
        """A gateway says that it took a query and does not answer: nobody gets its slots until it
        offers them again. How many offers there were; None if that changes nothing.

        A worker that lives offers again, and attends again, at once. It is asked to do so once in
        `SUSPECT_SECONDS`, however often gateways say this.
        """
        if not self._may_be_suspected(session, now):
            return None
        waiting = self.offers.unanswered()
        offers = [one for one in waiting if one.session == session and one.untouched]
        for offer in offers:
            self._offer_time_is_up(offer)
        known = self.presence.workers.get(session)
        if known is not None and known.token is not None:
            self._answer_attend(known, "", now)
        self.presence.suspect(session, now)
        return len(offers)

    def _may_be_suspected(self, session: bytes, now: float) -> bool:
        suspected = self._suspected
        while suspected and next(iter(suspected.values())) + SUSPECT_SECONDS <= now:
            suspected.popitem(last=False)
        is_known = session in self.workers or session in self.presence.workers
        if session in suspected or not is_known:
            return False
        suspected[session] = now
        return True

    def workers_here(self) -> dict[bytes, tuple[str, float]]:
        """The workers that are here, by session, with their names and when they were heard of: they
        attend, offer slots, or run tasks. `workers` also remembers those that are gone."""
        attending = self.presence.workers
        sessions = [
            *(one.session for one in self.offers.unanswered()),
            *(one.session for one in self.offers.sets if one.offers),
            *(session_of(task.holder) for task in self.leases.values()),
            *attending,
        ]
        here = {}
        for session in dict.fromkeys(sessions):  # in their order: simulated runs are repeatable
            name, heard = self.workers.get(session, ("", -inf))
            attendance = attending.get(session)
            if attendance is not None:
                name, heard = attendance.worker, max(heard, attendance.heard)
            if name:
                here[session] = (name, heard)
        return here

    # The end

    def stop_waiting(self) -> None:
        """Nothing more will be given out: offers and heartbeats are answered."""
        for offer in self.offers.unanswered():
            if offer.untouched:
                self._offer_time_is_up(offer)
        self._stop_queries()
        for held in list(self._beats.values()):
            self._beat_time_is_up(held)

    def keep_results(self, now: float, most: int, most_bytes: int) -> int:
        """Have results that are in memory only written with the next commit: the next owner then
        answers for them. Takes at most `most` of them, bodies of `most_bytes` or one, and no more
        than the quotas have room for; returns how many."""
        taken = 0
        for sequence, ended in self.outcomes.in_memory_only(now)[:most]:
            if taken and most_bytes < len(ended.body):
                break
            if not self._take_room(TASK_BYTES + len(ended.body), now):
                break
            most_bytes -= len(ended.body)
            taken += 1
            self.outcomes.handed_to_store(sequence, ended)
            self._keep_result(sequence, ended, now)
        return taken

    def results_unwritten(self, now: float) -> int:
        """Count the results that would be lost with this owner."""
        pending = sum(
            sequence != SIGNATURES_ROW
            for one in self.ledger.all_pending()
            for sequence in one.results
        )
        return pending + len(self.outcomes.in_memory_only(now))

    def leave(self) -> tuple[list[Token], list[Ticket]]:
        """Everybody who waits for an answer: whoever drives this will not give one any more.

        Tickets are to be answered with their last word.
        """
        waiting = self.offers.unanswered()
        tokens: list[Token] = [offer.token[0] for offer in waiting if offer.shared is None]
        visitors = [waiting for _, _, waiting in self._timers if isinstance(waiting, Task)]
        tokens += [visitor.visit[0] for visitor in visitors if visitor.state is not OVER]
        tokens += [held.token for held in self._beats.values()]
        tokens += self._query_tokens()
        tokens += [token for waiting in self._waiters.values() for token in waiting]
        tickets = {task.ticket: None for task in self.tasks.values() if task.ticket is not None}
        begun = {task.ticket for task in self.tasks.values() if task.may_have_begun}
        for pending in self.ledger.all_pending():
            for ticket, failed in pending.producers:
                tickets[ticket] = None
                if failed:
                    begun.add(ticket)
                else:
                    ticket.left -= 1
                    ticket.done += 1
        for ticket in tickets:
            if ticket in begun or (ticket.done and ticket.left):
                # Whoever hears that nothing was done sends it again, and it would be done twice.
                ticket.problem = OutcomeUnknown("Some of the tasks may have been begun.")
        for pending in self.ledger.all_pending():
            tickets.update(dict.fromkeys(pending.tickets))
            tickets.update(dict.fromkeys(ticket for ticket, _ in pending.cancelling))
            tokens += [token for token, _ in pending.told]
        for quota in self.quotas:
            quota.leave(self.ledger)
        self.backlog.forget()
        self.later.forget()
        for task in chain(self.tasks.values(), visitors):
            task.ticket = task.visit = None
        return tokens, [ticket for ticket in tickets if not ticket.told]
