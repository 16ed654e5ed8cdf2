"""The manifest: which files a data directory must have, and which version of each.

A database that is missing, emptied or swapped looks like an empty one: its tasks would be lost
silently. So every database holds its store, its own identity and a generation, and so does the
manifest beside them. A generation is raised in the database first and then in the manifest, so
after a crash in between the database is ahead, and never behind. A database that is behind is an
older copy.

While any process has the databases open, the manifest says so: then each has a write-ahead log with
commits that may be nowhere else, and a database without its log has lost commits. The last process
that closes the databases checkpoints the logs, then records in the manifest that they are closed,
and only then SQLite removes the logs.

`problems` decides what is wrong; everything else here is I/O.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import DecodeError, Struct, field, json

from maitred.errors import CannotStart
from maitred.store.private_files import write_private
from maitred.store.sqlite_errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MANIFEST_FILE: Final = "tasks.manifest"
BACKUP_FILE: Final = "backup.json"
RESTORING_FILE: Final = "tasks.restoring"
"""This file exists from the first change that a restore makes until its last."""
DATABASE: Final = re.compile(r"tasks-(\d+)\.db")

RANGE_JUMP: Final = 2**20
"""How far range ids are raised when tasks were lost. Range ids that were used after a backup must
not be used again, and how many those were is not known. A partition that is loaded once a second
needs twelve days for this many."""


_INDEX: Final = struct.Struct("=16sI")
"""The start of the index of a write-ahead log, up to the number of valid frames."""
_LOG_HEADER: Final = struct.Struct(">8xI4x8s8x")
"""The header of a write-ahead log: the size of a page, and the salts of its frames."""
_FRAME: Final = struct.Struct(">4xI8s8x")
"""The header of a frame: the size of the database after it, if it ends a commit, and the salts."""


class KnownFile(Struct):
    """A database as the manifest records it."""

    identity: str
    generation: int
    """The generation; 0 means that the file is being created, and may not exist yet."""


class HistoryEntry(Struct, omit_defaults=True):
    """An action of a person on the files: a restore, or a loss that was accepted."""

    at: float
    what: str
    file: str = ""


class RestoredFrom(Struct):
    """The backup that the directory was restored from."""

    taken_at: float
    restored_at: float


class Manifest(Struct):
    """The recorded state of a store's files."""

    store: str
    files: dict[str, KnownFile] = field(default_factory=dict)
    open: bool = False
    """Whether a process has the databases open, or had when it died."""
    range_floor: int = 0
    """New partitions get range ids above this number."""
    restored: RestoredFrom | None = None
    """Set by a restore, until the first start after it; None otherwise."""
    history: list[HistoryEntry] = field(default_factory=list)


class FoundFile(NamedTuple):
    """A database as it is found on disk."""

    store: str = ""
    identity: str = ""
    """The identity of the file; empty if it never got one."""
    generation: int = 0
    is_empty: bool = False
    is_readable: bool = True
    has_log: bool = False
    """Whether the file has a write-ahead log that is not empty."""
    lost_commits: int = 0
    """How many commits of the log SQLite does not see, because the log is damaged before them."""


class Problem(NamedTuple):
    """The difference between a file and its record in the manifest."""

    file: str
    what: str
    """The description; it continues a sentence that begins with the name of the file."""
    keeps: bool = False
    """Whether the file is the right one, though some of its commits are missing."""


def problems(
    manifest: Manifest | None, found: Mapping[str, FoundFile], *, alone: bool = True
) -> list[Problem]:
    """Compare the files with the manifest; `alone` means that no other process has them open."""
    if manifest is None:
        named = sorted(name for name, seen in found.items() if seen.identity)
        if not named:
            return []
        return [Problem(MANIFEST_FILE, f"is missing, though {named[0]} was listed in it")]
    said = []
    for name, known in sorted(manifest.files.items()):
        if known.generation:
            problem = _problem(manifest, name, known, found.get(name), alone=alone)
            if problem is not None:
                said.append(problem)
    for name, seen in sorted(found.items()):
        if name not in manifest.files and not seen.is_empty:
            said.append(Problem(name, "is not a file that this directory had"))
    return said


def _problem(
    manifest: Manifest, name: str, known: KnownFile, seen: FoundFile | None, *, alone: bool
) -> Problem | None:
    if seen is None:
        return Problem(name, "is missing")
    if seen.is_empty:
        return Problem(name, "is empty, and was not when it was left")
    if not seen.is_readable:
        return Problem(name, "is not a database, or it is damaged")
    if not seen.identity:
        return Problem(name, "is not the file that was left: it has no identity")
    if seen.store != manifest.store:
        return Problem(name, "belongs to another data directory")
    if seen.identity != known.identity:
        others = [one for one, other in manifest.files.items() if other.identity == seen.identity]
        return Problem(name, f"is not the file that was left: it is {(others or ['unknown'])[0]}")
    if seen.generation < known.generation:
        return Problem(
            name,
            f"is an older copy: it is at generation {seen.generation}, and was left at "
            f"{known.generation}",
            keeps=True,
        )
    if alone and manifest.open and not seen.has_log:
        return Problem(
            name,
            f"was not closed in order, and its write-ahead log {name}-wal is missing or empty, "
            "with the last commits",
            keeps=True,
        )
    if alone and seen.lost_commits:
        return Problem(
            name,
            f"has a damaged write-ahead log: at least {seen.lost_commits} commits in "
            f"{name}-wal cannot be read",
            keeps=True,
        )
    return None


