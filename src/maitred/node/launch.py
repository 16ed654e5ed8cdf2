"""The supervisor's view of one shard process: started, told, heard, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import DecodeError

from maitred.node.control import (
    LINE_BYTES,
    Failed,
    Ready,
    Start,
    StartGateway,
    Stop,
    decode_report,
    line,
)
from maitred.node.exits import FINISHED

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterable

    from maitred.errors import MaitredError

MODULE: Final = "maitred.node.shard_process"

OURS: Final = frozenset((signal.SIGINT, signal.SIGHUP))
"""Signals that a terminal sends to every process of a command; the supervisor drains for all."""

STANDARD_ERROR: Final = 2
"""Where a shard's standard output goes, too: ours is for what the node announces."""


class Ended(NamedTuple):
    """How a shard process ended."""

    status: int
    """Its exit status; the number of a signal is negative."""
    problem: MaitredError | None
    """What it said was wrong."""

    @property
    def finished(self) -> bool:
        """It stopped, and cut nothing off. Told by the status, which cannot get lost: of what was
        said last, a socket may lose some if the other end had not read everything."""
        return self.status == FINISHED

    def __str__(self) -> str:
        if self.status >= 0:
            how = f"ended with exit status {self.status}"
        else:
            how = f"was killed by {_signal_name(-self.status)}"
        return f"{how}: {self.problem}" if self.problem else how


class ShardProcess:
    """One process; a restarted shard is another one."""

    def __init__(
        self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = process.pid
        self.ready = asyncio.Event()
        self._process = process
        self._writer = writer
        self._problem: MaitredError | None = None
        self._ended = asyncio.create_task(self._watch(reader))

    @classmethod
    async def launch(
        cls, start: Start | StartGateway, inherited: Iterable[int], module: str | None = None
    ) -> ShardProcess:
        """Start a process; it inherits these files besides the one in `start`."""
        files = [*inherited]
        if isinstance(start, Start) and start.source_port_socket is not None:
            files.append(start.source_port_socket)
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(0)
            reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
            # Inherited through exec: no Ctrl-C or end of a terminal, both meant for the supervisor,
            # ends a shard. Blocked here as well for as long as it takes, they are delivered to us
            # afterwards. The process is forked before anything is waited for, so other launches may
            # come in between.
            signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *_interpreter_options(),
                    "-m",
                    module or MODULE,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(), *files),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=STANDARD_ERROR,
                )
            except BaseException:
                writer.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, OURS)
        writer.write(line(start))
        return cls(process, reader, writer)

    async def _watch(self, reader: asyncio.StreamReader) -> Ended:
        with suppress(OSError, ValueError, DecodeError):  # it died in the middle of a word
            while (said := await reader.readline()).endswith(b"\n"):
                report = decode_report(said)
                if isinstance(report, Ready):
                    self.ready.set()
                elif isinstance(report, Failed):
                    self._problem = report.error()
        status = await self._process.wait()
        self._writer.close()
        return Ended(status, self._problem)

    async def ended(self) -> Ended:
        """Wait for its end; may be asked again."""
        return await asyncio.shield(self._ended)

    async def ready_or_ended(self) -> Ended | None:
        """Wait until it listens (None), or for its end."""
        ready = asyncio.create_task(self.ready.wait())
        try:
            await asyncio.wait((ready, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        return None if self.ready.is_set() else self._ended.result()

    @property
    def has_ended(self) -> bool:
        """Is it no more?"""
        return self._ended.done()

    def stop(self) -> None:
        """Tell it to finish what is under way, and end."""
        if not self._writer.is_closing():
            self._writer.write(line(Stop()))

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()


def _interpreter_options() -> list[str]:
    """A shard must find the same modules as we do, and no others that lie around here."""
    return [] if {"", os.getcwd()} & set(sys.path) else ["-P"]  # noqa: PTH109 - sys.path has text


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
