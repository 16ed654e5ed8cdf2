"""Keeps one shard of a node alive: starts it, starts it again when it dies, and stops it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from maitred.errors import CannotStart, ShardsKeepDying
from maitred.node.control import Start
from maitred.node.exits import CUT_OFF
from maitred.node.launch import ProcessEnd, ShardProcess
from maitred.node.restarts import GiveUp, RestartPolicy
from maitred.node.shard import FAREWELL_SECONDS
from maitred.protocol.access import PartState, ProcessState
from maitred.security.reload import FAILED, UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.logs import Logger
    from maitred.node.launch import ReloadAsker
    from maitred.node.shard import ShardPlace
    from maitred.settings import Node, User

START_SECONDS: Final = 60.0
"""From the start of a process to its first word, on a machine that has much else to do."""

RELOAD_SECONDS: Final = 4.0
"""For a process to read users and certificates again; ten thousand users take a second. Less than
a person waits for `maitred admin reload` unless told otherwise, so that it can say who is slow."""

SLACK_SECONDS: Final = 5.0
"""How much longer than it should a stopping shard may take before it is killed."""


class Keeper:
    """One shard, whichever process it is at the moment. Another kind of process says what differs:
    its name, and how it is started."""

    word = "shard"
    """For the log."""

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
        self._settings = settings
        self._log = log.bind(shard=place.number)
        self._source_port_socket = source_port_socket
        self._inherited = tuple(inherited)
        self._reload_wanted = reload_wanted
        self._process: ShardProcess | None = None
        self._stopping = False

    @property
    def _name(self) -> str:
        """The process's name, for sentences."""
        return f"Shard {self.place.number}"

    @property
    def _port(self) -> int:
        return self.place.own_ports[self.place.number]

    async def _begin(self) -> ShardProcess:
        start = Start(self._settings, self.place, self._source_port_socket)
        return await ShardProcess.launch(start, self._inherited, reload_wanted=self._reload_wanted)

    def _pointless(self, reason: str, ended: str) -> RestartPolicy:
        """Decide what to do about a process that keeps dying: raise, or return how to go on."""
        raise ShardsKeepDying(
            f"{self._name} keeps dying: {reason}. The last time it {ended}.".replace("..", "."),
            remedy="The log says what came before. Without a reason there, look at the "
            "system's log: a machine without memory kills, too.",
        )

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is no process."""
        return self._process.pid if self._process is not None else 0

    @property
    def serves(self) -> bool:
        """Whether its process was able to serve when it became ready."""
        return self._process is not None and self._process.serves

    async def start(self) -> None:
        """The first start; raises a typed error if it fails."""
        _, ended = await self._launch()
        if ended is not None:
            raise ended.problem or CannotStart(
                f"{self._name} {ended} before it was ready.",
                remedy="Its own words, if it had any, stand above.",
            )
        self._log.info(f"{self.word} ready", pid=self.pid, port=self._port)

    async def keep(self) -> None:
        """Restart it whenever it dies; raises `ShardsKeepDying` when that is pointless."""
        loop = asyncio.get_running_loop()
        policy = RestartPolicy(self._settings.restarts, loop.time())
        if self._process is None:
            return
        ended = str(await self._process.ended())
        while not self._stopping:
            decision = policy.died(loop.time())
            if isinstance(decision, GiveUp):
                policy = self._pointless(decision.reason, ended)
                continue
            pause = decision.moment - loop.time()
            self._log.warning(
                f"{self.word} died", pid=self.pid, reason=ended, restart_seconds=round(pause, 3)
            )
            await asyncio.sleep(pause)
            ended = await self._live_again()

    async def _live_again(self) -> str:
        """Another life from start to end; returns how it ended."""
        self.place = replace(self.place, restarts=self.place.restarts + 1)
        try:
            process, ended = await self._launch()
        except CannotStart as problem:
            return f"was not even a process: {problem}"
        if ended is None:
            self._log.info(f"{self.word} ready again", pid=self.pid, restarts=self.place.restarts)
            ended = await process.ended()
        return str(ended)

    async def _launch(self) -> tuple[ShardProcess, ProcessEnd | None]:
        """Start a process and wait until it is ready (None) or has ended.

        Raises `CannotStart` if the system has no process or no files for it just now.
        """
        try:
            process = await self._begin()
        except OSError as problem:
            raise CannotStart(
                f"{self._name} cannot be started: {problem.strerror or problem}."
            ) from problem
        self._process = process
        if self._stopping:
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
        """Have its process read everything again, with these users of the settings; a process that
        is started later has them, too."""
        if users is not None:
            self._settings = structs.replace(self._settings, users=users)
        process = self._process
        if process is None or process.has_ended or not process.ready.is_set():
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

    @property
    def title(self) -> str:
        """The process's name in a list of processes."""
        return f"{self.word} {self.place.number}"

    async def stop(self) -> bool:
        """Drain it. False if some work was cut off, or if it had to be killed."""
        self._stopping = True
        process = self._process
        if process is None or process.has_ended:
            return True  # it had not begun, or was about to be started again: nothing is under way
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
        """End it at once, and wait for that."""
        self._stopping = True
        if self._process is not None:
            self._process.kill()
            await self._process.ended()
