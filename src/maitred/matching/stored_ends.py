"""Ends of attempts at tasks that are not in memory: looked for in the store before they count.

After a restart workers end tasks that the new owner has not read yet. What it reads first is what
workers are at, so a search waits for the reads that are under way; then the shell looks for each
task that is still not in memory, and reports what the store has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import Unavailable
from maitred.matching.attempts import DONE, RETURNED
from maitred.matching.effects import FindEnds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.errors import MaitredError
    from maitred.matching.attempts import Attempts, Told
    from maitred.matching.backlog import Backlog
    from maitred.matching.effects import Effect
    from maitred.matching.later import LaterTasks
    from maitred.matching.records import Later, Segment
    from maitred.matching.store_replies import StoreReplies
    from maitred.matching.task import QueueTask, Ticket, Token
    from maitred.matching.tickets import Tickets
    from maitred.matching.timers import Timers

READING_SECONDS = 1.0
"""How long a search waits for what is being read: a read of a busy store takes less."""


class EndsSearch:
    """The ends of one request whose tasks are not in memory."""

    __slots__ = ("late", "ticket", "told")

    def __init__(self, told: list[Told], ticket: Ticket) -> None:
        self.told = told
        self.ticket = ticket
        self.late: list[int] = []
        """Tasks whose ends came too late to count, once the search is over."""


class StoredEnds:
    """Takes ends in, and decides about those whose tasks the store may have."""

    __slots__ = (
        "_attempts",
        "_backlog",
        "_effects",
        "_later",
        "_store_replies",
        "_tasks",
        "_tickets",
        "_timers",
        "_waiting",
    )

    def __init__(
        self,
        *,
        tasks: dict[int, QueueTask],
        attempts: Attempts,
        store_replies: StoreReplies,
        backlog: Backlog,
        later: LaterTasks,
        tickets: Tickets,
        timers: Timers,
        effects: list[Effect],
    ) -> None:
        self._tasks = tasks
        self._attempts = attempts
        self._store_replies = store_replies
        self._backlog = backlog
        self._later = later
        self._tickets = tickets
        self._timers = timers
        self._effects = effects
        self._waiting: dict[EndsSearch, None] = {}
        """Searches that wait for what is being read."""
        timers.register(EndsSearch, ring=self._rings, waits=self._waiting.__contains__)

    def finish(
        self,
        ends: Iterable[tuple[int, int, int, bytes, bytes]],
        token: Token,
        now: float,
        holder: bytes,
    ) -> tuple[list[int], list[int]]:
        """Attempts are over: (sequence, attempt, how, body, proof). The token is settled when
        everything is safe.

        Returns the sequence numbers of the ends that are refused, because the holder did not prove
        that it was given the attempt; and a list that, when the token is settled, has those of the
        ends that came too late to count.
        """
        ticket, unknown, refused = self._attempts.finish(ends, token, now, holder)
        if not unknown:
            self._tickets.release(ticket)
            return refused, []
        told = [self._attempts.tell_when_read(end, ticket, holder) for end in unknown]
        search = EndsSearch(told, ticket)
        self._waiting[search] = None
        self._timers.set(now + READING_SECONDS, search)
        return refused, search.late

    def begin(self) -> None:
        """Begin the searches that wait, unless something is being read."""
        if self._waiting and not (self._backlog.reading or self._later.reading):
            for search in list(self._waiting):
                self._begin(search)

    def _rings(self, search: EndsSearch, _now: float) -> None:
        if search in self._waiting:
            self._begin(search)

    def _begin(self, search: EndsSearch) -> None:
        del self._waiting[search]
        self._effects.append(FindEnds(search))

    def is_missing(self, told: Told, now: float) -> bool:
        """Whether the store has to be asked for the task: it has not been read meanwhile."""
        if told.counts is None and told.end[0] in self._tasks:
            told.counts = self._attempts.finish_again(told.end, told.ticket, now, told.holder)
        return told.counts is None

    def found(
        self,
        told: Told,
        segment: tuple[Segment, frozenset[int]] | None,
        later: Later | None,
        now: float,
    ) -> None:
        """The store was asked for the task: it is in this segment, with these marks, or has this
        row of its own, or is over. Raises `Unavailable` if its worker has to say it again."""
        sequence, attempt, how, _ = told.end
        if told.counts is None and segment is None and later is not None:
            self._store_replies.recall_later(later, now)
        if not self.is_missing(told, now):
            return
        if segment is None:
            told.counts = False
            return
        fails = how not in (DONE, RETURNED)
        if fails and self._attempts.claim(sequence, told.holder, attempt, now):
            raise Unavailable("The task is still to be read.", remedy="Say it again.")
        told.counts = self._store_replies.finish_stored(*segment, told.end, told.ticket, now)

    def over(self, search: EndsSearch, problem: MaitredError | None, now: float) -> None:
        """All were found or are over, or there is a problem: answer when the rest is safe."""
        for one in search.told:
            self._attempts.told_no_more(one)
            sequence, attempt, how, _ = one.end
            if one.counts is not None:
                self._attempts.claim_no_more(sequence, one.holder)
            elif how != RETURNED:
                # Nobody could find out, and it is told again: so long it is nobody else's.
                self._attempts.claim(sequence, one.holder, attempt, now)
            if one.counts is False:
                search.late.append(sequence)
        search.ticket.problem = problem or search.ticket.problem
        self._tickets.release(search.ticket)

    def tickets(self) -> list[Ticket]:
        """Return those of searches that have not begun."""
        return [search.ticket for search in self._waiting]

    def revoke(
        self,
        segment: tuple[Segment, frozenset[int]] | None,
        later: Later | None,
        sequence: int,
        now: float,
    ) -> bool:
        """The store was asked for a task that a caller cancels, and that is not in memory: bring a
        task with a row of its own into memory, or cancel it in its segment. Returns whether it was
        cancelled there."""
        if segment is not None:
            return self._store_replies.revoke_stored(*segment, sequence, now)
        if later is not None:
            self._store_replies.recall_later(later, now)
        return False
