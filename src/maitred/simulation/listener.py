"""A TCP port that is bound: what a connection finds, alone or among others that share it."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

from maitred.simulation.bound_socket import BoundSocket

if TYPE_CHECKING:
    from random import Random

    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - no real socket is bound to it
LOOPBACK: Final = "127.0.0.1"


class Listener(BoundSocket):
    """One of a port's listeners; there are several if all of them asked for `reuse_port`."""

    family = socket.AF_INET
    proto = socket.IPPROTO_TCP

    def __init__(self, process: Process, address: str, port: int, *, reuse_port: bool) -> None:
        super().__init__(process)
        self.address = address
        self.port = port
        self.reuse_port = reuse_port

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

    def close(self) -> None:
        """Free the address; connections that were accepted stay."""
        super().close()
        bound = self.process.host.listeners.get(self.port, [])
        if self in bound:
            bound.remove(self)
        if not bound:
            self.process.host.listeners.pop(self.port, None)

    def getsockname(self) -> tuple[str, int]:
        """Return the address and the port."""
        return self.address, self.port


def choose_listener(host: Host, address: str, port: int, random: Random) -> Listener | None:
    """Return the listener that gets a new connection; None if no process listens there.

    As on Linux, a listener on exactly this address goes before one on all addresses. Among equals a
    kernel hashes addresses and ports, which is unpredictable: so one is drawn at random. With a
    single listener nothing is drawn.
    """
    listening = [listener for listener in host.listeners.get(port, ()) if listener.listening]
    found = [listener for listener in listening if listener.address == address] or [
        listener for listener in listening if listener.address == ANY_ADDRESS
    ]
    if len(found) > 1:
        return found[random.randrange(len(found))]
    return found[0] if found else None
