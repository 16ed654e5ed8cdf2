"""What a client tells about the nodes it knows."""

from __future__ import annotations

from msgspec import Struct

from maitred.errors import MaitredError  # noqa: TC001 - msgspec reads the annotations


class NodeView(Struct, frozen=True, kw_only=True):
    """What a client has learned of a node."""

    address: str
    node: str | None = None
    """Its identity; None while it never answered."""
    release: str = ""
    shards: int = 0
    shard_ports: tuple[int, ...] = ()
    covered: tuple[int, ...] = ()
    """Shards to which there is a connection now."""
    spread_batch: str = "0"
    payload_bytes: int = 0
    frame_bytes: int = 0
    problem: str | None = None
    """Why the last attempt at a connection failed."""


class Unreachable(Struct, frozen=True, kw_only=True):
    """A shard, or a whole node, that did not tell its status."""

    address: str
    shard: int | None
    error: MaitredError
