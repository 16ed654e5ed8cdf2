"""Ends and heartbeats of the attempts that workers were given."""

from __future__ import annotations

from collections import Counter, OrderedDict
from hmac import compare_digest
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import msgpack

from maitred.errors import NotOwner
from maitred.matching.attempt_proofs import session_of
from maitred.matching.effects import Beat, LeasesEnded, NothingForShared, Unproven
from maitred.matching.records import SEQUENCES_PER_RANGE
from maitred.matching.running_attempts import RunningAttempt
from maitred.matching.task import (
    AWAY,
    GIVEN,
    ON_CLAIM,
    ON_TAKE,
    OVER,
    READY,
    WAITING,
    QueueTask,
    Ticket,
)
from maitred.matching.task_searches import Told
from maitred.matching.task_transitions import LOST_REASON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.heartbeats import Heartbeats
    from maitred.matching.matcher import Matcher
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.running_attempts import Inheritance
    from maitred.matching.task import Token
    from maitred.matching.task_transitions import OwnTasks

DONE, RETURNED = 0, 2
"""How an attempt ended, as the protocol numbers it: done, and returned before it began."""

LOST = msgpack.encode(("lost", "Its worker was not heard of any more.", ""))
"""The failure of an attempt whose worker is gone, encoded like the failures of workers."""


class Claim(NamedTuple):
    """An attempt at a task that only the store has: its worker proved it, or the partition's last
    owner told of it."""

    holder: bytes
    """The worker; empty: an unknown one."""
    worker: str
    attempt: int
    until: float
    """When the claim ends."""
    proof: bytes = b""
    revoked: bool = False
    given_at: float = 0.0
    """When the last owner gave it to the worker; 0: not known."""

    def is_of(self, holder: bytes) -> bool:
        """Return whether the claim is, or may be, that of this worker."""
        return self.holder in (holder, b"")


