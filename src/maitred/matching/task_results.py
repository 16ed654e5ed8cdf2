"""Results of a partition's tasks: kept in memory or in the store, told to waiting callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.effects import NotKept, RefuseToTell, Tell
from maitred.matching.failures import FAILURE_BYTES, cut_failure
from maitred.matching.outcomes import Outcomes
from maitred.matching.records import TASK_BYTES
from maitred.matching.task_ends import encode_ended
from maitred.matching.task_history import with_attempt

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.task import QueueTask, Token
    from maitred.matching.task_ends import Ended
    from maitred.matching.task_history import PastAttempt


class TaskResults:
    """The last results, and the callers that wait for others."""

    def __init__(self, state: PartitionState) -> None:
        self._settings = state.settings
        self._ledger = state.ledger
        self._health = state.health
        self._tasks = state.tasks
        self._effects = state.effects
        self.quotas = state.quotas
        """Quotas of stored tasks; each of them has to have room for a new task."""
        self.outcomes = Outcomes(state.settings.results_kept, state.settings.results_bytes)
        self.memory_seconds = state.settings.memory_seconds
        """Results that are kept for longer than this are written to the store when the task ends.
        0 while the partition is about to move to another shard."""
        self.not_kept = 0
        """Results that stayed in memory and failures that were cut, since a quota had no room."""
        self.waiters: dict[int, list[Token]] = {}
        """Callers that wait for the end of a task, by its number: the task is in memory, in the
        store, or being looked up."""

    def write_all(self, *, moving: bool) -> None:
        """While the partition is about to move, have the result of every task that ends written."""
        self.memory_seconds = 0.0 if moving else self._settings.memory_seconds

    # For callers

    def wait_for(self, sequence: int, token: Token, now: float) -> bool:
        """Tell the token when the task is over; return False if neither the task nor its end is in
        memory."""
        ended = self.outcomes.get(sequence, now)
        if ended is not None:
            self.tell(sequence, token, ended)
        elif sequence in self._tasks:
            self.wait_for_stored(sequence, token)
        else:
            return False
        return True

    def wait_for_stored(self, sequence: int, token: Token) -> None:
        """Tell the token when a task is over that may be in the store alone."""
        self.waiters.setdefault(sequence, []).append(token)

    def wait_no_more(self, sequence: int, token: Token) -> None:
        """Forget a caller that no longer waits."""
        waiting = self.waiters.get(sequence)
        if waiting is not None and token in waiting:
            waiting.remove(token)
            if not waiting:
                del self.waiters[sequence]

    def refuse_all(self, problem: MaitredError) -> None:
        """Refuse all callers that wait for the end of a task: another owner answers them."""
        waiters, self.waiters = self.waiters, {}
        self._effects += [
            RefuseToTell(token, problem) for waiting in waiters.values() for token in waiting
        ]

    def tokens(self) -> list[Token]:
        """Return the tokens of all callers that wait for the end of a task."""
        return [token for waiting in self.waiters.values() for token in waiting]

    # Ends

    def remember(self, sequence: int, ended: Ended, now: float) -> None:
        """Tell waiting callers that a task is over, and keep its result until it expires."""
        if self.waiters:
            for token in self.waiters.pop(sequence, ()):
                self.tell(sequence, token, ended)
        if ended.until > now:
            self.outcomes.put(sequence, ended)
            if ended.stored:
                self._keep(sequence, ended, now)

    def tell(self, sequence: int, token: Token, ended: Ended) -> None:
        """Tell what became of a task when that is on disk: if the owner and the worker were lost
        before, the task would go on, and might end otherwise. While the store cannot be written the
        caller hears why."""
        if self._health.problem is not None and self._ledger.is_ending(sequence):
            self._effects.append(RefuseToTell(token, self._health.problem))
        elif not self._ledger.tell_when_written(sequence, token, ended):
            self._effects.append(Tell(token, ended))

    def is_stored(self, sequence: int, body: bytes, now: float) -> bool:
        """Return whether the store keeps the result of a task that ends now, which is to be kept
        for longer than `memory_seconds`. It stays in memory if a quota has no room for it."""
        if self._take_room(TASK_BYTES + len(body), now):
            return True
        self._count_not_kept("result", sequence, len(body))
        return False

    def failure_to_keep(self, task: QueueTask, body: bytes, now: float) -> bytes:
        """Return the failure as it is stored with the task: cut, if a quota has no room for it."""
        if len(body) <= FAILURE_BYTES:
            return body
        if self._take_room(TASK_BYTES + len(task.payload) + len(body), now):
            return body
        self._count_not_kept("failure", task.sequence, len(body))
        return cut_failure(body)

    def past_to_keep(self, task: QueueTask, attempt: PastAttempt, now: float) -> bytes:
        """Return the notes about a task's attempts with one more; none, if a quota has no room."""
        notes = with_attempt(task.past, attempt)
        grown = len(notes) - len(task.past)
        return notes if grown <= 0 or self._take_room(grown, now) else b""

    def keep_in_store(self, now: float, most: int, most_bytes: int) -> int:
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
            self._keep(sequence, ended, now)
        return taken

    def unwritten(self, now: float) -> int:
        """Count the results that would be lost with this owner."""
        pending = sum(
            sequence > CONTROLS_ROW  # the rows below are no results
            for one in self._ledger.all_pending()
            for sequence in one.results
        )
        return pending + len(self.outcomes.in_memory_only(now))

    def _keep(self, sequence: int, ended: Ended, now: float) -> None:
        body = encode_ended((ended.status, ended.attempts, ended.body))
        self._ledger.keep_result(sequence, ended.until - now, body, now)

    def _take_room(self, size: int, now: float) -> bool:
        """Return whether all quotas have room for so many bytes, and count them if so."""
        if not all(quota.has_room(size, now) for quota in self.quotas):
            return False
        for quota in self.quotas:
            quota.bytes += size
        return True

    def _count_not_kept(self, what: Literal["result", "failure"], sequence: int, size: int) -> None:
        self.not_kept += 1
        self._effects.append(NotKept(what, sequence, size))
