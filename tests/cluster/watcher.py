"""Writes down the views of the cluster that shards push: `python -m tests.cluster.watcher
HOST:PORT...`, until SIGTERM.

Each address is watched on a connection of its own, so that the ledger has when each shard had each
version. A lost connection is opened again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from maitred.protocol import cql
from maitred.protocol.cluster import decode_view
from maitred.protocol.frames import HEADER, HEADER_BYTES, Opcode
from tests.cluster.ledger import LEDGER_VARIABLE, Book, view_entry
from tests.node.raw import register, startup

PAUSE_SECONDS = 0.1
CONNECT_SECONDS = 2.0


async def watch(address: str, book: Book) -> None:
    """Watch one address for ever."""
    while True:
        try:
            await _watch_once(address, book)
        except (OSError, EOFError, TimeoutError):
            await asyncio.sleep(PAUSE_SECONDS)


async def _watch_once(address: str, book: Book) -> None:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(startup())
        await _frame(reader)
        writer.write(register(cql.VIEW))
    pushed = False  # the first one tells what the shard has, and the next ones are news
    try:
        while True:
            opcode, body = await _frame(reader)
            if opcode == Opcode.EVENT and cql.decode_event(body) == cql.VIEW:
                view = decode_view(cql.decode_view(body))
                book.note("view", seen_by=address, pushed=pushed, **view_entry(view))
                pushed = True
    finally:
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = HEADER.unpack(await reader.readexactly(HEADER_BYTES))
    _, _, _, opcode, length = head
    return opcode, await reader.readexactly(length)


async def main(addresses: list[str]) -> None:
    book = Book(os.environ[LEDGER_VARIABLE], "watcher")
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    watching = [asyncio.create_task(watch(address, book)) for address in addresses]
    print("ready", flush=True)
    await stopping.wait()
    for one in watching:
        one.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
