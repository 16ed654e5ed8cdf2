"""What the processes that a supervisor starts have in common: their start, their end of the control
channel, and their limits.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import uvloop

from maitred.errors import InternalError, MaitredError, Unavailable
from maitred.node.control import (
    LINE_BYTES,
    Failed,
    Measure,
    Measured,
    ReloadDone,
    Reloaded,
    ReloadProcess,
    ReloadWanted,
    TakeView,
    TrustLease,
    decode_command,
    done_before,
    line,
)
from maitred.node.exits import CANNOT_START, FINISHED
from maitred.node.shard_requests import part_states
from maitred.protocol.access import NodeReloaded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from maitred.logs import Logger
    from maitred.membership.view import ClusterView
    from maitred.metrics.exposition import Lines
    from maitred.node.control import ClusterNews, Command, Report
    from maitred.protocol.access import ProcessState
    from maitred.security.reload import ProcessReload

AnyStart = TypeVar("AnyStart")
"""The command with which the supervisor starts a process of this kind."""

RELOADS_MAX: Final = 100
"""Operators' requests for a reload of the node that wait in one process at a time."""


def run_child(
    kind: type[AnyStart],
    prepare: Callable[[AnyStart], Logger],
    serve: Callable[[SupervisorLink, AnyStart, Logger], Awaitable[int]],
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
    serve: Callable[[SupervisorLink, AnyStart, Logger], Awaitable[int]],
) -> int:
    link = await SupervisorLink.on(file)
    try:
        start = await link.hear()
        if not isinstance(start, kind):  # the supervisor has ended, or stops
            return FINISHED
        raise_file_limit()
        log = prepare(start)
        try:
            return await serve(link, start, log)
        except MaitredError as problem:
            await link.say(Failed.of(problem))
        except Exception as problem:
            log.exception("the process failed")
            await link.say(Failed.of(InternalError(f"{type(problem).__name__}: {problem}")))
        return CANNOT_START
    finally:
        await link.close()


class ClusterFollower(Protocol):
    """A process that follows the cluster: a shard."""

    def adopt(self, view: ClusterView) -> None:
        """Place partitions by this view, if it is newer than the present one."""

    def renew_lease(self, until: float, clock_ahead_seconds: float = 0.0) -> None:
        """Trust the node's lease until this time of the boot clock, and correct the node's wall
        clock by so many seconds."""


class SupervisorLink:
    """A process's end of the control channel: commands to stop and to reload come in, and reports
    and operators' requests for a reload go out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._wanted: dict[int, asyncio.Future[list[ProcessState]]] = {}
        """Reloads of the node that this process asked for, by number."""
        self._number = 0
        self._answers: set[asyncio.Task[None]] = set()
        self._measure: Callable[[], Awaitable[Lines]] | None = None

    @classmethod
    async def on(cls, file: int) -> SupervisorLink:
        """Return the link over the inherited socket with this number."""
        inherited = socket.socket(fileno=file)
        inherited.settimeout(0)
        return cls(*await asyncio.open_connection(sock=inherited, limit=LINE_BYTES))

    async def hear(self) -> Command | None:
        """Return the supervisor's next command; None if the supervisor has ended."""
        try:
            said = await self._reader.readline()
        except OSError:
            return None
        return decode_command(said) if said.endswith(b"\n") else None

    async def say(self, report: Report) -> None:
        """Send a report; without effect if the supervisor has ended."""
        with suppress(OSError):
            self._writer.write(line(report))
            await self._writer.drain()

    async def close(self) -> None:
        """Close the channel when all reports are sent."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()

    def measure_with(self, measure: Callable[[], Awaitable[Lines]]) -> None:
        """Answer the supervisor's questions for metrics with what this returns."""
        self._measure = measure

    def follow(
        self, reloading: ProcessReload, follower: ClusterFollower | None = None
    ) -> asyncio.Task[bool]:
        """Reload when the supervisor says so, in a task that ends when the process has to stop: on
        SIGTERM, on the supervisor's command, or because the supervisor has ended. The task returns
        True in the last case. The `follower` is told news of the cluster."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        return asyncio.create_task(self._follow(reloading, follower, stop))

    async def _follow(
        self, reloading: ProcessReload, follower: ClusterFollower | None, stop: asyncio.Event
    ) -> bool:
        heard = asyncio.create_task(self._hear_stop(reloading, follower))
        if await done_before(heard, stop):
            return heard.result() is None
        heard.cancel()
        return False

    async def _hear_stop(
        self, reloading: ProcessReload, follower: ClusterFollower | None
    ) -> Command | None:
        while True:
            command = await self.hear()
            if isinstance(command, ReloadProcess):
                self._answer_later(self._reload(reloading, command))
            elif isinstance(command, Measure):
                self._answer_later(self._tell_metrics(command))
            elif isinstance(command, ReloadDone):
                waiting = self._wanted.get(command.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command.processes)
            elif isinstance(command, TakeView | TrustLease):
                if follower is not None:
                    _pass_on(command, follower)
            else:
                return command

    def _answer_later(self, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answering)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _tell_metrics(self, command: Measure) -> None:
        lines = await self._measure() if self._measure is not None and command.samples else {}
        await self.say(Measured(command.number, lines))

    async def _reload(self, reloading: ProcessReload, command: ReloadProcess) -> None:
        parts = await reloading.reload(command.users)
        await self.say(Reloaded(command.number, part_states(parts)))

    async def reload_node(self) -> NodeReloaded:
        """Have every process of the node reload."""
        if len(self._wanted) >= RELOADS_MAX:
            raise Unavailable("The node is being reloaded already.", remedy="Try again later.")
        self._number += 1
        number = self._number
        waiting = self._wanted[number] = asyncio.get_running_loop().create_future()
        try:
            await self.say(ReloadWanted(number))
            return NodeReloaded(await waiting)
        finally:
            del self._wanted[number]


def _pass_on(news: ClusterNews, follower: ClusterFollower) -> None:
    if isinstance(news, TakeView):
        follower.adopt(news.view)
    else:
        follower.renew_lease(news.until, news.clock_ahead_seconds)


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: every connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS calls its limit infinite, and refuses to set it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def set_title(name: str) -> None:
    """Set the name that `top` shows, where the system has a file for it."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"maitred/{name}")
