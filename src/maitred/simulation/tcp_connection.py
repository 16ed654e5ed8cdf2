"""How a TCP connection comes about: a request, an answer, and an accept, each with its delay.

An attempt that meets silence tries again after 1, 2, 4... seconds, so that it still succeeds when a
partition heals in time, and fails with ETIMEDOUT when it does not.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from maitred.simulation.connection import SimulatedConnection
from maitred.simulation.listener import choose_listener

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random

    from maitred.simulation.hosts import Host
    from maitred.simulation.listener import Listener
    from maitred.simulation.loop import Event
    from maitred.simulation.network import Network
    from maitred.simulation.process import Process


class TcpConnection(SimulatedConnection):
    """A connection that uses a port of its client."""

    def __init__(self, process: Process, server: Host, random: Random, client_port: int) -> None:
        super().__init__(process, server, random)
        self.client_port = client_port
        self.client.take_port(client_port)

    def forgotten(self) -> None:
        """Free the client's port."""
        self.client.give_port(self.client_port)


class ConnectionAttempt:
    """One attempt to connect, until its future has a connection or an error."""

    def __init__(self, process: Process, address: str, port: int, local_port: int) -> None:
        self.network: Network = process.host.network
        self.process = process
        self.client = process.host
        self.server = self.network.at(address, process.host)
        self.address = address
        self.port = port
        self.local_port = local_port
        self.future: asyncio.Future[SimulatedConnection] = self.network.loop.create_future()
        use = self.client.count_use(local_port)
        name = f"connection/{self.client.name}:{local_port}/{use}/{address}:{port}"
        self.random = self.network.random(name)
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
        listener = choose_listener(server, self.address, self.port, self.random)
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
        connection = TcpConnection(self.process, server, self.random, self.local_port)
        network.trace.note(b"connect", connection.number, self.port)
        # Data of the client may not overtake the accept.
        delay = self._delay()
        connection.outgoing.last_arrival = network.loop.now + delay
        self._later(delay, self._accept, listener, connection)
        self.future.set_result(connection)

    def _accept(self, listener: Listener, connection: SimulatedConnection) -> None:
        names = {
            "sockname": (self.address, self.port),
            "peername": (self.client_address, self.local_port),
        }
        connection.accept(listener, names)

    @property
    def names(self) -> dict[str, Any]:
        """What the client's transport knows of its addresses."""
        return {
            "sockname": (self.client_address, self.local_port),
            "peername": (self.address, self.port),
        }

    @property
    def client_address(self) -> str:
        """The client's address as the server sees it."""
        return self.address if self.server is self.client else self.client.address

    @property
    def _abandoned(self) -> bool:
        return self.future.done() or self.process.dead

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

    def _later(self, delay: float, callback: Callable[..., object], *arguments: object) -> Event:
        loop = self.network.loop
        return loop.call_later(delay, callback, *arguments, context=self.network.context)
