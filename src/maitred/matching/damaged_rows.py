"""Rows that cannot be read: set aside, brought back, dropped.

A disk may return other bytes than were written, and so may a person who edits a database. Such a
row must stop nothing but itself. The partition takes it out of its backlog with the next commit and
keeps it as it was found. From then on it is a matter for an operator, who exports it, brings it
back when it has been mended, or drops it.

How many tasks a damaged segment still held is known exactly unless marks of another priority's
tasks lie in its range and its body cannot be read at all; then it is the lowest number possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.matching.effects import SetAside
from maitred.matching.records import (
    Damaged,
    Dead,
    Result,
    RowDamagedError,
    Segment,
    decode_record,
    decode_records,
    encode_record,
)
from maitred.matching.task import WAITING, Ticket, recalled
from maitred.matching.task_ends import decode_ended, encode_ended

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.matching.partition_state import PartitionState
    from maitred.matching.records import DamagedKind, Later, Record
    from maitred.matching.task_transitions import OwnTasks


class SetAsideRows:
    """Sets aside rows that cannot be read, and brings them back for an operator."""

    def __init__(self, state: PartitionState, own_tasks: OwnTasks) -> None:
        self._own_tasks = own_tasks
        self._later = state.later
        self._ledger = state.ledger
        self._effects = state.effects
        self._rows: dict[tuple[DamagedKind, int], Damaged] = {}
        """Rows that were set aside since the partition was loaded, without their bodies."""
        self.news: list[Damaged] = []
        """Rows that were set aside since `take_news`, without their bodies."""

    def take_news(self) -> list[Damaged]:
        """Return the rows that were set aside since the last call."""
        news, self.news = self.news, []
        return news

    def may_hold(self, sequence: int) -> bool:
        """Return whether a row that was set aside since the partition was loaded may hold the
        task."""
        return any(
            row.first <= sequence <= row.last and sequence not in row.over
            for row in self._rows.values()
        )

    def set_aside_segment(
        self, segment: Segment, over: Collection[int], reason: str, now: float
    ) -> None:
        """Set aside a segment that cannot be read; the tasks in `over` are over."""
        try:
            records = decode_records(segment, trusting=True)
            left = sum(record.sequence not in over for record in records)
        except RowDamagedError:
            left = max(0, segment.tasks - len(over))
        row = Damaged(
            "segment",
            segment.first,
            segment.last,
            left,
            segment.priority,
            0.0,
            now + self._ledger.wall,
            str(segment.tasks),
            reason,
            tuple(sorted(over)),
            segment.body,
        )
        self._set_aside(row, now)

    def set_aside_later(self, later: Later, reason: str, now: float) -> None:
        """Set aside the row of a delayed task that cannot be read."""
        self._later.row_over(later.sequence)
        noticed = now + self._ledger.wall
        one = later.sequence
        row = Damaged("later", one, one, 1, 0, later.due, noticed, "", reason, (), later.body)
        self._set_aside(row, now)

    def set_aside_dead(self, dead: Dead, reason: str, now: float) -> None:
        """Set aside a dead letter that cannot be read."""
        one, noticed = dead.sequence, now + self._ledger.wall
        row = Damaged(
            *("dead", one, one, 0, 0, dead.died_at, noticed, dead.reason, reason, (), dead.body)
        )
        self._set_aside(row, now)

    def set_aside_result(self, result: Result, reason: str, now: float) -> None:
        """Keep a copy of a result that cannot be read; the row itself stays until it expires."""
        one, noticed = result.sequence, now + self._ledger.wall
        row = Damaged(
            *("result", one, one, 0, 0, result.expires_at, noticed, "", reason, (), result.body)
        )
        self._set_aside(row, now)

    def _set_aside(self, row: Damaged, now: float) -> None:
        if (row.kind, row.first) in self._rows:
            return
        self._rows[row.kind, row.first] = without_body = row._replace(body=b"")
        self.news.append(without_body)
        self._ledger.set_aside(row, now)
        self._own_tasks.over_in_store(row.tasks)
        self._effects.append(SetAside(row))

    # For operators

    def bring_back(self, row: Damaged, ticket: Ticket, now: float, *, trusting: bool) -> int:
        """Put a row that was set aside back into its place; return how many tasks run again.

        The tasks keep their numbers and attempts. Raises `RowDamagedError` if the row still cannot
        be read; with `trusting`, a wrong checksum alone is no reason.
        """
        one = row.first
        records: list[Record] = []
        if row.kind == "segment":
            segment = Segment(row.priority, one, row.last, int(row.detail), row.body)
            records = decode_records(segment, trusting=trusting)
        elif row.kind == "later":
            records = [decode_record(row.body, one, trusting=trusting)]
        elif row.kind == "dead":
            body = encode_record(decode_record(row.body, one, trusting=trusting))
            self._ledger.bring_back(Dead(one, row.moment, row.detail, body), now)
        else:
            body = encode_ended(decode_ended(row.body, trusting=trusting))
            self._ledger.bring_back(Result(one, row.moment, body), now)
        brought = 0
        for record in records:
            if record.sequence in row.over or record.sequence in self._own_tasks.tasks:
                continue
            task = recalled(record, wall=self._ledger.wall, now=now, state=WAITING)
            task.due = task.ready = now
            self._own_tasks.opened_again(task)
            self._own_tasks.wait_until_due(task, ticket, now)
            brought += 1
        self.drop_damaged(row.kind, one, ticket, now)
        return brought

    def drop_damaged(self, kind: DamagedKind, first: int, ticket: Ticket, now: float) -> None:
        """Forget a row that was set aside."""
        self._rows.pop((kind, first), None)
        self._ledger.forget_damaged(kind, first, ticket, now)
