"""Fast writers and slow readers: memory stays bounded, and everything arrives in order.

What must hold: a writer that respects `pause_writing` never buffers more than the high-water mark
and one block; what is under way or unread never exceeds the window; a connection that survives
delivers every byte, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

from maitred.simulation.errors import Violation

if TYPE_CHECKING:
    from maitred.simulation.hosts import Host
    from maitred.simulation.world import World

PORT: Final = 7_000
WRITERS: Final = 3
BLOCKS_MAX: Final = 60
BLOCK_MAX_BYTES: Final = 40_000
DIGEST_BYTES: Final = 32
STORM_SECONDS: Final = 3.0
PATIENCE_SECONDS: Final = 600.0
WATCH_SECONDS: Final = 0.02


async def backpressure(world: World) -> None:
    """Run the scenario: faults are on for the first seconds, then it is calm."""
    reader = world.host("reader")
    reader.spawn(lambda: _serve(reader))
    await asyncio.sleep(0.1)
    writers = [world.host(f"writer-{number}") for number in range(WRITERS)]
    processes = [host.spawn(_transfer(host, reader)) for host in writers]
    world.loop.call_later(STORM_SECONDS, world.calm)
    done = asyncio.gather(*(process.wait() for process in processes))
    while not done.done():
        check_windows(world)
        if world.loop.time() > STORM_SECONDS + PATIENCE_SECONDS:
            raise Violation(f"A transfer takes longer than {PATIENCE_SECONDS} s of calm.")
        await asyncio.wait([done], timeout=WATCH_SECONDS)
    await done


def check_windows(world: World) -> None:
    """Raise `Violation` if more is under way or unread than the window of a connection allows."""
    window = world.network.faults.window_bytes
    for connection in world.network.connections.values():
        for flow in (connection.outgoing, connection.incoming):
            if not 0 <= flow.outstanding_bytes <= window:
                raise Violation(f"{flow.outstanding_bytes} bytes under way, window {window}.")


async def _transfer(host: Host, reader: Host) -> None:
    """Send everything over one connection; if that is lost, over another one."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(120.0):
                await _transfer_once(host, reader)
                return
        await asyncio.sleep(0.5)


async def _transfer_once(host: Host, reader: Host) -> None:
    random = host.surroundings.random
    incoming, outgoing = await asyncio.open_connection(reader.name, PORT)
    try:
        high_water = random.choice((0, 1_000, 65_536))
        outgoing.transport.set_write_buffer_limits(high=high_water)
        digest = hashlib.sha256()
        for _ in range(random.randint(1, BLOCKS_MAX)):
            block = random.randbytes(random.randint(1, BLOCK_MAX_BYTES))
            digest.update(block)
            outgoing.write(block)
            buffered = outgoing.transport.get_write_buffer_size()
            if buffered > high_water + BLOCK_MAX_BYTES:
                raise Violation(f"{buffered} bytes are buffered in spite of drain().")
            await outgoing.drain()
        outgoing.write_eof()
        answer = await incoming.readexactly(DIGEST_BYTES)
        if answer != digest.digest():
            raise Violation("What arrived is not what was sent.")
    finally:
        outgoing.close()


async def _serve(host: Host) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await _read_slowly(host, reader, writer)
        writer.close()

    async with await asyncio.start_server(slowly, None, PORT, limit=4_096) as server:
        await server.serve_forever()


async def _read_slowly(
    host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    random = host.surroundings.random
    digest = hashlib.sha256()
    while data := await reader.read(random.randint(1, 50_000)):
        digest.update(data)
        if random.random() < 0.1:
            await asyncio.sleep(random.random() * 0.1)
    writer.write(digest.digest())
    await writer.drain()
