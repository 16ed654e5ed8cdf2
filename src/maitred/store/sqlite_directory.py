"""All `tasks-<n>.db` files of a node, as one of its shards uses them.

SQLite has one writer per file, so every shard has a file of its own. But the number of shards may
change at the next start, and a partition may change its owner at any time. So a partition stays in
the file in which it was created; a shard that acquires it looks for it in all files, and creates it
in its own if it is in none. That happens under one lock, or two shards might both create it.

Several processes may therefore write one file. SQLite's locks make that safe; it is only slower.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from contextlib import contextmanager, suppress
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from maitred.errors import CannotStart, MaitredError, StoreUnavailable
from maitred.matching.records import Acquired, PartitionKey, StoredUse
from maitred.store.interface import (
    SIGNING_KEY_BYTES,
    PartlyWritten,
    QueueContents,
    Refusal,
    StoreUse,
)
from maitred.store.manifest import (
    DATABASE,
    KnownFile,
    Manifest,
    check,
    read_manifest,
    write_manifest,
)
from maitred.store.private_files import open_private, write_private
from maitred.store.sqlite_documents import read_document, replace_document
from maitred.store.sqlite_errors import translated, translated_at_start
from maitred.store.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from maitred.matching.records import Changes
    from maitred.store.interface import Acquisition, Document, EmptyPartition, LastOwner

LOCK_FILE: Final = "tasks.lock"

USERS_FILE: Final = "tasks.users"
"""Every process that has the databases open locks this file, so that each knows whether it is the
only one."""

GENERATION_SECONDS: Final = 60.0
"""How often the generation of a file is raised while it is written. A copy of a file is detected as
outdated if it is older than that. It costs two commits and a write of the manifest."""

KEY_FILE: Final = "tasks.key"
"""The file of the signing key, beside the databases because they all share one key."""

OLDEST: Final = (3, 38)
"""The oldest supported version of SQLite: it has JSON built in, strict tables and RETURNING."""


class PartitionFile(NamedTuple):
    """The file of a partition and its number there, until it is deleted; a number is never used
    twice."""

    file: SqliteFile
    number: int


class SqliteDirectory:
    """The databases of a node; every call blocks, the constructor too, so use the store's
    thread."""

    def __init__(self, path: Path, own: int, busy_seconds: float) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise CannotStart(
                f"This Python has SQLite {sqlite3.sqlite_version}, and maitred needs "
                f"{'.'.join(map(str, OLDEST))} or newer.",
                remedy="Use a newer Python, or a PostgreSQL store.",
            )
        self._path = path
        self._own = own
        self._busy_seconds = busy_seconds
        self._files: dict[int, SqliteFile] = {}
        """The files by number, in ascending order: all shards must search them in one order."""
        self._places: dict[PartitionKey, PartitionFile] = {}
        self._users = -1
        self._is_checked = False
        self._range_floor = 0
        self._raised_at = time.monotonic()
        try:
            with translated_at_start(path):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with translated_at_start(path / LOCK_FILE), locked(self._path):
                self._join(own)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<SqliteDirectory {self._path}, {len(self._files)} files>"

    def _join(self, own: int) -> None:
        """Open all files, if they match the manifest; the caller holds the lock."""
        self._users = open_private(self._path / USERS_FILE, os.O_RDWR | os.O_CREAT)
        alone = _is_alone(self._users)
        found = read_manifest(self._path)
        check(self._path, found, alone=alone)
        self._is_checked = True
        manifest = found or Manifest(str(uuid4()))
        self._range_floor = manifest.range_floor
        self._open_all({own, *self._new()}, manifest, at_start=True, settles=not alone)
        if alone:
            for number, file in self._files.items():
                manifest.files[_name(number)].generation = file.next_generation()
            manifest.open = True
            manifest.restored = None
            write_manifest(self._path, manifest)
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def close(self) -> None:
        """Close all files. If no other process has them open, first record in the manifest that
        they are closed; if that fails, leave them open to the end of the process."""
        if self._users < 0:
            self._close_files()
            return
        try:
            with suppress(MaitredError), locked(self._path):
                fcntl.flock(self._users, fcntl.LOCK_UN)
                if self._is_checked and _is_alone(self._users):
                    self._say_closed()
                self._close_files()
        finally:
            os.close(self._users)
            self._users = -1

    def _say_closed(self) -> None:
        manifest = read_manifest(self._path)
        if manifest is not None and manifest.open:
            for file in self._files.values():
                file.carry_over()
            manifest.open = False
            write_manifest(self._path, manifest)

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _raise_generations(self) -> None:
        """Raise the generations of the files that were written, once in `GENERATION_SECONDS`."""
        now = time.monotonic()
        if now - self._raised_at < GENERATION_SECONDS:
            return
        self._raised_at = now
        written = {number: file for number, file in self._files.items() if file.is_written}
        if not written:
            return
        with locked(self._path):
            manifest = read_manifest(self._path)
            if manifest is None:
                return
            for number, file in written.items():
                manifest.files[_name(number)].generation = file.next_generation()
            write_manifest(self._path, manifest)

    def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        found: dict[PartitionKey, Acquired | Refusal] = {}
        self._acquire_known(group, found)
        left = [wanted for wanted in group if wanted.key not in found]
        if left:
            with locked(self._path):
                self._open_new(self._new())
                self._find([wanted.key for wanted in left])
                self._acquire_known(left, found)
                self._make([wanted for wanted in left if wanted.key not in found], found)
        return [found[wanted.key] for wanted in group]

    def _acquire_known(
        self, group: Sequence[Acquisition], found: dict[PartitionKey, Acquired | Refusal]
    ) -> None:
        """Acquire the partitions whose places are known; forget a place that no longer has one."""
        keys: dict[SqliteFile, dict[int, PartitionKey]] = {}
        for wanted in group:
            place = self._places.get(wanted.key)
            if place is not None:
                keys.setdefault(place.file, {})[place.number] = wanted.key
        for file, numbers in keys.items():
            acquired = file.acquire(list(numbers))
            for number, key in numbers.items():
                if number in acquired:
                    found[key] = acquired[number]
                else:
                    del self._places[key]

    def _make(
        self, group: Sequence[Acquisition], found: dict[PartitionKey, Acquired | Refusal]
    ) -> None:
        """Create the partitions that do not exist, as far as quotas allow. The caller holds the
        lock, or two shards might create the same one, or exceed a quota."""
        counts: dict[str, int] = {}
        total = -1
        made = []
        for wanted in group:
            key, quota = wanted.key, wanted.quota
            if not wanted.makes:
                found[key] = Refusal.UNKNOWN
                continue
            if not key.partition:
                if key.namespace not in counts:
                    counts[key.namespace] = self.queue_count(key.namespace)
                if total < 0:
                    total = sum(file.queue_total() for file in self._files.values())
                if counts[key.namespace] >= quota.namespace:
                    found[key] = Refusal.NAMESPACE_FULL
                    continue
                if total >= quota.total:
                    found[key] = Refusal.STORE_FULL
                    continue
                counts[key.namespace] += 1
                total += 1
            made.append(key)
        if made:
            file = self._files[self._own]
            range_id = 1 + max(
                self._range_floor, *(one.watermark() for one in self._files.values())
            )
            for key, number in file.make(made, range_id).items():
                self._places[key] = PartitionFile(file, number)
                found[key] = Acquired(range_id, None, 0, clean=True)

    def owners(
        self,
        group: Sequence[PartitionKey],  # noqa: ARG002
    ) -> dict[PartitionKey, LastOwner]:
        """Return nothing: only one node uses the files."""
        return {}

    def overtaken(self, group: Sequence[PartitionKey]) -> list[PartitionKey]:  # noqa: ARG002
        """Return nothing, for the same reason."""
        return []

    def commit(self, group: Sequence[Changes]) -> list[PartitionKey]:
        """Commit in one transaction per file that the group touches; nearly always that is one."""
        entries: dict[SqliteFile, list[tuple[int, Changes]]] = {}
        overtaken = []
        for changes in group:
            place = self._places.get(changes.key)
            if place is None:
                overtaken.append(changes.key)  # this shard does not own the partition
            else:
                entries.setdefault(place.file, []).append((place.number, changes))
        written: list[PartitionKey] = []
        for file, part in entries.items():
            try:
                left_out = file.write(part)
            except MaitredError as problem:
                if not written:
                    raise
                raise PartlyWritten(problem, written, overtaken) from problem
            overtaken += left_out
            written += [changes.key for _, changes in part if changes.key not in left_out]
        return overtaken

    def place(self, key: PartitionKey) -> PartitionFile | None:
        """Return the place of a partition; None if it does not exist."""
        found = self._places.get(key)
        if found is None:
            self._look_around()
            self._find([key])
            found = self._places.get(key)
        return found

    def _find(self, keys: Sequence[PartitionKey]) -> None:
        """Look up the places of partitions in all files."""
        for file in self._files.values():
            for key, number in file.find(keys).items():
                self._places[key] = PartitionFile(file, number)

    def forget_results(self, before: float, most: int) -> int:
        """Delete expired results in all files, since their partitions may have no owner; start with
        the shard's own file, so that the shards of a node do not all wait for the same one."""
        self._look_around()
        numbers = list(self._files)
        start = numbers.index(self._own)
        forgotten = 0
        for number in numbers[start:] + numbers[:start]:
            forgotten += self._files[number].forget_results(before, most - forgotten)
        return forgotten

    def partitions(self) -> list[PartitionKey]:
        self._look_around()
        return sorted(key for file in self._files.values() for key in file.partitions())

    def partitions_with_tasks(self) -> list[PartitionKey]:
        self._look_around()
        return sorted(key for file in self._files.values() for key in file.partitions_with_tasks())

    def children_with_tasks(self) -> list[PartitionKey]:
        return [key for key in self.partitions_with_tasks() if key.partition]

    def use(self) -> StoreUse:
        """Sum up all files. A file never shrinks, so free pages in the shard's own file count as
        room: otherwise a node whose backlog once filled the disk would refuse tasks for ever."""
        self._look_around()
        self._raise_generations()
        found: dict[tuple[str, str], StoredUse] = {}
        letters: dict[tuple[str, str], int] = {}
        for file in self._files.values():
            for queue, use, dead in file.use():
                found[queue] = found.get(queue, StoredUse()).plus(use)
                if dead:
                    letters[queue] = letters.get(queue, 0) + dead
        with translated(self._path):
            disk = os.statvfs(self._path)
        free = disk.f_bavail * disk.f_frsize + self._files[self._own].free_bytes()
        return StoreUse(found, free, letters)

    def queues(self, namespace: str, most: int) -> list[str]:
        self._look_around()
        most = max(most, 0)
        names = {name for file in self._files.values() for name in file.queues(namespace, most)}
        return sorted(names)[:most]

    def queue_count(self, namespace: str) -> int:
        return sum(file.queue_count(namespace) for file in self._files.values())

    def empty_partitions(self, after: PartitionKey | None, most: int) -> list[EmptyPartition]:
        self._look_around()
        most = max(most, 0)
        start = after or PartitionKey("", "", 0, 0)
        found = [one for file in self._files.values() for one in file.empty_partitions(start, most)]
        return sorted(found, key=lambda one: one.key)[:most]

    def forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        """Delete empty partitions, roots last: a root whose queue has another partition stays."""
        gone: list[PartitionKey] = []
        with locked(self._path):
            self._open_new(self._new())
            self._find([key for key, _ in group])
            gone += self._forget([entry for entry in group if entry[0].partition])
            roots = [entry for entry in group if not entry[0].partition]
            gone += self._forget([entry for entry in roots if len(self._of_queue(entry[0])) == 1])
        return sorted(gone)

    def _forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        entries: dict[SqliteFile, list[tuple[int, int]]] = {}
        keys: dict[PartitionFile, PartitionKey] = {}
        for key, range_id in group:
            place = self._places.get(key)
            if place is not None:
                keys[place] = key
                entries.setdefault(place.file, []).append((place.number, range_id))
        gone = [
            keys[PartitionFile(file, number)]
            for file, numbers in entries.items()
            for number in file.forget(numbers)
        ]
        for key in gone:
            del self._places[key]
        return gone

    def delete_queue(self, key: PartitionKey, *, force: bool) -> QueueContents:
        """Delete a queue, the root's file last, so that a partial failure can be repeated."""
        with locked(self._path):
            self._open_new(self._new())
            self._find([key])
            found = self._of_queue(key)
            tasks, dead, damaged = (sum(row[at] for _, row in found) for at in (1, 2, 3))
            deleted = force or not (tasks or dead or damaged)
            if deleted:
                root = self._places.get(key)
                numbers: dict[SqliteFile, list[int]] = {}
                for file, row in found:
                    numbers.setdefault(file, []).append(row[0])
                for file in sorted(numbers, key=lambda one: root is not None and one is root.file):
                    file.delete(numbers[file])
                for other in [one for one in self._places if one[:3] == key[:3]]:
                    del self._places[other]
        return QueueContents(deleted, len(found), tasks, dead, damaged)

    def _of_queue(self, key: PartitionKey) -> list[tuple[SqliteFile, tuple[int, int, int, int]]]:
        return [(file, row) for file in self._files.values() for row in file.of_queue(key)]

    def signing_key(self) -> bytes:
        """Read the key of this directory; the first call creates it."""
        path = self._path / KEY_FILE
        with locked(self._path), translated(path):
            if not path.exists():
                write_private(path, token_bytes(SIGNING_KEY_BYTES))
            key = path.read_bytes()
        if len(key) != SIGNING_KEY_BYTES:
            raise StoreUnavailable(
                f"{path.name} does not hold {SIGNING_KEY_BYTES} bytes: it is damaged.",
                remedy="Put it back from a backup. If you delete it, the node makes a new one and "
                "refuses what workers report of tasks that they were given before.",
            )
        return key

    def document(self, name: str, known: int = 0) -> Document | None:
        return read_document(self._path, name, known)

    def replace_document(self, name: str, version: int, body: bytes) -> bool:
        with locked(self._path):
            return replace_document(self._path, name, version, body)

    def _look_around(self) -> None:
        """Open files that appeared, once the processes that create them have released the lock."""
        new = self._new()
        if new:
            with locked(self._path):
                self._open_new(new)

    def _new(self) -> set[int]:
        with translated(self._path):
            names = [DATABASE.fullmatch(file.name) for file in self._path.iterdir()]
        return {int(name[1]) for name in names if name} - self._files.keys()

    def _open_new(self, new: set[int]) -> None:
        """Open files that another process created since; the caller holds the lock."""
        if new:
            manifest = read_manifest(self._path)
            if manifest is not None:
                known = {number for number in new if _name(number) in manifest.files}
                self._open_all(known, manifest, at_start=False)

    def _open_all(
        self, numbers: set[int], manifest: Manifest, *, at_start: bool, settles: bool = True
    ) -> None:
        """Open files, and give an identity to those without; the manifest lists them first."""
        unknown = {_name(number) for number in numbers} - manifest.files.keys()
        for name in sorted(unknown):
            manifest.files[name] = KnownFile(str(uuid4()), 0)
        if unknown:
            write_manifest(self._path, manifest)
        for number in sorted(numbers):
            path = self._path / _name(number)
            with (translated_at_start if at_start else translated)(path):
                file = self._files[number] = SqliteFile.open(path, self._busy_seconds)
                file.identify(manifest.store, manifest.files[path.name].identity)
        self._files = dict(sorted(self._files.items()))
        if not settles:
            return
        new = {number for number in numbers if not manifest.files[_name(number)].generation}
        for number in new:
            known = manifest.files[_name(number)]
            known.generation = self._files[number].next_generation()
        if new:
            write_manifest(self._path, manifest)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock under which files of the directory are created."""
    path = directory / LOCK_FILE
    with translated(path):
        lock = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        with translated(path):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _name(number: int) -> str:
    return f"tasks-{number}.db"


def _is_alone(users: int) -> bool:
    """Return whether no other process has the databases open; if so, none can open them until the
    lock of the directory is released."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
