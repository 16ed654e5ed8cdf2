"""Rows that were set aside, as both SQL engines store them: some columns, the rest as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, json, structs

from maitred.matching.records import Damaged

if TYPE_CHECKING:
    from maitred.matching.records import Changes, DamagedKind


class _Head(Struct):
    """The fields of a row that are stored as JSON, not in columns by which it is found."""

    priority: int
    moment: float
    noticed_at: float
    detail: str
    reason: str
    over: tuple[int, ...]


def head_of(row: Damaged) -> str:
    """Return the JSON for the row's column `head`."""
    return json.encode(
        _Head(row.priority, row.moment, row.noticed_at, row.detail, row.reason, row.over)
    ).decode()


def damaged_of(
    kind: DamagedKind,
    first: int,
    last: int,
    tasks: int,
    head: str,
    size: int,
    body: bytes = b"",
) -> Damaged:
    """Return the row as it was set aside, from its columns."""
    known = json.decode(head, type=_Head)
    return Damaged(
        kind,
        first,
        last,
        tasks,
        known.priority,
        known.moment,
        known.noticed_at,
        known.detail,
        known.reason,
        known.over,
        body,
        size,
    )


def is_in_place(row: Damaged, *, deletes: bool = True) -> bool:
    """Return whether the row stays in its own table, because it cannot be deleted safely."""
    return row.kind != "result" and not (deletes and row.body)


def without_deletions(changes: Changes) -> Changes:
    """Return the same changes, but leave all rows that are set aside in their tables."""
    aside = {(row.kind, row.first) for row in changes.damaged}
    return structs.replace(
        changes,
        segments_gone=[one for one in changes.segments_gone if ("segment", one.first) not in aside],
        later_gone=[one for one in changes.later_gone if ("later", one) not in aside],
        dead_gone=[one for one in changes.dead_gone if ("dead", one) not in aside],
    )
