"""Back up SQLite stores while the node runs, and restore them.

A backup is a directory: the databases, the documents and `node.json`, and `backup.json`, which
describes it. Each database is copied in one read transaction, so the copy is consistent, whatever
is written meanwhile. All these transactions begin before the first page is copied, within
milliseconds of one another. That is enough: everything of a partition is in one file, and nothing
spans two of them.

The signing key is left out: it is a secret, and a restored store gets a new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, Struct, json

from maitred.errors import InvalidArgument, StoreUnavailable
from maitred.store.manifest import (
    BACKUP_FILE,
    DATABASE,
    MANIFEST_FILE,
    RESTORING_FILE,
    HistoryEntry,
    KnownFile,
    Manifest,
    RestoredFrom,
    check,
    read_manifest,
    read_only,
    write_manifest,
)
from maitred.store.private_files import sync, write_private
from maitred.store.sqlite_directory import KEY_FILE, locked
from maitred.store.sqlite_documents import SUFFIX
from maitred.store.sqlite_errors import translated
from maitred.store.sqlite_recovery import (
    format_moment,
    highest_range,
    put_away,
    raise_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[int, int, str], None]
    """Is called with the pages or files done, the total, and a description of the step."""

IDENTITY_FILE: Final = "node.json"
PAGES_AT_ONCE: Final = 2_048
"""How many pages of 4 KiB are copied between two reports of progress."""

TABLES: Final = ("partitions", "segments", "later", "dead", "results", "damaged")


class BackupFile(Struct):
    """One file of a backup."""

    sha256: str
    rows: dict[str, int]
    """Row counts by table, and under `tasks` the unfinished tasks; empty unless a database."""
    identity: str = ""
    generation: int = 0


class Backup(Struct):
    """The description of a backup, as `backup.json` holds it."""

    store: str
    taken_at: float
    files: dict[str, BackupFile]
    range_floor: int

    def total(self, table: str) -> int:
        """Return how many rows of a table, or how many `tasks`, all files have together."""
        return sum(file.rows.get(table, 0) for file in self.files.values())


def back_up(data: Path, target: Path, tell: Tell) -> Backup:
    """Copy the store of a node, running or not, into the new directory `target`, and verify it."""
    if target.exists():
        raise InvalidArgument(f"{target} exists.", remedy="Name a directory that does not.")
    with translated(target):
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        made = _copy(data, unfinished, tell)
        with translated(target):
            write_private(unfinished / BACKUP_FILE, json.format(json.encode(made), indent=1))
            unfinished.rename(target)
            sync(target.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return made


def _copy(data: Path, target: Path, tell: Tell) -> Backup:
    if not (data / MANIFEST_FILE).exists():
        raise InvalidArgument(
            f"{data} is not a data directory with SQLite files of this version.",
            remedy="Name the directory of a node that was started with this version (--data). "
            "A PostgreSQL store is backed up with PostgreSQL's own tools.",
        )
    files: dict[str, BackupFile] = {}
    with ExitStack() as held:
        with locked(data):
            # A node may have the files open, which is not known here, so do not check the logs.
            manifest = read_manifest(data)
            check(data, manifest, alone=False)
            if manifest is None:
                raise StoreUnavailable(f"{MANIFEST_FILE} does not exist any more.")
            taken_at = time.time()
            sources = {}
            for name in sorted(manifest.files):
                sources[name] = held.enter_context(closing(_snapshot(data / name)))
            others = [IDENTITY_FILE, *sorted(one.name for one in data.glob(f"*{SUFFIX}"))]
            for name in others:
                if (data / name).exists():
                    with translated(target / name):
                        write_private(target / name, (data / name).read_bytes())
                    files[name] = BackupFile(_sha256(target / name), {})
        pages = [one.execute("PRAGMA page_count").fetchone()[0] for one in sources.values()]
        done, total = 0, 2 * sum(pages)
        for (name, source), size in zip(sources.items(), pages, strict=True):
            begun = done

            def copied(
                _status: int, left: int, of: int, begun: int = begun, name: str = name
            ) -> None:
                tell(begun + of - left, total, f"{name}: copied")

            with translated(target / name):
                files[name] = _copy_file(source, target / name, copied)
            done += 2 * size
            tell(done, total, f"{name}: copied and verified")
    return Backup(manifest.store, taken_at, files, manifest.range_floor)


def _snapshot(path: Path) -> sqlite3.Connection:
    """Open a connection that sees the database as it is now, for as long as it is open."""
    connection = read_only(path)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT generation FROM identity").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _copy_file(
    source: sqlite3.Connection, target: Path, copied: Callable[[int, int, int], None]
) -> BackupFile:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(target, isolation_level=None)) as made:
        source.backup(made, pages=PAGES_AT_ONCE, progress=copied)
        made.execute("PRAGMA journal_mode = DELETE")
        rows = _verified(target.name, made)
        if rows != _rows(source):
            raise StoreUnavailable(f"The copy of {target.name} has other rows than the original.")
        identity, generation = made.execute("SELECT file, generation FROM identity").fetchone()
    sync(target)
    return BackupFile(_sha256(target), rows, identity, generation)


def _verified(name: str, connection: sqlite3.Connection) -> dict[str, int]:
    """Check a database's integrity and count its rows; raise `StoreUnavailable` if damaged."""
    found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    if found != ["ok"]:
        raise StoreUnavailable(
            f"{name} is damaged: {'; '.join(map(str, found))}.",
            remedy="The backup was not made. Copy the directory of the stopped node as it is.",
        )
    return _rows(connection)


