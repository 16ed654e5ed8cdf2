"""A TCP server in front of a real PostgreSQL: it can freeze, or pass for a standby or a pooler."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PRIMARY = b"in_hot_standby\x00off\x00"
_STANDBY = b"in_hot_standby\x00on\x00"


class PostgresProxy:
    """Forwards to the Unix socket of the server that a location names."""

    def __init__(self, location: str) -> None:
        parts = urlsplit(location)
        self.database = parts.path.lstrip("/")
        self._socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        self.kind: Literal["primary", "standby", "pooler"] = "primary"
        self.port = 0
        self.connections = 0
        self._forwards = asyncio.Event()
        self._forwards.set()

    def freeze(self) -> None:
        """Accept connections, and forward nothing."""
        self._forwards.clear()

    def thaw(self) -> None:
        self._forwards.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._forwards.wait()
            up_reader, up_writer = await asyncio.open_unix_connection(self._socket)
            pumps = [
                asyncio.create_task(self._pump(reader, up_writer)),
                asyncio.create_task(self._pump(up_reader, writer, answers=True)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                up_writer.close()
        finally:
            writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(2**16):
                await self._forwards.wait()
                writer.write(self._disguised(chunk) if answers else chunk)
                await writer.drain()

    def _disguised(self, chunk: bytes) -> bytes:
        at = chunk.find(_PRIMARY)
        if at < 0 or self.kind == "primary":
            return chunk
        if self.kind == "standby":
            size = int.from_bytes(chunk[at - 4 : at]) - 1
            return chunk[: at - 4] + size.to_bytes(4) + _STANDBY + chunk[at + len(_PRIMARY) :]
        key = chunk.index(b"K\x00\x00\x00\x0c", at) + 5
        return chunk[:key] + (4711).to_bytes(4) + chunk[key + 4 :]


@asynccontextmanager
async def proxies(location: str, number: int) -> AsyncIterator[list[PostgresProxy]]:
    """So many of them, each at a port of its own."""
    each = [PostgresProxy(location) for _ in range(number)]
    servers = []
    try:
        for one in each:
            server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
            one.port = server.sockets[0].getsockname()[1]
            servers.append(server)
        yield each
    finally:
        for server in servers:
            server.close()


def location_of(*each: PostgresProxy) -> str:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in each)
    return f"postgresql://postgres@{hosts}/{each[0].database}"
