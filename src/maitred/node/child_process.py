"""What the processes that a supervisor starts have in common: their start, their end of the control
channel, and their limits."""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import uvloop

from maitred.errors import InternalError, MaitredError
from maitred.node.control import LINE_BYTES, Failed, decode_command, line
from maitred.node.exits import CANNOT_START, FINISHED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.logs import Logger
    from maitred.node.control import Command, Report

AnyStart = TypeVar("AnyStart")
"""The command with which the supervisor starts a process of this kind."""


def run_child(
    kind: type[AnyStart],
    prepare: Callable[[AnyStart], Logger],
    serve: Callable[[Channel, AnyStart, Logger], Awaitable[int]],
) -> None:
    """Run this process as the child of a supervisor: read the command to start from the inherited
    socket whose number is the first argument, serve, and exit with the status that `serve` returns.

    An error of `serve` is reported to the supervisor.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_hear_and_serve(int(sys.argv[1]), kind, prepare, serve)))


async def _hear_and_serve(
    file: int,
    kind: type[AnyStart],
    prepare: Callable[[AnyStart], Logger],
    serve: Callable[[Channel, AnyStart, Logger], Awaitable[int]],
) -> int:
    channel = await Channel.on(file)
    try:
        start = await channel.hear()
        if not isinstance(start, kind):  # the supervisor has ended, or stops
            return FINISHED
        raise_file_limit()
        log = prepare(start)
        try:
            return await serve(channel, start, log)
        except MaitredError as problem:
            await channel.say(Failed.of(problem))
        except Exception as problem:
            log.exception("the process failed")
            await channel.say(Failed.of(InternalError(f"{type(problem).__name__}: {problem}")))
        return CANNOT_START
    finally:
        await channel.close()


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
