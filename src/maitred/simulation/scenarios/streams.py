"""Clients and servers under every fault; afterwards, calm, in which all have to recover.

What must hold: bytes arrive in order and unchanged; each request has exactly one outcome, by its
deadline; nothing is answered that was not asked; connection_lost comes exactly once; and within
`RECOVERY_SECONDS` of calm every client gets an answer from its server.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.chaos import Chaos
from maitred.simulation.scenarios.pipelined import PipelinedClient, RequestFailed, serve

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from maitred.simulation.hosts import Host
    from maitred.simulation.world import World

PORT: Final = 7_000
SERVERS: Final = 2
CLIENTS: Final = 3
STORM_SECONDS: Final = 10.0
REQUEST_TIMEOUT_SECONDS: Final = 2.0
PAYLOAD_MAX_BYTES: Final = 3_000
STORM_RATE: Final = 8.0
"""Requests a second of each client."""
CALM_RATE: Final = 2.0
"""The same once it is calm: what matters there is that they are answered at all."""

RECOVERY_SECONDS: Final = (
    REQUEST_TIMEOUT_SECONDS
    + PipelinedClient.connect_timeout_seconds
    + 1.5 * PipelinedClient.backoff_max_seconds
    + 1
)
"""A request on a half-open connection times out, connecting too, one backoff; and one to spare."""


@dataclass
class StreamBooks:
    """The answers that clients got; kept here because a kill takes a client's own memory."""

    answered: int = 0
    failed: int = 0
    calm: bool = False
    answered_by: dict[str, float] = field(default_factory=dict)
    """Client host to the time of its last answer."""
    clients: dict[str, PipelinedClient] = field(default_factory=dict)


async def streams(world: World) -> None:
    """Run the scenario of streams."""
    books = StreamBooks()
    servers = [world.host(f"server-{number}", group="servers") for number in range(SERVERS)]
    clients = [world.host(f"client-{number}", group="clients") for number in range(CLIENTS)]

    def start(host: Host) -> Coroutine[Any, Any, None]:
        if host in servers:
            return serve(host.surroundings, PORT)
        return _client(host, servers[clients.index(host) % SERVERS].name, books)

    chaos = Chaos(world, [*servers, *clients], start)
    await chaos.rage(STORM_SECONDS)
    world.calm()
    books.calm = True
    calm_at = world.loop.time()
    await asyncio.sleep(RECOVERY_SECONDS)
    for host in clients:
        if books.answered_by.get(host.name, -1.0) < calm_at:
            raise Violation(
                f"{host.name} got no answer within {RECOVERY_SECONDS} s of calm; "
                f"{books.answered} answers, {books.failed} failures in all."
            )
    _check_protocols(books)


def _check_protocols(books: StreamBooks) -> None:
    for name, client in books.clients.items():
        for protocol in client.protocols[:-1]:
            if protocol.transport is not None and protocol.lost != 1:
                raise Violation(f"{name} had connection_lost {protocol.lost} times, not once.")


async def _client(host: Host, server: str, books: StreamBooks) -> None:
    """Run a client process."""
    client = PipelinedClient(host.surroundings, server, PORT)
    books.clients[host.name] = client
    random = host.surroundings.random
    async with asyncio.TaskGroup() as group:
        group.create_task(client.run())
        while True:
            size = random.randrange(PAYLOAD_MAX_BYTES)
            group.create_task(_ask(host, client, random.randbytes(size), books))
            await asyncio.sleep(random.expovariate(CALM_RATE if books.calm else STORM_RATE))


async def _ask(host: Host, client: PipelinedClient, payload: bytes, books: StreamBooks) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        answer = await client.request(payload, REQUEST_TIMEOUT_SECONDS)
    except RequestFailed:
        books.failed += 1
    else:
        if answer != payload[::-1]:
            raise Violation("The answer belongs to another request.")
        books.answered += 1
        books.answered_by[host.name] = loop.time()
    if loop.time() - started > REQUEST_TIMEOUT_SECONDS + 1e-6:
        raise Violation(f"An outcome came {loop.time() - started:.3f} s after the request.")
