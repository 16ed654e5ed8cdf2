"""Attempts to connect, over TCP or to a Unix socket, each until it has a connection or an error.

Over TCP there are a request, an answer and an accept, each with its delay. An attempt that meets
silence tries again after 1, 2, 4... seconds, so that it still succeeds when a partition heals in
time, and fails with ETIMEDOUT when it does not.

A Unix connection does not leave the host, so it meets no fault of the network: there are a lookup
of the file and an accept, and only a socket on which no process listens refuses it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

from maitred.simulation.connection import SimulatedConnection, UnixConnection
from maitred.simulation.listeners import choose_listener, file_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.simulation.hosts import Host
    from maitred.simulation.listeners import Listener
    from maitred.simulation.loop import Event
    from maitred.simulation.network import Network
    from maitred.simulation.process import Process


class ConnectionAttempt:
    """One attempt of a process to connect."""

    def __init__(self, network: Network, process: Process, name: str) -> None:
        self.process = process
        self.network = network
        self.random = self.network.random(name)
        self.future: asyncio.Future[SimulatedConnection] = self.network.loop.create_future()

    async def connected(self) -> SimulatedConnection:
        """Wait until the attempt has succeeded, and return the connection."""
        future = self.future
        try:
            return await future
        except asyncio.CancelledError:
            # The attempt was cancelled just when it succeeded: the server has a connection.
            if future.done() and not future.cancelled() and future.exception() is None:
                connection = future.result()
                connection.process.unclaimed.pop(connection, None)
                connection.abandon()
            raise

    @property
    def _abandoned(self) -> bool:
        return self.future.done() or self.process.dead

    def _later(self, delay: float, callback: Callable[..., object], *arguments: object) -> Event:
        loop = self.network.loop
        return loop.call_later(delay, callback, *arguments, context=self.network.context)


class TcpAttempt(ConnectionAttempt):
    """An attempt to connect to a port."""

    def __init__(
        self, network: Network, process: Process, *, address: str, port: int, local_port: int
    ) -> None:
        host = network.host_of(process)
        use = host.count_use(local_port)
        name = f"connection/{host.name}:{local_port}/{use}/{address}:{port}"
        super().__init__(network, process, name)
        self.client = host
        self.server = self.network.at(address, host)
        self.address = address
        self.port = port
        self.local_port = local_port
        self._gap_seconds = self.network.faults.connect_retry_seconds
        self._timeout = self._later(self.network.faults.connect_timeout_seconds, self._time_out)
        self._request()

    def _request(self) -> None:
        self._later(self._delay(), self._request_arrives)

    def _request_arrives(self) -> None:
        if self._abandoned:
            return
        server = self.server
        if server is None or self._silent(self.client, server):
            self._later(self._gap_seconds, self._request)
            self._gap_seconds *= 2
            return
        listener = choose_listener(server.listeners, self.address, self.port, self.random)
        faults = self.network.faults
        refused = server is not self.client and self.random.random() < faults.refuse_probability
        if listener is None or refused:
            self._later(self._delay(), self._refuse)
        else:
            self._later(self._delay(), self._establish, listener, server)

    def _refuse(self) -> None:
        if not self._abandoned:
            self._timeout.cancel()
            self.future.set_exception(
                ConnectionRefusedError(
                    errno.ECONNREFUSED, f"Connect call failed {(self.address, self.port)!r}"
                )
            )

    def _establish(self, listener: Listener, server: Host) -> None:
        if self._abandoned:
            return
        self._timeout.cancel()
        network = self.network
        connection = SimulatedConnection(
            self.process,
            client=self.client,
            server=server,
            random=self.random,
            client_port=self.local_port,
        )
        network.trace.note(b"connect", connection.number, self.port)
        # Data of the client may not overtake the accept.
        delay = self._delay()
        connection.outgoing.last_arrival = network.loop.now + delay
        names = {
            "sockname": (self.address, self.port),
            "peername": (self.client_address, self.local_port),
        }
        self._later(delay, connection.accept, listener, names)
        self.future.set_result(connection)

    @property
    def names(self) -> dict[str, Any]:
        """The addresses that the client's transport reports."""
        return {
            "sockname": (self.client_address, self.local_port),
            "peername": (self.address, self.port),
        }

    @property
    def client_address(self) -> str:
        """The client's address as the server sees it."""
        return self.address if self.server is self.client else self.client.address

    def _silent(self, source: Host, target: Host) -> bool:
        return self.network.blocked(source, target) or self.network.blocked(target, source)

    def _time_out(self) -> None:
        if not self._abandoned:
            self.future.set_exception(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _delay(self) -> float:
        faults = self.network.faults
        if self.server is self.client:
            return faults.loopback_delay_seconds
        return self.random.uniform(faults.delay_min_seconds, faults.delay_max_seconds)


class UnixAttempt(ConnectionAttempt):
    """An attempt to connect to a Unix socket."""

    def __init__(self, network: Network, process: Process, path: str) -> None:
        host = network.host_of(process)
        file = file_of(path)
        use = host.count_use(file)
        super().__init__(network, process, f"unix/{host.name}/{use}/{file}")
        self.host = host
        self.path = path
        self._delay = self.network.faults.loopback_delay_seconds
        self._later(self._delay, self._look)

    @property
    def names(self) -> dict[str, Any]:
        """The addresses that the client's transport reports: its own end has no name."""
        return {"sockname": "", "peername": self.path}

    def _look(self) -> None:
        if self._abandoned:
            return
        host = self.host
        listener = host.socket_files.get(file_of(self.path))
        if listener is None or not listener.listening:
            code = errno.ENOENT if listener is None else errno.ECONNREFUSED
            self.future.set_exception(OSError(code, os.strerror(code)))
            return
        connection = UnixConnection(self.process, client=host, server=host, random=self.random)
        self.network.trace.note(b"connect", connection.number)
        names = {"sockname": listener.path, "peername": ""}
        # Data of the client may not overtake the accept.
        accepted = self._later(self._delay, connection.accept, listener, names)
        connection.outgoing.last_arrival = accepted.when()
        self.future.set_result(connection)
