"""A bound Unix socket: a file of one host, which outlives the process that created it."""

from __future__ import annotations

import os
import posixpath
import socket
from typing import TYPE_CHECKING, Final

from maitred.simulation.bound_socket import BoundSocket
from maitred.simulation.errors import NotSimulated
from maitred.simulation.unix_transport import UnixTransport

if TYPE_CHECKING:
    from maitred.simulation.process import Process

_PATH_MAX_BYTES: Final = 107
"""What Linux has room for in a socket's address, without the zero at its end."""


class UnixListener(BoundSocket):
    """The socket at a path. A later bind on the same path takes the path away from it, but does not
    close it: it goes on listening where no client finds it, as after an unlink on Linux."""

    family = socket.AF_UNIX
    transport = UnixTransport

    def __init__(self, process: Process, path: str, *, cleanup_socket: bool) -> None:
        super().__init__(process)
        self.path = path
        self.cleanup_socket = cleanup_socket

    def __repr__(self) -> str:
        return f"<UnixListener {self.path} of {self.process.name}>"

    def bind(self) -> None:
        """Make the file; asyncio and uvloop remove one that is there, even if it is in use."""
        self.process.host.socket_files[file_of(self.path)] = self
        self.process.listeners[self] = None

    def stop(self) -> None:
        """Close, and remove the file if that was asked for and it is still this socket's."""
        self.close()
        files = self.process.host.socket_files
        if self.cleanup_socket and files.get(file_of(self.path)) is self:
            del files[file_of(self.path)]

    def getsockname(self) -> str:
        """The path as it was given."""
        return self.path


def file_of(path: str) -> str:
    """One name for all spellings of a path; every process of a host works in one directory."""
    return posixpath.normpath(path)


def checked_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """The path as text, or the error that real sockets raise."""
    name = os.fsdecode(path)
    if not name or name.startswith("\0"):
        raise NotSimulated("Only Unix sockets with a path are simulated.", remedy="Pass a path.")
    if len(os.fsencode(name)) > _PATH_MAX_BYTES:
        raise OSError("AF_UNIX path too long")
    return name
