"""Hands partitions over to the shards that own them by a newer view of the cluster.

The next owner asks (HAND_OVER). From then on the partition takes no requests and hands out nothing.
Its long polls are answered so that their callers ask again and find the next owner; tasks at the
parent are called back; everything is persisted, results too. Then this shard lets the partition go,
and answers with the attempts that run. Partitions that leave at the same time are written by one
commit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from maitred.errors import NotOwner
from maitred.matching.records import PartitionKey
from maitred.node.request_table import RequestTable
from maitred.node.takeover import HAND_OVER_SECONDS, moved
from maitred.node.waiting_requests import Makes, RequestKind, WaitingRequest
from maitred.node.writer import RETRY_SECONDS
from maitred.protocol.cluster import HandedOver, HandOver
from maitred.protocol.frames import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.errors import MaitredError
    from maitred.matching.shared_supplies import SharedSupplies
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.owned import Owned
    from maitred.node.shard_services import PartitionShard
    from maitred.node.writer import Writer

CALL_BACK_SECONDS: Final = 0.3
"""How long a leaving partition waits for its parent to answer for tasks and offers that it called
back, and for look-ups: an exchange between two nodes takes some milliseconds. Afterwards its tasks
there count as leased to an unknown worker."""

LOOK_SECONDS: Final = 0.002
"""Interval at which a leaving partition looks whether its parent has answered."""

STUCK_SECONDS: Final = 30.0
"""How long a shard tries to persist a leaving partition while the store fails. By then the next
owner may have acquired it, and what is in memory cannot be written any more."""

KEPT_AT_ONCE: Final = 5_000
"""Results in memory that a leaving partition persists with one commit: some 50 ms."""

KEPT_BYTES: Final = 8 * 2**20
"""Bytes of results that one partition persists with one such commit."""

LEFT_SECONDS: Final = 60.0
"""How long a shard remembers which attempts ran when it let a partition go, for a next owner that
asks late, or again. Leases are shorter."""

LEFT_MAX: Final = 10_000
"""Partitions of which that is remembered; the oldest is forgotten first."""


class LeavingPartitions(Protocol):
    """The partitions of a shard, as those that hand them over use them."""

    @property
    def shard(self) -> PartitionShard: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def owned(self) -> dict[PartitionKey, Owned]:
        """The partitions that are loaded."""

    @property
    def supplies(self) -> SharedSupplies:
        """Slots of workers that are on offer to many partitions."""

    @property
    def writer(self) -> Writer: ...

    def touch(self, owned: Owned) -> None:
        """Drive the partition at the end of the turn."""

    def drive(self, owned: Owned) -> None:
        """Do now what the partition would do at the end of the turn."""

    def drop(self, owned: Owned, problem: MaitredError) -> None:
        """Let go of a partition without writing anything."""

    def has(self, key: PartitionKey) -> bool:
        """Whether the partition is loaded, or being loaded."""

    def load_for(self, key: PartitionKey, request: WaitingRequest) -> None:
        """Load the partition, and then serve the request."""


class LeftPartition(NamedTuple):
    """What the next owner of a partition that was let go is told."""

    handed: HandedOver
    at: float
    """The loop's time at which the partition was let go."""


