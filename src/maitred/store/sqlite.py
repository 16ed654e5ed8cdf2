"""The embedded engine: SQLite files in the node's data directory, and a thread that owns them.

Nothing has to be installed or run beside the node. The price: all of a node's tasks are on that
node's disk. A commit is on disk when it returns (synchronous = FULL, a write-ahead log).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from maitred.store.owned_thread import OwnedThread
from maitred.store.sqlite_directory import SqliteDirectory
from maitred.store.sqlite_file import BUSY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maitred.matching.records import (
        Acquired,
        Changes,
        Damaged,
        DamagedKind,
        Dead,
        Later,
        PartitionKey,
        Result,
    )
    from maitred.store.interface import (
        Acquisition,
        Document,
        EmptyPartition,
        QueueContents,
        Refusal,
        SegmentRead,
        Store,
        StoreUse,
    )


async def open_sqlite(directory: Path, own: int, *, busy_seconds: float = BUSY_SECONDS) -> Store:
    """Open the store of shard `own`, which creates new partitions in `tasks-<own>.db`.

    Raise `CannotStart` if there is a file that this program cannot use.
    """
    thread = OwnedThread(f"store {own}")
    try:
        opened = await thread.call(SqliteDirectory, directory, own, busy_seconds)
    except BaseException:
        await thread.close(lambda: None)
        raise
    return _SqliteStore(thread, opened)


class _SqliteStore:
    """Runs every call in its thread; a read of a partition that does not exist returns nothing."""

    def __init__(self, thread: OwnedThread, directory: SqliteDirectory) -> None:
        self._call = thread.call
        self._thread = thread
        self._directory = directory

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        return await self._call(self._directory.acquire, group)

    async def commit(self, group: Sequence[Changes]) -> Sequence[PartitionKey]:
        return await self._call(self._directory.commit, group)

    async def segments(
        self, key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        def read() -> list[SegmentRead]:
            place = self._directory.place(key)
            if place is None:
                return []
            return place.file.segments(place.number, priority, after, tasks, most_bytes)

        return await self._call(read)

    async def segments_around(self, key: PartitionKey, sequence: int) -> list[SegmentRead]:
        def read() -> list[SegmentRead]:
            place = self._directory.place(key)
            return place.file.segments_around(place.number, sequence) if place else []

        return await self._call(read)

    async def later(
        self, key: PartitionKey, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        def read() -> list[Later]:
            place = self._directory.place(key)
            return place.file.later(place.number, before, most, most_bytes) if place else []

        return await self._call(read)

    async def later_one(self, key: PartitionKey, sequence: int) -> Later | None:
        def read() -> Later | None:
            place = self._directory.place(key)
            return place.file.later_one(place.number, sequence) if place else None

        return await self._call(read)

    async def dead(self, key: PartitionKey, after: int, most: int) -> list[Dead]:
        def read() -> list[Dead]:
            place = self._directory.place(key)
            return place.file.dead(place.number, after, most) if place else []

        return await self._call(read)

    async def dead_one(self, key: PartitionKey, sequence: int) -> Dead | None:
        def read() -> Dead | None:
            place = self._directory.place(key)
            return place.file.dead_one(place.number, sequence) if place else None

        return await self._call(read)

    async def dead_count(self, key: PartitionKey) -> int:
        def read() -> int:
            place = self._directory.place(key)
            return place.file.dead_count(place.number) if place else 0

        return await self._call(read)

    async def damaged(self, key: PartitionKey, after: tuple[int, str], most: int) -> list[Damaged]:
        def read() -> list[Damaged]:
            place = self._directory.place(key)
            return place.file.damaged(place.number, after, most) if place else []

        return await self._call(read)

    async def damaged_one(self, key: PartitionKey, kind: DamagedKind, first: int) -> Damaged | None:
        def read() -> Damaged | None:
            place = self._directory.place(key)
            return place.file.damaged_one(place.number, kind, first) if place else None

        return await self._call(read)

    async def damaged_around(self, key: PartitionKey, sequence: int) -> list[Damaged]:
        def read() -> list[Damaged]:
            place = self._directory.place(key)
            return place.file.damaged_around(place.number, sequence) if place else []

        return await self._call(read)

    async def damaged_count(self, key: PartitionKey) -> tuple[int, int]:
        def read() -> tuple[int, int]:
            place = self._directory.place(key)
            return place.file.damaged_count(place.number) if place else (0, 0)

        return await self._call(read)

    async def result(self, key: PartitionKey, sequence: int) -> Result | None:
        def read() -> Result | None:
            place = self._directory.place(key)
            return place.file.result(place.number, sequence) if place else None

        return await self._call(read)

    async def forget_results(self, before: float, most: int) -> int:
        return await self._call(self._directory.forget_results, before, most)

    async def partitions(self) -> list[PartitionKey]:
        return await self._call(self._directory.partitions)

    async def queues(self, namespace: str, most: int) -> list[str]:
        return await self._call(self._directory.queues, namespace, max(most, 0))

    async def queue_count(self, namespace: str) -> int:
        return await self._call(self._directory.queue_count, namespace)

    async def empty_partitions(self, after: PartitionKey | None, most: int) -> list[EmptyPartition]:
        return await self._call(self._directory.empty_partitions, after, max(most, 0))

    async def forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        return await self._call(self._directory.forget, group)

    async def delete_queue(self, key: PartitionKey, *, force: bool) -> QueueContents:
        return await self._call(partial(self._directory.delete_queue, key, force=force))

    async def children_with_tasks(self) -> list[PartitionKey]:
        return await self._call(self._directory.children_with_tasks)

    async def use(self) -> StoreUse:
        return await self._call(self._directory.use)

    async def signing_key(self) -> bytes:
        return await self._call(self._directory.signing_key)

    async def document(self, name: str, known: int = 0) -> Document | None:
        return await self._call(self._directory.document, name, known)

    async def replace_document(self, name: str, version: int, body: bytes) -> bool:
        return await self._call(self._directory.replace_document, name, version, body)

    async def close(self) -> None:
        await self._thread.close(self._directory.close)