class Attempts:
    """Ends attempts at the partition's own tasks, and renews and ends their leases."""

    def __init__(
        self, state: PartitionState, own_tasks: OwnTasks, matcher: Matcher, heartbeats: Heartbeats
    ) -> None:
        self._settings = state.settings
        self._proofs = state.proofs
        self._own_tasks = own_tasks
        self._matcher = matcher
        self._backlog = state.backlog
        self._later = state.later
        self._ledger = state.ledger
        self._offers = state.offers
        self._away = state.away
        self._heartbeats = heartbeats
        self._worker_sightings = state.worker_sightings
        self._effects = state.effects
        self._meter = state.meter
        self._past_range = state.first_sequence + SEQUENCES_PER_RANGE if state.is_clustered else inf
        """Tasks with this sequence number, or a higher one, are those of later owners."""
        self.claims: OrderedDict[int, Claim] = OrderedDict()
        """Tasks that are in the store alone and that a worker runs, by their numbers, in the order
        in which the claims end."""
        self._knows_all = state.inheritance is not None and state.inheritance.is_complete
        """Whether no attempt of an earlier owner runs but those that it told of."""
        if state.inheritance is not None:
            self._inherit(state.inheritance)
        self.told: dict[int, list[Told]] = {}
        """Ends of tasks that are in the store alone and are being looked up, by task."""
        self.failed = self.lost = 0
        self.unproven = 0
        """Attempts that callers reported without proving that they were given them."""

    def finish(
        self,
        ends: Iterable[tuple[int, int, int, bytes, bytes]],
        token: Token,
        now: float,
        holder: bytes,
    ) -> tuple[Ticket, list[tuple[int, int, int, bytes]], list[int]]:
        """End attempts: (sequence, attempt, how, body, proof).

        Returns a ticket, the ends of tasks that are not in memory, and the sequence numbers of the
        ends that are refused, because the holder did not prove that it was given the attempt.
        The ticket is settled when everything is safe; the caller takes one part of it off with
        `release`, when it has looked up the unknown tasks in the store.
        """
        ticket = Ticket(token, 1, follows=[])
        unknown = []
        refused = []
        done = 0
        own_tasks = self._own_tasks
        tasks = own_tasks.tasks
        for sequence, attempt, how, body, proof in ends:
            task = tasks.get(sequence)
            if (
                task is not None
                and task.state is GIVEN
                and task.holder == holder
                and task.attempt + 1 == attempt
                and compare_digest(task.proof, proof)
            ):
                # The usual case: the worker that has the task ends it, with the lease's proof.
                if how == DONE:
                    done += 1
                    own_tasks.end_counted(task, "done", body, ticket, now)
                else:
                    own_tasks.lease_ends(task)
                    self._ENDS[how](self, task, body, ticket, now)
            elif not self._proofs.verify(sequence, attempt, holder, proof):
                refused.append(sequence)
            elif sequence >= self._past_range:
                ticket.problem = _replaced()
            elif task is None or not self._finished(task, attempt, how, body, ticket, now, holder):
                unknown.append((sequence, attempt, how, body))
        if done:
            own_tasks.finished.count(done, now)
            self._meter.ends["done"] += done
        if unknown:
            # A worker may repeat an end that is not on disk yet.
            self._ledger.wait_for_what_is_pending(ticket, now)
        if refused:
            self._refuse_unproven(holder, "FINISH", len(refused))
        self._matcher.match(now)
        return ticket, unknown, refused

    def _refuse_unproven(
        self, holder: bytes, message: Literal["FINISH", "HEARTBEAT"], attempts: int
    ) -> None:
        self.unproven += attempts
        self._effects.append(Unproven(holder, message, attempts))

    def finish_again(
        self, end: tuple[int, int, int, bytes], ticket: Ticket, now: float, holder: bytes
    ) -> bool:
        """End an attempt whose task was unknown to `finish` and is in memory now; return False if
        the end comes too late to count."""
        sequence, attempt, how, body = end
        task = self._own_tasks.tasks.get(sequence)
        return task is not None and self._finished(task, attempt, how, body, ticket, now, holder)

    def tell_when_read(
        self, end: tuple[int, int, int, bytes], ticket: Ticket, holder: bytes
    ) -> Told:
        """Let an end that was unknown to `finish` count as soon as its task is read, even before
        the look-up ends. Otherwise another worker might be given the task meanwhile."""
        told = Told(end, holder, ticket)
        self.told.setdefault(end[0], []).append(told)
        return told

    def told_no_more(self, told: Told) -> None:
        """Forget an end whose look-up is over."""
        sequence = told.end[0]
        waiting = self.told.get(sequence, [])
        if told in waiting:
            waiting.remove(told)
            if not waiting:
                del self.told[sequence]

    def hear_what_was_told(self, task: QueueTask, now: float) -> None:
        """Apply the ends that were reported of a task which was just read."""
        if not self.told:
            return
        # In the order of the attempts: the second one began after the first one failed.
        for told in sorted(self.told.pop(task.sequence, ()), key=_attempt):
            _, attempt, how, body = told.end
            if task.state is OVER:
                # The same end was reported twice: both answers wait for the same commit.
                self._ledger.wait_for_what_is_pending(told.ticket, now)
                told.counts = False
            elif self._finished(task, attempt, how, body, told.ticket, now, told.holder):
                told.counts = True

    def catch_up(self, task: QueueTask, attempt: int) -> None:
        """Take over the number of a later attempt than this owner knows of. An earlier owner gave
        it out after the attempts before it had failed, and was lost before that was written. While
        this owner recovers it has given nothing out, so the worker's number is right."""
        if (
            self._own_tasks.recovering
            and task.sequence < self._own_tasks.first_sequence
            and attempt > task.attempt + 1
        ):
            task.attempt = attempt - 1
            task.holder = b""

    def _finished(
        self,
        task: QueueTask,
        attempt: int,
        how: int,
        body: bytes,
        ticket: Ticket | None,
        now: float,
        holder: bytes,
    ) -> bool:
        """End the attempt, which the holder was given; return False if the end comes too late to
        count."""
        self.catch_up(task, attempt)
        given = task.state is GIVEN
        if not given or attempt != task.attempt + 1:
            if (
                how == DONE
                and (not given or task.holder == holder or attempt > task.attempt + 1)
                and attempt > task.reported
            ):
                # The attempt was given up for lost, or given out before a crash, and is done all
                # the same. That also holds for a later attempt than the one that another worker is
                # said to have, which then is over; and for an earlier attempt of the worker that
                # was given the next one: it was stopped for longer than the lease, and has
                # finished the attempt that it had.
                self._own_tasks.end(task, "done", body, ticket, now)
                return True
            if attempt != task.attempt + 1:
                return False
            if task.state is AWAY:
                # The end arrives before the parent's answer says which worker has the task.
                if how == RETURNED:
                    self._away.given_back_early(task)
                    return True
                self._away.ended_early(task, holder)
                task.state = ON_TAKE[task.state]
            elif task.state is READY:
                self._backlog.left(task)
                task.state = ON_CLAIM[task.state]
            elif task.state is WAITING and task.sequence < self._own_tasks.first_sequence:
                # An earlier owner gave it out when it was due.
                task.state = ON_CLAIM[task.state]
            else:
                return False
        elif task.holder != holder and task.holder:
            return False  # another worker has this attempt by now
        self._own_tasks.lease_ends(task)
        self._ENDS[how](self, task, body, ticket, now)
        return True

    def _done(self, task: QueueTask, body: bytes, ticket: Ticket | None, now: float) -> None:
        self._own_tasks.end(task, "done", body, ticket, now)

    def _failed(self, task: QueueTask, body: bytes, ticket: Ticket | None, now: float) -> None:
        self.failed += 1
        self._meter.failed += 1
        task.reported = task.attempt + 1
        self._own_tasks.try_again(task, "failed", body, ticket, now)

    def _returned(self, task: QueueTask, body: bytes, ticket: Ticket | None, now: float) -> None:  # noqa: ARG002
        self._meter.returned += 1
        if task.revoked:
            self._own_tasks.end(task, "cancelled", b"", ticket, now)
        else:
            self._own_tasks.note_attempt(task, "returned", b"", now)
            self._own_tasks.come_back(task, now)

    def _timed_out(self, task: QueueTask, body: bytes, ticket: Ticket | None, now: float) -> None:
        self.failed += 1
        self._meter.timed_out += 1
        task.reported = task.attempt + 1
        self._own_tasks.try_again(task, "timed-out", body, ticket, now)

    def _stopped(self, task: QueueTask, body: bytes, ticket: Ticket | None, now: float) -> None:
        if task.revoked:
            self._own_tasks.end(task, "cancelled", b"", ticket, now)
        else:
            task.reported = task.attempt + 1
            self._own_tasks.try_again(task, "failed", body, ticket, now)

    def heartbeat(
        self,
        holder: bytes,
        worker: str,
        running: Iterable[tuple[int, int, bytes]],
        token: Token,
        until: float,
        now: float,
    ) -> None:
        """Renew the leases of attempts that still run: (sequence, attempt, proof). The token is
        answered when there is news of them, or at `until`. A holder that proves nothing is answered
        at once, and changes nothing."""
        lost: list[int] = []
        revoked: list[int] = []
        proven = refused = 0
        lease_until = now + self._settings.lease_seconds
        for sequence, attempt, proof in running:
            task = self._own_tasks.tasks.get(sequence)
            if not self._proofs.verify(sequence, attempt, holder, proof):
                refused += 1
                lost.append(sequence)
                continue
            proven += 1
            if task is None:
                if sequence >= self._past_range:
                    raise _replaced()
                if not self._may_claim(sequence, holder, worker, attempt, lease_until):
                    lost.append(sequence)
                elif self.claims[sequence].revoked:
                    revoked.append(sequence)
                continue
            self.catch_up(task, attempt)
            if (
                task.state in (READY, WAITING)
                and attempt == task.attempt + 1
                and sequence < self._own_tasks.first_sequence
            ):
                # An earlier owner gave it out.
                if task.state is READY:
                    self._backlog.left(task)
                task.state = ON_CLAIM[task.state]
                self._own_tasks.lease(task, holder, proof, worker, now)
            elif task.state is AWAY and attempt == task.attempt + 1:
                # The heartbeat arrives before the parent's answer says which worker has the task.
                task.state = ON_TAKE[task.state]
                self._own_tasks.lease(task, holder, proof, worker, now)
            if (
                task.state is not GIVEN
                or attempt != task.attempt + 1
                or task.holder not in (holder, b"")
            ):
                lost.append(sequence)
            else:
                self._own_tasks.renew(task, holder, proof, worker, lease_until)
                if task.revoked:
                    revoked.append(sequence)
        if refused:
            self._refuse_unproven(holder, "HEARTBEAT", refused)
        if proven:
            self._worker_sightings.heard(session_of(holder), worker, now)
            self._heartbeats.answer_earlier(holder)
        if lost or revoked or not proven:
            self._effects.append(Beat(token, lost, revoked))
        else:
            self._heartbeats.wait(token, holder, until)

    def claim(self, sequence: int, holder: bytes, attempt: int, now: float) -> bool:
        """Keep a task for its holder until it is read, if the store may have it; the holder then
        reports again. Return whether it is kept."""
        return self._may_claim(sequence, holder, "", attempt, now + self._settings.lease_seconds)

    def _may_claim(
        self, sequence: int, holder: bytes, worker: str, attempt: int, until: float
    ) -> bool:
        """Note the claim of a holder to a task that the store may have; return whether it is
        noted."""
        old = sequence < self._own_tasks.first_sequence
        unread = self._backlog.any_unread or self._later.known_until < inf
        if not (old and unread):
            return False
        known = self.claims.get(sequence)
        if known is not None and (
            attempt < known.attempt or (attempt == known.attempt and not known.is_of(holder))
        ):
            return False
        if known is None and (self._knows_all or len(self.claims) >= self._ledger.stored):
            return False  # the store has fewer tasks than that: most of them are over
        revoked, given_at = False, 0.0
        if known is not None and attempt == known.attempt:
            revoked, given_at = known.revoked, known.given_at
        self.claims[sequence] = Claim(
            holder, worker, attempt, until, revoked=revoked, given_at=given_at
        )
        self.claims.move_to_end(sequence)
        return True

    def claimed(self, task: QueueTask, now: float) -> bool:
        """Give a task that was just read to the worker that claims to run it; return False if
        there is none."""
        claim = self.claims.pop(task.sequence, None)
        if claim is None or claim.until <= now:
            return False
        self.catch_up(task, claim.attempt)
        if claim.attempt != task.attempt + 1:
            return False
        task.state = ON_CLAIM[task.state]
        task.revoked = claim.revoked
        self._own_tasks.lease_claimed(
            task, claim.holder, claim.proof, claim.worker, claim.until, now
        )
        task.given_at = claim.given_at or now
        return True

    def claim_no_more(self, sequence: int, holder: bytes) -> None:
        """Forget the claim of a holder to a task that was looked up."""
        known = self.claims.get(sequence)
        if known is not None and known.is_of(holder):
            del self.claims[sequence]

    def leases_end(self, now: float) -> None:
        """End the leases and claims whose workers have not renewed them in time."""
        leases = self._own_tasks.leases
        silent: Counter[tuple[bytes, str]] = Counter()
        while leases:
            task = next(iter(leases.values()))
            if task.lease_until > now:
                break
            self._own_tasks.lease_ends(task)
            self.lost += 1
            self._meter.lost += 1
            silent[task.holder, task.worker] += 1
            self._own_tasks.try_again(task, LOST_REASON, LOST, None, now)
        if silent:
            holders = {holder for holder, _ in silent}
            for (holder, worker), tasks in silent.items():
                self._effects.append(LeasesEnded(holder, worker, tasks))
            # Offers from before a worker fell silent would only take more tasks. A worker that
            # lives offers again.
            heard = now - self._settings.lease_seconds
            for offer in self._offers.unanswered():
                if offer.holder in holders and offer.since <= heard:
                    self._matcher.answer_without_tasks(offer)
            for shared in self._offers.silent(holders, heard):
                self._effects.append(NothingForShared(shared))
        claims = self.claims
        while claims and next(iter(claims.values())).until <= now:
            claims.popitem(last=False)

    def stood_still(self, seconds: float) -> None:
        """Let leases, claims and the recovery last longer by the time for which the shard could
        hear no worker: the attempts of a worker that lives must not be given out again."""
        for task in self._own_tasks.leases.values():
            task.lease_until += seconds
        for sequence, claim in self.claims.items():
            self.claims[sequence] = claim._replace(until=claim.until + seconds)
        self._own_tasks.recovering_until += seconds

    # Other owners

    def _inherit(self, told: Inheritance) -> None:
        """Keep the tasks that the last owner says are running for their workers until they are
        read."""
        for one in sorted(told.attempts, key=_lease_seconds):
            until = told.at + one.lease_seconds
            self.claims[one.sequence] = Claim(
                one.holder,
                one.worker,
                one.attempt,
                until,
                one.proof,
                one.revoked,
                told.at - one.running_seconds if one.running_seconds else 0.0,
            )

    def running(self, now: float) -> list[RunningAttempt]:
        """Return the attempts that run, for the next owner of the partition. An end that is still
        being looked up is among them: its worker reports it again."""
        full = self._settings.lease_seconds
        found = {
            sequence: RunningAttempt(sequence, last.end[1], last.holder, "", b"", full)
            for sequence, told in self.told.items()
            for last in [max(told, key=_attempt)]
        }
        for sequence, claim in self.claims.items():
            found[sequence] = RunningAttempt(
                sequence,
                claim.attempt,
                claim.holder,
                claim.worker,
                claim.proof,
                claim.until - now,
                claim.revoked,
                now - claim.given_at if claim.given_at else 0.0,
            )
        for task in self._own_tasks.leases.values():
            found[task.sequence] = RunningAttempt(
                task.sequence,
                task.attempt + 1,
                task.holder,
                task.worker,
                task.proof,
                task.lease_until - now,
                task.revoked,
                now - task.given_at,
            )
        return [one for one in found.values() if one.lease_seconds > 0]

    _ENDS = (_done, _failed, _returned, _timed_out, _stopped)
    """By how an attempt ended, as the protocol numbers it."""


def _attempt(told: Told) -> int:
    return told.end[1]


def _lease_seconds(one: RunningAttempt) -> float:
    return one.lease_seconds


def _replaced() -> NotOwner:
    """Return the error for a worker that proved an attempt at a task of a later owner."""
    return NotOwner("A later owner of the partition gave out this task.")