def _rows(connection: sqlite3.Connection) -> dict[str, int]:
    rows = {
        table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
        for table in TABLES
    }
    (tasks,) = connection.execute("SELECT coalesce(sum(backlog), 0) FROM partitions").fetchone()
    return rows | {"tasks": tasks}


def read_backup(path: Path) -> Backup:
    """Read the description of a backup."""
    try:
        return json.decode((path / BACKUP_FILE).read_bytes(), type=Backup)
    except FileNotFoundError:
        raise InvalidArgument(
            f"{path} is not a backup: it has no {BACKUP_FILE}.",
            remedy="Name the directory that `maitred admin backup` made.",
        ) from None
    except (DecodeError, OSError) as problem:
        raise InvalidArgument(f"{path / BACKUP_FILE} cannot be read: {problem}.") from None


def restore(backup: Path, data: Path, tell: Tell, *, replaces: bool) -> Backup:
    """Restore a backup into a data directory; the caller locks it, so that no node uses it.

    Existing files are moved away, if `replaces` allows that, and never deleted.
    """
    known = read_backup(backup)
    _verify_backup(backup, known, tell)
    with translated(data), locked(data):
        there = [one.name for one in data.iterdir() if _is_replaced(one.name)]
        if there and not replaces:
            raise InvalidArgument(
                f"{data} has a store already: {', '.join(sorted(there)[:3])}.",
                remedy="Name another directory, or add --replace: the files that are there are "
                "then moved into a folder beside it.",
            )
        now = time.time()
        used = [highest_range(data / name) for name in there if DATABASE.fullmatch(name)]
        # An interrupted restore moved the files away, and kept their manifest.
        previous = (
            _read_previous(data / RESTORING_FILE)
            or _read_previous(data / MANIFEST_FILE)
            or Manifest(known.store)
        )
        previous.range_floor = max(previous.range_floor, *used, 0)
        write_private(data / RESTORING_FILE, json.encode(previous))
        if there:
            put_away(data, there, "replaced", now)
        manifest = Manifest(known.store, history=previous.history)
        manifest.range_floor = max(known.range_floor, previous.range_floor)
        manifest.restored = RestoredFrom(known.taken_at, now)
        for name, file in known.files.items():
            if name != IDENTITY_FILE or not (data / name).exists():
                _bring(backup / name, data / name)
            if file.identity:
                manifest.files[name] = KnownFile(file.identity, file.generation)
        manifest.history.append(
            HistoryEntry(now, f"restored a backup of {format_moment(known.taken_at)}")
        )
        raise_numbers(data, manifest)
        write_manifest(data, manifest)
        (data / RESTORING_FILE).unlink()
        sync(data)
    return known


def _is_replaced(name: str) -> bool:
    database, _, part = name.partition(".db")
    is_database = DATABASE.fullmatch(f"{database}.db") is not None and part in {"", "-wal", "-shm"}
    return is_database or name in {MANIFEST_FILE, KEY_FILE} or name.endswith(SUFFIX)


def _read_previous(path: Path) -> Manifest | None:
    try:
        return json.decode(path.read_bytes(), type=Manifest)
    except (OSError, DecodeError):
        return None


def _verify_backup(backup: Path, known: Backup, tell: Tell) -> None:
    for at, (name, file) in enumerate(known.files.items()):
        path = backup / name
        if not path.exists() or _sha256(path) != file.sha256:
            raise InvalidArgument(
                f"{path} is not the file that was backed up.",
                remedy="Use another copy of the backup.",
            )
        if file.identity:
            with closing(_immutable(path)) as connection:
                if _verified(name, connection) != file.rows:
                    raise InvalidArgument(f"{path} has other rows than were backed up.")
        tell(at + 1, len(known.files), f"{name}: verified")


def _immutable(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def _bring(source: Path, target: Path) -> None:
    with source.open("rb") as original:
        write_private(target, original)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
