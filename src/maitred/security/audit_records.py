"""The content of audit records, and a bound on how many are written. No clock, no file.

A record is one JSON object on a line, in ASCII: when, who, from where, did what to what, and
whether that was allowed. It never has a secret, a token or the arguments of a task.

Strangers cause records, by wrong secrets and by requests that they may not make. So each kind has a
bound of its own: a flood of one kind cannot keep the actions of an operator out of the log. Dropped
records are counted, and the count is a record as well.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.settings import User

    Kind = Literal["action", "refused", "query"]
    """`action`: what a user did; `refused`: what a user was denied; `query`: a query was sent."""

TEXT_LETTERS: Final = 4_096
"""Longest text in a record, in characters; names are shorter, but the text of a query may not
be."""

LETTER_BYTES: Final = 4
"""Most bytes of a letter in UTF-8."""

LISTED: Final = 100
"""Most entries of one list in a record."""


def encode_record(at: float, action: str, fields: Mapping[str, object], *, allowed: bool) -> bytes:
    """Return the line of one record; `at` is in seconds since 1970."""
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    record: dict[str, object] = {
        "at": moment.replace("+00:00", "Z"),
        "action": action,
        "allowed": allowed,
    }
    for name, value in fields.items():
        if value not in ("", None):
            record[f"{name}_" if name in record else name] = _cut(value)
    return json.dumps(record, default=str).encode() + b"\n"


def _cut(value: object) -> object:
    if isinstance(value, str):
        return value[:TEXT_LETTERS]
    if isinstance(value, list | tuple):
        return [_cut(one) for one in value[:LISTED]]
    return value


def query_fields(choice: Literal["none", "hash", "text"], payload: bytes) -> dict[str, str]:
    """Return what a record tells of a query: its text, or a hash by which two can be compared."""
    if choice == "text":
        beginning = payload[: LETTER_BYTES * TEXT_LETTERS]
        return {"query": beginning.decode("utf-8", "backslashreplace")[:TEXT_LETTERS]}
    return {"query_sha256": sha256(payload).hexdigest()}


class AuditBound:
    """Admits a number of records of each kind per second, and counts the others."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left: dict[Kind, tuple[float, float]] = {}
        """By kind: records that may be written at once, and the time at which that was so."""
        self.dropped: Counter[str] = Counter()
        """Number of records dropped per kind since the last record that reported drops."""

    def allows(self, kind: Kind, now: float) -> bool:
        """Whether one more record may be written; if not, it is counted as dropped."""
        most = float(self._per_second)
        left, before = self._left.get(kind, (most, now))
        left = min(most, left + (now - before) * most)
        self._left[kind] = (max(left - 1.0, 0.0) if left >= 1.0 else left, now)
        if left >= 1.0:
            return True
        self.dropped[kind] += 1
        return False

    def told(self) -> dict[str, int]:
        """Return how many records were dropped, by kind, and reset the counts."""
        dropped, self.dropped = self.dropped, Counter()
        return dict(dropped)


def user_changes(
    before: Mapping[str, User], after: Mapping[str, User]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the users who were added, removed or changed, and how; never a secret, nor its
    hash."""
    changes: list[tuple[str, dict[str, Any]]] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is None and new is not None:
            changes.append((name, {"change": "added", "permissions": new.permissions}))
        elif new is None:
            changes.append((name, {"change": "removed"}))
        elif old is not None:
            fields = new.__struct_fields__
            parts = [part for part in fields if getattr(old, part) != getattr(new, part)]
            told: dict[str, Any] = {"change": "changed", "parts": parts}
            if "permissions" in parts:
                told |= {"permissions": new.permissions, "permissions_before": old.permissions}
            changes.append((name, told))
    return changes
