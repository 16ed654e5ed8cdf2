"""The data directory of a node: the node's identity, and the lock that keeps other nodes out.

A node's identity survives its restarts, so it stands in a file, `node.json`, which is written once:
to a temporary file, synced, and renamed, so that there is a whole file or none. A file that cannot
be decoded is never replaced, because stored data belongs to that identity.

The lock is on an open file, not on the existence of one, so it ends with the processes that hold
it, however they end. Shards hold it as well: a node whose supervisor died keeps the directory until
its last shard has ended.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from msgspec import DecodeError, Struct, json

from maitred.errors import CannotStart
from maitred.store.private_files import open_private, tighten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.store.private_files import Tightened

IDENTITY_FILE: Final = "node.json"
LOCK_FILE: Final = "lock"
DIRECTORY_MODE: Final = 0o700
OTHERS_WRITE: Final = 0o022


class DataDirectory(NamedTuple):
    """A data directory that this process has locked."""

    path: Path
    node: uuid.UUID
    lock: int
    """The open file that holds the lock; shards inherit it."""
    tightened: list[Tightened]
    """Files whose permissions let other users of the machine use them until now."""
    shared: bool
    """Whether other users of the machine can write to the directory itself."""


class _Identity(Struct):
    node: uuid.UUID


@contextmanager
def locked_directory(location: str) -> Iterator[Path]:
    """Lock the directory, which is made if it does not exist; raise `CannotStart`."""
    path = Path(location).absolute()
    lock = _take(path)
    try:
        yield path
    finally:
        os.close(lock)


@contextmanager
def data_directory(location: str) -> Iterator[DataDirectory]:
    """Lock the directory and read the node's identity; raise `CannotStart` with the reason."""
    path = Path(location).absolute()
    lock = _take(path)
    try:
        tightened = tighten(path)
        shared = bool(path.stat().st_mode & OTHERS_WRITE)
        yield DataDirectory(path, _identity(path / IDENTITY_FILE), lock, tightened, shared)
    finally:
        os.close(lock)


def _take(path: Path) -> int:
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        lock = open_private(path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    except (OSError, ValueError) as problem:
        _refuse(path, problem)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(lock)
        os.close(lock)
        raise _in_use(path, holder) from None
    except OSError as problem:
        os.close(lock)
        _refuse(path, problem)
    with suppress(OSError):  # on a full disk, a second node cannot name the first one's process
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _refuse(path: Path, problem: Exception) -> NoReturn:
    reason = getattr(problem, "strerror", None) or str(problem)
    raise CannotStart(
        f"The data directory {path} cannot be used: {reason}.",
        remedy="Make it writable for this user, or name another one with --data.",
    ) from None


def _holder(lock: int) -> int | None:
    try:
        return int(os.pread(lock, 32, 0))
    except (OSError, ValueError):
        return None


def _in_use(path: Path, holder: int | None) -> CannotStart:
    remedy = "Stop that node, or name another directory with --data."
    if holder is None:
        return CannotStart(f"Another node uses the data directory {path}.", remedy=remedy)
    try:
        os.kill(holder, 0)
    except ProcessLookupError:
        return CannotStart(
            f"The node that used the data directory {path} (process {holder}) is gone, but its "
            "shards still finish what they had begun.",
            remedy="Try again in a moment, or name another directory with --data.",
        )
    except OSError:
        pass  # the process runs, as another user
    return CannotStart(
        f"Another node uses the data directory {path}: process {holder}.", remedy=remedy
    )


def _identity(file: Path) -> uuid.UUID:
    try:
        return json.decode(file.read_bytes(), type=_Identity).node
    except FileNotFoundError:
        return _new_identity(file)
    except DecodeError as problem:
        raise CannotStart(
            f"The file {file} does not tell which node this is: {problem}.",
            remedy="Restore it from a copy. Without it this would be another node: to accept "
            "that, move the file away.",
        ) from None
    except OSError as problem:
        _refuse(file.parent, problem)


def _new_identity(file: Path) -> uuid.UUID:
    identity = _Identity(uuid.uuid4())
    unfinished = file.with_suffix(".new")
    try:
        with open(unfinished, "wb", opener=open_private) as opened:
            opened.write(json.encode(identity) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        unfinished.replace(file)
        _sync_directory(file.parent)
    except OSError as problem:
        with suppress(OSError):
            unfinished.unlink()
        _refuse(file.parent, problem)
    return identity.node


def _sync_directory(path: Path) -> None:
    """Sync the directory, which persists the names of new files."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
