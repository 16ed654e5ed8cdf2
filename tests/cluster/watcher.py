"""Writes down the views of the cluster that shards push, and which member owns each partition:
`python -m tests.cluster.watcher STORE HOST:PORT...`, until SIGTERM.

Each address is watched on a connection of its own, so that the ledger has when each shard had each
version. A lost connection is opened again. The owners are those of the database's rows, which are
the only ones that can commit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import asyncpg

from maitred.protocol import cql
from maitred.protocol.cluster import decode_view
from maitred.protocol.frames import HEADER, HEADER_BYTES, Opcode
from maitred.routing.names import TASKS
from tests.cluster.ledger import LEDGER_VARIABLE, NAMESPACE, Book, view_entry
from tests.node.raw import register, startup

PAUSE_SECONDS = 0.1
CONNECT_SECONDS = 2.0
OWNERS_SECONDS = 0.1
"""Pause between two looks at the owners of all partitions."""
OWNERS = """
SELECT queue, partition, range_id, split_part(owner, '/', 1) AS member
FROM maitred.partitions WHERE namespace = $1 AND queue_type = $2
"""


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


async def watch_owners(store: str, book: Book) -> None:
    """Note each change of the owner of a partition for ever."""
    known: dict[tuple[str, int], int] = {}
    while True:
        try:
            connection = await asyncpg.connect(store, timeout=CONNECT_SECONDS)
            try:
                while True:
                    await _look_at_owners(connection, book, known)
                    await asyncio.sleep(OWNERS_SECONDS)
            finally:
                connection.terminate()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await asyncio.sleep(PAUSE_SECONDS)


async def _look_at_owners(
    connection: asyncpg.Connection, book: Book, known: dict[tuple[str, int], int]
) -> None:
    asked = time.monotonic()
    rows = await connection.fetch(OWNERS, NAMESPACE, TASKS, timeout=CONNECT_SECONDS)
    for row in rows:
        place = (row["queue"], row["partition"])
        if known.get(place) != row["range_id"]:
            known[place] = row["range_id"]
            book.note(
                "owned",
                at=asked,
                partition=f"{NAMESPACE}/{row['queue']}/{row['partition']}",
                range_id=row["range_id"],
                member=row["member"],
            )


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = HEADER.unpack(await reader.readexactly(HEADER_BYTES))
    _, _, _, opcode, length = head
    return opcode, await reader.readexactly(length)


async def main(store: str, addresses: list[str]) -> None:
    book = Book(os.environ[LEDGER_VARIABLE], "watcher")
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    watching = [asyncio.create_task(watch(address, book)) for address in addresses]
    watching.append(asyncio.create_task(watch_owners(store, book)))
    print("ready", flush=True)
    await stopping.wait()
    for one in watching:
        one.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
