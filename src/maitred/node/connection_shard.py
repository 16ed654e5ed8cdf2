"""What the connections of a shard use of the shard that accepted them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from maitred.node.work import ForwardingShard

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from msgspec import Struct

    from maitred.logs import Logger
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.request_table import Admission, Handler, Holder
    from maitred.node.shard_place import ShardPlace
    from maitred.node.system_tables import SystemTables
    from maitred.node.work import ForwardedWork
    from maitred.protocol.description import Description
    from maitred.protocol.messages import AnyRequest
    from maitred.routing.homes import PartitionAddress
    from maitred.security.audit_log import AuditLog
    from maitred.security.authenticator import Authenticator
    from maitred.security.cluster_proof import ListenerProof
    from maitred.security.directory import Directory, Identity
    from maitred.settings import Limits


class ConnectionCounts(Protocol):
    """What a shard counts over all its connections; the connections change the numbers."""

    client_connections: int
    """Open connections of clients."""
    partial_bytes: int
    """Bytes of incomplete frames of all connections."""
    strangers_bytes: int
    """Bytes of incomplete frames of connections that are not authenticated."""
    under_way_bytes: int
    """Bytes of requests in flight of all connections."""
    unsent_bytes: int
    """Bytes of answers that peers have not read, of all connections."""
    requests: int
    """Requests that were answered."""
    received_forwarded: int
    """Requests that other shards forwarded to this one."""

    def count_error(self, code: str) -> None:
        """Count an error that was sent as an answer."""


class HandshakeShard(Protocol):
    """The shard as it admits clients."""

    told_of_credentials: bool
    """Whether the log says that a caller sent credentials to this node without users."""

    @property
    def supported_body(self) -> bytes:
        """The body of the answer to OPTIONS."""

    @property
    def tables(self) -> SystemTables:
        """The system tables that drivers of CQL read."""

    @property
    def users(self) -> Directory:
        """The users of the node."""

    @property
    def authenticator(self) -> Authenticator:
        """Verifies credentials."""

    @property
    def prover(self) -> Callable[[str], ListenerProof] | None:
        """Begins this member's end of the mutual proof with a process of another node that has this
        role; None without a cluster."""

    @property
    def view_event(self) -> bytes:
        """The body of the EVENT with the shard's view of the cluster; empty without one."""

    def certified(self, transport: asyncio.BaseTransport) -> Identity | None:
        """Return the user to whom the connection's client certificate is mapped."""

    def spawn(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the shard closes."""


class ServingShard(Protocol):
    """The shard as it serves and forwards requests."""

    @property
    def number(self) -> int:
        """The number of the shard."""

    @property
    def handlers(self) -> dict[int, Handler]:
        """Answer requests, by opcode."""

    @property
    def holders(self) -> dict[int, Holder]:
        """Serve requests that are answered through a deferred reply, by opcode."""

    @property
    def admissions(self) -> dict[int, Admission]:
        """Complete or refuse the requests of clients, by opcode."""

    @property
    def clustered(self) -> bool:
        """Whether the node belongs to a cluster."""

    @property
    def settled(self) -> dict[PartitionAddress | tuple[str, str, int, int], int]:
        """Owner numbers of partitions that do not move within the view, which saves a request the
        call of `owner_of`."""

    def owner_of(self, message: AnyRequest) -> int:
        """Return the owner number of the shard that the request belongs to; raise a typed error for
        a request that can belong to none."""

    def keeps(self, message: AnyRequest) -> bool:
        """Return whether this shard has begun to serve what the request belongs to, and so serves
        it whoever owns the partition."""

    def forward(self, work: ForwardedWork, message: AnyRequest, deadline: float) -> None:
        """Forward a request to its owner."""

    def answer_with(self, reply: DeferredReply, answer: Coroutine[Any, Any, Struct]) -> None:
        """Answer a request with what a coroutine returns; cancel the coroutine if the caller does
        not wait any more."""


class ConnectionShard(ConnectionCounts, HandshakeShard, ForwardingShard, ServingShard, Protocol):
    """The shard as its connections use it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the shard."""

    @property
    def log(self) -> Logger:
        """Takes warnings and failures."""

    @property
    def audit(self) -> AuditLog | None:
        """Records logins and what operators do; None for a node without an audit log."""

    @property
    def limits(self) -> Limits:
        """The limits of the node."""

    @property
    def place(self) -> ShardPlace:
        """The shard's place in the node."""

    @property
    def description(self) -> Description:
        """What the shard tells clients of itself."""
