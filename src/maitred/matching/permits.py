"""Counts how many queries of a user, or of a queue, are under way: in one place for each name.

Each query has a permit: sixteen unique bytes. Gateways and workers renew the permits of their
queries, and a permit that is not renewed expires. So a process that dies leaves nothing counted
for ever, and a counter that was started again soon knows all permits again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEASE_SECONDS = 2.0
"""How long a permit counts after its last renewal: as long as a worker has to attend again, see
`presence.RETURN_SECONDS`."""

PERMITS_KEPT = 500_000
"""Most permits of all names together, some two hundred bytes each. Further ones are refused."""


class Permits:
    """The permits of queries that are under way, by name."""

    def __init__(self) -> None:
        self._names: dict[str, OrderedDict[bytes, float]] = {}
        """Until when each permit counts, in the order in which they expire."""
        self.total = 0
        """Permits of all names; some of them may have expired."""

    def under_way(self, name: str, now: float) -> int:
        """Return how many permits count for the name."""
        permits = self._names.get(name)
        if permits is None:
            return 0
        while permits:
            permit = next(iter(permits))
            if permits[permit] > now:
                return len(permits)
            del permits[permit]
            self.total -= 1
        del self._names[name]
        return 0

    def take(self, name: str, limit: int, wanted: Sequence[bytes], now: float) -> int:
        """Grant as many of the wanted permits as there is room for, from the first on; return how
        many."""
        room = min(limit - self.under_way(name, now), PERMITS_KEPT - self.total)
        granted = wanted[: max(room, 0)]
        self.hold(name, granted, now)
        return len(granted)

    def hold(self, name: str, permits: Iterable[bytes], now: float) -> None:
        """Renew permits, and count those that are not known yet."""
        self.under_way(name, now)
        known = self._names.get(name)
        until = now + LEASE_SECONDS
        for permit in permits:
            if known is None:
                known = self._names[name] = OrderedDict()
            if permit in known:
                known.move_to_end(permit)
            elif self.total < PERMITS_KEPT:
                self.total += 1
            else:
                continue
            known[permit] = until
        if known is not None and not known:
            del self._names[name]

    def free(self, name: str, permits: Iterable[bytes]) -> None:
        """Stop counting permits whose queries are over."""
        known = self._names.get(name)
        if known is None:
            return
        for permit in permits:
            if known.pop(permit, None) is not None:
                self.total -= 1
        if not known:
            del self._names[name]

    def sweep(self, now: float) -> None:
        """Forget expired permits."""
        for name in list(self._names):
            self.under_way(name, now)
