"""Start a node although files are lost, once a person has accepted the loss.

Sequence numbers of tasks must not repeat: a worker that still holds an attempt at a lost task must
not be able to end another task that got its number. So range ids jump beyond any that may have been
used, and a new signing key is created, which makes old proofs invalid.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from maitred.errors import InvalidArgument
from maitred.store.manifest import (
    DATABASE,
    MANIFEST_FILE,
    RANGE_JUMP,
    HistoryEntry,
    KnownFile,
    Manifest,
    Problem,
    check,
    look,
    problems,
    read_manifest,
    read_only,
    write_manifest,
)
from maitred.store.sqlite_directory import KEY_FILE, locked
from maitred.store.sqlite_errors import translated_at_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from maitred.store.interface import StoreLog

PARTS: Final = ("", "-wal", "-shm")
"""The suffixes of the files of one database."""


def prepare(directory: Path, accepted: Sequence[str], log: StoreLog) -> None:
    """Check the files before a node starts with them; no other process uses the directory.

    Raise `CannotStart` if files differ from the manifest, unless a person has accepted the loss of
    those files.
    """
    with translated_at_start(directory), locked(directory):
        if accepted:
            _accept(directory, accepted, log)
        manifest = read_manifest(directory)
        check(directory, manifest, alone=True)
    if manifest is not None and manifest.restored is not None:
        log.warning(
            "the store is a restored backup",
            taken_at=format_moment(manifest.restored.taken_at),
            restored_at=format_moment(manifest.restored.restored_at),
        )


def _accept(directory: Path, accepted: Sequence[str], log: StoreLog) -> None:
    found = look(directory)
    said: list[Problem] = []
    if MANIFEST_FILE in accepted:
        said.append(Problem(MANIFEST_FILE, "is missing or damaged, and is made anew"))
        stores = [seen.store for seen in found.values() if seen.store]
        manifest = Manifest(stores[0] if stores else str(uuid4()))
        for name, seen in found.items():
            if seen.store == manifest.store:
                manifest.files[name] = KnownFile(seen.identity, seen.generation)
        known: Manifest | None = manifest
    else:
        known = read_manifest(directory)
        manifest = known or Manifest(str(uuid4()))
    said += [one for one in problems(known, found) if one.file in accepted]
    idle = set(accepted) - {one.file for one in said}
    if idle:
        raise InvalidArgument(
            f"Nothing is wrong with {', '.join(sorted(idle))}: there is no loss to accept.",
            remedy="Start without --accept-loss for it.",
        )
    now = time.time()
    for one in said:
        if one.file in found and not one.keeps:
            put_away(directory, [one.file], "lost", now)
        if one.keeps:
            manifest.files[one.file].generation = found[one.file].generation
        else:
            manifest.files.pop(one.file, None)
        manifest.history.append(HistoryEntry(now, f"loss accepted: it {one.what}", one.file))
        log.warning("loss accepted", file=str(directory / one.file), reason=f"it {one.what}")
    manifest.open = False
    raise_numbers(directory, manifest)
    write_manifest(directory, manifest)


def raise_numbers(directory: Path, manifest: Manifest) -> None:
    """Raise range ids so that no sequence number repeats, and delete the signing key so that no old
    proof is valid."""
    paths = [directory / name for name in manifest.files if (directory / name).exists()]
    highest = [highest_range(path) for path in paths]
    manifest.range_floor = max(manifest.range_floor, *highest, 0) + RANGE_JUMP
    for path in paths:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(
                "UPDATE partitions SET range_id = max(range_id, ?1), counts_version = "
                "CASE WHEN counts_version IS NULL THEN NULL ELSE max(counts_version, ?1) END",
                (manifest.range_floor,),
            )
    (directory / KEY_FILE).unlink(missing_ok=True)


def highest_range(path: Path) -> int:
    """Return the highest range id, or version of counts, in a database; 0 if unreadable."""
    try:
        with closing(read_only(path)) as connection:
            (highest,) = connection.execute(
                "SELECT max(max(range_id), coalesce(max(counts_version), 0)) FROM partitions"
            ).fetchone()
            (mark,) = connection.execute("SELECT max(range_id) FROM watermark").fetchone()
    except sqlite3.DatabaseError:
        return 0
    return max(highest or 0, mark or 0)


def put_away(directory: Path, names: Iterable[str], why: str, now: float) -> Path:
    """Move files into a new folder in the directory, instead of deleting them; return it."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    folder = directory / f"{why}-{moment}"
    number = 0
    while folder.exists():
        number += 1
        folder = directory / f"{why}-{moment}-{number}"
    folder.mkdir(mode=0o700)
    for name in names:
        parts = PARTS if DATABASE.fullmatch(name) else ("",)
        for part in parts:
            if (directory / f"{name}{part}").exists():
                (directory / f"{name}{part}").rename(folder / f"{name}{part}")
    return folder


def format_moment(seconds: float) -> str:
    """Format a unix time in UTC, as logs do."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
