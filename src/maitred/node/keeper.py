"""Keeps one child process of the supervisor alive: starts, restarts and stops it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from msgspec import structs

from maitred.errors import CannotStart, ShardsKeepDying
from maitred.node.child_process import ChildProcess, ProcessEnd
from maitred.node.control import Start
from maitred.node.exits import CUT_OFF
from maitred.node.restarts import GiveUp, RestartPolicy
from maitred.node.shard import FAREWELL_SECONDS
from maitred.protocol.access import PartState, ProcessState
from maitred.security.reload import FAILED, UNCHANGED
from maitred.states import StateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.logs import Logger
    from maitred.metrics.exposition import Lines
    from maitred.node.child_process import ReloadAsker
    from maitred.node.control import ClusterNews, StartGateway
    from maitred.node.shard_place import ShardPlace
    from maitred.settings import Node, User

START_SECONDS: Final = 60.0
"""Longest time from the start of a process to its first report, on a busy machine."""

RELOAD_SECONDS: Final = 4.0
"""Time for a process to reload users and certificates; ten thousand users take a second. It is
shorter than the default timeout of `maitred admin reload`, which can then name the slow process."""

SLACK_SECONDS: Final = 5.0
"""Time beyond its drain after which a stopping process is killed."""


class ChildState(Enum):
    """Where a child process of the supervisor stands, across its restarts."""

    NEW = auto()
    """The process was never started."""
    STARTING = auto()
    """The process was started, and has not reported that it is ready."""
    READY = auto()
    DEAD = auto()
    """The process has ended by itself, and is started again after a pause."""
    STOPPING = auto()
    """The process was told to stop, or is being killed."""
    ENDED = auto()
    """The process has ended, and is not started again."""


class ChildEvent(Enum):
    """What can happen to a child process."""

    LAUNCH = auto()
    REPORT_READY = auto()
    DIE = auto()
    STOP = auto()
    """The supervisor stops or kills the process."""


_STATE, _EVENT = ChildState, ChildEvent

CHILD_TABLE: Final = StateTable[ChildState, ChildEvent](
    "child process",
    {_STATE.NEW: ""},
    {
        _STATE.NEW: {_EVENT.LAUNCH: _STATE.STARTING, _EVENT.STOP: _STATE.ENDED},
        _STATE.STARTING: {
            _EVENT.REPORT_READY: _STATE.READY,
            _EVENT.DIE: _STATE.DEAD,
            _EVENT.STOP: _STATE.STOPPING,
        },
        _STATE.READY: {_EVENT.DIE: _STATE.DEAD, _EVENT.STOP: _STATE.STOPPING},
        _STATE.DEAD: {_EVENT.LAUNCH: _STATE.STARTING, _EVENT.STOP: _STATE.ENDED},
        _STATE.STOPPING: {
            # The process may become ready before it reads the command to stop.
            _EVENT.REPORT_READY: _STATE.STOPPING,
            _EVENT.DIE: _STATE.ENDED,
            # A second signal kills a process that drains.
            _EVENT.STOP: _STATE.STOPPING,
        },
        _STATE.ENDED: {},
    },
)


class Keeper:
    """One shard, as a sequence of processes. A subclass for another kind of process overrides its
    names, its start, and what follows when it keeps dying."""

    word = "shard"
    """The kind of process, for the log."""

    def __init__(
        self,
        place: ShardPlace,
        settings: Node,
        log: Logger,
        *,
        source_port_socket: int | None,
        inherited: Iterable[int],
        reload_wanted: Callable[[ReloadAsker], None] = lambda _asker: None,
    ) -> None:
        self.place = place
        self.state = ChildState.NEW
        self._settings = settings
        self._log = log.bind(shard=place.number)
        self._source_port_socket = source_port_socket
        self._inherited = tuple(inherited)
        self._reload_wanted = reload_wanted
        self._process: ChildProcess | None = None
        self._news: dict[type[ClusterNews], ClusterNews] = {}
        """The latest news of the cluster of each kind, for a process that is started later."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.title}: {self.state.name}, process {self.pid}>"

    def _happen(self, event: ChildEvent) -> None:
        self.state = CHILD_TABLE.after(self.state, event)

    @property
    def _name(self) -> str:
        """The process's name, for sentences."""
        return f"Shard {self.place.number}"

    @property
    def title(self) -> str:
        """The process's name in a list of processes."""
        return f"{self.word} {self.place.number}"

    @property
    def _port(self) -> int:
        return self.place.own_ports[self.place.number]

    async def _begin(self) -> ChildProcess:
        start = Start(self._settings, self.place, self._source_port_socket)
        return await self._launched(start)

    async def _launched(
        self, start: Start | StartGateway, module: str | None = None
    ) -> ChildProcess:
        return await ChildProcess.launch(
            start,
            self._inherited,
            module,
            reload_wanted=self._reload_wanted,
            on_ready=self._is_ready,
            on_end=lambda: self._happen(ChildEvent.DIE),
        )

    def _is_ready(self) -> None:
        self._happen(ChildEvent.REPORT_READY)
        process = self._process
        if process is not None:
            for news in self._news.values():
                process.tell(news)

    def tell(self, news: ClusterNews) -> None:
        """Tell the process news of the cluster, now or when it is ready."""
        self._news[type(news)] = news
        if self._process is not None and self.state is ChildState.READY:
            self._process.tell(news)

    def _pointless(self, reason: str, ended: str) -> RestartPolicy:
        """Handle a process that keeps dying: raise an error, or return the policy to go on with."""
        raise ShardsKeepDying(
            f"{self._name} keeps dying: {reason}. The last time it {ended}.".replace("..", "."),
            remedy="The log says what came before. Without a reason there, look at the "
            "system's log: a machine without memory kills, too.",
        )

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return self._process.pid if self._process is not None else 0

    @property
    def serves(self) -> bool:
        """Whether the process was able to serve when it became ready."""
        return self._process is not None and self._process.serves

    async def start(self) -> None:
        """Start the process for the first time; raise a typed error if it does not get ready."""
        _, ended = await self._launch()
        if ended is not None:
            raise ended.problem or CannotStart(
                f"{self._name} {ended} before it was ready.",
                remedy="Its own output, if it had any, stands above.",
            )
        self._log.info(f"{self.word} ready", pid=self.pid, port=self._port)

    async def keep(self) -> None:
        """Restart the process whenever it dies; raise `ShardsKeepDying` when that is pointless."""
        loop = asyncio.get_running_loop()
        policy = RestartPolicy(self._settings.restarts, loop.time())
        if self._process is None:
            return
        ended = str(await self._process.ended())
        while self.state is ChildState.DEAD:
            decision = policy.died(loop.time())
            if isinstance(decision, GiveUp):
                policy = self._pointless(decision.reason, ended)
                continue
            pause = decision - loop.time()
            self._log.warning(
                f"{self.word} died", pid=self.pid, reason=ended, restart_seconds=round(pause, 3)
            )
            await asyncio.sleep(pause)
            ended = await self._restart()

    async def _restart(self) -> str:
        """Start another process, wait until it has ended, and return how it ended."""
        self.place = replace(self.place, restarts=self.place.restarts + 1)
        try:
            process, ended = await self._launch()
        except CannotStart as problem:
            return f"was not even a process: {problem}"
        if ended is None:
            self._log.info(f"{self.word} ready again", pid=self.pid, restarts=self.place.restarts)
            ended = await process.ended()
        return str(ended)

    async def _launch(self) -> tuple[ChildProcess, ProcessEnd | None]:
        """Start a process, and wait until it is ready (None) or has ended.

        Raise `CannotStart` if the system cannot make a process or open files now.
        """
        self._happen(ChildEvent.LAUNCH)
        self._process = None
        try:
            process = await self._begin()
        except OSError as problem:
            self._happen(ChildEvent.DIE)
            raise CannotStart(
                f"{self._name} cannot be started: {problem.strerror or problem}."
            ) from problem
        self._process = process
        if self.state is ChildState.STOPPING:
            process.stop()
        try:
            async with asyncio.timeout(START_SECONDS):
                return process, await process.ready_or_ended()
        except TimeoutError:
            process.kill()
            return process, (await process.ended())._replace(
                problem=CannotStart(f"{self._name} was not ready within {START_SECONDS:g} s.")
            )

    async def reload(self, users: dict[str, User] | None) -> ProcessState:
        """Have the process reload, with these users of the settings; a process that is started
        later has them, too."""
        if users is not None:
            self._settings = structs.replace(self._settings, users=users)
        process = self._process
        if process is None or self.state is not ChildState.READY:
            remark = "It is being started, and reads everything then."
            return ProcessState(self.title, [PartState("process", UNCHANGED, remark)])
        try:
            async with asyncio.timeout(RELOAD_SECONDS):
                parts = await process.reload(users)
        except TimeoutError:
            parts = [PartState("process", FAILED, f"No answer within {RELOAD_SECONDS:g} s.")]
        if parts is None:
            remark = "It died, and reads everything when it is started again."
            parts = [PartState("process", UNCHANGED, remark)]
        return ProcessState(self.title, parts)

    async def measure(self, seconds: float, *, samples: bool = True) -> Lines | None:
        """Return the metrics of the process, or nothing but that it answers; None if no process is
        ready, or if it does not answer within so many seconds."""
        process = self._process
        if process is None or self.state is not ChildState.READY:
            return None
        try:
            async with asyncio.timeout(seconds):
                return await process.measure(samples=samples)
        except TimeoutError:
            return None

    async def stop(self) -> bool:
        """Drain the process. Return False if requests were cut off, or if it had to be killed."""
        self._begin_stop()
        process = self._process
        if process is None or self.state is ChildState.ENDED:
            return True  # no process runs, so no request is in flight
        process.stop()
        bound = self._settings.drain_seconds + FAREWELL_SECONDS + SLACK_SECONDS
        try:
            async with asyncio.timeout(bound):
                ended = await process.ended()
        except TimeoutError:
            self._log.error(f"{self.word} does not stop; killed", pid=process.pid)
            process.kill()
            ended = await process.ended()
        if not ended.finished:
            why = "drain_seconds are over" if ended.status == CUT_OFF else str(ended)
            self._log.warning("work cut off", pid=process.pid, reason=why)
        return ended.finished

    async def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._begin_stop()
        if self._process is not None:
            self._process.kill()
            await self._process.ended()

    def _begin_stop(self) -> None:
        if self.state is not ChildState.ENDED:  # a kill may overtake a stop, and the other way
            self._happen(ChildEvent.STOP)
