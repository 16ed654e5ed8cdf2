"""Keeps a shard's quotas of stored tasks up to date: asks the store once a second for its sums."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.logs import OccasionalWarning
from maitred.matching.quotas import LOOK_SECONDS, Quotas
from maitred.protocol.tasks import StoredAmount
from maitred.store.interface import StoreUse

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.matching.queue_meters import QueueName
    from maitred.matching.quotas import Quota
    from maitred.matching.records import PartitionKey
    from maitred.node.shard_services import ConfiguredShard
    from maitred.settings import Queue
    from maitred.store.interface import Store

LOOK_SHARE: Final = 0.05
"""Largest share of the time for reads of the sums. Where one takes long, because there are many
queues or the store is slow, the next one comes later."""


class StoredQuotas:
    """The quotas of one shard, with the sums that it reads from the store."""

    def __init__(self, shard: ConfiguredShard, store: Store) -> None:
        self._shard = shard
        self._store = store
        self._quotas = Quotas(shard.settings.namespaces, shard.settings.limits.free_disk_bytes)
        self._use = StoreUse({}, None, {})
        self._looked = False
        self._looking = asyncio.Lock()
        self._refused_warning = OccasionalWarning(shard.log, "tasks refused")

    def begin(self) -> None:
        """Read the sums periodically until the shard stops."""
        self._shard.spawn(self._run())

    async def known(self) -> None:
        """Wait until the sums were read once."""
        if not self._looked:
            async with self._looking:
                if not self._looked:
                    await self._look()

    def of(self, key: PartitionKey, settings: Queue) -> tuple[Quota, ...]:
        """Return the quotas of a loaded partition, which counts in them at once."""
        return self._quotas.of(key, settings)

    def queue_amount(self, key: PartitionKey, settings: Queue) -> StoredAmount:
        """Describe the use and quota of a partition's queue."""
        use = self._quotas.queue_use(key.namespace, key.queue)
        return StoredAmount(*use, settings.stored_tasks, settings.stored_bytes)

    def namespace_amount(self, key: PartitionKey) -> StoredAmount:
        """Describe the use and quota of a partition's namespace."""
        limits = self._quotas.namespace_settings(key.namespace)
        use = self._quotas.namespace_use(key.namespace)
        return StoredAmount(*use, limits.stored_tasks, limits.stored_bytes)

    def names(self) -> list[QueueName]:
        """Return the queues that have something in the store, loaded or not."""
        return list(self._use.queues)

    def backlog(self, name: QueueName) -> int:
        """Return how many tasks of a queue the store has that are not over."""
        use = self._use.queues.get(name)
        return 0 if use is None else use.tasks - self.dead(name)

    def dead(self, name: QueueName) -> int:
        """Return how many dead letters of a queue the store has."""
        return self._use.dead.get(name, 0)

    def dead_letters(self) -> list[tuple[QueueName, int]]:
        """Return the queues that have dead letters in the store, and how many."""
        return list(self._use.dead.items())

    def refused(self, key: PartitionKey, tasks: int, problem: MaitredError) -> None:
        """Log that tasks were refused."""
        self._refused_warning.say(
            self._shard.loop.time(),
            namespace=key.namespace,
            queue=key.queue,
            tasks=tasks,
            error=problem,
        )

    async def _run(self) -> None:
        loop = self._shard.loop
        while True:
            begun = loop.time()
            async with self._looking:
                with self._shard.failures_logged("stored tasks not counted"):
                    await self._look()
            took = loop.time() - begun
            await asyncio.sleep(max(LOOK_SECONDS, took / LOOK_SHARE))

    async def _look(self) -> None:
        self._quotas.look_begins()
        use = await self._store.use()
        self._quotas.look_ended(use.queues, use.free_bytes)
        self._use = use
        self._looked = True
