"""What the processes of a node have in common: an end of the control channel, and their limits."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from maitred.node.control import LINE_BYTES, decode_command, line

if TYPE_CHECKING:
    from maitred.node.control import Command, Report


class Channel:
    """A process's end of the control channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def on(cls, file: int) -> Channel:
        inherited = socket.socket(fileno=file)
        inherited.settimeout(0)
        return cls(*await asyncio.open_connection(sock=inherited, limit=LINE_BYTES))

    async def hear(self) -> Command | None:
        """Return the supervisor's next line; None if the supervisor has ended."""
        try:
            said = await self._reader.readline()
        except OSError:
            return None
        return decode_command(said) if said.endswith(b"\n") else None

    async def say(self, report: Report) -> None:
        with suppress(OSError):  # nobody is there to hear it
            self._writer.write(line(report))
            await self._writer.drain()

    async def close(self) -> None:
        """Returns when all that was said is on its way."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()


async def until_stopped(heard: asyncio.Task[Command | None], stop: asyncio.Event) -> bool:
    """Wait for a signal or a word; true if the supervisor has gone without one."""
    signalled = asyncio.create_task(stop.wait())
    await asyncio.wait((heard, signalled), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if heard.done():
        return heard.result() is None
    heard.cancel()
    return False


def raise_file_limit() -> None:
    """There is a file for each connection; the soft limit is for programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS calls it infinite, and means less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def set_title(name: str) -> None:
    """What `top` shows; there is no portable way, and it is not worth a dependency."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"maitred/{name}")
