"""The description of a shard and its node in SUPPORTED.

The `SCYLLA_*` keys are those of ScyllaDB's extension, so that its drivers find our sharding; the
`MAITRED_*` keys tell what has no key there. All numbers are decimal ASCII.

Each shard has a port of its own, which works behind address translation as well. Stock drivers do
not know these ports; for them there is, where the kernel supports it, ScyllaDB's shard-aware port,
on which the client's source port picks the shard.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from maitred.errors import ProtocolViolation, UnsupportedVersion
from maitred.routing.tokens import IGNORE_MSB, check_sharding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSIONS: Final = (1, 2, 3)
"""Versions of our own messages that this code speaks, oldest first: this release's, and that of the
release before it, so that a cluster is upgraded node by node.

Fields are added at the end of a message, with a default, without a new version: a peer that does
not know them ignores them. A new version is for what an older peer would misunderstand, or do in
another way. Each such thing has a constant with the version that brought it. A node uses it only
while `ClusterView.understands` says that every member knows it.
"""

DATABASE_CLOCK: Final = 2
"""The nodes of a cluster store moments, and place partitions during a gradual change, by the clock
of their database. Nodes of version 1 go by their own."""

QUEUE_CONTROLS: Final = 3
"""Nodes keep to the controls of a queue: an older one hands out the tasks of a paused queue, and
does not know settings that were set live."""

CQL_VERSION: Final = "3.0.0"
PARTITIONER: Final = "org.apache.cassandra.dht.Murmur3Partitioner"
"""The partitioner's name as real servers spell it; one driver disables sharding for any other."""

ALGORITHM: Final = "biased-token-round-robin"


class Description(Struct, frozen=True, kw_only=True):
    """A shard's description of itself, which each client receives when it connects."""

    node: str
    """The node's identity; a restarted node keeps it."""
    shard: int
    shards: int
    shard_ports: tuple[int, ...]
    """Port of each shard, by its number; empty if shards have no ports of their own."""
    frame_bytes: int
    payload_bytes: int
    in_flight: int
    idle_seconds: float
    spread_batch: str = "0"
    """The batch size of spread routing, or a gradual change of it, as JSON."""
    ignore_msb: int = IGNORE_MSB
    versions: tuple[int, ...] = VERSIONS
    release: str = ""
    source_port: int = 0
    """Port on which the client's source port, modulo the number of shards, picks the shard; 0:
    none."""
    tls: bool = False
    """Whether `source_port` speaks TLS."""

    def supported(self) -> dict[str, Sequence[str]]:
        """Return the options of SUPPORTED."""
        source_port: dict[str, Sequence[str]] = {}
        if self.source_port:
            key = "SCYLLA_SHARD_AWARE_PORT_SSL" if self.tls else "SCYLLA_SHARD_AWARE_PORT"
            source_port[key] = (str(self.source_port),)
        return {
            "CQL_VERSION": (CQL_VERSION,),
            "COMPRESSION": (),
            "PROTOCOL_VERSIONS": ("4/v4",),
            "SCYLLA_SHARD": (str(self.shard),),
            "SCYLLA_NR_SHARDS": (str(self.shards),),
            "SCYLLA_PARTITIONER": (PARTITIONER,),
            "SCYLLA_SHARDING_ALGORITHM": (ALGORITHM,),
            "SCYLLA_SHARDING_IGNORE_MSB": (str(self.ignore_msb),),
            **source_port,
            "MAITRED_VERSIONS": tuple(map(str, self.versions)),
            "MAITRED_RELEASE": (self.release,),
            "MAITRED_NODE": (self.node,),
            "MAITRED_SHARD_PORTS": tuple(map(str, self.shard_ports)),
            "MAITRED_SPREAD_BATCH": (self.spread_batch,),
            "MAITRED_FRAME_BYTES": (str(self.frame_bytes),),
            "MAITRED_PAYLOAD_BYTES": (str(self.payload_bytes),),
            "MAITRED_IN_FLIGHT": (str(self.in_flight),),
            "MAITRED_IDLE_SECONDS": (str(self.idle_seconds),),
        }

    @classmethod
    def from_supported(cls, options: Mapping[str, Sequence[str]]) -> Description:
        """Read the options of SUPPORTED; raise `ProtocolViolation` unless maitred sent them."""
        if "MAITRED_VERSIONS" not in options:
            raise ProtocolViolation(
                "The server speaks CQL, but it is not maitred.", remedy="Check host and port."
            )
        tls = "SCYLLA_SHARD_AWARE_PORT_SSL" in options
        source_port = options.get(f"SCYLLA_SHARD_AWARE_PORT{'_SSL' if tls else ''}", ("0",))
        try:
            description = cls(
                node=options["MAITRED_NODE"][0],
                shard=int(options["SCYLLA_SHARD"][0]),
                shards=int(options["SCYLLA_NR_SHARDS"][0]),
                ignore_msb=int(options["SCYLLA_SHARDING_IGNORE_MSB"][0]),
                shard_ports=tuple(map(int, options["MAITRED_SHARD_PORTS"])),
                frame_bytes=int(options["MAITRED_FRAME_BYTES"][0]),
                payload_bytes=int(options["MAITRED_PAYLOAD_BYTES"][0]),
                in_flight=int(options["MAITRED_IN_FLIGHT"][0]),
                idle_seconds=float(options["MAITRED_IDLE_SECONDS"][0]),
                spread_batch=options["MAITRED_SPREAD_BATCH"][0],
                versions=tuple(map(int, options["MAITRED_VERSIONS"])),
                release=options["MAITRED_RELEASE"][0],
                source_port=int(source_port[0]),
                tls=tls,
            )
            check_sharding(description.shards, description.ignore_msb)
        except (KeyError, IndexError, ValueError) as problem:
            raise ProtocolViolation(
                f"The node's description of itself is malformed: {problem!r}."
            ) from None
        if not 0 <= description.shard < description.shards:
            raise ProtocolViolation(
                f"The node says that it is shard {description.shard} of {description.shards}."
            )
        _check_limits(description)
        return description


def _check_limits(said: Description) -> None:
    """Refuse limits that would make a client wait for ever, or never wait."""
    ports = (*said.shard_ports, said.source_port)
    if (
        min(said.frame_bytes, said.in_flight) < 1
        or said.payload_bytes < 0
        or not (isfinite(said.idle_seconds) and said.idle_seconds > 0)
        or len(said.shard_ports) not in (0, said.shards)
        or not all(0 <= port <= 65535 for port in ports)
    ):
        raise ProtocolViolation("The node's description has impossible limits or ports.")


def agree(client: Sequence[int], node: Sequence[int]) -> int:
    """Return the newest version that both ends speak; raise `UnsupportedVersion` if there is none.

    The error's text is the same at both ends, since either may be shown to a person.
    """
    common = set(client) & set(node)
    if not common:
        older = "client" if max(client, default=0) < max(node, default=0) else "node"
        raise UnsupportedVersion(
            f"No version in common: the client speaks {_listed(client)}, "
            f"the node {_listed(node)} (unsupported protocol version).",
            remedy=f"Upgrade the {older}.",
        )
    return max(common)


def _listed(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions)) or "none"
