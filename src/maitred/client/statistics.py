"""What a client knows of its nodes, and what it has counted: per shard, per node and in total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from maitred.errors import MaitredError  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.messages import AnyAnswer  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Iterable


class NodeView(Struct, frozen=True, kw_only=True):
    """What a client has learned of a node."""

    address: str
    node: str | None = None
    """The node's identity; None before its first answer."""
    release: str = ""
    shards: int = 0
    shard_ports: tuple[int, ...] = ()
    covered: tuple[int, ...] = ()
    """Shards with an open connection."""
    spread_batch: str = "0"
    payload_bytes: int = 0
    frame_bytes: int = 0
    problem: str | None = None
    """Why the last attempt at a connection failed."""


class ShardAnswer(Struct, frozen=True, kw_only=True):
    """The answer of one shard of a node."""

    address: str
    shard: int
    answer: AnyAnswer


class Unreachable(Struct, frozen=True, kw_only=True):
    """A shard, or a whole node, that did not answer."""

    address: str
    shard: int | None
    error: MaitredError


def answers_of(
    outcomes: Iterable[ShardAnswer | Unreachable],
) -> tuple[list[ShardAnswer], list[Unreachable]]:
    """Return the answers and the shards that did not answer; raise the first error if none did."""
    answers: list[ShardAnswer] = []
    silent: list[Unreachable] = []
    for one in outcomes:
        if isinstance(one, Unreachable):
            silent.append(one)
        else:
            answers.append(one)
    if silent and not answers:
        raise silent[0].error
    return answers, silent


class ShardCounts(Struct, eq=False):
    """The counters of one shard of a node."""

    requests: int = 0
    misroutes: int = 0
    violations: int = 0
    fallbacks: int = 0
    retries: int = 0
    connected: int = 0
    """Connections that ever covered the shard."""


class Totals(Struct, frozen=True, kw_only=True):
    """Counts of one shard, of one node, or of the client."""

    connections: int = 0
    in_flight: int = 0
    """Requests without an answer yet, including abandoned ones."""
    requests: int = 0
    """Requests that were sent; a retry counts again."""
    misroutes: int = 0
    """Answers that named another shard as the owner. The client remembers each correction."""
    fallbacks: int = 0
    """Requests for this shard that were sent on the connection of another shard, which forwards."""
    retries: int = 0
    violations: int = 0
    """Answers of the node that violate the protocol."""
    reconnects: int = 0
    """Connections that replaced a lost one."""


class ShardStatistics(Totals, frozen=True, kw_only=True):
    """The counts of one shard."""

    shard: int


class NodeStatistics(Totals, frozen=True, kw_only=True):
    """The counts of one node."""

    address: str
    shards: tuple[ShardStatistics, ...] = ()


class Statistics(Totals, frozen=True, kw_only=True):
    """The counts of a client at one moment."""

    waiting: int = 0
    """Requests that wait for a connection or for their turn."""
    nodes: tuple[NodeStatistics, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Statistics: {self.connections} connections, {self.in_flight} in flight, "
            f"{self.waiting} waiting, {self.requests} requests, {self.misroutes} misroutes, "
            f"{self.fallbacks} fallbacks, {self.retries} retries, {self.reconnects} reconnects>"
        )


class GatewayStatistics(Struct, frozen=True, kw_only=True):
    """The counts of a query gateway at one moment, apart from those of its query table."""

    waiting: int
    """Queries under way that have no worker yet."""
    queued: int
    """Queries that wait for room at a worker that the gateway picks."""
    links: int
    """Open connections to workers."""
    links_refused: int
    """Connections to workers that were refused because of what answered there."""
    relayed: int
    """Queries that were sent through the node, because their worker could not be reached."""
    shed: int
    """Queries that the gateway refused because no worker had room."""
    refused_by_workers: int
    """How often a worker had no room for a query."""


def summed(parts: Iterable[Totals]) -> dict[str, int]:
    """Return the sum of every count, by name."""
    listed = list(parts)
    return {name: sum(getattr(part, name) for part in listed) for name in Totals.__struct_fields__}