def refuse(directory: Path, found: Iterable[Problem]) -> None:
    """Raise `CannotStart` if there are any problems."""
    said = list(found)
    if not said:
        return
    sentence = "; ".join(f"{one.file} {one.what}" for one in said)
    flags = " ".join(f"--accept-loss {one.file}" for one in said)
    raise CannotStart(
        f"The data directory {directory} is not as it was left: {sentence}.",
        remedy="Put the right files back, or restore a backup with `maitred admin restore`. If "
        f"what is missing is lost, accept that with `maitred up {flags}`.",
    )


def check(directory: Path, manifest: Manifest | None, *, alone: bool) -> None:
    """Raise `CannotStart` unless the files are those that the manifest records."""
    if manifest is None and (directory / BACKUP_FILE).exists():
        raise CannotStart(
            f"{directory} is a backup, not a data directory.",
            remedy="Restore it with `maitred admin restore`, and start that.",
        )
    if (directory / RESTORING_FILE).exists():
        raise CannotStart(
            f"A restore into {directory} was interrupted.",
            remedy="Repeat it: `maitred admin restore BACKUP --replace`.",
        )
    refuse(directory, problems(manifest, look(directory), alone=alone))


def look(directory: Path) -> dict[str, FoundFile]:
    """Inspect all databases, without changing anything."""
    with translated(directory):
        names = sorted(file.name for file in directory.iterdir() if DATABASE.fullmatch(file.name))
    return {name: _seen(directory / name) for name in names}


def _seen(path: Path) -> FoundFile:
    with translated(path):
        if not path.stat().st_size:
            return FoundFile(is_empty=True)
        log = path.with_name(f"{path.name}-wal")
        has_log = log.exists() and log.stat().st_size > 0
    try:
        # A read-only connection leaves the log as it is, also when it is the last connection.
        with closing(read_only(path)) as connection:
            known = connection.execute(
                "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'identity'"
            ).fetchone()
            row = (
                known
                and connection.execute("SELECT store, file, generation FROM identity").fetchone()
            )
            lost = lost_commits(path) if has_log else 0
    except sqlite3.DatabaseError:
        return FoundFile(is_readable=False, has_log=has_log)
    store, identity, generation = row or ("", "", 0)
    return FoundFile(store, identity, generation, has_log=has_log, lost_commits=lost)


def lost_commits(path: Path) -> int:
    """Count commits in a write-ahead log behind the frame where SQLite stops reading it.

    SQLite takes the first frame with a wrong checksum for the end of the log. After a power failure
    that may be right: the last commit, which was not acknowledged, may be incomplete. Every earlier
    commit was synced, so a second commit behind that frame was acknowledged, and is lost.
    Frames of an earlier use of the log have another salt. The index (`-shm`) says how far SQLite
    read; a connection must have read the database just before.
    """
    index = path.with_name(f"{path.name}-shm")
    log = path.with_name(f"{path.name}-wal")
    commits = 0
    try:
        with index.open("rb") as file:
            _, frames = _INDEX.unpack(file.read(_INDEX.size))
        with log.open("rb") as file:
            page, salts = _LOG_HEADER.unpack(file.read(_LOG_HEADER.size))
            at = _LOG_HEADER.size + frames * (_FRAME.size + page)
            while file.seek(at) and len(frame := file.read(_FRAME.size)) == _FRAME.size:
                size, seen = _FRAME.unpack(frame)
                commits += bool(size) and seen == salts
                at += _FRAME.size + page
    except (OSError, struct.error):
        return 0
    return commits if commits > 1 else 0


def read_only(path: Path) -> sqlite3.Connection:
    """Open a database for reading; nothing of it is changed, and no log is checkpointed."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest; None if it does not exist. Raise `CannotStart` if it is damaged."""
    path = directory / MANIFEST_FILE
    with translated(path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        return json.decode(content, type=Manifest)
    except DecodeError as problem:
        raise CannotStart(
            f"{path} does not say which files the directory has: {problem}.",
            remedy="Put it back from a copy, or start with `maitred up --accept-loss "
            f"{MANIFEST_FILE}` to take the files as they are.",
        ) from None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest durably; the caller holds the lock of the directory."""
    path = directory / MANIFEST_FILE
    with translated(path):
        write_private(path, json.format(json.encode(manifest), indent=1) + b"\n")
