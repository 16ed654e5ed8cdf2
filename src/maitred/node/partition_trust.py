"""Whether a partition of a node in a cluster may hand out what the store has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class LeasedShard(Protocol):
    """The shard, as far as the node's lease is concerned."""

    @property
    def lapses(self) -> int:
        """How often the node's lease had run out before it was renewed."""

    def trusted(self) -> bool:
        """Whether the node's lease has not run out."""


class PartitionTrust:
    """Tells one partition whether it may hand out what the store has.

    While the node's lease lasts, no other node does. Once the lease has run out, others may have
    acquired the partition, even if the lease is renewed later: the node was slow, was not declared
    dead, and learns of the move only from the next view. So a partition is trusted again when the
    store has said that no other owner has acquired it since.
    """

    __slots__ = ("_shard", "_withheld", "lapses")

    def __init__(self, shard: LeasedShard, withheld: Callable[[], None]) -> None:
        """`withheld` is called when the partition has to withhold work."""
        self._shard = shard
        self._withheld = withheld
        self.lapses = shard.lapses
        """How often the lease had run out when the partition was known to be this shard's."""

    def __call__(self) -> bool:
        shard = self._shard
        if self.lapses == shard.lapses and shard.trusted():
            return True
        self._withheld()
        return False
