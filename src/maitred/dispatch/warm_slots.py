"""Slots that a gateway may use without a request: with an answer, a worker may keep the slot that
became free for the same gateway, for a moment.

The worker does so only while it has other slots on offer, so no waiting query is overtaken. A query
that comes within that moment goes straight to the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from maitred.protocol.queries import Allocation

    Key = tuple[str, str, str]
    """Namespace, queue and user of the query that had the slot."""

SHARE: Final = 0.5
"""Share of the worker's time for which the gateway uses the slot: a query on its way takes some."""

SWEPT_AT: Final = 256
"""Number of slots of one key at which the expired ones are dropped."""


class WarmSlots:
    """The warm slots of one gateway."""

    def __init__(self) -> None:
        self.kept: dict[Key, list[tuple[float, Allocation]]] = {}
        """Each slot with the time at which it expires, the newest last."""

    def keep(self, key: Key, allocation: Allocation, seconds: float, now: float) -> None:
        """Keep a slot that its worker reserves for `seconds`."""
        kept = self.kept.setdefault(key, [])
        if len(kept) >= SWEPT_AT:
            kept[:] = [one for one in kept if one[0] > now]
        kept.append((now + seconds * SHARE, allocation))

    def take(self, key: Key, now: float) -> Allocation | None:
        """Take the newest slot; None if there is none, or it has expired."""
        kept = self.kept.get(key)
        if not kept:
            return None
        expires_at, allocation = kept.pop()
        if expires_at > now:
            return allocation
        del self.kept[key]  # the others are older
        return None
