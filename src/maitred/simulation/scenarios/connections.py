"""Protocols that do anything at any time, without timeouts that would hide a network's fault.

Both ends write, pause, end, close and abort at random while hosts are killed, unplugged and parted.
What must hold: bytes arrive in order, unchanged, and none that were not sent; connection_lost comes
exactly once; windows and buffers keep their limits. After calm all ends close, and then every
connection is over and every port is free: no end waits for ever, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from maitred.simulation.errors import Violation
from maitred.simulation.process import Process, current_process
from maitred.simulation.scenarios.backpressure import check_windows
from maitred.simulation.scenarios.chaos import Chaos

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from random import Random

    from maitred.simulation.hosts import Host
    from maitred.simulation.transport import SimulatedTransport
    from maitred.simulation.world import World

PORT: Final = 80
STORM_SECONDS: Final = 9.0
SETTLING_SECONDS: Final = 60.0
"""Three retransmission timeouts: what is silent has failed by then."""
CLOSING_SECONDS: Final = 300.0
"""The smallest window moves a full buffer in half of it at the largest delay."""
WRITE_MAX_BYTES: Final = 3_000
STEPS_A_SECOND: Final = 10.0

_PATTERN: Final = bytes(range(251)) * (WRITE_MAX_BYTES // 251 + 300_000 // 251 + 2)
"""The n-th byte of every stream is n modulo 251, so that any piece of it shows its place."""


@dataclass
class ConnectionBooks:
    """The state that all ends share; it outlives their processes."""

    ends: list[ConnectionEnd] = field(default_factory=list)
    calm: bool = False

    def open_transports(self) -> list[SimulatedTransport]:
        """Return the open transports of the ends whose processes live."""
        return [
            end.transport
            for end in self.ends
            if end.transport is not None and not end.lost and not end.process.dead
        ]


class ConnectionEnd(asyncio.Protocol):
    """One end of one connection."""

    def __init__(self, books: ConnectionBooks, random: Random, process: Process) -> None:
        self.books = books
        self.process = process
        self.transport: SimulatedTransport | None = None
        self.lost = 0
        self._random = random
        self._sent_bytes = 0
        self._received_bytes = 0
        self._may_write = True
        self._ended = False
        self._keeps_open = random.random() < 0.5
        books.ends.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.transport is not None:
            raise Violation("connection_made came twice.")
        self.transport = cast("SimulatedTransport", transport)
        if self._random.random() < 0.3:
            self.transport.set_write_buffer_limits(high=self._random.choice((0, 100, 5_000)))
        self._tick()

    def data_received(self, data: bytes) -> None:
        place = self._received_bytes % 251
        if self.lost or data != _PATTERN[place : place + len(data)]:
            raise Violation(f"{len(data)} bytes came at {self._received_bytes} that do not belong.")
        self._received_bytes += len(data)
        if self._random.random() < 0.05:
            self._step()

    def eof_received(self) -> bool:
        return self._keeps_open and not self.books.calm

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lost += 1
        if self.lost > 1 or self.transport is None:
            raise Violation("connection_lost came twice, or without connection_made.")

    def _tick(self) -> None:
        if not self.lost and not self.books.calm:
            self._step()
            pause = self._random.expovariate(STEPS_A_SECOND)
            asyncio.get_running_loop().call_later(pause, self._tick)

    def _step(self) -> None:
        transport = self.transport
        if transport is None or self.lost or self.books.calm:
            return
        chance = self._random.random()
        if chance < 0.55:
            self._write(transport)
        elif chance < 0.7:
            transport.pause_reading()
        elif chance < 0.9:
            transport.resume_reading()
        elif chance < 0.93:
            self._ended = True
            try:
                transport.write_eof()
            except OSError:  # as real sockets do when the connection is gone already
                transport.abort()
        elif chance < 0.945:
            transport.close()
        elif chance < 0.955:
            transport.abort()

    def _write(self, transport: SimulatedTransport) -> None:
        if not self._may_write or self._ended or transport.is_closing():
            return
        size = self._random.randint(1, WRITE_MAX_BYTES)
        place = self._sent_bytes % 251
        transport.write(_PATTERN[place : place + size])
        self._sent_bytes += size
        _, high = transport.get_write_buffer_limits()
        if transport.get_write_buffer_size() > high + WRITE_MAX_BYTES:
            raise Violation("A buffer outgrew its limit although its protocol was paused.")


async def connections(world: World) -> None:
    """Run the scenario of connections."""
    books = ConnectionBooks()
    servers = [world.host(f"server-{number}") for number in range(2)]
    clients = [world.host(f"client-{number}") for number in range(2)]

    def start(host: Host) -> Coroutine[Any, Any, None]:
        if host in servers:
            return _serve(books, host)
        return _connect(books, host, [server.name for server in servers])

    chaos = Chaos(world, [*servers, *clients], start)
    await chaos.rage(STORM_SECONDS)
    world.calm()
    books.calm = True
    check_windows(world)
    await asyncio.sleep(SETTLING_SECONDS)
    for transport in books.open_transports():
        transport.resume_reading()
        transport.close()
    await asyncio.sleep(CLOSING_SECONDS)
    for transport in books.open_transports():
        _check_deadlock(transport)
        transport.abort()
    await asyncio.sleep(CLOSING_SECONDS)
    _check_released(world, books)


async def _serve(books: ConnectionBooks, host: Host) -> None:
    loop = asyncio.get_running_loop()
    random, process = host.surroundings.random, current_process()
    async with await loop.create_server(
        lambda: ConnectionEnd(books, random, process), None, PORT
    ) as server:
        await server.serve_forever()


async def _connect(books: ConnectionBooks, host: Host, servers: list[str]) -> None:
    loop = asyncio.get_running_loop()
    random, process = host.surroundings.random, current_process()

    async def connect() -> None:
        try:
            async with asyncio.timeout(random.choice((0.01, 0.5, 30.0))):
                await loop.create_connection(
                    lambda: ConnectionEnd(books, random, process), random.choice(servers), PORT
                )
        except OSError:  # refused, reset, or too late: another one is on its way
            return

    async with asyncio.TaskGroup() as group:
        while not books.calm:
            group.create_task(connect())
            await asyncio.sleep(random.expovariate(2.0))
        await loop.create_future()


def _check_deadlock(transport: SimulatedTransport) -> None:
    """Raise unless both ends are closing. Two ends that both close with more to send than fits wait
    for ever, on real sockets too: asyncio does not read while it closes. No other ends may."""
    peer = transport.outgoing.receiver
    if peer is None or peer.gone or not peer.is_closing():
        raise Violation(f"An end was closed and never lost: {transport!r}.")


def _check_released(world: World, books: ConnectionBooks) -> None:
    if left := books.open_transports():
        raise Violation(f"{len(left)} ends were aborted and never lost: {left[0]!r}.")
    if world.network.connections:
        raise Violation(f"{len(world.network.connections)} connections are left behind.")
    for host in world.network.hosts.values():
        if host.ports_in_use:
            raise Violation(
                f"{host.name} has {len(host.ports_in_use)} ports that no connection uses."
            )
