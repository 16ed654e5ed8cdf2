"""How many queries of a user, or of a queue, are under way: counted in one place for each name.

Whoever has a query under way has a permit, sixteen bytes that nobody else has, and says again and
again that he has it: for a permit of which nobody speaks any more is over by itself. So nothing is
counted for ever, whoever dies, and a counter that has lost everything knows it all again soon.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEASE_SECONDS = 2.0
"""So long a permit counts of which nobody has spoken: as long as a worker has to come back, see
`presence.RETURN_SECONDS`."""

PERMITS_KEPT = 500_000
"""Of all names together; some two hundred bytes each. Beyond that nothing more is let in."""


class Permits:
    """What is under way, by name."""

    def __init__(self) -> None:
        self._names: dict[str, OrderedDict[bytes, float]] = {}
        """Until when each permit counts; those first that end first."""
        self.total = 0
        """Permits, of all names; some of them may be over."""

    def under_way(self, name: str, now: float) -> int:
        """How many count for the name."""
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
        """Count as many as there is room for, the first ones; how many these are."""
        room = min(limit - self.under_way(name, now), PERMITS_KEPT - self.total)
        granted = wanted[: max(room, 0)]
        self.hold(name, granted, now)
        return len(granted)

    def hold(self, name: str, permits: Iterable[bytes], now: float) -> None:
        """These are under way, whether they were let in here or not."""
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
        """These are over."""
        known = self._names.get(name)
        if known is None:
            return
        for permit in permits:
            if known.pop(permit, None) is not None:
                self.total -= 1
        if not known:
            del self._names[name]

    def sweep(self, now: float) -> None:
        """Forget what is over."""
        for name in list(self._names):
            self.under_way(name, now)
