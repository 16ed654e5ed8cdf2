"""A bound, perhaps listening, simulated socket: what a server holds and a connection finds."""

from __future__ import annotations

import contextvars
import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from maitred.simulation.transport import SimulatedTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from maitred.simulation.flow import Flow
    from maitred.simulation.process import Process

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - no real socket is bound to it
LOOPBACK: Final = "127.0.0.1"


class Listener:
    """Stands where asyncio's `Server` expects a socket, so that the server itself is asyncio's."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, process: Process, address: str, port: int, *, reuse_port: bool) -> None:
        self.process = process
        self.address = address
        self.port = port
        self.reuse_port = reuse_port
        self.listening = False
        self._context = contextvars.copy_context()
        self._factory: Callable[[], asyncio.BaseProtocol]
        self._server: asyncio.Server

    def __repr__(self) -> str:
        return f"<Listener {self.address}:{self.port} of {self.process.name}>"

    def bind(self) -> None:
        """Take the address, or raise EADDRINUSE."""
        bound = self.process.host.listeners.setdefault(self.port, [])
        for other in bound:
            overlap = self.address == other.address or ANY_ADDRESS in (self.address, other.address)
            if overlap and not (self.reuse_port and other.reuse_port):
                raise OSError(
                    errno.EADDRINUSE,
                    f"error while attempting to bind on address "
                    f"{(self.address, self.port)!r}: {os.strerror(errno.EADDRINUSE).lower()}",
                )
        bound.append(self)
        self.process.listeners[self] = None

    def serve(self, factory: Callable[[], asyncio.BaseProtocol], server: asyncio.Server) -> None:
        """From now on accept connections for that server."""
        self._factory = factory
        self._server = server
        self.listening = True

    def accept(self, outgoing: Flow, names: dict[str, Any]) -> None:
        """A connection is established: make its protocol and transport in the server's process."""
        self._context.run(self._accept, outgoing, names)

    def _accept(self, outgoing: Flow, names: dict[str, Any]) -> None:
        loop = self.process.host.network.loop
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
        transport = SimulatedTransport(protocol, outgoing, self.process, names, self._server)
        outgoing.sender = outgoing.reverse.receiver = transport
        transport.start()

    # What asyncio's Server and TransportSocket ask of a socket

    def listen(self, backlog: int) -> None:
        """Nothing: `serve` follows at once. The simulated backlog has no end."""

    def close(self) -> None:
        """Free the address; connections that were accepted stay."""
        self.listening = False
        self.process.listeners.pop(self, None)
        bound = self.process.host.listeners.get(self.port, [])
        if self in bound:
            bound.remove(self)
        if not bound:
            self.process.host.listeners.pop(self.port, None)

    def getsockname(self) -> tuple[str, int]:
        """Address and port."""
        return self.address, self.port

    def fileno(self) -> int:
        """There is no file descriptor."""
        return -1
