"""Where a shard is: its number, its node, and its addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID  # noqa: TC003 - msgspec reads the annotations of ShardPlace

SERVICE: Final = "maitred-node"
"""Name of the processes of a node for receivers of telemetry."""


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """A shard's number, and the node and addresses that it belongs to."""

    node: UUID
    number: int
    shards: int
    host: str
    port: int
    """The port that all shards share."""
    own_ports: tuple[int, ...]
    """Each shard's own port, by its number."""
    peer_paths: tuple[str, ...]
    """Each shard's Unix socket, by its number; empty for a node with one shard."""
    source_port: int = 0
    """The port on which the client's source port selects the shard; 0 if the node has none."""
    restarts: int = 0
    """How often this shard was restarted since the node came up."""
    gateway_secret: str = field(default="", repr=False)
    """The secret with which the node's own gateway authenticates; random at each start."""
    member: str = ""
    """The id of the member of the cluster that this start of the node is; empty without a
    cluster."""
    cluster_secret: str = field(default="", repr=False)
    """The cluster's secret as hexadecimal digits; empty without a cluster."""
