"""How many bytes all connections of the HTTP listener may hold together, by purpose.

A limit for each connection does not bound a process with ten thousand of them. So what they hold is
added up, and the connection that makes it too much is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import Overloaded
from maitred.wire.memory import give_back

if TYPE_CHECKING:
    from maitred.settings import GatewaySettings

SMALL_BYTES: Final = 4 * 1024
"""A complete request with a body up to this is never refused for the memory that others take. The
limits on queries under way and on connections bound how many of them there are."""

TRIM_BYTES: Final = 16 * 2**20
"""When the connections held this much and now hold half of it at most, the process gives free
memory back to the kernel."""


class Budget:
    """Counts the bytes held for one purpose."""

    __slots__ = ("held", "most", "name", "setting")

    def __init__(self, name: str, setting: str, most: int) -> None:
        self.name = name
        """The name of the budget in errors, logs and metrics."""
        self.setting = setting
        self.most = most
        self.held = 0

    def exceeded(self) -> Overloaded:
        """Return the error for the connection that exceeded the budget."""
        return Overloaded(
            f"The {self.name} of all connections take more than the {self.most:,} bytes allowed.",
            remedy=f"Try again in a moment, or raise gateway.{self.setting}.",
            retry_after=1.0,
        )


class Budgets:
    """The budgets of one listener."""

    __slots__ = ("_peak", "partial", "strangers", "under_way", "unsent")

    def __init__(self, settings: GatewaySettings) -> None:
        self.strangers = Budget(
            "unfinished requests of strangers", "stranger_bytes", settings.stranger_bytes
        )
        """Counts unfinished heads, and bodies whose callers are not authenticated yet."""
        self.partial = Budget("unfinished bodies", "partial_bytes", settings.partial_bytes)
        """Counts unfinished bodies of authenticated requests."""
        self.under_way = Budget(
            "bodies of requests under way", "under_way_bytes", settings.under_way_bytes
        )
        """Counts complete bodies, until their requests are answered."""
        self.unsent = Budget(
            "answers that callers do not read", "unsent_bytes", settings.unsent_bytes
        )
        """Counts answers to callers that do not read them."""
        self._peak = 0

    def all(self) -> tuple[Budget, ...]:
        """Return each budget, for the metrics."""
        return self.strangers, self.partial, self.under_way, self.unsent

    def look(self) -> None:
        """Give memory back to the kernel after a flood; called about once a second.

        The C library keeps freed blocks below its threshold in its heap, and one block that is
        still in use at the end of the heap keeps all of those before it. Trimming gives back the
        free pages in between as well.
        """
        held = sum(budget.held for budget in self.all())
        self._peak = max(self._peak, held)
        if self._peak >= TRIM_BYTES and held * 2 <= self._peak:
            self._peak = held
            give_back()
