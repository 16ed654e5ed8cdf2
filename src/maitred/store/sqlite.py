"""The embedded engine: SQLite files in the node's data directory, and a thread that owns them.

Nothing has to be installed or run beside the node. The price: all of a node's tasks are on that
node's disk. A commit is on disk when it returns (synchronous = FULL, a write-ahead log).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from maitred.store.owned_thread import OwnedThread
from maitred.store.sqlite_directory import SqliteDirectory
from maitred.store.sqlite_file import BUSY_SECONDS, SqliteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from maitred.matching.records import PartitionKey
    from maitred.store.interface import Store

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


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


def _whole(
    method: Callable[Concatenate[SqliteDirectory, _Given], _Result],
) -> Callable[Concatenate[_SqliteStore, _Given], Coroutine[Any, Any, _Result]]:
    """Return a method of the store that runs this one of the directory in the store's thread."""

    async def call(self: _SqliteStore, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        return await self.thread.call(partial(method, self.directory, *given, **named))

    return call


def _partition(
    method: Callable[Concatenate[SqliteFile, int, _Given], _Result],
    missing: Callable[[], _Result],
) -> Callable[Concatenate[_SqliteStore, PartitionKey, _Given], Coroutine[Any, Any, _Result]]:
    """Return a method of the store that runs this one of a file for the number that the partition
    has there. For a partition that does not exist it returns what `missing` makes."""

    async def call(
        self: _SqliteStore, key: PartitionKey, /, *given: _Given.args, **named: _Given.kwargs
    ) -> _Result:
        def read() -> _Result:
            place = self.directory.place(key)
            return method(place.file, place.number, *given, **named) if place else missing()

        return await self.thread.call(read)

    return call


def _none() -> None:
    return None


class _SqliteStore:
    """Runs every call in its thread."""

    def __init__(self, thread: OwnedThread, directory: SqliteDirectory) -> None:
        self.thread = thread
        self.directory = directory

    def __repr__(self) -> str:
        return f"<SqliteStore {self.directory!r}, {self.thread!r}>"

    acquire = _whole(SqliteDirectory.acquire)
    commit = _whole(SqliteDirectory.commit)
    segments = _partition(SqliteFile.segments, list)
    segments_around = _partition(SqliteFile.segments_around, list)
    later = _partition(SqliteFile.later, list)
    later_after = _partition(SqliteFile.later_after, list)
    later_one = _partition(SqliteFile.later_one, _none)
    dead = _partition(SqliteFile.dead, list)
    dead_one = _partition(SqliteFile.dead_one, _none)
    later_count = _partition(SqliteFile.later_count, int)
    dead_count = _partition(SqliteFile.dead_count, int)
    damaged = _partition(SqliteFile.damaged, list)
    damaged_one = _partition(SqliteFile.damaged_one, _none)
    damaged_around = _partition(SqliteFile.damaged_around, list)
    damaged_count = _partition(SqliteFile.damaged_count, lambda: (0, 0))
    result = _partition(SqliteFile.result, _none)
    history = _partition(SqliteFile.history, list)
    forget_results = _whole(SqliteDirectory.forget_results)
    partitions = _whole(SqliteDirectory.partitions)
    queues = _whole(SqliteDirectory.queues)
    queue_count = _whole(SqliteDirectory.queue_count)
    empty_partitions = _whole(SqliteDirectory.empty_partitions)
    forget = _whole(SqliteDirectory.forget)
    delete_queue = _whole(SqliteDirectory.delete_queue)
    partitions_with_tasks = _whole(SqliteDirectory.partitions_with_tasks)
    children_with_tasks = _whole(SqliteDirectory.children_with_tasks)
    use = _whole(SqliteDirectory.use)
    signing_key = _whole(SqliteDirectory.signing_key)
    document = _whole(SqliteDirectory.document)
    owners = _whole(SqliteDirectory.owners)
    overtaken = _whole(SqliteDirectory.overtaken)
    replace_document = _whole(SqliteDirectory.replace_document)

    def watch(self, may_have_lost: Callable[[], None]) -> None:
        """Do nothing: no other server can take over the files."""

    async def close(self) -> None:
        await self.thread.close(self.directory.close)
