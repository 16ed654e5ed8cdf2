"""A process's part of reloading the node: it reads its own files again when the supervisor says so,
and passes on the wish of a person who asked this process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.errors import Unavailable
from maitred.node.control import ReloadDone, Reloaded, ReloadProcess, ReloadWanted
from maitred.node.shard import part_states
from maitred.protocol.access import NodeReloaded, ProcessState

if TYPE_CHECKING:
    from maitred.node.child_process import Channel
    from maitred.node.control import Command
    from maitred.security.reload import ProcessReload

WAITING_MAX: Final = 100
"""People who wait for a reload at a time, in one process."""


class ReloadLink:
    """Between the supervisor and what reads files in this process."""

    def __init__(self, channel: Channel, reloading: ProcessReload) -> None:
        self._channel = channel
        self._reloading = reloading
        self._waiting: dict[int, asyncio.Future[list[ProcessState]]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def hear(self) -> Command | None:
        """Do what the supervisor says about reloading; returns its first word about anything else,
        or None if it is no more."""
        while True:
            command = await self._channel.hear()
            if isinstance(command, ReloadProcess):
                task = asyncio.create_task(self._reload(command))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(command, ReloadDone):
                waiting = self._waiting.get(command.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command.processes)
            else:
                return command

    async def _reload(self, command: ReloadProcess) -> None:
        parts = await self._reloading.reload(command.users)
        await self._channel.say(Reloaded(command.number, part_states(parts)))

    async def reload_node(self) -> NodeReloaded:
        """Have every process of the node reload."""
        if len(self._waiting) >= WAITING_MAX:
            raise Unavailable("The node is being reloaded already.", remedy="Try again later.")
        self._number += 1
        number = self._number
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._channel.say(ReloadWanted(number))
            return NodeReloaded(await waiting)
        finally:
            del self._waiting[number]
