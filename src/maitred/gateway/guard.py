"""Who may come in by a door: the node's users, with the same file, the same secrets and the same
care."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from maitred.errors import MaitredError, PermissionDenied
from maitred.security.authenticator import Authenticator
from maitred.security.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.logs import Logger
    from maitred.security.directory import Identity
    from maitred.settings import Node, Permission, QueryLimits


class Guard:
    """Knows the users, of one process."""

    def __init__(self, settings: Node, log: Logger) -> None:
        self.users = Directory(settings)
        self.required = self.users.required
        self.authenticator = Authenticator(self.users, settings.limits, log)
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._reading = False

    def limits_of(self, user: str) -> QueryLimits | None:
        """What the user's queries may take."""
        known = self.users.user(user) if self.required else None
        return known.queries if known is not None else None

    def look(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Read the file again if it has changed; once a second."""
        if self.users.has_changed() and not self._reading:
            self._reading = True
            spawn(self._read())

    async def _read(self) -> None:
        try:
            if await self._loop.run_in_executor(None, self.users.reload_if_changed):
                self._log.info("users read again", generation=self.users.generation)
        except MaitredError as problem:
            self._log.warning("users not read again; the old ones stay", error=problem)
        finally:
            self._reading = False


def check(identity: Identity | None, namespace: str, permission: Permission) -> None:
    """`PermissionDenied` unless they may; without users everybody may."""
    if identity is not None and not identity.permissions.allows(namespace, permission):
        raise PermissionDenied(
            f"The user {identity.name!r} may not {WORDS[permission]} in the namespace "
            f"{namespace!r}.",
            remedy=f"Ask for the permission {permission!r} there.",
        )


WORDS: Final[dict[str, str]] = {
    "query": "ask queries",
    "produce": "add tasks or see their results",
    "admin": "look after queues",
    "work": "serve queues",
}
