"""Slots that may be used once more, without asking: a worker keeps the one that was just left.

It does so only while it has others on offer, so nobody is overtaken by it, and only for a moment.
A query that comes within that moment goes straight to the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

if TYPE_CHECKING:
    from maitred.protocol.queries import Allocation

    Key = tuple[str, str, str]
    """Namespace, queue and user: whose slot it was."""

SHARE: Final = 0.5
"""Of the time that the worker keeps it: the way there takes some of it."""

SWEPT_AT: Final = 256
"""Slots of one queue after which those whose time is over are forgotten."""


class WarmSlots:
    """All of one gateway."""

    def __init__(self) -> None:
        self._kept: dict[Key, list[tuple[float, Allocation]]] = {}

    def keep(
        self, key: Key, allocation: Allocation, token: bytes, seconds: float, now: float
    ) -> None:
        """The slot of this allocation may be used again, by this token."""
        kept = self._kept.setdefault(key, [])
        if len(kept) >= SWEPT_AT:
            kept[:] = [one for one in kept if one[0] > now]
        kept.append((now + seconds * SHARE, replace(allocation, token=token)))

    def take(self, key: Key, now: float) -> Allocation | None:
        """The one that was kept last, if its time is not over."""
        kept = self._kept.get(key)
        if not kept:
            return None
        expires_at, allocation = kept.pop()
        if expires_at > now:
            return allocation
        del self._kept[key]  # the others are older
        return None
