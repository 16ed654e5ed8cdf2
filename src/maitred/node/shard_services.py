"""What the parts of a shard use of the shard that they belong to, from little to much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from maitred.node.driver_shell import DriverShell

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine
    from contextlib import AbstractContextManager

    from maitred.logs import Logger
    from maitred.matching.records import PartitionKey
    from maitred.membership.view import ClusterView
    from maitred.node.owners import Owners
    from maitred.node.peer_calls import Done, ShardQuestion
    from maitred.node.request_table import Holder
    from maitred.node.shard_membership import ViewListener
    from maitred.node.shard_place import ShardPlace
    from maitred.protocol.description import Description
    from maitred.protocol.messages import AnyRequest
    from maitred.routing.homes import PartitionAddress
    from maitred.settings import Limits, Node


class ShardRunner(Protocol):
    """The shard as its background work uses it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the shard."""

    @property
    def log(self) -> Logger:
        """Takes warnings and failures."""

    def spawn(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the shard closes."""


class ConfiguredShard(ShardRunner, Protocol):
    """The shard as periodic work that depends on the settings uses it."""

    @property
    def settings(self) -> Node:
        """The settings of the node."""

    def failures_logged(self, event: str) -> AbstractContextManager[None]:
        """Log what the block raises: periodic work must survive one failure."""


class PlacedShard(ShardRunner, Protocol):
    """The shard as one of several that share the limits of a node."""

    @property
    def limits(self) -> Limits:
        """The limits of the node."""

    @property
    def place(self) -> ShardPlace:
        """The shard's place in the node."""


class ClusterShard(PlacedShard, Protocol):
    """The shard as parts use it that follow the cluster, and ask other shards."""

    @property
    def number(self) -> int:
        """The number of the shard."""

    def ask(
        self, message: AnyRequest, seconds: float, done: Done, owner: int | None = None
    ) -> ShardQuestion:
        """Send a request of this shard to the shard that it belongs to, perhaps this one, or to the
        one with this owner number. `done` is called once, with the answer or an error, and never
        before this has returned."""

    @property
    def owners(self) -> Owners:
        """Finds the owners of partitions by the view."""

    @property
    def view(self) -> ClusterView | None:
        """The newest view of the cluster that the shard has adopted; None before the first, and
        without a cluster."""

    @property
    def view_listeners(self) -> list[ViewListener]:
        """Called with the previous view and the new one when the shard has adopted a view."""

    @property
    def lapses(self) -> int:
        """How often the node's lease had run out before it was renewed."""

    def trusted(self) -> bool:
        """Whether the node's lease has not run out, so that no other node has its partitions;
        always true without a cluster."""

    def owner_number(self, member_id: str, shard: int) -> int:
        """Return the owner number of a shard of a member of the cluster; raise `Unavailable` if the
        view does not have the member."""

    def member_of(self, owner: int) -> str:
        """Return the id of the member with this owner number; empty without a cluster."""

    def owner_name(self, owner: int) -> str:
        """Return the name of a shard for people, by its owner number."""


class PartitionShard(ClusterShard, ConfiguredShard, DriverShell, Protocol):
    """The shard as its partitions and the requests to them use it."""

    @property
    def description(self) -> Description:
        """What the shard tells clients of itself."""

    @property
    def draining(self) -> bool:
        """Whether the shard is stopping."""

    @property
    def holders(self) -> dict[int, Holder]:
        """Serve requests that are answered through a deferred reply, by opcode."""

    @property
    def settled(self) -> dict[PartitionAddress | tuple[str, str, int, int], int]:
        """Owner numbers of partitions that do not move within the view, which saves a request the
        call of `owner_of`."""

    def owner_of(self, message: AnyRequest) -> int:
        """Return the owner number of the shard that the request belongs to; raise a typed error for
        a request that can belong to none."""

    def moves_at(self, key: PartitionKey) -> float:
        """Return the wall-clock time at which the partition gets another owner within the present
        view; infinity: never."""

    def count_error(self, code: str) -> None:
        """Count an error that was sent as an answer."""
