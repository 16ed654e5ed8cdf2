"""Servers that start, stop and share ports while streams clients come and go.

What must hold: an address is never bound twice unless all want to share it; a port that was freed
can be bound again; port 0 gives a free one; a connection reaches a server that listens there; and
when it is calm, every server that is up can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Final

from maitred.simulation.errors import Violation

if TYPE_CHECKING:
    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process
    from maitred.simulation.world import World

SHARED_PORT: Final = 7_000
OWN_PORT: Final = 7_001
ROUNDS: Final = 12
SHARING: Final = 3
ANSWER_SECONDS: Final = 5.0


Board = dict[str, int]
"""Maps the name of each process that serves to its port; servers write it, checks read it."""


async def servers(world: World) -> None:
    """Run the scenario of servers."""
    random = world.random("servers")
    board: Board = {}
    host = world.host("server")
    client = world.host("client")
    processes: list[Process] = []
    for round_number in range(ROUNDS):
        for process in processes:
            if random.random() < 0.3:
                process.kill()
                board.pop(process.name, None)
        processes = [process for process in processes if not process.dead]
        for number in range(SHARING):
            name = f"{round_number}-{number}"
            processes.append(host.spawn(_serve(host, name, board), name=name))
        await asyncio.sleep(random.random())
        await client.spawn(_visit(host, client, board), name=f"visitor-{round_number}").wait()
    world.calm()
    await asyncio.sleep(1.0)
    await client.spawn(_visit_all(host, board), name="inspector").wait()


async def _serve(host: Host, name: str, board: Board) -> None:
    """Run a server process: one of three kinds of server, for some seconds."""
    random = host.surroundings.random

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if await reader.readline():
                writer.write(f"{name}\n".encode())
                await writer.drain()
        writer.close()

    kind = random.choice(("shared", "own", "any"))
    port = {"shared": SHARED_PORT, "own": OWN_PORT, "any": 0}[kind]
    try:
        server = await asyncio.start_server(answer, None, port, reuse_port=kind == "shared")
    except OSError as error:
        if error.errno != errno.EADDRINUSE or OWN_PORT not in host.listeners:
            raise
        return
    actual = server.sockets[0].getsockname()[1]
    if kind != "shared" and actual in board.values():
        raise Violation(f"Port {actual} was bound twice.") from None
    board[name] = actual
    async with server:
        await asyncio.sleep(random.expovariate(0.3))
        del board[name]


async def _visit(host: Host, client: Host, board: Board) -> None:
    """Connect to some port; in a storm any error is fine, but not a wrong answer."""
    random = client.surroundings.random
    ports = [SHARED_PORT, OWN_PORT, *board.values()]
    for port in random.sample(ports, 2):
        with contextlib.suppress(OSError, TimeoutError):
            await _check_answer(host, port, board)


async def _visit_all(host: Host, board: Board) -> None:
    for port in sorted(set(board.values())):
        before = _names(board, port)
        answered = False
        with contextlib.suppress(OSError):
            answered = await _check_answer(host, port, board)
        if not answered and before and before == _names(board, port):
            raise Violation(f"No server answers on port {port}, although it is calm.")


async def _check_answer(host: Host, port: int, board: Board) -> bool:
    before = _names(board, port)
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection(host.name, port)
        try:
            writer.write(b"who?\n")
            name = (await reader.readline()).decode().strip()
        finally:
            writer.close()
    if name and name not in before and name not in _names(board, port):
        raise Violation(f"{name} answered on port {port}, where it does not listen.")
    return bool(name)


def _names(board: Board, port: int) -> list[str]:
    return [name for name, bound in board.items() if bound == port]
