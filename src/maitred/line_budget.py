"""How many lines of one kind a log may get: the one rule for every line that others can provoke.

A peer that sends garbage, a handler that always fails and a queue whose tasks all die must not fill
the log, nor hide what else happens there. So each kind of line has a budget: some lines at once,
then one every few seconds. An event beyond it has no line; the next line says how many had none.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Final

KEYS_KEPT: Final = 1_000
"""Most keys whose budgets are remembered. One that was forgotten has a full budget again, so more
keys than this at a time are bounded by the budget of all keys together."""


class LineBudget:
    """Allows `burst` lines at once, and one every `seconds` in the long run."""

    __slots__ = ("_ahead", "_full_at", "_seconds", "unlogged")

    def __init__(self, seconds: float, burst: int = 1) -> None:
        self._seconds = seconds
        # A little more than the burst takes, so that rounded sums do not cost its last line.
        self._ahead = (burst - 1) * seconds * 1.000_01
        self._full_at = -inf
        """When the whole burst is available again."""
        self.unlogged = 0
        """Events without a line since the last line."""

    def take(self, now: float) -> int | None:
        """Return how many events had no line since the last one; None if this event has none."""
        if not self.has_room(now):
            self.unlogged += 1
            return None
        self._full_at = max(self._full_at, now) + self._seconds
        unlogged, self.unlogged = self.unlogged, 0
        return unlogged

    def has_room(self, now: float) -> bool:
        """Return whether an event may have a line now."""
        return now >= self._full_at - self._ahead


class LineBudgets:
    """A budget for each key, such as a queue, and one for all keys together: a noisy key cannot use
    up the lines of the others, and many keys cannot fill the log."""

    __slots__ = ("_budgets", "_burst", "_seconds", "_together")

    def __init__(
        self, seconds: float, burst: int = 1, *, together_seconds: float = 0.0, together: int = 1
    ) -> None:
        self._seconds = seconds
        self._burst = burst
        self._together = LineBudget(together_seconds, together)
        self._budgets: OrderedDict[str, LineBudget] = OrderedDict()
        """By key, in the order in which they were last used."""

    def take(self, key: str, now: float) -> int | None:
        """Return how many events of this key had no line since its last one; None if this event has
        none."""
        budget = self._budgets.get(key)
        if budget is None:
            budget = self._budgets[key] = LineBudget(self._seconds, self._burst)
            if len(self._budgets) > KEYS_KEPT:
                self._budgets.popitem(last=False)
        else:
            self._budgets.move_to_end(key)
        if budget.has_room(now) and self._together.take(now) is None:
            budget.unlogged += 1
            return None
        return budget.take(now)


def left_out(unlogged: int) -> dict[str, int]:
    """Return the field of a line that says how many events before it had none."""
    return {"unlogged": unlogged} if unlogged else {}
