"""An established connection, and how each end gets its protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from maitred.simulation.flow import Flow
from maitred.simulation.transport import SimulatedTransport

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from maitred.simulation.bound_socket import BoundSocket
    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process


class SimulatedConnection:
    """An established connection with its two directions; `outgoing` is the client's."""

    transport = SimulatedTransport

    def __init__(self, process: Process, server: Host, random: Random) -> None:
        network = process.host.network
        self.process = process
        self.client = process.host
        self.number = network.next_connection_number()
        self.outgoing = Flow(network, self.number, random, self.client, server)
        self.incoming = Flow(network, self.number, random, server, self.client)
        self.outgoing.reverse = self.incoming
        self.incoming.reverse = self.outgoing
        network.connections[self.number] = self
        process.unclaimed[self] = None

    @property
    def over(self) -> bool:
        """Whether nothing more can happen on this connection."""
        return all(
            flow.idle and (flow.sender is None or flow.sender.gone)
            for flow in (self.outgoing, self.incoming)
        )

    def forgotten(self) -> None:
        """Release what the connection used, when it is over."""

    def abandon(self) -> None:
        """Reset the connection: the client gave up just when it was connected."""
        self.outgoing.send_reset()

    def accept(self, listener: BoundSocket, names: dict[str, Any]) -> None:
        """Start the server's end; if the server no longer listens, reset the connection."""
        if listener.process.dead or not listener.listening:
            self.incoming.send_reset()
        else:
            listener.accept(self.incoming, names)

    async def claim(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], names: dict[str, Any]
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Start the client's end, and return its transport and protocol."""
        process = self.process
        try:
            protocol = protocol_factory()
        except BaseException:
            process.unclaimed.pop(self, None)
            self.abandon()
            raise
        process.unclaimed.pop(self, None)
        transport = self.transport(protocol, self.outgoing, process, names)
        self.outgoing.sender = self.incoming.receiver = transport
        waiter: asyncio.Future[None] = process.host.network.loop.create_future()
        transport.start(waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol


async def connected(future: asyncio.Future[SimulatedConnection]) -> SimulatedConnection:
    """Wait until an attempt to connect has succeeded."""
    try:
        return await future
    except asyncio.CancelledError:
        # The attempt was cancelled just when it succeeded: the server has a connection.
        if future.done() and not future.cancelled() and future.exception() is None:
            connection = future.result()
            connection.process.unclaimed.pop(connection, None)
            connection.abandon()
        raise
