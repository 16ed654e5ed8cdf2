"""A way to the node that can be cut: `python -m tests.tasks.relay HOST PORT...`, a process.

It listens on the host at the same ports as the node, so that whoever comes this way stays on it,
and passes on everything. Stopped (SIGSTOP), it is a network that swallows: connections stay open,
nothing arrives, and nobody is told.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

NODE = "127.0.0.1"


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def relay(host: str, ports: list[int]) -> None:
    def opened(port: int):  # type: ignore[no-untyped-def] # noqa: ANN202 - what start_server takes
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there = await asyncio.open_connection(NODE, port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

        return serve

    servers = [await asyncio.start_server(opened(port), host, port) for port in ports]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], [int(port) for port in sys.argv[2:]]))
