"""What a shard knows of the cluster that its node belongs to: the view, and the node's lease.

The supervisor tells its shards every view, and so do other shards before they forward a request
that they placed by a newer view. A view is adopted only if it is newer than the present one.

The lease says how long the other members will at least wait before they give the partitions of this
node to others. It is measured on the boot clock, which also counts while the machine is suspended:
a shard that was paused sees that its lease is over before it hands anything out.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import InvalidArgument
from maitred.node.request_table import RequestTable
from maitred.protocol import cql
from maitred.protocol.cluster import ViewTold
from maitred.protocol.description import DATABASE_CLOCK
from maitred.protocol.frames import Opcode
from maitred.security.cluster_proof import NONCE_BYTES, ListenerProof

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager
    from typing import Any

    from maitred.logs import Logger
    from maitred.membership.view import ClusterView
    from maitred.node.accepted import Accepted
    from maitred.node.owners import Owners
    from maitred.node.shard_place import ShardPlace
    from maitred.protocol.cluster import TellView
    from maitred.surroundings import Surroundings

    ViewListener = Callable[[ClusterView | None, ClusterView], None]
    """Called with the previous view and the new one."""

VIEW_PORTION: Final = 256
"""Connections that are sent a new view in one loop turn, before requests are served again."""


class MemberShard(Protocol):
    """The shard that belongs to a member of a cluster."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the shard."""

    @property
    def log(self) -> Logger:
        """Takes warnings and failures."""

    @property
    def connections(self) -> dict[Accepted, None]:
        """The open connections, in the order of arrival."""

    def spawn(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the shard closes."""

    def failures_logged(self, event: str) -> AbstractContextManager[None]:
        """Log what the block raises."""

    def adopt(self, view: ClusterView) -> None:
        """Have all parts of the shard adopt the view, if it is newer than the present one."""


class ShardMembership:
    """The shard's view of the cluster, and the node's lease."""

    def __init__(
        self, shard: MemberShard, place: ShardPlace, owners: Owners, surroundings: Surroundings
    ) -> None:
        self._shard = shard
        self._place = place
        self._owners = owners
        self._secret = bytes.fromhex(place.cluster_secret)
        self._draw = surroundings.secret
        self._clock = surroundings.boot_clock or shard.loop.time
        self._wall_clock = surroundings.wall_clock
        self._ahead_seconds = 0.0
        self._correction_seconds = 0.0
        """What the cluster's time is behind this machine's wall clock."""
        self.listeners: list[ViewListener] = []
        """Called with the previous view and the new one when the shard has adopted a view."""
        self.lease_until = -inf if owners.clustered else inf
        """Until when the node's lease may be trusted, by the boot clock."""
        self.lapses = 0
        """How often the lease had run out before it was renewed."""
        self.requests = RequestTable(handlers={Opcode.TELL_VIEW: self._tell_view})

    # The lease, and the clock that comes with it

    def renew_lease(self, until: float, clock_ahead_seconds: float) -> None:
        """Trust the node's lease until this time of the boot clock. The node's wall clock is so far
        ahead of the database's."""
        if self.lease_until > -inf and not self.trusted():
            self.lapses += 1
        self.lease_until = max(self.lease_until, until)
        self._ahead_seconds = clock_ahead_seconds
        self._correct_clock()

    def cluster_time(self) -> float:
        """Return the time by which the nodes of the cluster store moments and place partitions:
        the database's, if all members go by it, otherwise that of this machine."""
        return self._wall_clock() - self._correction_seconds

    def _correct_clock(self) -> None:
        view = self._owners.view
        is_common = view is not None and view.understands(DATABASE_CLOCK)
        self._correction_seconds = self._ahead_seconds if is_common else 0.0

    def trusted(self) -> bool:
        """Whether the node's lease has not run out, so that no other member has its partitions."""
        return self.lease_until == inf or self._clock() < self.lease_until

    # The view

    def adopt(self, view: ClusterView) -> bool:
        """Place partitions by this view from now on; return False if it is not newer than the
        present one."""
        before = self._owners.view
        if not self._owners.clustered:
            raise InvalidArgument("This node belongs to no cluster.")
        if before is not None and view.version <= before.version:
            return False
        if before is not None and view.cluster != before.cluster:
            self._shard.log.error(
                "view of another cluster ignored", cluster=view.cluster[:60], own=before.cluster
            )
            return False
        self._owners.adopt(view)
        self._correct_clock()
        self._shard.log.debug(
            "view adopted", version=view.version, members=len(view.members), active=len(view.active)
        )
        if self._owners.dead:
            self._shard.log.error("the cluster has declared this node dead", version=view.version)
        for listener in list(self.listeners):
            with self._shard.failures_logged("a listener of the view failed"):
                listener(before, view)
        self._part_from_the_dead(before, view)
        self._shard.spawn(self._push())
        return True

    def _part_from_the_dead(self, before: ClusterView | None, view: ClusterView) -> None:
        """End the connections of members that are not in the view any more: what they wait for,
        such as tasks for their workers, would be lost."""
        known = () if before is None else before.members
        dead = {one.id for one in known} - {one.id for one in view.members}
        if dead:
            for connection in list(self._shard.connections):
                connection.members_died(dead)

    async def _push(self) -> None:
        """Send the view to the connections that have registered for it. One that registers later
        gets it at once, and none gets a view twice."""
        registered = [one for one in self._shard.connections if cql.VIEW in one.events]
        for start in range(0, len(registered), VIEW_PORTION):
            for connection in registered[start : start + VIEW_PORTION]:
                connection.tell_view()
            await asyncio.sleep(0)

    def _tell_view(self, message: TellView) -> ViewTold:
        self._shard.adopt(message.view)
        return ViewTold(self._owners.version)

    # Proofs

    @property
    def prover(self) -> Callable[[str], ListenerProof] | None:
        """Begins this member's end of the mutual proof with a process of another node that has this
        role; None without a cluster."""
        return self._prove if self._owners.clustered and self._secret else None

    def _prove(self, role: str) -> ListenerProof:
        return ListenerProof(self._secret, self._draw(NONCE_BYTES), role, self._place.member)
