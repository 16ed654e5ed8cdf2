"""A bound, perhaps listening, simulated socket: what a server holds, whatever its address is."""

from __future__ import annotations

import contextvars
import socket
from typing import TYPE_CHECKING, Any, ClassVar

from maitred.simulation.transport import SimulatedTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from maitred.simulation.flow import Flow
    from maitred.simulation.process import Process


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
        transport = self.transport(protocol, outgoing, self.process, names, self._server)
        outgoing.sender = outgoing.reverse.receiver = transport
        transport.start()

    # What asyncio's Server and TransportSocket ask of a socket

    def listen(self, backlog: int) -> None:
        """Do nothing: `serve` follows at once, and the simulated accept backlog is unlimited."""

    def close(self) -> None:
        """Stop listening; connections that were accepted stay."""
        self.listening = False
        self.process.listeners.pop(self, None)

    def fileno(self) -> int:
        """There is no file descriptor."""
        return -1
