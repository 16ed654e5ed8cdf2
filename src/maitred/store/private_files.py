"""Keep the files of a data directory private to their owner, and check that at every start.

The directory may exist already, with any mode, in a place where others can write. So every file is
created with mode 0600, whatever the umask is; SQLite gives `-wal` and `-shm` the mode of their
database. Files that an earlier version created with a wider mode, or that were restored so from a
backup, are tightened at the start, while no other process uses them. The directory itself is left
as it is: it may be a person's home, or /tmp.

A file that is not a regular one, or that belongs to another user, was put there by another user:
the node does not start with it. It trusts only root, its own user, and the directory's owner, who
can replace every file in it anyway.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from maitred.errors import CannotStart

if TYPE_CHECKING:
    from pathlib import Path

FILE_MODE: Final = 0o600

OTHERS: Final = 0o077
"""The permission bits of the group and of others."""

_OURS: Final = re.compile(
    r"lock|node\.(json|new)|tasks\.(lock|key|new|manifest|users|restoring)|tasks-\d+\.db(-wal|-shm|-journal)?"
    r"|[^/]+\.document|[^/]+\.new"
)
"""Matches the names of files that a node creates."""


class Tightened(NamedTuple):
    """A file that other users could access."""

    name: str
    mode: int
    """The mode that the file had."""
    done: bool
    """Whether the mode was changed; False if the file belongs to another user."""


def open_private(path: str | Path, flags: int) -> int:
    """Open a file as `os.open` does; a new one gets mode 0600. Symbolic links are refused."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    try:
        made = os.open(path, flags | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags, FILE_MODE)
    with suppress(OSError):  # a file system without modes
        os.fchmod(made, FILE_MODE)  # the umask may have removed the owner's own permissions
    return made


def write_private(path: Path, content: bytes | BinaryIO) -> None:
    """Write a file with mode 0600, atomically and durably, from bytes or from an open file."""
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    descriptor = open_private(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            shutil.copyfileobj(content, file, 2**20)
        file.flush()
        os.fsync(descriptor)
    made.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_database(path: Path) -> None:
    """Create an empty file for SQLite unless it exists. An existing one is not opened: closing a
    file releases the locks that SQLite has on it in the same process."""
    try:
        os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        _check(path, path.lstat(), path.parent.stat().st_uid)


def tighten(directory: Path) -> list[Tightened]:
    """Remove the permissions of group and others from the files of a node; return those files.

    Raise `CannotStart` for a file that another user has put there.
    """
    found = []
    owner = directory.stat().st_uid
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if _OURS.fullmatch(entry.name) is None:
            continue
        known = entry.stat(follow_symlinks=False)
        _check(directory / entry.name, known, owner)
        mode = stat.S_IMODE(known.st_mode)
        if mode & OTHERS:
            try:
                (directory / entry.name).chmod(FILE_MODE)
            except PermissionError:
                found.append(Tightened(entry.name, mode, done=False))
            else:
                found.append(Tightened(entry.name, mode, done=True))
    return found


def _check(path: Path, known: os.stat_result, directory_owner: int) -> None:
    if not stat.S_ISREG(known.st_mode):
        raise CannotStart(
            f"{path} is a link, a pipe or something else that is not a plain file.",
            remedy="Look who put it there, and move it away. A data directory may be a link as a "
            "whole; the files in it may not.",
        )
    if known.st_uid not in {0, os.geteuid(), directory_owner}:
        raise CannotStart(
            f"{path} belongs to user {known.st_uid}, who could read and change what is kept there.",
            remedy="Look who put it there. If it is this node's, give it to the node's user with "
            "chown.",
        )
