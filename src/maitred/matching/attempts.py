"""What workers say of the attempts that they were given: how they ended, and which run still."""

from __future__ import annotations

from collections import OrderedDict
from hmac import compare_digest
from math import inf
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, msgpack

from maitred.matching.attempt_proofs import session_of
from maitred.matching.effects import Beat, NothingForShared, Unproven
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.heartbeats import Heartbeats
    from maitred.matching.matcher import Matcher
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.task import Token
    from maitred.matching.task_transitions import OwnTasks

DONE, RETURNED = 0, 2
"""How an attempt ended, as the wire counts it: well, and without having begun."""

LOST = msgpack.encode(("lost", "Its worker was not heard of any more.", ""))
"""The failure of an attempt whose worker is gone, as workers put theirs."""


class Told(Struct, eq=False):
    """The reported end of an attempt at a task that is not in memory. It counts as soon as the task
    is read, even if the look-up of the task has not ended."""

    end: tuple[int, int, int, bytes]
    """Sequence, attempt, how, body."""
    holder: bytes
    """The worker that has proved that it was given the attempt."""
    ticket: Ticket
    counts: bool | None = None
    """Whether the end counts, or comes too late; None: not decided yet."""


class Attempts:
    """Ends and heartbeats of the partition's own tasks, and leases that end without either."""

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
        self.claims: OrderedDict[int, tuple[bytes, str, int, float]] = OrderedDict()
        """Tasks that are in the store alone and that a worker says it is running, in the order in
        which the claims end."""
        self.told: dict[int, list[Told]] = {}
        """Ends of tasks that are in the store alone, by task; they are being looked for."""
        self.failed = self.lost = 0
        self.unproven = 0
        """Attempts that callers spoke of without proving that they were given them."""

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
                # As usual: the worker that has the task ends it, and the lease has the proof.
                if how == DONE:
                    done += 1
                    own_tasks.end_counted(task, "done", body, ticket, now)
                else:
                    own_tasks.lease_ends(task)
                    self._ENDS[how](self, task, body, ticket, now)
            elif not self._proofs.verify(sequence, attempt, holder, proof):
                refused.append(sequence)
            elif task is None or not self._finished(task, attempt, how, body, ticket, now, holder):
                unknown.append((sequence, attempt, how, body))
        if done:
            own_tasks.finished.count(done, now)
        if unknown:
            # Told before, perhaps, and over already, but not yet on disk.
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
        """One that was unknown to `finish`, and is in memory now; False: too late to count."""
        sequence, attempt, how, body = end
        task = self._own_tasks.tasks.get(sequence)
        return task is not None and self._finished(task, attempt, how, body, ticket, now, holder)

    def tell_when_read(
        self, end: tuple[int, int, int, bytes], ticket: Ticket, holder: bytes
    ) -> Told:
        """One that was unknown to `finish`: it counts as soon as its task is in memory, however
        slow whoever looks for it is. Otherwise somebody else would get the task meanwhile."""
        told = Told(end, holder, ticket)
        self.told.setdefault(end[0], []).append(told)
        return told

    def told_no_more(self, told: Told) -> None:
        """Nobody looks for it any more."""
        sequence = told.end[0]
        waiting = self.told.get(sequence, [])
        if told in waiting:
            waiting.remove(told)
            if not waiting:
                del self.told[sequence]

    def hear_what_was_told(self, task: QueueTask, now: float) -> None:
        """It is in memory now, and stands where it would stand without a word of anybody."""
        if not self.told:
            return
        # In the order of the attempts: a second one failed after a first one that did.
        for told in sorted(self.told.pop(task.sequence, ()), key=_attempt):
            _, attempt, how, body = told.end
            if task.state is OVER:
                # The same told twice: the second answer waits as the first one does.
                self._ledger.wait_for_what_is_pending(told.ticket, now)
                told.counts = False
            elif self._finished(task, attempt, how, body, told.ticket, now, told.holder):
                told.counts = True

    def catch_up(self, task: QueueTask, attempt: int) -> None:
        """Somebody has a later attempt than we know of. He got it from whoever owned the partition
        before us, who knew that the earlier ones had failed, and was lost before that was
        written. We have given nothing out yet, so he knows better."""
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
        """The holder was given this attempt, and ends it. False: it comes too late to count."""
        self.catch_up(task, attempt)
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
                self._own_tasks.end(task, "done", body, ticket, now)
                return True
            if attempt != task.attempt + 1:
                return False
            if task.state is AWAY:
                # Its worker is faster than the parent's word of who that is.
                if how == RETURNED:
                    self._away.given_back_early(task)
                    return True
                task.state = ON_TAKE[task.state]
            elif task.state is READY:
                self._backlog.left(task)
                task.state = ON_CLAIM[task.state]
            elif task.state is WAITING and task.sequence < self._own_tasks.first_sequence:
                # Its time had come under whoever owned this partition before us.
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
        task.reported = task.attempt + 1
        self._own_tasks.try_again(task, "failed", body, ticket, now)

    def _returned(self, task: QueueTask, body: bytes, ticket: Ticket | None, now: float) -> None:  # noqa: ARG002
        if task.revoked:
            self._own_tasks.end(task, "cancelled", b"", ticket, now)
        else:
            self._own_tasks.come_back(task, now)

    def _timed_out(self, task: QueueTask, body: bytes, ticket: Ticket | None, now: float) -> None:
        self.failed += 1
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
        """These run still: (sequence, attempt, proof). The token hears of news, or that there are
        none until then; a holder that proves nothing is answered at once, and nothing else."""
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
                if not self._may_claim(sequence, holder, worker, attempt, lease_until):
                    lost.append(sequence)
                continue
            self.catch_up(task, attempt)
            if (
                task.state in (READY, WAITING)
                and attempt == task.attempt + 1
                and sequence < self._own_tasks.first_sequence
            ):
                # Given out by whoever owned this partition before us.
                if task.state is READY:
                    self._backlog.left(task)
                task.state = ON_CLAIM[task.state]
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
        """Whether the task may be theirs as soon as it is read: then they say again what they have
        to say of it."""
        return self._may_claim(sequence, holder, "", attempt, now + self._settings.lease_seconds)

    def _may_claim(
        self, sequence: int, holder: bytes, worker: str, attempt: int, until: float
    ) -> bool:
        """Whether the store may have it, so that it is theirs when it is read."""
        old = sequence < self._own_tasks.first_sequence
        unread = self._backlog.any_unread or self._later.known_until < inf
        if not (old and unread):
            return False
        known = self.claims.get(sequence)
        if known is not None and (
            attempt < known[2] or (attempt == known[2] and holder != known[0])
        ):
            return False
        if known is None and len(self.claims) >= self._ledger.stored:
            return False  # the store does not have so many: most of them are over
        self.claims[sequence] = (holder, worker, attempt, until)
        self.claims.move_to_end(sequence)
        return True

    def claimed(self, task: QueueTask, now: float) -> bool:
        """Whether a worker said that it runs a task that was just read: then the worker has it."""
        claim = self.claims.pop(task.sequence, None)
        if claim is None or claim[3] <= now:
            return False
        self.catch_up(task, claim[2])
        if claim[2] != task.attempt + 1:
            return False
        task.state = ON_CLAIM[task.state]
        self._own_tasks.lease(task, claim[0], b"", claim[1], now)
        return True

    def claim_no_more(self, sequence: int, holder: bytes) -> None:
        """It was looked for, and is theirs no longer: others may need the room."""
        known = self.claims.get(sequence)
        if known is not None and known[0] == holder:
            del self.claims[sequence]

    def leases_end(self, now: float) -> None:
        """Give up attempts whose workers were not heard of, and claims that nobody renewed."""
        leases = self._own_tasks.leases
        silent = set()
        while leases:
            task = next(iter(leases.values()))
            if task.lease_until > now:
                break
            self._own_tasks.lease_ends(task)
            self.lost += 1
            silent.add(task.holder)
            self._own_tasks.try_again(task, "lost", LOST, None, now)
        if silent:
            # What a worker offered before it fell silent would only swallow more; one that lives
            # asks again.
            heard = now - self._settings.lease_seconds
            for offer in self._offers.unanswered():
                if offer.holder in silent and offer.since <= heard:
                    self._matcher.answer_without_tasks(offer)
            for shared in self._offers.silent(silent, heard):
                self._effects.append(NothingForShared(shared))
        claims = self.claims
        while claims and next(iter(claims.values()))[3] <= now:
            claims.popitem(last=False)

    _ENDS = (_done, _failed, _returned, _timed_out, _stopped)
    """By how an attempt ended, as the wire counts it."""


def _attempt(told: Told) -> int:
    return told.end[1]
