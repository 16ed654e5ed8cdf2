"""What the effects of partitions use of the driver that has them carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from maitred.matching.slots import SharedOffer
    from maitred.node.owned import Owned
    from maitred.protocol.tasks import Counts


class EffectDriver(Protocol):
    """Gives partitions their turns, and tells callers of their counts."""

    def touch(self, owned: Owned) -> None:
        """Drive the partition at the end of the turn: something happened to it."""

    def newer(self, owned: Owned, version: int) -> Counts | None:
        """Return the counts if the caller knows an older version, or only the usual ones (0)."""


class TaskDriver(EffectDriver, Protocol):
    """The driver as the effects of tasks use it."""

    @property
    def gave(self) -> dict[SharedOffer, bool]:
        """Shared offers to answer at the end of the turn, and whether their sets are known."""

    def failed(self, owned: Owned, fault: Exception) -> None:
        """Log a defect of the code, and forget the partition."""


class TreeDriver(EffectDriver, Protocol):
    """The driver as the exchange with a parent uses it."""

    def learn(self, owned: Owned, counts: Counts | None) -> None:
        """Take over counts that another partition told, if they are newer."""
