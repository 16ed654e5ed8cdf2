"""What producers ask of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from maitred.errors import TaskForgotten, UnknownTask
from maitred.matching.core import UNSAFE_SECONDS
from maitred.matching.effects import Beat
from maitred.matching.lives import Lives
from maitred.matching.records import SEQUENCES_PER_RANGE, TASK_BYTES
from maitred.matching.task import (
    AWAY,
    GIVEN,
    PARKED,
    READY,
    WAITING,
    Task,
    Ticket,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.errors import MaitredError
    from maitred.matching.effects import EndStatus
    from maitred.matching.records import (
        Terms,
    )
    from maitred.matching.task import Token

Revocation = Literal["cancelled", "cancelling", "over"]


class Producing(Lives):
    """For those who bring tasks."""

    def add(
        self,
        payloads: Sequence[bytes],
        *,
        token: Token,
        now: float,
        priority: int,
        terms: Terms,
        delay: float = 0.0,
        expires: float = 0.0,
    ) -> int:
        """Take the tasks in; the number of the first. The token is settled when all are safe.

        A batch is taken in as a whole or not at all: `StorageQuotaExceeded` or `StoreFull` if a
        quota of what is stored has no room for it.
        """
        if self.quotas:
            self._admit(payloads, delay, now)
        first = self.next_sequence
        self.next_sequence = first + len(payloads)
        ticket = Ticket(token, len(payloads))
        self.open_tasks += len(payloads)
        self.added.count(len(payloads), now)
        state = WAITING if delay else PARKED if self.backlog.parks(priority) else READY
        tasks = {
            sequence: Task(sequence, priority, terms, payload, now, state, ticket, now)
            for sequence, payload in enumerate(payloads, first)
        }
        if expires:
            for task in tasks.values():
                task.expires = now + expires
        self.tasks.update(tasks)
        if state is WAITING:
            for task in tasks.values():
                task.due = task.ready = now + delay
                self.ledger.postpone(task, None, now)
                self.later.add(task)
        else:
            self.ledger.add(tasks)
        if state is PARKED:
            self.backlog.park(priority, tasks)
        elif state is READY:
            self.backlog.extend(priority, tasks.values())
            waiting = self.backlog.ready
            self._seat(now)
            self.matched_at_once += waiting - self.backlog.ready
            # Workers of other partitions may be free: then the parent knows, and soon.
            if self.parent is not None and 0 < self.backlog.ready <= len(payloads):
                until = now + self.settings.hold_seconds
                for task in tasks.values():
                    if task.state is READY:
                        self.ledger.hold(task, until)
        if self.store_problem is not None:
            self._refuse_unwritable(now)
            if ticket.left:
                self._unsafe_until = min(self._unsafe_until, now + UNSAFE_SECONDS)
        return first

    def _admit(self, payloads: Sequence[bytes], delay: float, now: float) -> None:
        count = len(payloads)
        size = sum(map(len, payloads)) + TASK_BYTES * count
        for quota in self.quotas:
            if quota.tasks + count > quota.most_tasks or quota.bytes + size > quota.most_bytes:
                at_once = not delay and self._workers_wait_for(count)
                problem = quota.refusal(count, size, now, at_once=at_once)
                if problem is not None:
                    raise problem
        for quota in self.quotas:
            quota.tasks += count
            quota.bytes += size

    def _workers_wait_for(self, tasks: int) -> bool:
        """Whether offers wait for so many new tasks, and no other task or query goes first."""
        return not (
            not self.offers.has(tasks)
            or self.backlog.ready
            or self.backlog.any_unread
            or self.away
            or self.wanted.slots
            or self.recovering
        )

    def wait_for(self, sequence: int, token: Token, now: float) -> bool:
        """Tell the token when the task is over; False if we know nothing of it."""
        ended = self.outcomes.get(sequence, now)
        if ended is not None:
            self._tell(sequence, token, ended)
        elif sequence in self.tasks:
            self._waiters.setdefault(sequence, []).append(token)
        else:
            return False
        return True

    def absence(self, sequence: int) -> MaitredError:
        """Say of a task that is neither in memory nor in the store whether it is over or never was.

        Every task that was acknowledged is in the store until it is over. An earlier owner's
        numbers are known by their range alone, so of those it is only said that, if the task was
        ever added, it is over.
        """
        key = self.key
        name = f"{key.namespace}/{key.queue}/{key.partition}/{sequence}"
        if not SEQUENCES_PER_RANGE <= sequence < self.next_sequence:
            return UnknownTask(
                f"The task {name} does not exist.",
                remedy="The partition has not given out this number. Check the id.",
            )
        if sequence >= self.first_sequence:
            sentence = f"The task {name} is over, and what came of it is no longer kept."
        else:
            sentence = (
                f"The task {name} is no longer known: if it was added, it is over, was deleted "
                "with its queue, or was lost with files of the store."
            )
        return TaskForgotten(
            sentence,
            remedy="Ask sooner, or have results kept for longer with the option `retention`.",
        )

    def wait_for_stored(self, sequence: int, token: Token) -> None:
        """The same for a task that is in the store alone."""
        self._waiters.setdefault(sequence, []).append(token)

    def wait_no_more(self, sequence: int, token: Token) -> None:
        waiting = self._waiters.get(sequence)
        if waiting is not None and token in waiting:
            waiting.remove(token)
            if not waiting:
                del self._waiters[sequence]

    def waiters(self) -> list[Token]:
        """Everybody who waits for the end of a task."""
        return [token for waiting in self._waiters.values() for token in waiting]

    def revoke(self, sequence: int, now: float) -> Revocation | None:
        """Cancel it: "cancelled", "cancelling" or "over"; None if we know nothing of it. Raises
        the store's problem, and does nothing, if that could not be written now."""
        task = self.tasks.get(sequence)
        if task is None:
            ended = self.outcomes.get(sequence, now)
            return None if ended is None else revocation_of(ended.status)
        if task.state is GIVEN or task.state is AWAY:
            task.revoked = True
            self._tell_worker(task)
            return "cancelling"
        if self.store_problem is not None:
            raise self.store_problem.with_traceback(None)
        self._end(task, "cancelled", b"", None, now)
        return "cancelled"

    def tell_of_revocation(
        self, ticket: Ticket, sequence: int, state: Revocation, now: float
    ) -> None:
        """Settle the ticket of a caller that cancels when the end of the task is on disk."""
        if self.store_problem is None:
            self.ledger.tell_of_revocation(ticket, now, cancelled=state == "cancelled")
        elif self.ledger.is_ending(sequence):
            ticket.problem = self.store_problem  # an earlier caller or a worker ended the task
        self.release(ticket)

    def _tell_worker(self, task: Task) -> None:
        held = self._beats.pop(task.holder, None)
        if held is not None:
            self.effects.append(Beat(held.token, [], [task.sequence]))


def revocation_of(status: EndStatus) -> Revocation:
    """Return what is told to somebody who cancels a task that has ended so. One that was cancelled
    before is cancelled: whoever asks again, since the first answer did not arrive, hears the same.
    """
    return "cancelled" if status == "cancelled" else "over"
