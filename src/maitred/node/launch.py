"""The supervisor's view of one shard process: started, told, heard, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import DecodeError

from maitred.node.control import (
    LINE_BYTES,
    Failed,
    Ready,
    ReloadDone,
    ReloadProcess,
    ReloadWanted,
    Start,
    StartGateway,
    Stop,
    decode_report,
    line,
)
from maitred.node.exits import FINISHED

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Iterable

    from maitred.errors import MaitredError
    from maitred.node.control import Command
    from maitred.protocol.access import PartState, ProcessState
    from maitred.settings import User

    ReloadAsker = Callable[[list[ProcessState]], None]
    """Tells the process that asked for a reload what came of it."""

MODULE: Final = "maitred.node.shard_process"

OURS: Final = frozenset((signal.SIGINT, signal.SIGHUP))
"""Signals that a terminal sends to every process of a command; the supervisor drains for all."""

STANDARD_ERROR: Final = 2
"""Where a shard's standard output goes, too: ours is for what the node announces."""


class ProcessEnd(NamedTuple):
    """The exit status of a process, and the error that it reported before, if it did."""

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
        self,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        reload_wanted: Callable[[ReloadAsker], None],
    ) -> None:
        self.pid = process.pid
        self.ready = asyncio.Event()
        self.serves = False
        """Whether it was able to serve when it became ready."""
        self._process = process
        self._writer = writer
        self._problem: MaitredError | None = None
        self._reload_wanted = reload_wanted
        self._reloads: dict[int, asyncio.Future[list[PartState] | None]] = {}
        self._reload_number = 0
        self._ended = asyncio.create_task(self._watch(reader))

    @classmethod
    async def launch(
        cls,
        start: Start | StartGateway,
        inherited: Iterable[int],
        module: str | None = None,
        reload_wanted: Callable[[ReloadAsker], None] = lambda _asker: None,
    ) -> ShardProcess:
        """Start a process; it inherits these files besides the one in `start`. `reload_wanted` is
        called when the process was asked to have the node reload."""
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
        return cls(process, reader, writer, reload_wanted)

    async def _watch(self, reader: asyncio.StreamReader) -> ProcessEnd:
        with suppress(OSError, ValueError, DecodeError):  # it died in the middle of a word
            while (said := await reader.readline()).endswith(b"\n"):
                report = decode_report(said)
                if isinstance(report, Ready):
                    self.serves = report.serves
                    self.ready.set()
                elif isinstance(report, Failed):
                    self._problem = report.error()
                elif isinstance(report, ReloadWanted):
                    self._reload_wanted(partial(self._reload_done, report.number))
                elif (waiting := self._reloads.get(report.number)) is not None:
                    waiting.set_result(report.parts)
        for waiting in self._reloads.values():
            if not waiting.done():
                waiting.set_result(None)
        status = await self._process.wait()
        self._writer.close()
        return ProcessEnd(status, self._problem)

    async def ended(self) -> ProcessEnd:
        """Wait for its end; may be asked again."""
        return await asyncio.shield(self._ended)

    async def ready_or_ended(self) -> ProcessEnd | None:
        """Wait until it listens (None), or for its end."""
        ready = asyncio.create_task(self.ready.wait())
        try:
            await asyncio.wait((ready, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        return None if self.ready.is_set() else self._ended.result()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._ended.done()

    def stop(self) -> None:
        """Tell it to finish what is under way, and end."""
        self._say(Stop())

    async def reload(self, users: dict[str, User] | None) -> list[PartState] | None:
        """Have it read everything again; None if it ends before it has."""
        number = self._reload_number = self._reload_number + 1
        waiting: asyncio.Future[list[PartState] | None]
        waiting = self._reloads[number] = asyncio.get_running_loop().create_future()
        self._say(ReloadProcess(number, users))
        try:
            return await waiting
        finally:
            self._reloads.pop(number, None)

    def _reload_done(self, number: int, processes: list[ProcessState]) -> None:
        self._say(ReloadDone(number, processes))

    def _say(self, command: Command) -> None:
        if not self._writer.is_closing():
            self._writer.write(line(command))

    def kill(self) -> None:
        """End it at once."""
        send_signal(self._process, signal.SIGKILL)


def send_signal(process: Process, number: int) -> None:
    """Send a signal to a child unless it has ended. `Process.send_signal` would first look whether
    it has, and if so take its exit status away from the loop, which then tells of an unknown child
    process and of the status 255."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _interpreter_options() -> list[str]:
    """A shard must find the same modules as we do, and no others that lie around here."""
    return [] if {"", os.getcwd()} & set(sys.path) else ["-P"]  # noqa: PTH109 - sys.path has text


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
