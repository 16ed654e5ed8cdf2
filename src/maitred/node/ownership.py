"""What a shard does when the view of the cluster changes: it lets go of what it no longer owns, and
loads what it owns now and has work.

A partition that moves and is in use wakes up its next owner, which then asks for it (HAND_OVER). If
the next owner does not, the shard lets the partition go by itself. Partitions that are not in use
are let go at once. Everything happens at a bounded rate: a store that has to load a thousand
partitions at once serves nobody meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from maitred.errors import MaitredError
from maitred.node.partition_trust import PartitionTrust
from maitred.node.takeover import HAND_OVER_SECONDS, is_owner, moved
from maitred.protocol.tasks import Counts, Sync

if TYPE_CHECKING:
    from msgspec import Struct

    from maitred.matching.records import PartitionKey
    from maitred.membership.view import ClusterView
    from maitred.node.handover import Handovers
    from maitred.node.owned import Owned
    from maitred.node.shard_services import PartitionShard
    from maitred.store.interface import Store

LOOKED_AT_ONCE: Final = 256
"""Partitions whose owner is computed in one turn of the loop, before requests are served again."""

WOKEN_AT_ONCE: Final = 64
"""Partitions that move whose next owners are being asked to load them."""

LOADED_AT_ONCE: Final = 32
"""Partitions with tasks that are loaded at a time after the view changed: one group of the loader,
so that partitions that requests name wait for one group at most."""

RETRY_SECONDS: Final = 1.0
"""Pause before partitions with tasks are looked for again, after one could not be loaded; it
doubles each time, up to `RETRY_LONGEST_SECONDS`."""

RETRY_LONGEST_SECONDS: Final = 30.0

TRUST_LOOK_SECONDS: Final = 0.1
"""Interval at which the shard looks whether the node's lease is renewed, to serve its partitions
again."""


class MovablePartitions(Protocol):
    """The partitions of a shard, as `PartitionMoves` uses them."""

    @property
    def shard(self) -> PartitionShard: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def store(self) -> Store: ...

    @property
    def owned(self) -> dict[PartitionKey, Owned]:
        """The partitions that are loaded."""

    @property
    def handovers(self) -> Handovers: ...

    def touch(self, owned: Owned) -> None:
        """Drive the partition at the end of the turn."""

    def lost(self, key: PartitionKey, problem: MaitredError) -> None:
        """Forget the partition: another shard owns it, or what the store has of it is unknown."""

    async def question(self, message: Any, seconds: float = ...) -> Struct:  # noqa: ANN401
        """Send a request to the owner of a partition, and wait for the answer."""


class PartitionMoves:
    """Follows the view of the cluster for the partitions of one shard."""

    def __init__(self, partitions: MovablePartitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._changed = asyncio.Event()
        self._waking: dict[PartitionKey, Owned] = {}
        """Partitions whose next owner is asked to load them."""
        self._turns = asyncio.Semaphore(WOKEN_AT_ONCE)
        self._withheld = False
        """Whether a partition was told that the lease is not to be trusted."""

    def begin(self) -> None:
        """Follow the view from now on."""
        self._shard.view_listeners.append(self._view_changes)
        self._shard.spawn(self._let_go())
        self._shard.spawn(self._load())
        self._shard.spawn(self._watch_lease())

    def _view_changes(self, old: ClusterView | None, new: ClusterView) -> None:
        # A view with a node that joins changes no owner. Neither does one without a node that was
        # draining, but that node may have died before it had handed over everything.
        if old is not None and new.places_like(old) and not _gone(old, new):
            return
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def trust(self) -> PartitionTrust:
        """Return what a partition asks before it hands out work; call it before the partition is
        acquired."""
        return PartitionTrust(self._shard, self._note_withheld)

    def _note_withheld(self) -> None:
        self._withheld = True

    def is_ours(self, key: PartitionKey) -> bool:
        """Return whether this shard owns the partition by its view."""
        return is_owner(self._shard, key)

    def left(self) -> int:
        """Count the partitions that this shard has and does not own: a node that drains waits until
        there are none."""
        return sum(not self.is_ours(key) for key in list(self._partitions.owned))

    # Partitions that others own

    async def _let_go(self) -> None:
        while True:
            changed = self._changed
            owned = list(self._partitions.owned.values())
            for start in range(0, len(owned), LOOKED_AT_ONCE):
                for one in owned[start : start + LOOKED_AT_ONCE]:
                    self.look_at(one)
                await asyncio.sleep(0)
            await changed.wait()

    def look_at(self, owned: Owned) -> None:
        """Let the partition go, if another shard owns it."""
        key = owned.key
        if (
            owned.leaving
            or key in self._waking
            or self._partitions.owned.get(key) is not owned
            or self.is_ours(key)
        ):
            return
        if owned.partition.is_used:
            self._waking[key] = owned
            self._shard.spawn(self._wake(owned))
        else:
            self._partitions.handovers.begin(owned)

    async def _wake(self, owned: Owned) -> None:
        """Have the next owner load the partition: it asks this shard for it. If it does not within
        a while, let the partition go."""
        key = owned.key
        try:
            async with self._turns:
                try:
                    await self._partitions.question(load_only(key), HAND_OVER_SECONDS)
                except MaitredError as problem:
                    self._shard.log.debug(
                        "next owner not reached",
                        queue=key.queue,
                        partition=key.partition,
                        error=problem,
                    )
        finally:
            del self._waking[key]
        if self._partitions.owned.get(key) is owned and not owned.leaving and not self.is_ours(key):
            self._partitions.handovers.begin(owned)

    # Partitions that this shard owns

    async def _load(self) -> None:
        pause = RETRY_SECONDS
        while True:
            changed = self._changed
            if self._shard.view is not None:
                try:
                    failed = await self.load_those_with_tasks()
                except MaitredError as problem:
                    self._shard.log.warning("partitions not looked for", error=problem)
                    failed = True
                except Exception:
                    self._shard.log.exception("partitions not looked for")
                    failed = True
                if failed:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await changed.wait()
                    pause = min(2 * pause, RETRY_LONGEST_SECONDS)
                    continue
            pause = RETRY_SECONDS
            await changed.wait()

    async def load_those_with_tasks(self) -> bool:
        """Load the partitions that have tasks and that this shard owns; return whether some could
        not be loaded. Stop if the view changes meanwhile: then they are looked for again."""
        changed = self._changed
        keys = await self._partitions.store.partitions_with_tasks()
        wanted = []
        for start in range(0, len(keys), LOOKED_AT_ONCE):
            some = keys[start : start + LOOKED_AT_ONCE]
            wanted += [key for key in some if self._is_wanting(key)]
            await asyncio.sleep(0)
        loaded: list[bool] = []
        for start in range(0, len(wanted), LOADED_AT_ONCE):
            if changed.is_set():
                break
            some = wanted[start : start + LOADED_AT_ONCE]
            loaded += await asyncio.gather(*(self._load_one(key) for key in some))
        return not all(loaded)

    def _is_wanting(self, key: PartitionKey) -> bool:
        """Return whether this shard owns the partition and does not have it. One that is being
        loaded counts, since that may fail, and one that is leaving by an older view: it has to be
        loaded again."""
        owned = self._partitions.owned.get(key)
        return (owned is None or owned.leaving) and self.is_ours(key)

    async def _load_one(self, key: PartitionKey) -> bool:
        if not self._is_wanting(key):
            return True
        try:
            await self._partitions.question(load_only(key))
        except MaitredError as problem:
            self._shard.log.warning(
                "partition not loaded", queue=key.queue, partition=key.partition, error=problem
            )
            return False
        return True

    # The lease

    async def _watch_lease(self) -> None:
        """Look at all partitions when the node's lease is renewed after it could not be trusted:
        they withheld tasks and slots."""
        log = self._shard.log
        is_known = False
        while True:
            await asyncio.sleep(TRUST_LOOK_SECONDS)
            if self._shard.view is None:
                continue  # the node has not joined yet, and has no lease to lose
            if not self._shard.trusted():
                if not is_known:
                    log.warning("lease not renewed; stored tasks and slots are withheld")
                is_known = self._withheld = True
            elif self._withheld:
                with self._shard.failures_logged("partitions not compared with the store"):
                    await self._confirm()
                    if is_known:
                        log.info("lease renewed")
                    is_known = False

    async def _confirm(self) -> None:
        """Give up the partitions that other owners have acquired since the lease ran out, and look
        at the others: they withheld tasks and slots."""
        self._withheld = False
        owned, lapses = self._partitions.owned, self._shard.lapses
        doubted = [one for one in owned.values() if one.trust and one.trust.lapses != lapses]
        try:
            for start in range(0, len(doubted), LOOKED_AT_ONCE):
                some = {one.key: one for one in doubted[start : start + LOOKED_AT_ONCE]}
                overtaken = set(await self._partitions.store.overtaken(list(some)))
                for key, one in some.items():
                    if owned.get(key) is not one:
                        continue
                    if key in overtaken:
                        self._partitions.lost(key, moved())
                    elif one.trust:
                        one.trust.lapses = lapses
        except BaseException:
            self._withheld = True  # the store is away
            raise
        for one in list(owned.values()):
            self._partitions.touch(one)


def load_only(key: PartitionKey) -> Sync:
    """Return a request that loads the partition at its owner; its version 0 changes nothing."""
    return Sync(*key, 0, Counts(1, 1, 0), makes=True)


def _gone(old: ClusterView, new: ClusterView) -> bool:
    """Return whether a member of the older view is not in the newer one."""
    return not {one.id for one in old.members} <= {one.id for one in new.members}