class Handovers:
    """Lets partitions go in order, for next owners that ask or on the shard's own account."""

    def __init__(self, partitions: LeavingPartitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._leaving: dict[Owned, list[DeferredReply]] = {}
        """Partitions that are leaving, and the requests of their next owners."""
        self._left: dict[PartitionKey, LeftPartition] = {}
        self._to_commit: dict[Owned, asyncio.Future[None]] = {}
        """Partitions that wait for the next commit."""
        self._commits = False
        self.handed_over = 0
        """Partitions that were let go in order."""
        self._when_loaded = RequestKind(
            self._serve, Makes.NOTHING, None, otherwise=HandedOver(released=False)
        )
        self.requests = RequestTable(holders={Opcode.HAND_OVER: self._hand_over})

    def __repr__(self) -> str:
        return f"<Handovers: {len(self._leaving)} leaving>"

    @property
    def leaving(self) -> int:
        """The number of partitions that are being handed over."""
        return len(self._leaving)

    def _hand_over(self, message: HandOver, held: DeferredReply) -> None:
        view = self._shard.view
        key = PartitionKey(message.namespace, message.queue, message.queue_type, message.partition)
        owned = self._partitions.owned.get(key)
        is_newer = view is not None and view.version > message.version
        # Two shards that load the same partition must not wait for each other.
        is_loading = owned is None and self._partitions.has(key)
        if (is_newer or is_loading) and self._shard.owner_of(message) == self._shard.number:
            raise NotOwner("This shard owns the partition by a newer view of the cluster.")
        if owned is not None:
            self.begin(owned, held)
        elif is_loading:
            self._partitions.load_for(key, WaitingRequest(self._when_loaded, message, held))
        else:
            held.answer(self._told_of(key))

    def _serve(self, owned: Owned, _message: HandOver, held: DeferredReply) -> None:
        self.begin(owned, held)

    def _told_of(self, key: PartitionKey) -> HandedOver:
        """Return what is remembered of a partition that this shard does not have."""
        left = self._left.get(key)
        now = self._loop.time()
        if left is None or left.at < now - LEFT_SECONDS:
            return HandedOver(released=False)
        handed, passed = left.handed, now - left.at
        for one in handed.attempts:
            one.lease_seconds -= passed
        self._left[key] = LeftPartition(handed, now)
        return handed

    def begin(self, owned: Owned, held: DeferredReply | None = None) -> None:
        """Let the partition go in order; the reply gets the outcome. A partition that cannot be
        persisted stays here as long as there is hope."""
        waiting = self._leaving.get(owned)
        if waiting is None:
            waiting = self._leaving[owned] = []
            owned.leaving = True
            owned.partition.begin_leaving(moved())
            self._partitions.supplies.forget_at(owned.key)
            self._partitions.touch(owned)
            self._shard.spawn(self._leave(owned))
        if held is not None:
            waiting.append(held)

    async def _leave(self, owned: Owned) -> None:
        late = self._loop.call_later(HAND_OVER_SECONDS, self._takes_long, owned)
        try:
            with self._shard.failures_logged("partition not handed over"):
                await self._leave_in_order(owned)
        finally:
            late.cancel()
            self._answer(owned, HandedOver(released=False))
            del self._leaving[owned]

    def _takes_long(self, owned: Owned) -> None:
        """Let the next owner go on: the store fails, or does not answer."""
        self._answer(owned, self._handed(owned, released=False))

    async def _leave_in_order(self, owned: Owned) -> None:
        loop, partition = self._loop, owned.partition
        now = loop.time()
        give_up_at = now + STUCK_SECONDS
        await self._until(
            lambda: not owned.asked and not partition.stored_tasks.is_searching,
            now + CALL_BACK_SECONDS,
        )
        if self._partitions.owned.get(owned.key) is not owned:
            return  # it was let go meanwhile, and all requests that waited for it were answered
        partition.tree.lose_all_away(loop.time())
        self._partitions.drive(owned)
        while True:
            partition.results.keep_in_store(loop.time(), KEPT_AT_ONCE, KEPT_BYTES)
            await self._written(owned)
            now = loop.time()
            if self._partitions.owned.get(owned.key) is not owned:
                return  # it was overtaken, deleted, or the outcome of the commit is unknown
            if partition.is_written and not partition.results.keep_in_store(now, 1, KEPT_BYTES):
                break
            if now >= give_up_at:
                self._partitions.drop(owned, moved())
                return
            if partition.health.problem is not None:
                await asyncio.sleep(RETRY_SECONDS)
        lost = partition.results.unwritten(now)
        if lost:
            self._shard.log.warning("results not kept", queue=owned.key.queue, results=lost)
        handed = self._handed(owned, released=not partition.own_tasks.recovering)
        self._partitions.drop(owned, moved())
        self.handed_over += 1
        self._remember(owned.key, handed)
        self._answer(owned, handed)

    def _handed(self, owned: Owned, *, released: bool) -> HandedOver:
        partition = owned.partition
        running = partition.attempts.running(self._loop.time())
        return HandedOver(released, running, partition.ledger.range_id)

    def _answer(self, owned: Owned, handed: HandedOver) -> None:
        waiting = self._leaving[owned]
        while waiting:
            waiting.pop().answer(handed)

    def _remember(self, key: PartitionKey, handed: HandedOver) -> None:
        self._left.pop(key, None)
        self._left[key] = LeftPartition(handed, self._loop.time())
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        while self._loop.time() < deadline:
            if condition():
                return
            await asyncio.sleep(LOOK_SECONDS)

    # Commits

    async def _written(self, owned: Owned) -> None:
        """Wait until all changes of the partition were committed once, with those of others that
        leave."""
        future = self._to_commit[owned] = self._loop.create_future()
        if not self._commits:
            self._commits = True
            self._shard.spawn(self._commit_all())
        await future

    async def _commit_all(self) -> None:
        try:
            while self._to_commit:
                # Others that leave in this turn of the loop join.
                await asyncio.sleep(0)
                group, self._to_commit = self._to_commit, {}
                try:
                    await self._partitions.writer.commit(list(group), anything=True, clean=True)
                finally:
                    for future in group.values():
                        if not future.done():
                            future.set_result(None)
        finally:
            self._commits = False
