"""What workers ask of a partition: offers, ends, heartbeats."""

from __future__ import annotations

from hmac import compare_digest
from math import inf
from typing import TYPE_CHECKING, Literal

from maitred.matching.attempt_proofs import session_of
from maitred.matching.core import HeldBeat, Told
from maitred.matching.effects import (
    Beat,
    RecallOffer,
    Unproven,
)
from maitred.matching.producing import Producing
from maitred.matching.task import (
    AWAY,
    GIVEN,
    ON_CLAIM,
    ON_TAKE,
    OVER,
    READY,
    WAITING,
    Task,
    Ticket,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.offers import Offer
    from maitred.matching.task import Token

DONE, RETURNED = 0, 2
"""How an attempt ended, as the wire counts it: well, and without having begun."""


class Working(Producing):
    """For those who do them."""

    def offer(self, offer: Offer, until: float, now: float) -> None:
        """A worker has free slots; it hears of tasks for them, or that the time is up."""
        self._heard(offer.session, offer.worker, now)
        self.offers.add(offer)
        self._set_timer(until, offer)
        self._seat(now)

    def worker_heard(self, session: bytes, worker: str, now: float) -> None:
        """A worker whose slots are shared with other queues serves this one as well."""
        self._heard(session, worker, now)

    def only_reserved(self, offer: Offer) -> bool:
        """Whether an offer that was just made has met nothing but queries, and can go nowhere
        else: then there is nothing to be looked at that was not before."""
        waits = offer.given or self.backlog.ready or self.away or self.offers.aside
        return not waits and self.parent is None

    def withdraw(self, offer: Offer, now: float) -> None:
        """Close an offer whose worker no longer waits, and take back the tasks it was given."""
        if not self.offers.close(offer):
            return
        if offer.away:
            self.effects.append(RecallOffer(offer))
        for task in offer.given:
            self._come_back(task, now)
        offer.given = []
        self._reservations_fall(offer.reserved, now)
        offer.reserved = []
        self.presence.seen = now
        self._seat(now)

    def finish(
        self,
        ends: Iterable[tuple[int, int, int, bytes, bytes]],
        token: Token,
        now: float,
        holder: bytes,
    ) -> tuple[Ticket, list[tuple[int, int, int, bytes]], list[int]]:
        """Attempts are over: (sequence, attempt, how, body, proof).

        Returns a ticket, the ends of tasks that are not in memory, and the sequence numbers of the
        ends that are refused, because the holder did not prove that it was given the attempt.
        The ticket is settled when everything is safe; the caller takes one part of it off with
        `release`, when it has looked for the unknown ones in the store.
        """
        ticket = Ticket(token, 1)
        unknown = []
        refused = []
        done = 0
        tasks = self.tasks
        for sequence, attempt, how, body, proof in ends:
            task = tasks.get(sequence)
            if (
                task is not None
                and task.state is GIVEN
                and task.holder == holder
                and task.attempt + 1 == attempt
                and compare_digest(task.proof, proof)
            ):
                # As usual: the worker that has the task ends it, and the lease has the proof.
                if how == DONE:
                    done += 1
                    self._end_counted(task, "done", body, ticket, now)
                else:
                    self.leases.pop(sequence, None)
                    self._ENDS[how](self, task, body, ticket, now)
            elif not self._attempt_proofs.verify(sequence, attempt, holder, proof):
                refused.append(sequence)
            elif task is None or not self._finished(task, attempt, how, body, ticket, now, holder):
                unknown.append((sequence, attempt, how, body))
        if done:
            self.finished.count(done, now)
        if unknown:
            # Told before, perhaps, and over already, but not yet on disk.
            self.ledger.wait_for_what_is_pending(ticket, now)
        if refused:
            self._refuse_unproven(holder, "FINISH", len(refused))
        self._seat(now)
        return ticket, unknown, refused

    def _refuse_unproven(
        self, holder: bytes, message: Literal["FINISH", "HEARTBEAT"], attempts: int
    ) -> None:
        self.unproven += attempts
        self.effects.append(Unproven(holder, message, attempts))

    def finish_again(
        self, end: tuple[int, int, int, bytes], ticket: Ticket, now: float, holder: bytes
    ) -> bool:
        """One that was unknown to `finish`, and is in memory now; False: too late to count."""
        sequence, attempt, how, body = end
        task = self.tasks.get(sequence)
        return task is not None and self._finished(task, attempt, how, body, ticket, now, holder)

    def tell_when_read(
        self, end: tuple[int, int, int, bytes], ticket: Ticket, holder: bytes
    ) -> Told:
        """One that was unknown to `finish`: it counts as soon as its task is in memory, however
        slow whoever looks for it is. Otherwise somebody else would get the task meanwhile."""
        told = Told(end, holder, ticket)
        self._told.setdefault(end[0], []).append(told)
        return told

    def told_no_more(self, told: Told) -> None:
        """Nobody looks for it any more."""
        sequence = told.end[0]
        waiting = self._told.get(sequence, [])
        if told in waiting:
            waiting.remove(told)
            if not waiting:
                del self._told[sequence]

    def _hear_what_was_told(self, task: Task, now: float) -> None:
        """It is in memory now, and stands where it would stand without a word of anybody."""
        if not self._told:
            return
        # In the order of the attempts: a second one failed after a first one that did.
        for told in sorted(self._told.pop(task.sequence, ()), key=_attempt):
            _, attempt, how, body = told.end
            if task.state is OVER:
                # The same told twice: the second answer waits as the first one does.
                self.ledger.wait_for_what_is_pending(told.ticket, now)
                told.counts = False
            elif self._finished(task, attempt, how, body, told.ticket, now, told.holder):
                told.counts = True

    def _catch_up(self, task: Task, attempt: int) -> None:
        """Somebody has a later attempt than we know of. He got it from whoever owned the partition
        before us, who knew that the earlier ones had failed, and was lost before that was
        written. We have given nothing out yet, so he knows better."""
        if self.recovering and task.sequence < self.first_sequence and attempt > task.attempt + 1:
            task.attempt = attempt - 1
            task.holder = b""

    def _finished(
        self,
        task: Task,
        attempt: int,
        how: int,
        body: bytes,
        ticket: Ticket | None,
        now: float,
        holder: bytes,
    ) -> bool:
        """The holder was given this attempt, and ends it. False: it comes too late to count."""
        self._catch_up(task, attempt)
        given = task.state is GIVEN
        if not given or attempt != task.attempt + 1:
            if (
                how == DONE
                and (not given or task.holder == holder or attempt > task.attempt + 1)
                and attempt > task.reported
            ):
                # Given up for lost, or given out before a crash: done is done all the same. So is
                # a later attempt than the one that another worker is said to have: that one is
                # over. So is an earlier attempt of the worker that was given the next one: it was
                # stopped for longer than the lease, and has finished what it had.
                self._end(task, "done", body, ticket, now)
                return True
            if attempt != task.attempt + 1:
                return False
            if task.state is AWAY:
                # Its worker is faster than the parent's word of who that is.
                if how == RETURNED:
                    self._back_early.add(task.sequence)
                    return True
                task.state = ON_TAKE[task.state]
            elif task.state is READY:
                self.backlog.left(task)
                task.state = ON_CLAIM[task.state]
            elif task.state is WAITING and task.sequence < self.first_sequence:
                # Its time had come under whoever owned this partition before us.
                task.state = ON_CLAIM[task.state]
            else:
                return False
        elif task.holder != holder and task.holder:
            return False  # another worker has this attempt by now
        self.leases.pop(task.sequence, None)
        self._ENDS[how](self, task, body, ticket, now)
        return True

    def _done(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        self._end(task, "done", body, ticket, now)

    def _failed(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        self.failed += 1
        task.reported = task.attempt + 1
        self._try_again(task, "failed", body, ticket, now)

    def _returned(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:  # noqa: ARG002
        if task.revoked:
            self._end(task, "cancelled", b"", ticket, now)
        else:
            self._come_back(task, now)

    def _timed_out(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        self.failed += 1
        task.reported = task.attempt + 1
        self._try_again(task, "timed-out", body, ticket, now)

    def _stopped(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        if task.revoked:
            self._end(task, "cancelled", b"", ticket, now)
        else:
            task.reported = task.attempt + 1
            self._try_again(task, "failed", body, ticket, now)

    def heartbeat(
        self,
        holder: bytes,
        worker: str,
        running: Iterable[tuple[int, int, bytes]],
        token: Token,
        until: float,
        now: float,
    ) -> None:
        """These run still: (sequence, attempt, proof). The token hears of news, or that there are
        none until then; a holder that proves nothing is answered at once, and nothing else."""
        lost: list[int] = []
        revoked: list[int] = []
        proven = refused = 0
        lease_until = now + self.settings.lease_seconds
        for sequence, attempt, proof in running:
            task = self.tasks.get(sequence)
            if not self._attempt_proofs.verify(sequence, attempt, holder, proof):
                refused += 1
                lost.append(sequence)
                continue
            proven += 1
            if task is None:
                if not self._claimed(sequence, holder, worker, attempt, lease_until):
                    lost.append(sequence)
                continue
            self._catch_up(task, attempt)
            if (
                task.state in (READY, WAITING)
                and attempt == task.attempt + 1
                and sequence < self.first_sequence
            ):
                # Given out by whoever owned this partition before us.
                if task.state is READY:
                    self.backlog.left(task)
                task.state = ON_CLAIM[task.state]
                self._lease(task, holder, proof, worker, now)
            if (
                task.state is not GIVEN
                or attempt != task.attempt + 1
                or task.holder not in (holder, b"")
            ):
                lost.append(sequence)
            else:
                task.holder = holder
                task.proof = proof
                task.worker = worker
                task.lease_until = lease_until
                self.leases.move_to_end(sequence)
                if task.revoked:
                    revoked.append(sequence)
        if refused:
            self._refuse_unproven(holder, "HEARTBEAT", refused)
        if proven:
            self._heard(session_of(holder), worker, now)
            earlier = self._beats.pop(holder, None)
            if earlier is not None:
                self.effects.append(Beat(earlier.token, [], []))
        if lost or revoked or not proven:
            self.effects.append(Beat(token, lost, revoked))
        else:
            held = HeldBeat(token, holder)
            self._beats[holder] = held
            self._set_timer(until, held)

    def beat_no_more(self, holder: bytes, token: Token) -> None:
        """Nobody waits for the answer."""
        held = self._beats.get(holder)
        if held is not None and held.token is token:
            del self._beats[holder]

    def claim(self, sequence: int, holder: bytes, attempt: int, now: float) -> bool:
        """Whether the task may be theirs as soon as it is read: then they say again what they have
        to say of it."""
        return self._claimed(sequence, holder, "", attempt, now + self.settings.lease_seconds)

    def _claimed(
        self, sequence: int, holder: bytes, worker: str, attempt: int, until: float
    ) -> bool:
        """Whether the store may have it, so that it is theirs when it is read."""
        old = sequence < self.first_sequence
        unread = self.backlog.any_unread or self.later.known_until < inf
        if not (old and unread):
            return False
        known = self._claims.get(sequence)
        if known is not None and (
            attempt < known[2] or (attempt == known[2] and holder != known[0])
        ):
            return False
        if known is None and len(self._claims) >= self.ledger.stored:
            return False  # the store does not have so many: most of them are over
        self._claims[sequence] = (holder, worker, attempt, until)
        self._claims.move_to_end(sequence)
        return True

    def claim_no_more(self, sequence: int, holder: bytes) -> None:
        """It was looked for, and is theirs no longer: others may need the room."""
        known = self._claims.get(sequence)
        if known is not None and known[0] == holder:
            del self._claims[sequence]

    _ENDS = (_done, _failed, _returned, _timed_out, _stopped)
    """By how an attempt ended, as the wire counts it."""


def _attempt(told: Told) -> int:
    return told.end[1]
