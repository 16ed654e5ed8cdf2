"""Who may come in by a door: the node's users, with the same file, the same secrets and the same
care.

A secret takes some 40 ms to verify, on purpose; that is done in a thread, a few at a time, and who
was right a moment ago is remembered (`security/directory.py`).
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, Final

from maitred.errors import MaitredError, Overloaded, PermissionDenied, Unauthenticated
from maitred.security.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.logs import Logger
    from maitred.security.directory import Identity
    from maitred.settings import Node, Permission, QueryLimits

VERIFICATIONS_MAX: Final = 2
"""Secrets verified at once, as in a shard."""

FAILURES_SECONDS: Final = 1.0
"""From one line in the log about a failed login to the next, which tells how many there were."""


class Guard:
    """Knows the users, of one process."""

    def __init__(self, settings: Node, log: Logger) -> None:
        self.users = Directory(settings)
        self.required = self.users.required
        self._most = settings.limits.verifications
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Semaphore(VERIFICATIONS_MAX)
        self._verifying = 0
        self._told_at = -inf
        self._untold = 0
        self._reading = False

    def remembered(self, user: str, secret: str) -> Identity | None:
        """Who this is, if that was found out before."""
        return self.users.remembered(user, secret)

    async def verified(self, user: str, secret: str, wanted: Callable[[], bool]) -> Identity:
        """Who this is, or `Unauthenticated`. Whoever has left meanwhile costs nothing."""
        if self._verifying >= self._most:
            raise Overloaded("Too many wait to be let in already.", retry_after=1.0)
        self._verifying += 1
        try:
            async with self._turn:
                if not wanted():
                    raise Unauthenticated("Nobody waits to be let in.")
                known = await self._loop.run_in_executor(
                    None, self.users.authenticate, user, secret
                )
        finally:
            self._verifying -= 1
        now = self.users.refreshed(known)  # the users may have changed meanwhile
        if now is None:
            raise Unauthenticated("The user is no more, or has a new secret.")
        return now

    def failed(self, peer: str, user: str) -> None:
        """Told in the log, once a second at most: strangers may not flood it."""
        now = self._loop.time()
        if now - self._told_at < FAILURES_SECONDS:
            self._untold += 1
            return
        more = {"more": self._untold} if self._untold else {}
        self._log.warning("authentication failed", peer=peer, user=user[:60], **more)
        self._told_at, self._untold = now, 0

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
