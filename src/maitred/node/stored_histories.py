"""Histories that queues keep in the store: read before the first look, written now and then.

`maitred.matching.stored_history` decides what is written and what of it expires.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import MaitredError
from maitred.logs import OccasionalWarning
from maitred.matching.stored_history import HistoryReading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.records import PartitionKey
    from maitred.matching.stored_history import StoredHistory
    from maitred.matching.task_history import HistoryMemory
    from maitred.node.owned import Owned
    from maitred.node.shard_services import PartitionShard
    from maitred.node.writer import Writer
    from maitred.store.interface import Store

READ_ROWS: Final = 1_000
"""Rows that are read at a time, between which other requests are served."""

READ_BYTES: Final = 2**20
"""Bytes of rows after which such a read ends: some ten milliseconds."""

WRITTEN_AT_ONCE: Final = 100
"""Partitions whose histories are written with one commit, at most; each writes one row."""

COMMITS_MAX: Final = 50
"""Commits of histories in a row, before other periodic work of the shard is done. That is 50,000
small tasks of one partition, more than a shard ends in the second until the next ones."""


class RememberedPartitions(Protocol):
    """The partitions of a shard, as their stored histories use them."""

    @property
    def shard(self) -> PartitionShard: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def store(self) -> Store: ...

    @property
    def writer(self) -> Writer: ...

    @property
    def owned(self) -> dict[PartitionKey, Owned]:
        """The partitions that are loaded."""

    def check(self, owned: Owned) -> None:
        """Raise `NotOwner` if the partition was let go while a request waited for the store."""


class StoredHistories:
    """Reads and writes the stored histories of one shard."""

    def __init__(self, partitions: RememberedPartitions, memory: HistoryMemory) -> None:
        self._partitions = partitions
        self._loop = partitions.loop
        self._memory = memory
        self._told_lost = 0
        self._reading = asyncio.Lock()
        """One history is read at a time: each may take as much memory as a shard keeps."""
        log = partitions.shard.log
        self._lost_warning = OccasionalWarning(log, "ended tasks forgotten before they were stored")
        self._damaged_warning = OccasionalWarning(log, "damaged rows of a history left out")
        self._unread_warning = OccasionalWarning(log, "history not read")

    async def known(self, owned: Owned) -> None:
        """Read the history of the partition into memory, unless memory has it, or it has none."""
        history = owned.partition.stored_history
        if history.is_known:
            return
        async with self._reading:
            if not history.is_known:
                await self._read(owned, history)

    async def _read(self, owned: Owned, history: StoredHistory) -> None:
        reading = HistoryReading()
        store, after = self._partitions.store, history.rows_of_others
        is_whole = False
        while not is_whole:
            rows = await store.history(owned.key, after, READ_ROWS, READ_BYTES)
            self._partitions.check(owned)
            history.read(rows, reading, self._memory.most_bytes)
            size = sum(len(row.body) for row in rows)
            is_whole = len(rows) < READ_ROWS and size < READ_BYTES
            if not is_whole:
                after = rows[-1].number
                await asyncio.sleep(0)
        history.read_whole(reading, self._loop.time())
        if reading.damaged:
            self._damaged_warning.say(
                self._loop.time(),
                namespace=owned.key.namespace,
                queue=owned.key.queue,
                partition=owned.key.partition,
                rows=reading.damaged,
            )

    async def write(self) -> None:
        """Write what has ended since the last time."""
        unstored = self._memory.unstored
        idle: set[Owned] = set()
        for _ in range(COMMITS_MAX):
            due = []
            for key in list(islice(unstored, WRITTEN_AT_ONCE)):
                del unstored[key]
                owned = self._partitions.owned.get(key)
                if owned is not None and not owned.leaving:
                    await self._know_before_writing(owned)
                    due.append(owned)
            if due:
                commit = await self._partitions.writer.write_histories(due)
                idle.update(commit.idle)
                self._want_written(owned for owned in due if owned not in idle)
                if commit.is_failed:
                    break
            if not unstored:
                break
        self._want_written(idle)  # once a second: a quota may have no room, an end be unwritten
        self._tell_lost()

    def _want_written(self, partitions: Iterable[Owned]) -> None:
        """Look again at those partitions that still have something to write."""
        now = self._loop.time()
        for owned in partitions:
            if owned.partition.stored_history.is_due(now):
                owned.partition.stored_history.want_written()

    async def _know_before_writing(self, owned: Owned) -> None:
        """Learn which rows there are, so that the oldest can expire. If they cannot be read now,
        the new ones are written all the same."""
        try:
            await self.known(owned)
        except MaitredError as problem:
            self._unread_warning.say(self._loop.time(), queue=owned.key.queue, error=problem)

    def _tell_lost(self) -> None:
        lost = self._memory.lost - self._told_lost
        if lost:
            self._told_lost += lost
            self._lost_warning.say(self._loop.time(), tasks=lost)
