"""The supervisor's part of a reload: it reads the settings file, and has every process reload.

Of the settings, only `users` can change while a node runs. Every other change needs a restart, and
the outcome of a reload names those settings.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import structs

from maitred.errors import MaitredError
from maitred.protocol.access import PartState, ProcessState
from maitred.security.reload import CHANGED, FAILED, UNCHANGED
from maitred.security.stamps import stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.logs import Logger
    from maitred.node.child_process import ReloadAsker
    from maitred.security.stamps import Stamp
    from maitred.settings import Node, User

LOOK_SECONDS: Final = 1.0
"""Interval between two looks at the settings file. A changed file is read when two looks find the
same: an editor may still be writing it."""

PART: Final = "settings"
OURS: Final = "node"


class SettingsSource(NamedTuple):
    """How the settings of a process are read again, from their first sources."""

    load: Callable[[], Node]
    """Returns the settings; raises `MaitredError` if they cannot be used."""
    file: str | None = None
    """The file among the sources, which is watched."""


class SettingsFile:
    """The current settings, and the part of them that can change."""

    def __init__(self, settings: Node, source: SettingsSource) -> None:
        self._settings = settings
        self._source = source
        self._loaded = self._looked = self._stamp()

    def has_changed(self) -> bool:
        """Whether the file has changed since it was read, and is the same as at the last look."""
        looked, self._looked = self._looked, self._stamp()
        return self._looked == looked != self._loaded

    def reload(self) -> tuple[dict[str, User] | None, PartState]:
        """Read the settings, in a thread; return their users, or None if the settings cannot be
        used, and the outcome."""
        self._loaded = self._stamp()
        try:
            found = self._source.load()
        except MaitredError as problem:
            return None, PartState(PART, FAILED, str(problem))
        if found.authenticates != self._settings.authenticates:
            # Callers that are connected to a node without users keep every permission; and a node
            # that has lost its last user must not let every caller in.
            remark = (
                "The settings have users now and had none, or the other way round. Restart the "
                "node for that."
            )
            return None, PartState(PART, FAILED, remark)
        changed = [
            name
            for name in found.__struct_fields__
            if getattr(found, name) != getattr(self._settings, name)
        ]
        self._settings = structs.replace(self._settings, users=found.users)
        others = ", ".join(name for name in changed if name != "users")
        remark = f"These count from the next start of the node on: {others}." if others else ""
        return found.users, PartState(PART, CHANGED if "users" in changed else UNCHANGED, remark)

    def _stamp(self) -> Stamp | None:
        return None if self._source.file is None else stamp_of(self._source.file)


class ReloadedWithUsers(Protocol):
    """A process of a node, or the keeper of one."""

    async def reload(self, users: dict[str, User] | None) -> ProcessState:
        """Reload the process, with these users of the settings."""


class NodeReload:
    """Reloads all processes of a node, one reload at a time."""

    def __init__(
        self,
        file: SettingsFile | None,
        keepers: Callable[[], Sequence[ReloadedWithUsers]],
        log: Logger,
    ) -> None:
        self._file = file
        self._keepers = keepers
        self._log = log
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def wanted(self, tell: ReloadAsker) -> None:
        """Reload the node because an operator asked one of its processes, and `tell` it the
        outcome."""
        task = asyncio.create_task(self._answer(tell))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, tell: ReloadAsker) -> None:
        tell(await self.reload())

    async def watch(self) -> None:
        """Reload whenever the settings file has changed; never return."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._file is not None and self._file.has_changed():
                await self.reload()

    async def reload(self) -> list[ProcessState]:
        """Have every process reload; return the outcomes by process."""
        async with self._turn:
            states: list[ProcessState] = []
            users: dict[str, User] | None = None
            if self._file is not None:
                loop = asyncio.get_running_loop()
                users, state = await loop.run_in_executor(None, self._file.reload)
                states.append(ProcessState(OURS, [state]))
                self._tell(state)
            states += await asyncio.gather(*(one.reload(users) for one in self._keepers()))
            return states

    def _tell(self, state: PartState) -> None:
        if state.state == FAILED:
            self._log.error("settings not read again; the old state stays", reason=state.remark)
        elif state.remark:
            self._log.warning("settings read again; some need a restart", reason=state.remark)
        else:
            self._log.info("settings read again", state=state.state)
