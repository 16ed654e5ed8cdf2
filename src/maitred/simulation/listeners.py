"""Bound, perhaps listening, simulated sockets: TCP ports and Unix sockets.

A port has several listeners if all of them asked for `reuse_port`. A Unix socket is a file of one
host, which outlives the process that created it.
"""

from __future__ import annotations

import contextvars
import errno
import os
import posixpath
import socket
from typing import TYPE_CHECKING, Any, ClassVar, Final

from maitred.simulation.errors import NotSimulated
from maitred.simulation.transport import SimulatedTransport
from maitred.simulation.unix_transport import UnixTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random

    from maitred.simulation.flow import Flow
    from maitred.simulation.process import Process

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - no real socket is bound to it
LOOPBACK: Final = "127.0.0.1"

_PATH_MAX_BYTES: Final = 107
"""The room that Linux has for a path in a socket's address, without the zero at its end."""


class BoundSocket:
    """Stands where asyncio's `Server` expects a socket, so that the server itself is asyncio's."""

    family: ClassVar[socket.AddressFamily]
    type = socket.SOCK_STREAM
    proto = 0
    transport = SimulatedTransport

    def __init__(self, process: Process) -> None:
        self.process = process
        self.listening = False
        self._context = contextvars.copy_context()
        self._factory: Callable[[], asyncio.BaseProtocol]
        self._server: asyncio.Server

    def bind(self) -> None:
        """Take the address, or raise what a kernel would."""
        raise NotImplementedError

    def serve(self, factory: Callable[[], asyncio.BaseProtocol], server: asyncio.Server) -> None:
        """Start to accept connections for that server."""
        self._factory = factory
        self._server = server
        self.listening = True

    def accept(self, outgoing: Flow, names: dict[str, Any]) -> None:
        """Create the protocol and transport of a new connection in the server's process."""
        self._context.run(self._accept, outgoing, names)

    def stop(self) -> None:
        """Close the socket when its process closes the server; a kill calls only `close`."""
        self.close()

    def _accept(self, outgoing: Flow, names: dict[str, Any]) -> None:
        loop = outgoing.network.loop
        try:
            protocol = self._factory()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the handler decides
            outgoing.send_reset()
            loop.call_exception_handler(
                {
                    "message": "Error on transport creation for incoming connection",
                    "exception": error,
                }
            )
            return
        transport = self.transport(protocol, outgoing, self.process, names, self._server)
        outgoing.sender = outgoing.reverse.receiver = transport
        transport.start()

    # Methods that asyncio's Server and TransportSocket call on a socket

    def listen(self, backlog: int) -> None:
        """Do nothing: `serve` follows at once, and the simulated accept backlog is unlimited."""

    def close(self) -> None:
        """Stop listening; connections that were accepted stay."""
        self.listening = False
        self.process.listeners.pop(self, None)

    def fileno(self) -> int:
        """Return -1: there is no file descriptor."""
        return -1


class Listener(BoundSocket):
    """A listener on a TCP port, alone or among others that asked for `reuse_port` as well."""

    family = socket.AF_INET
    proto = socket.IPPROTO_TCP

    def __init__(
        self,
        process: Process,
        listeners: dict[int, list[Listener]],
        *,
        address: str,
        port: int,
        reuse_port: bool,
    ) -> None:
        """Create a listener among the `listeners` of its host, which are keyed by port."""
        super().__init__(process)
        self.neighbours = listeners
        """All listeners of the host by port, this one included while it is bound."""
        self.address = address
        self.port = port
        self.reuse_port = reuse_port

    def __repr__(self) -> str:
        return f"<Listener {self.address}:{self.port} of {self.process.name}>"

    def bind(self) -> None:
        """Take the address, or raise EADDRINUSE."""
        bound = self.neighbours.setdefault(self.port, [])
        for other in bound:
            overlap = self.address == other.address or ANY_ADDRESS in (self.address, other.address)
            if overlap and not (self.reuse_port and other.reuse_port):
                raise bind_error(errno.EADDRINUSE, self.address, self.port)
        bound.append(self)
        self.process.listeners[self] = None

    def close(self) -> None:
        """Free the address; connections that were accepted stay."""
        super().close()
        bound = self.neighbours.get(self.port, [])
        if self in bound:
            bound.remove(self)
        if not bound:
            self.neighbours.pop(self.port, None)

    def getsockname(self) -> tuple[str, int]:
        """Return the address and the port."""
        return self.address, self.port


def bind_error(code: int, address: str, port: int) -> OSError:
    """Return the error that asyncio raises for an address that cannot be bound."""
    return OSError(
        code,
        f"error while attempting to bind on address {(address, port)!r}: "
        f"{os.strerror(code).lower()}",
    )


def choose_listener(
    listeners: dict[int, list[Listener]], address: str, port: int, random: Random
) -> Listener | None:
    """Return the listener that gets a new connection; None if no process listens there.

    As on Linux, a listener on exactly this address goes before one on all addresses. Among equals a
    kernel hashes addresses and ports, which is unpredictable: so one is drawn at random. With a
    single listener nothing is drawn.
    """
    listening = [listener for listener in listeners.get(port, ()) if listener.listening]
    found = [listener for listener in listening if listener.address == address] or [
        listener for listener in listening if listener.address == ANY_ADDRESS
    ]
    if len(found) > 1:
        return found[random.randrange(len(found))]
    return found[0] if found else None


class UnixListener(BoundSocket):
    """The socket at a path. A later bind on the same path takes the path away from it, but does not
    close it: it goes on listening where no client finds it, as after an unlink on Linux."""

    family = socket.AF_UNIX
    transport = UnixTransport

    def __init__(
        self,
        process: Process,
        socket_files: dict[str, UnixListener],
        path: str,
        *,
        cleanup_socket: bool,
    ) -> None:
        """Create a socket among the `socket_files` of its host, which are keyed by path."""
        super().__init__(process)
        self._socket_files = socket_files
        self.path = path
        self.cleanup_socket = cleanup_socket

    def __repr__(self) -> str:
        return f"<UnixListener {self.path} of {self.process.name}>"

    def bind(self) -> None:
        """Create the file; as with asyncio and uvloop, replace one that exists, even in use."""
        self._socket_files[file_of(self.path)] = self
        self.process.listeners[self] = None

    def stop(self) -> None:
        """Close, and remove the file if that was asked for and it is still this socket's."""
        self.close()
        files = self._socket_files
        if self.cleanup_socket and files.get(file_of(self.path)) is self:
            del files[file_of(self.path)]

    def getsockname(self) -> str:
        """Return the path as it was given."""
        return self.path


def file_of(path: str) -> str:
    """Return one name for all spellings of a path; all processes work in one directory."""
    return posixpath.normpath(path)


def checked_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return the path as text; raise what real sockets raise for one that cannot be bound."""
    name = os.fsdecode(path)
    if not name or name.startswith("\0"):
        raise NotSimulated("Only Unix sockets with a path are simulated.", remedy="Pass a path.")
    if len(os.fsencode(name)) > _PATH_MAX_BYTES:
        raise OSError("AF_UNIX path too long")
    return name
