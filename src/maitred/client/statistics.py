"""What a client has counted: for each shard of each node, and in total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable


class ShardCounts:
    """Counted as it happens; one for each shard of a node."""

    __slots__ = ("connected", "fallbacks", "misroutes", "requests", "retries", "violations")

    def __init__(self) -> None:
        self.requests = 0
        self.misroutes = 0
        self.violations = 0
        self.fallbacks = 0
        self.retries = 0
        self.connected = 0
        """Connections that ever covered the shard."""


class Totals(Struct, frozen=True, kw_only=True):
    """Numbers of one shard, of one node, or of everything."""

    connections: int = 0
    in_flight: int = 0
    """Sent and not answered yet, given-up ones too."""
    requests: int = 0
    """Sent, each time it was."""
    misroutes: int = 0
    """Answers that said the key lives elsewhere. After each, the client knows better."""
    fallbacks: int = 0
    """Requests for this shard that went over another one's connection, which passes them on."""
    retries: int = 0
    violations: int = 0
    """Connections given up because what came from the node made no sense."""
    reconnects: int = 0
    """Connections that replaced one that was lost."""


class ShardStatistics(Totals, frozen=True, kw_only=True):
    """One shard."""

    shard: int


class NodeStatistics(Totals, frozen=True, kw_only=True):
    """One node."""

    address: str
    shards: tuple[ShardStatistics, ...] = ()


class Statistics(Totals, frozen=True, kw_only=True):
    """Everything, at one moment."""

    waiting: int = 0
    """Requests that wait for a connection or for their turn."""
    nodes: tuple[NodeStatistics, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Statistics: {self.connections} connections, {self.in_flight} in flight, "
            f"{self.waiting} waiting, {self.requests} requests, {self.misroutes} misroutes, "
            f"{self.fallbacks} fallbacks, {self.retries} retries, {self.reconnects} reconnects>"
        )


def summed(parts: Iterable[Totals]) -> dict[str, int]:
    """The sums of every number, by name."""
    listed = list(parts)
    return {name: sum(getattr(part, name) for part in listed) for name in Totals.__struct_fields__}
