"""Establish a Unix connection: a lookup of the file, and an accept, each with its delay.

It does not leave the host, so it meets no fault of the network: there is no silence to wait for, no
port to take, and only a socket on which no process listens refuses it.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from maitred.simulation.connection import SimulatedConnection
from maitred.simulation.unix_listener import file_of
from maitred.simulation.unix_transport import UnixTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from maitred.simulation.process import Process
    from maitred.simulation.unix_listener import UnixListener


class UnixConnection(SimulatedConnection):
    """An established connection between two processes of a host, or within one of them."""

    transport = UnixTransport

    def abandon(self) -> None:
        """The client gave up just when it was connected: it closes."""
        if self.incoming.carries_bytes:
            self.outgoing.send_reset()
        else:
            self.outgoing.send_end()


class UnixAttempt:
    """One attempt to connect, until its future has a connection or an error."""

    def __init__(self, process: Process, path: str) -> None:
        self.process = process
        self.path = path
        self.network = process.host.network
        self.future: asyncio.Future[SimulatedConnection] = self.network.loop.create_future()
        file = file_of(path)
        use = process.host.count_use(file)
        self.random = self.network.random(f"unix/{process.host.name}/{use}/{file}")
        self._later(self._look)

    @property
    def names(self) -> dict[str, Any]:
        """What the client's transport knows of its addresses: its own end has no name."""
        return {"sockname": "", "peername": self.path}

    def _look(self) -> None:
        if self.future.done() or self.process.dead:
            return
        host = self.process.host
        listener = host.socket_files.get(file_of(self.path))
        if listener is None:
            self._fail(errno.ENOENT)
        elif not listener.listening:
            self._fail(errno.ECONNREFUSED)
        else:
            connection = UnixConnection(self.process, host, self.random)
            self.network.trace.note(b"connect", connection.number)
            # Data of the client may not overtake the accept.
            connection.outgoing.last_arrival = self._later(self._accept, listener, connection)
            self.future.set_result(connection)

    def _accept(self, listener: UnixListener, connection: UnixConnection) -> None:
        connection.accept(listener, {"sockname": listener.path, "peername": ""})

    def _fail(self, code: int) -> None:
        self.future.set_exception(OSError(code, os.strerror(code)))

    def _later(self, callback: Callable[..., object], *arguments: object) -> float:
        """Call it after the delay of this host; the moment at which that is."""
        network = self.network
        delay = network.faults.loopback_delay_seconds
        return network.loop.call_later(delay, callback, *arguments, context=network.context).when()
