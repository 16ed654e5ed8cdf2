"""An established connection, and how each end gets its protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.simulation.flow import Flow
from maitred.simulation.transport import SimulatedTransport
from maitred.simulation.unix_transport import UnixTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random

    from maitred.simulation.hosts import Host
    from maitred.simulation.listeners import BoundSocket
    from maitred.simulation.process import Process


class SimulatedConnection:
    """An established connection with its two directions; `outgoing` is the client's."""

    transport = SimulatedTransport

    def __init__(
        self,
        process: Process,
        *,
        client: Host,
        server: Host,
        random: Random,
        client_port: int | None = None,
    ) -> None:
        """Establish the connection; with a `client_port`, it uses that port of the client."""
        network = client.network
        self.process = process
        self.client = client
        self.number = network.next_connection_number()
        self.outgoing = Flow(network, self.number, random, self.client, server)
        self.incoming = Flow(network, self.number, random, server, self.client)
        self.outgoing.reverse = self.incoming
        self.incoming.reverse = self.outgoing
        self._client_port = client_port
        if client_port is not None:
            self.client.take_port(client_port)
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
        """Free the client's port when the connection is over."""
        if self._client_port is not None:
            self.client.give_port(self._client_port)

    def abandon(self) -> None:
        """Close the connection: the client gave up just when it was connected."""
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
        waiter: asyncio.Future[None] = self.client.network.loop.create_future()
        transport.start(waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol


class UnixConnection(SimulatedConnection):
    """An established connection between two processes of a host, or within one of them."""

    transport = UnixTransport

    def abandon(self) -> None:
        """Close the connection as a kernel does: a reset only if bytes stay unread."""
        if self.incoming.carries_bytes:
            self.outgoing.send_reset()
        else:
            self.outgoing.send_end()
