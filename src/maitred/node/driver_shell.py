"""The surroundings that the driver of partitions works in.

A shard provides them with its loop, its peers and its store. The matching study and the tests of
`maitred.matching` provide them with virtual time and a model of the network, so that the study
measures, and the tests check, the same driver that a node runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Coroutine

    from maitred.logs import Logger
    from maitred.matching.records import Later, PartitionKey
    from maitred.node.owned import Owned
    from maitred.node.peer_calls import Done, ShardQuestion
    from maitred.node.turn_loop import TurnLoop
    from maitred.protocol.queries import Allocate
    from maitred.protocol.tasks import Finish, Forward, Offer
    from maitred.security.directory import Directory
    from maitred.store.interface import SegmentRead
    from maitred.telemetry.tracing import Tracing

    TreeRequest = Offer | Forward | Finish | Allocate
    """A request that one partition sends to another."""


class BacklogStore(Protocol):
    """The reads that partitions ask for; see `maitred.store.interface.Store`."""

    async def segments(
        self, key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        """Return the next segments of a partition's backlog."""

    async def later(
        self, key: PartitionKey, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        """Return the partition's delayed tasks that are due before that time."""


class CommitWriter(Protocol):
    """Commits the changes of partitions."""

    def look_at(self, owned: Owned, now: float) -> None:
        """Commit the partition's changes when they are due, if it has some."""


class DriverShell(Protocol):
    """The process, or the model of one, that a driver runs in."""

    @property
    def loop(self) -> TurnLoop:
        """Measures time and runs the turns."""

    @property
    def log(self) -> Logger:
        """Takes warnings and failures."""

    @property
    def users(self) -> Directory:
        """The users, some of whom have limits to their queries."""

    @property
    def errors(self) -> Counter[str]:
        """Errors given as answers, by code."""

    @property
    def damaged(self) -> Counter[str]:
        """`rows` of the store that could not be read and were set aside, and `tasks` in them."""

    @property
    def tracing(self) -> Tracing | None:
        """Records spans; None: this process does not trace."""

    def spawn(self, running: Coroutine[Any, Any, None]) -> object:
        """Run the coroutine in the background."""

    def ask(self, message: TreeRequest, seconds: float, done: Done) -> ShardQuestion:
        """Send a request to the owner of the message's partition. `done` is called once, with the
        answer or an error, and never before this has returned."""
