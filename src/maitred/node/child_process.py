"""The supervisor's view of one child process, a shard or the gateway: its start, its reports, its
end."""

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
    Measure,
    Measured,
    Ready,
    ReloadDone,
    ReloadProcess,
    ReloadWanted,
    Start,
    StartGateway,
    Stop,
    decode_report,
    done_before,
    line,
)
from maitred.node.exits import FINISHED

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Iterable

    from maitred.errors import MaitredError
    from maitred.metrics.exposition import Lines
    from maitred.node.control import ClusterNews, Command
    from maitred.protocol.access import PartState, ProcessState
    from maitred.settings import User

    ReloadAsker = Callable[[list[ProcessState]], None]
    """Tells the process that asked for a reload what came of it."""

MODULE: Final = "maitred.node.shard_process"

OURS: Final = frozenset((signal.SIGINT, signal.SIGHUP))
"""Signals that a terminal sends to every process of a command; the supervisor alone handles
them."""

STANDARD_ERROR: Final = 2
"""A child's standard output goes there, too: the supervisor's own is for its announcement."""


class ProcessEnd(NamedTuple):
    """The exit status of a process, and the error that it reported before, if it did."""

    status: int
    """The exit status; minus the signal's number if a signal ended the process."""
    problem: MaitredError | None
    """The error that the process reported."""

    @property
    def finished(self) -> bool:
        """Whether the process stopped without cutting requests off. The exit status tells, because
        a socket may lose the last report if the other end had not read everything."""
        return self.status == FINISHED

    def __str__(self) -> str:
        if self.status >= 0:
            how = f"ended with exit status {self.status}"
        else:
            how = f"was killed by {_signal_name(-self.status)}"
        return f"{how}: {self.problem}" if self.problem else how


class ChildProcess:
    """One process of the node; a restarted shard is another `ChildProcess`."""

    def __init__(
        self,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        reload_wanted: Callable[[ReloadAsker], None],
        on_ready: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self.pid = process.pid
        self.serves = False
        """Whether the process was able to serve when it became ready."""
        self._on_ready = on_ready
        self._on_end = on_end
        self._ready = asyncio.Event()
        self._process = process
        self._writer = writer
        self._problem: MaitredError | None = None
        self._reload_wanted = reload_wanted
        self._reloads: dict[int, asyncio.Future[list[PartState] | None]] = {}
        self._question_number = 0
        self._measurements: dict[int, asyncio.Future[Lines | None]] = {}
        self._ended = asyncio.create_task(self._watch(reader))

    @classmethod
    async def launch(
        cls,
        start: Start | StartGateway,
        inherited: Iterable[int],
        module: str | None = None,
        *,
        reload_wanted: Callable[[ReloadAsker], None] = lambda _asker: None,
        on_ready: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> ChildProcess:
        """Start a process; it inherits these files besides the one in `start`. `reload_wanted` is
        called when an operator asks the process for a reload of the node."""
        files = [*inherited]
        if isinstance(start, Start) and start.source_port_socket is not None:
            files.append(start.source_port_socket)
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(0)
            reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
            # The child inherits the blocked signals: Ctrl-C and the end of a terminal, both meant
            # for the supervisor, do not end it. The supervisor gets those that come meanwhile as
            # soon as it unblocks them. The fork happens before the first await, so concurrent
            # launches do no harm.
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
        return cls(
            process,
            reader,
            writer,
            reload_wanted=reload_wanted,
            on_ready=on_ready,
            on_end=on_end,
        )

    async def _watch(self, reader: asyncio.StreamReader) -> ProcessEnd:
        with suppress(OSError, ValueError, DecodeError):  # the process died while it reported
            while (said := await reader.readline()).endswith(b"\n"):
                report = decode_report(said)
                if isinstance(report, Ready):
                    self.serves = report.serves
                    self._on_ready()
                    self._ready.set()
                elif isinstance(report, Failed):
                    self._problem = report.error()
                elif isinstance(report, ReloadWanted):
                    self._reload_wanted(partial(self._reload_done, report.number))
                elif isinstance(report, Measured):
                    measured = self._measurements.get(report.number)
                    if measured is not None and not measured.done():
                        measured.set_result(report.lines)
                elif (waiting := self._reloads.get(report.number)) is not None:
                    waiting.set_result(report.parts)
        for waiting in self._reloads.values():
            if not waiting.done():
                waiting.set_result(None)
        for measured in self._measurements.values():
            if not measured.done():
                measured.set_result(None)
        status = await self._process.wait()
        self._on_end()
        self._writer.close()
        return ProcessEnd(status, self._problem)

    async def ended(self) -> ProcessEnd:
        """Wait until the process has ended; any number of callers may wait."""
        return await asyncio.shield(self._ended)

    async def ready_or_ended(self) -> ProcessEnd | None:
        """Wait until the process listens, and return None; or until it has ended."""
        await done_before(self._ended, self._ready)
        return None if self._ready.is_set() else self._ended.result()

    def stop(self) -> None:
        """Tell the process to finish the requests in flight, and to end."""
        self._say(Stop())

    def tell(self, news: ClusterNews) -> None:
        """Tell the process news of the cluster."""
        self._say(news)

    async def reload(self, users: dict[str, User] | None) -> list[PartState] | None:
        """Have the process reload; return None if it ends before."""
        if self._ended.done():
            return None
        number = self._question_number = self._question_number + 1
        waiting: asyncio.Future[list[PartState] | None]
        waiting = self._reloads[number] = asyncio.get_running_loop().create_future()
        self._say(ReloadProcess(number, users))
        try:
            return await waiting
        finally:
            self._reloads.pop(number, None)

    async def measure(self, *, samples: bool) -> Lines | None:
        """Return the metrics of the process, or nothing but that it answers; None if it ends
        before."""
        if self._ended.done():
            return None
        number = self._question_number = self._question_number + 1
        waiting: asyncio.Future[Lines | None]
        waiting = self._measurements[number] = asyncio.get_running_loop().create_future()
        self._say(Measure(number, samples))
        try:
            return await waiting
        finally:
            self._measurements.pop(number, None)

    def _reload_done(self, number: int, processes: list[ProcessState]) -> None:
        self._say(ReloadDone(number, processes))

    def _say(self, command: Command) -> None:
        if not self._writer.is_closing():
            self._writer.write(line(command))

    def kill(self) -> None:
        """Kill the process."""
        send_signal(self._process, signal.SIGKILL)


def send_signal(process: Process, number: int) -> None:
    """Send a signal to a child unless it has ended. `Process.send_signal` would first poll, and so
    take the exit status away from the loop, which then reports an unknown child process and the
    status 255."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _interpreter_options() -> list[str]:
    """Return the options with which a child finds the same modules as this process, and no others
    of the current directory."""
    return [] if {"", os.getcwd()} & set(sys.path) else ["-P"]  # noqa: PTH109 - sys.path has text


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
