"""Searches of a partition for tasks that are not in memory, and the rows that the store has of one.

`stored_tasks.py` begins the searches and decides when their rows arrive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.matching.records import Damaged, Dead, Later, Result
    from maitred.matching.task import Ticket, Token
    from maitred.matching.unread_segments import MarkedSegment


class StoredRows(NamedTuple):
    """The rows that the store has of one task. The shell reads no further rows when it has found
    the task in a segment or in a row of its own: such a task is not over."""

    segment: MarkedSegment | None = None
    later: Later | None = None
    result: Result | None = None
    """The task's result, unless that has expired."""
    dead: Dead | None = None
    """Its dead letter; not read if there is a result, unless the search wants it."""
    damaged: Sequence[Damaged] = ()
    """Rows that were set aside and in whose range the task is."""


class TaskSearch:
    """A request whose task is being looked up in the store."""

    __slots__ = ("repeated", "sequence")

    wants_end = True
    """Whether to read what came of a task that is over, too."""
    wants_letter = False
    """Whether to read the dead letter also if there is a result."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.repeated = False
        """Whether this is the second look-up for the same task."""


class AwaitSearch(TaskSearch):
    """Callers wait for the end of the task: those that `TaskResults.waiters` has when the rows
    arrive."""

    __slots__ = ()


class CallerSearch(TaskSearch):
    """One caller asks about the task."""

    __slots__ = ("token",)

    def __init__(self, sequence: int, token: Token) -> None:
        super().__init__(sequence)
        self.token = token


class RevokeSearch(CallerSearch):
    """A caller cancels the task."""

    __slots__ = ()


class ShowSearch(CallerSearch):
    """An operator asks for all that is known of the task."""

    __slots__ = ()

    wants_letter = True


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


class EndsSearch(TaskSearch):
    """A worker ended attempts at tasks that are not in memory; they are looked up one by one."""

    __slots__ = ("current", "late", "ticket", "told")

    wants_end = False

    def __init__(self, told: list[Told], ticket: Ticket) -> None:
        super().__init__(told[0].end[0])
        self.current = told[0]
        """The end whose task is being looked up."""
        self.told = told
        self.ticket = ticket
        self.late: list[int] = []
        """Tasks whose ends came too late to count, once the search is over."""
