"""What becomes of a task: seated, back again, later again, over."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.matching.allocating import Allocating
from maitred.matching.effects import (
    Ended,
    Foreign,
    Give,
    RecallOffer,
    RecallTask,
    VisitorTaken,
    VisitorUnwanted,
)
from maitred.matching.failures import FAILURE_BYTES, cut_failure
from maitred.matching.records import PRIORITIES, TASK_BYTES
from maitred.matching.task import (
    AWAY,
    GIVEN,
    ON_COME_BACK,
    ON_END,
    ON_GIVE,
    ON_POSTPONE,
    OVER,
    PARKED,
    READY,
    WAITING,
    Task,
    Ticket,
)

if TYPE_CHECKING:
    from maitred.matching.effects import EndStatus
    from maitred.matching.ledger import Pending

HOME_SECONDS = 0.02
"""How long those that were called back from the parent are waited for, at most: an exchange between
two shards takes less than a millisecond. And how long tasks stay at home afterwards, at most."""

STAY_SECONDS = 0.002
"""How long after an offer no task goes to the parent, if tasks were called back from there: where
all workers are busy the next offer comes sooner, and each call costs it an exchange. Longer would
keep workers idle elsewhere: docs/matching-study.md has the numbers."""

RUN_KEPT = 0.9
"""Of the mean run time, at each new one."""


class Lives(Allocating):
    """The ways that a task can go."""

    def _seat(self, now: float, most: float = inf) -> float:
        """Seat as many queries and then tasks as there are offers, in the order of both, but no
        more than `most`; returns how many of those are left."""
        backlog, offers = self.backlog, self.offers
        if self.wanted.slots and (offers.slots or offers.aside or offers.sets):
            most = self._seat_queries(now, most)
        if self.recovering or not (backlog.ready or self.away):
            return most
        if not offers.slots and not offers.any_free:
            return most
        if self.wanted.slots_away and now < self._tasks_may_be_seated_at():
            return most
        if self.away and self._wait_for_those_away(now):
            return most
        if now < self._stay_until_max:
            stay_until = min(now + STAY_SECONDS, self._stay_until_max)
            self._tasks_rest_until = max(self._tasks_rest_until, stay_until)
        limit = self._limit
        issue = self._attempt_proofs.issue
        # Tasks in a row that became ready at the same time are counted together.
        since, alike = 0.0, 0
        while backlog.ready and most > 0 and (offers.slots or offers.any_free):
            if limit is not None and not limit.allows(now):
                break
            task = backlog.pop()
            if task.expires and now >= task.expires:
                backlog.push_back(task)
                self._expire(task, now)
                continue
            offer = offers.take(task)
            task.state = ON_GIVE[task.state]
            most -= 1
            if task.origin >= 0:
                continue  # its owner hears of it when the offer is answered
            if limit is not None:
                limit.count()
            if task.ready != since:
                if alike:
                    self.waits.count(now - since, alike)
                since, alike = task.ready, 0
            alike += 1
            holder = offer.holder
            proof = issue(task.sequence, task.attempt + 1, holder)
            self._lease(task, holder, proof, offer.worker, now)
        if alike:
            self.waits.count(now - since, alike)
        return most

    def urgency(self) -> int | None:
        """How urgent the first is that waits for a slot: see `SharedSupplies`."""
        if self.wanted.slots and not self.wanted.slots_away:
            wanted = self.wanted.first()
            if wanted is not None:
                return wanted.priority
        if self.backlog.ready and not self.recovering:
            for priority, line in enumerate(self.backlog.lines):
                if line.waiting:
                    return PRIORITIES + priority
        return None

    def seat_some(self, most: int, now: float) -> int:
        """Seat at most so many of those that wait, since slots became free; returns how many."""
        return most - int(self._seat(now, most))

    def _wait_for_those_away(self, now: float) -> bool:
        """There is an offer at home: tasks that went to the parent are called back, and go first.

        They are waited for only for a moment, in case the parent does not answer.
        """
        if self._call_home(list(self.away.values()), now):
            self._stay_until_max = now + HOME_SECONDS
        return now < self._home_by

    def _call_home(self, tasks: list[Task], now: float) -> bool:
        """Whether there are any that were not called yet."""
        called = [task for task in tasks if not task.called]
        for task in called:
            task.called = True
            self.effects.append(RecallTask(task))
        if called:
            self._home_by = now + HOME_SECONDS
        return bool(called)

    def _expire(self, task: Task, now: float) -> None:
        """Nobody is to begin it any more; a visitor's owner sees to that itself."""
        if task.origin >= 0:
            self.backlog.left(task)
            task.state = ON_END[task.state]
            self.effects.append(VisitorUnwanted(task))
        else:
            self._end(task, "expired", b"", None, now)

    def _lease(self, task: Task, holder: bytes, proof: bytes, worker: str, now: float) -> None:
        """Let the worker have a task that is GIVEN until its lease ends."""
        task.holder = holder
        task.proof = proof
        task.worker = worker
        settings = self.settings
        task.given_at = now
        task.lease_until = now + settings.lease_seconds
        self.leases[task.sequence] = task
        if task.segment is None and not task.later_stored:  # `stored`, without a call for each task
            hold_seconds = settings.hold_seconds
            if self._run_seconds <= hold_seconds:
                self.ledger.hold(task, now + hold_seconds)

    def flush(self, now: float) -> None:
        """Answer the offers that got something; once a turn, so that it goes out together."""
        for offer in self.offers.answerable():
            if self.offers.close(offer):
                if offer.away:
                    self.effects.append(RecallOffer(offer))
                if not offer.given:
                    self.effects.append(Give(offer, [], [], offer.reserved))
                    offer.reserved = []
                    continue
                ours = [task for task in offer.given if task.origin < 0]
                visitors = [task for task in offer.given if task.origin >= 0]
                for task in visitors:
                    if task.state is GIVEN:
                        self.effects.append(VisitorTaken(task, offer.holder, offer.worker))
                foreign = [
                    Foreign(
                        task.origin,
                        task.sequence,
                        task.attempt,
                        self._attempt_proofs.issue_for_visitor(
                            task.origin, task.sequence, task.attempt, offer.holder
                        ),
                        task.terms.timeout,
                        task.payload,
                        now - task.ready,
                    )
                    for task in visitors
                    if task.state is GIVEN  # else its owner has given up
                ]
                for task in visitors:
                    if task.state is GIVEN:
                        task.state = ON_END[task.state]
                self.effects.append(Give(offer, ours, foreign, offer.reserved))
                offer.given = []  # its timer remembers it for a while, and need not keep them
                offer.reserved = []
        self._flush_queries(now)  # last: the worker should hear first

    def _come_back(self, task: Task, now: float) -> None:
        """Nobody began it: it stands where it stood, before those that went to the parent since."""
        if self._cannot_be_kept(task):
            self._refuse(task)
            return
        if task.state is not GIVEN and task.state is not AWAY:
            return  # too late
        task.state = ON_COME_BACK[task.state]
        if task.origin >= 0:
            self.backlog.push_back(task)
            return
        self.leases.pop(task.sequence, None)
        task.holder = b""
        self.ledger.hurry(task)
        self.backlog.push_back(task)
        if self.away:
            place = task.priority, task.place
            behind = [one for one in self.away.values() if (one.priority, one.place) > place]
            self._call_home(behind, now)

    def _try_again(
        self, task: Task, reason: str, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """An attempt came to nothing: later again, or never."""
        if task.revoked:
            self._end(task, "cancelled", b"", ticket, now)
            return
        task.attempt += 1
        task.failure = self._failure_to_keep(task, body, now)
        task.holder = b""
        if self._cannot_be_kept(task):
            self._refuse(task)
            return
        terms = task.terms
        if task.attempt > terms.retries:
            self.ledger.bury(task, reason, now)
            self._end(task, "failed", body, ticket, now)
            return
        task.state = ON_POSTPONE[task.state]
        backoff = min(terms.backoff_first * 2.0 ** min(task.attempt - 1, 60), terms.backoff_longest)
        task.due = task.ready = now + backoff * (0.5 + 0.5 * self._random.random())
        self.ledger.postpone(task, ticket, now)
        self.later.add(task)

    def _failure_to_keep(self, task: Task, body: bytes, now: float) -> bytes:
        """Return the failure as it is stored with the task: cut, if a quota has no room for it."""
        if len(body) <= FAILURE_BYTES:
            return body
        if self._take_room(TASK_BYTES + len(task.payload) + len(body), now):
            return body
        self._count_not_kept("failure", task.sequence, len(body))
        return cut_failure(body)

    def _end(
        self, task: Task, status: EndStatus, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """It is over, however."""
        if task.state is not OVER:
            self.finished.count(1, now)
            self._end_counted(task, status, body, ticket, now)

    def _end_counted(
        self, task: Task, status: EndStatus, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """End a task that the caller has already counted in `finished`."""
        state = task.state
        task.state = ON_END[state]
        sequence = task.sequence
        if state is READY:
            self.backlog.left(task)
        elif state is PARKED:
            self.backlog.unparked(task)
        elif state is GIVEN:
            self.leases.pop(sequence, None)
            self._run_seconds += (1 - RUN_KEPT) * (now - task.given_at - self._run_seconds)
        del self.tasks[sequence]
        self.open_tasks -= 1
        ledger = self.ledger
        if task.later_stored or task.writing:
            self.later.row_over(sequence)
        elif task.segment is None and sequence not in ledger.pending.later:
            self.never_written += 1
        retention = task.terms.retention
        failed = status == "failed"
        stored = retention > self.memory_seconds and self._is_stored(sequence, body, now)
        leaves_a_trace = stored or failed
        if leaves_a_trace and (failed or self.store_problem is None):
            ledger.keep_waiting(task, failed=failed)
        if leaves_a_trace:
            ledger.remove_with_trace(task, ticket, now)
        else:
            ledger.remove(task, ticket, now)
        ended = Ended(status, task.attempt + (status == "done"), body, now + retention, stored)
        self._remember(sequence, ended, now)
        producer = task.ticket
        if producer is not None:  # `_part_safe`, without a call for each task
            task.ticket = None
            producer.left -= 1
            producer.done += 1
            if not producer.left:
                self._settle(producer)
        if self.store_problem is not None:
            self._answer_producers(self.ledger.pending)

    def _answer_producers(self, pending: Pending) -> None:
        """Nothing can be written: what became of their tasks is known all the same. A result is
        kept in memory until it can be written; of a dead letter that may never be written nothing
        is promised."""
        producers, pending.producers = pending.producers, []
        for ticket, failed in producers:
            if failed:
                self._part_unknown(
                    ticket, "The task failed, and the store cannot keep its dead letter now."
                )
            else:
                self._part_safe(ticket)

    def _cannot_be_kept(self, task: Task) -> bool:
        """Whether a task that no worker has now would have to be written, and cannot be. If a
        commit that is under way has it, the end of the commit decides."""
        return self.store_problem is not None and task.ticket is not None and not task.writing

    def _refuse_unwritable(self, now: float) -> None:
        """While nothing can be written, only what a worker has got, or may have, is taken."""
        for task in list(self.ledger.fresh.values()):
            if task.state is not GIVEN and task.state is not AWAY:
                self._refuse(task)
        for task, _ in list(self.ledger.pending.later.values()):
            if task.ticket is not None and task.state is WAITING:
                self._refuse(task)
        self._seat(now)

    def _refuse(self, task: Task) -> None:
        """Drop a task that was never acknowledged and cannot be written. Its producer hears that
        nothing was added only if no attempt at the task can have begun."""
        ticket, task.ticket = task.ticket, None
        begun = task.attempt > 0
        if task.state is READY:
            self.backlog.left(task)
        elif task.state is PARKED:
            self.backlog.unparked(task)
        task.state = ON_END[task.state]
        self.leases.pop(task.sequence, None)
        self.ledger.fresh.pop(task.sequence, None)
        self.ledger.held.pop(task.sequence, None)
        self.ledger.pending.later.pop(task.sequence, None)
        self.tasks.pop(task.sequence, None)
        self.open_tasks -= 1
        if ticket is None:
            return
        if begun:
            self._part_unknown(
                ticket,
                "An attempt at the task began and did not succeed, and the store cannot keep the "
                f"task for another: {self.store_problem}",
            )
            return
        ticket.problem = ticket.problem or self.store_problem
        self._part_refused(ticket)
