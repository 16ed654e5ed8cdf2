"""Requests about tasks that are not in memory: finish, cancel, or wait for a task in the store.

The partition asks the shell for the rows of one task with the effect `LookUp`; the shell reads them
and reports `found` or `not_read`. Only then, and in one step, the partition decides. Meanwhile the
task may be read into memory, end, or be cancelled by another caller, so every decision looks at
memory first, then at ends that are not written yet, then at the rows.

What makes the rows reliable, in whatever order they are read:

- A task leaves a segment, gets a row of its own, or ends with one commit. If no commit of the
  partition ended between the first read and the decision, the rows belong together. Otherwise a
  look-up that finds nothing is repeated once: a task that was anywhere when the look-up ended is
  found then.
- A segment or a row of a task that ended since is recognised by `UnreadSegments` and `LaterTasks`,
  which remember ends for as long as a look-up is under way.
- A caller that waits for the end of a task is among the waiters of `TaskResults` from the start. If
  the task ends before the rows arrive, the caller hears of it like all others; if it takes the
  request back, it is no waiter any more when the rows arrive.

After a restart, workers end tasks that the new owner has not read yet. The first reads bring most
of them into memory, so the look-ups for ends begin when those reads are answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import InternalError, MaitredError, TaskDamaged, Unavailable
from maitred.matching.attempts import DONE, RETURNED
from maitred.matching.effects import LookUp, RefuseToTell, TellRevoked, TellSighting
from maitred.matching.records import SEQUENCES_PER_RANGE, RowDamagedError, decode_record
from maitred.matching.task_ends import Ended, decode_ended
from maitred.matching.task_intake import revocation_of
from maitred.matching.task_searches import (
    AwaitSearch,
    CallerSearch,
    EndsSearch,
    RevokeSearch,
    ShowSearch,
    StoredRows,
    TaskSearch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.matching.attempts import Attempts
    from maitred.matching.damaged_rows import SetAsideRows
    from maitred.matching.effects import Revocation
    from maitred.matching.partition_state import PartitionState
    from maitred.matching.sighted_task import SightedTask
    from maitred.matching.store_replies import StoreReplies
    from maitred.matching.task import Ticket, Token
    from maitred.matching.task_ends import EndStatus
    from maitred.matching.task_intake import TaskIntake
    from maitred.matching.task_lists import TaskLists
    from maitred.matching.task_results import TaskResults
    from maitred.matching.task_searches import Told
    from maitred.matching.task_transitions import OwnTasks
    from maitred.matching.unread_segments import MarkedSegment

READING_SECONDS = 1.0
"""How long the look-ups for ends wait for reads that are under way: a busy store needs less."""


class StoredTasks:
    """Finishes and cancels tasks, and answers for their ends, wherever the tasks are."""

    def __init__(
        self,
        state: PartitionState,
        *,
        own_tasks: OwnTasks,
        intake: TaskIntake,
        results: TaskResults,
        attempts: Attempts,
        store_replies: StoreReplies,
        damaged_rows: SetAsideRows,
        lists: TaskLists,
    ) -> None:
        self._own_tasks = own_tasks
        self._tasks = own_tasks.tasks
        self._intake = intake
        self._results = results
        self._attempts = attempts
        self._store_replies = store_replies
        self._damaged_rows = damaged_rows
        self._lists = lists
        self.unread = state.unread
        self._backlog = state.backlog
        self._later = state.later
        self._ledger = state.ledger
        self._health = state.health
        self._tickets = state.tickets
        self._effects = state.effects
        self._timers = state.timers
        self._waiting: dict[EndsSearch, None] = {}
        """Searches for ends that wait for reads that are under way."""
        self._searches: dict[TaskSearch, None] = {}
        """Searches whose rows are being read."""
        state.timers.register(EndsSearch, ring=self._rings, waits=self._waiting.__contains__)

    def __repr__(self) -> str:
        return f"<StoredTasks: {len(self._searches)} looked up, {len(self._waiting)} waiting>"

    # Requests

    def wait_for(self, sequence: int, token: Token) -> None:
        """Tell the token how a task ended, or ends, of which memory knows nothing."""
        if sequence < SEQUENCES_PER_RANGE:
            raise self._intake.absence(sequence)
        is_looked_up = sequence in self._results.waiters  # then the task is not over, or soon found
        self._results.wait_for_stored(sequence, token)
        if not is_looked_up:
            self._look_up(AwaitSearch(sequence))

    def revoke(self, sequence: int, token: Token, now: float) -> None:
        """Cancel the task and tell the token whether it is cancelled, being cancelled, or over."""
        if sequence < SEQUENCES_PER_RANGE:
            raise self._intake.absence(sequence)
        state = self._intake.revoke(sequence, now)
        if state is None:
            self._look_up(RevokeSearch(sequence, token))
        else:
            self._tell_revoked(sequence, token, state, now)

    def show(self, sequence: int, token: Token, now: float) -> None:
        """Tell the token where the task is, in memory, in the store, or over."""
        if sequence < SEQUENCES_PER_RANGE:
            raise self._intake.absence(sequence)
        sighting = self._in_memory(sequence, now)
        if sighting is None:
            self._look_up(ShowSearch(sequence, token))
        else:
            self._effects.append(TellSighting(token, sighting))

    def finish(
        self,
        ends: Iterable[tuple[int, int, int, bytes, bytes]],
        token: Token,
        now: float,
        holder: bytes,
    ) -> tuple[list[int], list[int], list[tuple[int, float, int]]]:
        """End attempts: (sequence, attempt, how, body, proof). The token is settled when all ends
        are safe.

        Returns the sequence numbers of the ends that are refused, because the holder did not prove
        that it was given the attempt; and two lists that are complete when the token is settled:
        the sequence numbers of the ends that came too late to count, and what follows the attempts
        that failed (see `Finished`).
        """
        ticket, unknown, refused = self._attempts.finish(ends, token, now, holder)
        follows = [] if ticket.follows is None else ticket.follows
        if not unknown:
            self._tickets.release(ticket)
            return refused, [], follows
        told = [self._attempts.tell_when_read(end, ticket, holder) for end in unknown]
        search = EndsSearch(told, ticket)
        self._waiting[search] = None
        self._timers.set(now + READING_SECONDS, search)
        return refused, search.late, follows

    # Look-ups

    def begin(self, now: float) -> None:
        """Begin the look-ups that are due: those for ends, unless reads are under way, and those
        for tasks that callers wait for and that may be in a row that was set aside."""
        if self._waiting and not (self._backlog.reading or self._later.reading):
            for search in list(self._waiting):
                self._rings(search, now)
        if self._damaged_rows.news:
            for row in self._damaged_rows.take_news():
                for sequence in self._results.waiters:
                    if row.first <= sequence <= row.last and sequence not in self._tasks:
                        self._look_up(AwaitSearch(sequence))

    def _rings(self, search: EndsSearch, now: float) -> None:
        if search in self._waiting:
            del self._waiting[search]
            self._look_up_next(search, now)

    def _look_up_next(self, search: EndsSearch, now: float) -> None:
        """Look up the next task that is neither in memory nor known to be over."""
        for told in search.told:
            if self._is_missing(told, now):
                search.current, search.sequence = told, told.end[0]
                search.repeated = False
                self._look_up(search)
                return
        self._finished(search, None, now)

    def _look_up(self, search: TaskSearch) -> None:
        self._searches[search] = None
        self._later.lookup_begins(search)
        self._effects.append(LookUp(search))

    def found(self, search: TaskSearch, rows: StoredRows, now: float) -> None:
        """Decide about a request: these are the rows of its task. An `InternalError` is a fault of
        the partition, which the shell then loads again."""
        is_changed = self._later.has_committed_since(search)
        try:
            is_known = self._decide(search, rows, now)
        except InternalError:
            raise
        except MaitredError as problem:
            self.not_read(search, problem, now)
            return
        self._end(search)
        if not is_known and is_changed and not search.repeated:
            search.repeated = True
            self._look_up(search)
        elif isinstance(search, EndsSearch):
            if not is_known:
                search.current.counts = False
            self._look_up_next(search, now)
        elif not is_known:
            self._tell_absence(search, rows, now)

    def not_read(self, search: TaskSearch, problem: MaitredError, now: float) -> None:
        """Refuse a request: the rows of its task could not be read, or what they ask for could not
        be done."""
        self._end(search)
        if isinstance(search, EndsSearch):
            self._finished(search, problem, now)
        else:
            self._effects += [RefuseToTell(token, problem) for token in self._tokens(search)]

    def _end(self, search: TaskSearch) -> None:
        del self._searches[search]
        self._later.lookup_ends(search)

    def _tokens(self, search: TaskSearch) -> Sequence[Token]:
        """Return the callers that are answered now; waiters for the end of the task are removed."""
        if isinstance(search, CallerSearch):
            return (search.token,)
        return self._results.waiters.pop(search.sequence, ())

    def _decide(self, search: TaskSearch, rows: StoredRows, now: float) -> bool:
        """Do what the request asks for; return False if neither memory nor the rows have its task
        or what came of it."""
        if isinstance(search, EndsSearch):
            return self._decide_end(search, rows, now)
        if isinstance(search, RevokeSearch):
            return self._decide_revocation(search, rows, now)
        if isinstance(search, ShowSearch):
            return self._decide_showing(search, rows, now)
        return self._decide_waiting(search.sequence, rows, now)

    # Waiting for ends

    def _decide_waiting(self, sequence: int, rows: StoredRows, now: float) -> bool:
        if sequence not in self._results.waiters:
            return True  # the task ended, or all callers left
        if sequence in self._tasks or self._is_stored(sequence, rows):
            return True
        ended = self._end_of(sequence, rows, now)
        if ended is None:
            return False
        for token in self._results.waiters.pop(sequence):
            self._results.tell(sequence, token, ended)
        return True

    def _is_stored(self, sequence: int, rows: StoredRows) -> bool:
        """Return whether the task is in the store, and not over."""
        if rows.segment is not None and self.unread.record(*rows.segment, sequence) is not None:
            return True
        return rows.later is not None and not self._later.is_over(sequence)

    # Cancelling

    def _decide_revocation(self, search: RevokeSearch, rows: StoredRows, now: float) -> bool:
        sequence = search.sequence
        state = self._intake.revoke(sequence, now)
        if state is None and rows.segment is not None:
            self._health.raise_problem()
            if self._end_stored(rows.segment, sequence, "cancelled", b"", None, now):
                state = "cancelled"
        elif state is None and rows.later is not None:
            self._store_replies.recall_later(rows.later, now)
            state = self._intake.revoke(sequence, now)
        if state is None:
            ended = self._end_of(sequence, rows, now)
            state = None if ended is None else revocation_of(ended.status)
        if state is None:
            return False
        self._tell_revoked(sequence, search.token, state, now)
        return True

    def _tell_revoked(self, sequence: int, token: Token, state: Revocation, now: float) -> None:
        answer = TellRevoked(token, state)
        if state == "cancelling":
            self._effects.append(answer)
        else:
            self._answer_when_written(sequence, answer, now)

    # Looking

    def _decide_showing(self, search: ShowSearch, rows: StoredRows, now: float) -> bool:
        sequence = search.sequence
        sighting = self._in_memory(sequence, now) or self._stored(sequence, rows, now)
        if sighting is None:
            return False
        self._effects.append(TellSighting(search.token, sighting))
        return True

    def _in_memory(self, sequence: int, now: float) -> SightedTask | None:
        """Return a task, or its end, that memory knows; a dead letter is in the store."""
        sighting = self._lists.one(sequence, now)
        if sighting is not None:
            return sighting
        ended = self._results.outcomes.get(sequence, now)
        if ended is None or ended.status == "failed":
            return None
        return self._lists.outcome(sequence, ended)

    def _stored(self, sequence: int, rows: StoredRows, now: float) -> SightedTask | None:
        """Return a task as its rows have it; None if they have neither the task nor its end."""
        lists = self._lists
        if rows.segment is not None:
            record = self.unread.record(*rows.segment, sequence)
            if record is not None:
                return lists.unread(record, now)
        if rows.later is not None and not self._later.is_over(sequence):
            try:
                return lists.row(rows.later, now)
            except RowDamagedError:
                raise _task_damaged(sequence, "Its row") from None
        ended = self._end_of(sequence, rows, now)
        if ended is None:
            return None
        dead = self._ledger.unwritten_dead(sequence) or rows.dead
        if ended.status == "failed" and dead is not None:
            return lists.letter(dead, now)
        return lists.outcome(sequence, ended)

    # Ends of attempts

    def _is_missing(self, told: Told, now: float) -> bool:
        """Return whether the store has to be asked for the task of an end."""
        if told.counts is None and told.end[0] in self._tasks:
            told.counts = self._attempts.finish_again(told.end, told.ticket, now, told.holder)
        return told.counts is None

    def _decide_end(self, search: EndsSearch, rows: StoredRows, now: float) -> bool:
        told = search.current
        if told.counts is None and rows.later is not None:
            self._store_replies.recall_later(rows.later, now)
        if not self._is_missing(told, now):
            return True
        if rows.segment is None:
            return False
        sequence, attempt, how, body = told.end
        if how == DONE and self._end_stored(rows.segment, sequence, "done", body, told.ticket, now):
            told.counts = True
            return True
        fails = how not in (DONE, RETURNED)
        if fails and self._attempts.claim(sequence, told.holder, attempt, now):
            raise Unavailable("The task is still to be read.", remedy="Say it again.")
        return False

    def _finished(self, search: EndsSearch, problem: MaitredError | None, now: float) -> None:
        """End a search for ends: its ticket is settled when all is safe, or with the problem."""
        for told in search.told:
            self._attempts.told_no_more(told)
            sequence, attempt, how, _ = told.end
            if told.counts is not None:
                self._attempts.claim_no_more(sequence, told.holder)
            elif how != RETURNED:
                # The worker reports this end again. Until then no other worker gets the task.
                self._attempts.claim(sequence, told.holder, attempt, now)
            if told.counts is False:
                search.late.append(sequence)
        search.ticket.problem = problem or search.ticket.problem
        self._tickets.release(search.ticket)

    # Tasks in segments, and tasks that are over

    def _end_stored(
        self,
        segment: MarkedSegment,
        sequence: int,
        status: EndStatus,
        body: bytes,
        ticket: Ticket | None,
        now: float,
    ) -> bool:
        """End a task that only its segment has; False if it is over by now."""
        record = self.unread.record(*segment, sequence)
        if record is None:
            return False
        state = self.unread.end(*segment, sequence)
        self._lists.ended_unread(record, status, now)
        self._ledger.remove_unread(state, sequence, ticket, now)
        self._own_tasks.over_in_store(1)
        self._own_tasks.finished.count(1, now)
        retention = record.terms.retention
        results = self._results
        stored = retention > results.memory_seconds and results.is_stored(sequence, body, now)
        ended = Ended(status, record.attempt + (status == "done"), body, now + retention, stored)
        results.remember(sequence, ended, now)
        self._attempts.claims.pop(sequence, None)
        return True

    def _end_of(self, sequence: int, rows: StoredRows, now: float) -> Ended | None:
        """Return what came of a task that is over: from its result or, for as long as that is
        there, from its dead letter. Raises `TaskDamaged` if the row cannot be read."""
        result = self._ledger.unwritten_result(sequence) or rows.result
        wall = self._ledger.wall
        if result is not None and result.expires_at > now + wall:
            try:
                ended = decode_ended(result.body)
            except RowDamagedError as problem:
                if not any(row.kind == "result" for row in rows.damaged):
                    self._damaged_rows.set_aside_result(result, str(problem), now)
                raise _task_damaged(sequence, "Its result") from None
            return Ended(*ended, result.expires_at - wall, stored=True)
        dead = self._ledger.unwritten_dead(sequence) or rows.dead
        if dead is None or self._ledger.is_dead_going(sequence):
            return None
        try:
            record = decode_record(dead.body, sequence)
        except RowDamagedError as problem:
            self._damaged_rows.set_aside_dead(dead, str(problem), now)
            raise _task_damaged(sequence, "Its dead letter") from None
        return Ended("failed", record.attempt, record.failure, now)

    def _tell_absence(self, search: TaskSearch, rows: StoredRows, now: float) -> None:
        """Say why nothing is known of a task: it never was, is forgotten, or is in a row that was
        set aside."""
        sequence = search.sequence
        if self._damaged_rows.may_hold(sequence) or any(
            sequence not in row.over for row in rows.damaged
        ):
            problem: MaitredError = _task_damaged(sequence, "The row that it was written in")
        else:
            problem = self._intake.absence(sequence)
        for token in self._tokens(search):
            self._answer_when_written(sequence, RefuseToTell(token, problem), now)

    def _answer_when_written(
        self, sequence: int, answer: TellRevoked | RefuseToTell, now: float
    ) -> None:
        """Say that a task is over when that is on disk: then it stays so through a crash."""
        problem = self._health.problem
        if problem is None:
            if not self._ledger.answer_when_written(answer, now):
                self._effects.append(answer)
        elif self._ledger.is_ending(sequence):
            self._effects.append(RefuseToTell(answer.token, problem))
        else:
            self._effects.append(answer)

    # The end

    @property
    def is_searching(self) -> bool:
        """Whether a request waits for a look-up."""
        return bool(self._searches or self._waiting)

    def leave(self) -> tuple[list[Token], list[Ticket]]:
        """Return the requests that wait for a look-up, except the waiters of `TaskResults`."""
        searches = [*self._waiting, *self._searches]
        tokens = [one.token for one in searches if isinstance(one, CallerSearch)]
        return tokens, [one.ticket for one in searches if isinstance(one, EndsSearch)]


def _task_damaged(sequence: int, what: str) -> TaskDamaged:
    return TaskDamaged(
        f"Task {sequence} cannot be told about. {what} is damaged and was set aside.",
        remedy="An operator can look at it with `maitred admin queue damaged`.",
    )
