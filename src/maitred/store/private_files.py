"""The files of a data directory: made for their owner alone, and found so at every start.

The directory may have been there before, with any mode, in a place where others can write. So every
file is made with mode 0600 from its first moment, whatever the umask says; SQLite gives `-wal` and
`-shm` the mode of their database. What was made wider by an earlier version, or restored so from a
backup, is tightened at the start, while no other process uses it. The directory itself is left as
it is: it may be somebody's home, or /tmp.

A file that is not a regular one, or that belongs to another user, was put there by somebody else:
the node does not start with it. Nobody is trusted but root, this user, and the directory's owner,
who can replace every file in it anyway.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import CannotStart

if TYPE_CHECKING:
    from pathlib import Path

FILE_MODE: Final = 0o600

OTHERS: Final = 0o077
"""Whatever group and others may do."""

_OURS: Final = re.compile(
    r"lock|node\.(json|new)|tasks\.(lock|key|new|manifest|users|restoring)|tasks-\d+\.db(-wal|-shm|-journal)?"
    r"|[^/]+\.document|[^/]+\.new"
)
"""Names of files that a node makes."""


class Tightened(NamedTuple):
    """A file that others could use."""

    name: str
    mode: int
    """What it was."""
    done: bool
    """False: its mode cannot be changed, since it belongs to another user."""


def open_private(path: str | Path, flags: int) -> int:
    """Open a file as `os.open` does; one that is made is for its owner alone. Links are refused."""
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
        os.fchmod(made, FILE_MODE)  # a umask may have taken away what we need ourselves
    return made


def make_database(path: Path) -> None:
    """Make an empty file for SQLite unless it is there. One that is there is not opened: whoever
    closes a file takes away the locks that SQLite has on it in the same process."""
    try:
        os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        _check(path, path.lstat(), path.parent.stat().st_uid)


def tighten(directory: Path) -> list[Tightened]:
    """Take away what group and others may do with the files of a node, and return which they were.

    Raises `CannotStart` for a file that somebody else has put there.
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
