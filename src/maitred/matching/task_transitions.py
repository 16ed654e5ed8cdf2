"""Every change of a partition's own tasks: lease, return, retry, end."""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

from maitred.backoff import backoff_seconds
from maitred.matching.effects import Buried, VisitorUnwanted
from maitred.matching.measures import Rate
from maitred.matching.task import (
    AWAY,
    GIVEN,
    ON_COME_BACK,
    ON_END,
    ON_POSTPONE,
    OVER,
    PARKED,
    READY,
    WAITING,
    QueueTask,
    Ticket,
)
from maitred.matching.task_ends import Ended
from maitred.matching.task_history import attempt_of

if TYPE_CHECKING:
    from maitred.matching.ledger import Pending
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.task_ends import EndStatus
    from maitred.matching.task_results import TaskResults

RUN_WEIGHT = 0.1
"""Weight of each new run in the mean run time."""

LOST_REASON = "lost"
"""The reason for a retry after which nothing is known of how long the attempt ran."""


class OwnTasks:
    """The tasks that the partition owns and that are not over, and the changes of their states."""

    def __init__(self, state: PartitionState, results: TaskResults) -> None:
        self._settings = state.settings
        self._backlog = state.backlog
        self._later = state.later
        self._ledger = state.ledger
        self._results = results
        self._health = state.health
        self._tickets = state.tickets
        self._away = state.away
        self._random = state.random
        self._effects = state.effects
        self._meter = state.meter
        self.ended_tasks = state.ended_tasks
        self.tasks = state.tasks
        """Tasks in memory, by their numbers."""
        self.leases: OrderedDict[int, QueueTask] = OrderedDict()
        """Tasks at a worker, in the order in which their leases end."""
        self.open_tasks = state.acquired.backlog
        """How many tasks are not over, in memory or not."""
        self.first_sequence = state.first_sequence
        """Lower numbers were given out by earlier owners of the partition."""
        self.next_sequence = state.first_sequence
        self.recovering_until = -inf
        """Until then no task is given out: workers claim what an earlier owner gave them."""
        told = state.inheritance
        if state.acquired.backlog and not (
            state.acquired.clean or (told is not None and told.is_complete)
        ):
            self.recovering_until = state.loaded_at + state.settings.recovery_seconds
        self.finished = Rate(state.loaded_at)
        self.never_written = 0
        self._run_seconds = 0.0

    @property
    def recovering(self) -> bool:
        """Whether the partition waits for the workers of an earlier owner."""
        return self.recovering_until > -inf

    def recovery_ends(self, now: float) -> None:
        """End the recovery, if its time is over: tasks are given out again."""
        if now >= self.recovering_until:
            self.recovering_until = -inf

    # In and out of memory

    def take_numbers(self, count: int) -> int:
        """Count so many new tasks, and return the number of the first."""
        first = self.next_sequence
        self.next_sequence = first + count
        self.open_tasks += count
        return first

    def opened_again(self, task: QueueTask) -> None:
        """Take in a task from a dead letter, or from a row that was set aside."""
        self.open_tasks += 1
        self.tasks[task.sequence] = task

    def over_in_store(self, count: int) -> None:
        """Count tasks as over that were in the store alone, or are in a row set aside."""
        self.open_tasks -= count

    # Changes

    def lease(self, task: QueueTask, holder: bytes, proof: bytes, worker: str, now: float) -> None:
        """Let the worker have a task that is GIVEN until its lease ends."""
        task.holder = holder
        task.proof = proof
        task.worker = worker
        settings = self._settings
        task.given_at = now
        task.lease_until = now + settings.lease_seconds
        self.leases[task.sequence] = task
        if task.segment is None and not task.later_stored:  # `stored`, without a call for each task
            hold_seconds = settings.hold_seconds
            if self._run_seconds <= hold_seconds:
                self._ledger.hold(task, now + hold_seconds)

    def lease_claimed(
        self, task: QueueTask, holder: bytes, proof: bytes, worker: str, until: float, now: float
    ) -> None:
        """Let the worker have a task that an earlier owner gave it, until that lease ends. Leases
        end in their order, so it lasts a little longer if a later one was entered already."""
        self.lease(task, holder, proof, worker, now)
        if until < task.lease_until:
            del self.leases[task.sequence]
            last = next(reversed(self.leases.values()), task)
            task.lease_until = until if last is task else max(until, last.lease_until)
            self.leases[task.sequence] = task

    def renew(
        self, task: QueueTask, holder: bytes, proof: bytes, worker: str, until: float
    ) -> None:
        """Renew the lease of a task whose worker reported that it runs."""
        task.holder = holder
        task.proof = proof
        task.worker = worker
        task.lease_until = until
        self.leases.move_to_end(task.sequence)

    def lease_ends(self, task: QueueTask) -> None:
        """End the lease of a task, before its next change."""
        self.leases.pop(task.sequence, None)

    def expire(self, task: QueueTask, now: float) -> None:
        """End a task that expired before it began. A visitor returns to its owner, which ends it
        itself."""
        if task.origin >= 0:
            self._backlog.left(task)
            task.state = ON_END[task.state]
            self._effects.append(VisitorUnwanted(task))
        else:
            self.end(task, "expired", b"", None, now)

    def come_back(self, task: QueueTask, now: float) -> None:
        """Queue a task again that no worker began, at its old place: before tasks that went to the
        parent since."""
        if self._cannot_be_kept(task):
            self.refuse(task)
            return
        if task.state is not GIVEN and task.state is not AWAY:
            return  # too late
        task.state = ON_COME_BACK[task.state]
        if task.origin >= 0:
            self._backlog.push_back(task)
            return
        self.leases.pop(task.sequence, None)
        task.holder = b""
        task.given_at = 0.0
        task.forwarded = False
        self._ledger.hurry(task)
        self._backlog.push_back(task)
        if self._away.tasks:
            self._away.call_those_behind(task, now)

    def try_again(
        self, task: QueueTask, reason: str, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """Postpone a task whose attempt failed, or end it if it has no attempts left."""
        self.note_attempt(task, reason, body, now)
        if task.revoked:
            _say_what_follows(ticket, task, 0.0, -1)
            self.end(task, "cancelled", b"", ticket, now)
            return
        task.attempt += 1
        task.failure = self._results.failure_to_keep(task, body, now)
        task.holder = b""
        if self._cannot_be_kept(task):
            _say_what_follows(ticket, task, 0.0, -1)
            self.refuse(task)
            return
        terms = task.terms
        left = terms.retries - task.attempt + 1
        if left <= 0:
            _say_what_follows(ticket, task, 0.0, 0)
            self._meter.dead += 1
            self._ledger.bury(task, reason, now)
            self._effects.append(Buried(task.sequence, task.attempt, body))
            self.end(task, "failed", body, ticket, now)
            return
        self._meter.retried += 1
        if reason != LOST_REASON:
            self._meter.ran(now - task.given_at)
        task.given_at = 0.0
        task.state = ON_POSTPONE[task.state]
        first, longest = terms.backoff_first, terms.backoff_longest
        seconds = backoff_seconds(task.attempt, first, longest, self._random)
        _say_what_follows(ticket, task, seconds, left)
        task.due = task.ready = now + seconds
        self.wait_until_due(task, ticket, now)

    def note_attempt(self, task: QueueTask, how: str, failure: bytes, now: float) -> None:
        """Note in the history of a task that an attempt is over, and that another may follow."""
        attempt = attempt_of(task, how, failure, now, self._ledger.wall)
        task.past = self._results.past_to_keep(task, attempt, now)
        task.forwarded = False

    def run_now(self, task: QueueTask, ticket: Ticket, now: float) -> None:
        """Let a task that is WAITING be due at once; the ticket waits until that is written."""
        task.due = task.ready = now
        self.wait_until_due(task, ticket, now)

    def wait_until_due(self, task: QueueTask, ticket: Ticket | None, now: float) -> None:
        """Give a task that is WAITING a row of its own; the ticket waits until it is written."""
        self._ledger.postpone(task, ticket, now)
        self._later.add(task)

    def end(
        self, task: QueueTask, status: EndStatus, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """End a task, unless it is over."""
        if task.state is not OVER:
            self.finished.count(1, now)
            self._meter.ends[status] += 1
            self.end_counted(task, status, body, ticket, now)

    def end_counted(
        self, task: QueueTask, status: EndStatus, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """End a task that the caller counts in `finished`, and in the meter's `ends`."""
        state = task.state
        task.state = ON_END[state]
        sequence = task.sequence
        if state is READY:
            self._backlog.left(task)
        elif state is PARKED:
            self._backlog.unparked(task)
        elif state is GIVEN:
            self.leases.pop(sequence, None)
            seconds = now - task.given_at
            self._run_seconds += RUN_WEIGHT * (seconds - self._run_seconds)
            meter = self._meter
            if seconds == meter.alike_seconds:  # `QueueMeter.ran`, without a call for each task
                meter.alike += 1
            else:
                meter.ran(seconds)
        del self.tasks[sequence]
        self.open_tasks -= 1
        ledger, kept = self._ledger, self._results
        if task.later_stored or task.writing:
            self._later.row_over(sequence)
        elif task.segment is None and sequence not in ledger.pending.later:
            self.never_written += 1
        retention = task.terms.retention
        failed = status == "failed"
        # A failed one is a dead letter, which has its history. `EndedTasks.add` asks, too: so there
        # is no call for each task.
        if not failed and now >= self.ended_tasks.keeps_at:
            self.ended_tasks.add(task, status, now)
        stored = retention > kept.memory_seconds and kept.is_stored(sequence, body, now)
        store_fails = self._health.problem is not None
        if stored or failed:
            if failed or not store_fails:
                ledger.keep_waiting(task, failed=failed)
            ledger.remove_with_trace(task, ticket, now)
            is_written = True
        else:
            is_written = ledger.remove(task, ticket, now)
        ended = Ended(status, task.attempt + (status == "done"), body, now + retention, stored)
        kept.remember(sequence, ended, now)
        producer = task.ticket
        if producer is not None:  # `Tickets.safe`, without a call for each task
            task.ticket = None
            results = producer.results
            if status == "done" and not is_written and retention and results is not None:
                if not results:
                    results += [None] * producer.tasks
                results[sequence - producer.first] = body
            producer.left -= 1
            producer.done += 1
            if not producer.left:
                self._tickets.settle(producer)
        if store_fails:
            self.answer_producers(ledger.pending)

    # While the store cannot be written

    def answer_producers(self, pending: Pending) -> None:
        """Answer producers whose tasks ended while nothing can be written. A result is kept in
        memory until it can be written; a dead letter may never be written, so the outcome of a
        failed task is unknown."""
        producers, pending.producers = pending.producers, []
        for ticket, failed in producers:
            if failed:
                self._tickets.unknown(
                    ticket, "The task failed, and the store cannot keep its dead letter now."
                )
            else:
                self._tickets.safe(ticket)

    def _cannot_be_kept(self, task: QueueTask) -> bool:
        """Return whether a task that no worker has any more was never written, and cannot be now.
        If the commit under way has it, the end of that commit decides."""
        return self._health.problem is not None and task.ticket is not None and not task.writing

    def refuse_unwritable(self) -> None:
        """While nothing can be written, refuse new tasks that no worker has or may have."""
        for task in list(self._ledger.fresh.values()):
            if task.state is not GIVEN and task.state is not AWAY:
                self.refuse(task)
        for task, _ in list(self._ledger.pending.later.values()):
            if task.ticket is not None and task.state is WAITING:
                self.refuse(task)

    def refuse(self, task: QueueTask) -> None:
        """Drop a task that was never acknowledged and cannot be written. Its producer hears that
        nothing was added only if no attempt at the task can have begun."""
        ticket, task.ticket = task.ticket, None
        begun = task.attempt > 0
        if task.state is READY:
            self._backlog.left(task)
        elif task.state is PARKED:
            self._backlog.unparked(task)
        task.state = ON_END[task.state]
        self.leases.pop(task.sequence, None)
        self._ledger.drop(task)
        self.tasks.pop(task.sequence, None)
        self.open_tasks -= 1
        if ticket is None:
            return
        problem = self._health.problem
        if begun:
            self._tickets.unknown(
                ticket,
                "An attempt at the task began and did not succeed, and the store cannot keep the "
                f"task for another: {problem}",
            )
            return
        ticket.problem = ticket.problem or problem
        self._tickets.release(ticket)


def _say_what_follows(ticket: Ticket | None, task: QueueTask, seconds: float, left: int) -> None:
    """Let the worker that reports a failed attempt know what follows it."""
    if ticket is not None and ticket.follows is not None:
        ticket.follows.append((task.sequence, seconds, left))
