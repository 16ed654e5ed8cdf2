"""Translate SQLite's errors into maitred's errors."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from maitred.errors import CannotStart, OutcomeUnknown, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maitred.errors import MaitredError

_FULL = "Make room on the disk; the store goes on by itself."
_DAMAGED = {"SQLITE_NOTADB", "SQLITE_CORRUPT"}
_LAST_WRITES = ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC")
"""After these errors the end of the transaction may be in the log nevertheless; a full disk fails
before that."""


class DamagedFileError(StoreUnavailable):
    """SQLite cannot read a page of a file. The rest of the file may be readable."""


@contextmanager
def translated(path: Path, *, writing: bool = False) -> Iterator[None]:
    """Raise maitred's errors in place of SQLite's; `writing` says that a commit is in progress."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as problem:
        found = _meaning(path, problem, writing=writing)
        if found is None:
            raise
        raise found from problem
    except OSError as problem:
        raise _system(path, problem) from problem


def name_of(problem: sqlite3.Error) -> str:
    """Return SQLite's own name of an error; empty for errors that Python's module raises."""
    return getattr(problem, "sqlite_errorname", "")


@contextmanager
def translated_at_start(path: Path) -> Iterator[None]:
    """Do the same while a store is opened, and raise `CannotStart`."""
    try:
        with translated(path):
            yield
    except StoreUnavailable as problem:
        raise CannotStart(problem.sentence, remedy=problem.remedy) from problem.__cause__


def _meaning(path: Path, problem: sqlite3.Error, *, writing: bool) -> MaitredError | None:
    name = name_of(problem)
    if name == "SQLITE_FULL":
        return StoreFull(f"There is no room left for {path.name}.", remedy=_FULL)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(f"{path.name} was locked by others for too long.")
    if writing and name.startswith(_LAST_WRITES):
        return OutcomeUnknown(f"{path.name} could not be written to the end ({name}).")
    is_no_text = not name and str(problem).startswith("Could not decode to UTF-8")
    if name in _DAMAGED or name.startswith("SQLITE_CORRUPT") or is_no_text:
        return DamagedFileError(
            f"{path.name} is not a database, or it is damaged.",
            remedy="Stop the node and restore a backup (`maitred admin restore`), or start it with "
            f"--accept-loss {path.name} to go on without what is in the file.",
        )
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return StoreUnavailable(f"{path.name} cannot be used: {problem} ({name}).")
    return None


def _system(path: Path, problem: OSError) -> StoreUnavailable:
    if problem.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(f"There is no room left for {path.name}.", remedy=_FULL)
    return StoreUnavailable(f"{path.name} cannot be used: {problem.strerror}.")
