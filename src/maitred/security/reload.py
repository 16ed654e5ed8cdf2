"""Parts of a process that are reloaded while it runs: users, certificates.

A part that has changed on disk is reloaded within about two seconds, or at once if a person asks
(`maitred admin reload`). It is read in a thread. A part that cannot be used changes nothing: the
old one stays, and the log (an error), the counters and the answer to the person say so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from maitred.errors import MaitredError
from maitred.security.expiry import DAY_SECONDS, WARNING_DAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from maitred.logs import Logger
    from maitred.settings import User

USERS: Final = "users"
CERTIFICATE: Final = "certificate"

CHANGED: Final = "changed"
UNCHANGED: Final = "unchanged"
FAILED: Final = "failed"


class Reloadable(Protocol):
    """A part of a process that can be reloaded."""

    @property
    def part(self) -> str:
        """Name of the part, for people."""

    def has_changed(self) -> bool:
        """Whether the part has changed since it was last read; asked about once a second."""

    def reload(self) -> bool:
        """Read the part, in a thread; return whether it changed. Raises, and changes nothing, if it
        cannot be used."""


@dataclass(frozen=True, slots=True)
class PartReloaded:
    """The result of reloading one part."""

    part: str
    state: str
    """`changed`, `unchanged` or `failed`."""
    problem: str = ""


class ProcessReload:
    """Reloads the parts of one process, one at a time."""

    def __init__(
        self,
        users: UsersPart,
        others: Iterable[Reloadable],
        log: Logger,
        changed: Callable[[str], None] = lambda _part: None,
    ) -> None:
        self._users = users
        self._parts: tuple[Reloadable, ...] = (users, *others)
        self._log = log
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._looking = False
        self._expiry_told_at: dict[str, float] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """How often each part was reloaded, by part and state; `unchanged` is not counted."""

    def look(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Reload the parts that have changed; call it once a second."""
        changed = [one for one in self._parts if one.has_changed()]
        if changed and not self._looking:
            self._looking = True
            spawn(self._look(changed))

    async def _look(self, parts: Iterable[Reloadable]) -> None:
        try:
            async with self._turn:
                for one in parts:
                    await self._reload(one, one.reload)
        finally:
            self._looking = False

    async def reload(self, users: Mapping[str, User] | None = None) -> list[PartReloaded]:
        """Reload all parts, and replace the users of the settings with `users` unless that is
        None."""
        async with self._turn:
            return [
                await self._reload(
                    one,
                    one.reload
                    if one is not self._users or users is None
                    else lambda: self._users.reload(users),
                )
                for one in self._parts
            ]

    async def again(self, one: Reloadable, needed: Callable[[], bool]) -> None:
        """Wait until this part is not being read, and reload it if that is still needed."""
        async with self._turn:
            if needed():
                await self._reload(one, one.reload)

    async def _reload(self, one: Reloadable, read: Callable[[], bool]) -> PartReloaded:
        try:
            changed = await self._loop.run_in_executor(None, read)
        except MaitredError as problem:
            self._log.error(f"{one.part} not read again; the old state stays", error=problem)
            self.outcomes[one.part, FAILED] += 1
            return PartReloaded(one.part, FAILED, str(problem))
        if not changed:
            return PartReloaded(one.part, UNCHANGED)
        self._log.info(f"{one.part} read again")
        self.outcomes[one.part, CHANGED] += 1
        self._expiry_told_at.pop(one.part, None)
        self._changed(one.part)
        return PartReloaded(one.part, CHANGED)

    # Certificates

    def expiries(self) -> dict[str, float]:
        """Return when each part that expires does so, in seconds since 1970."""
        ends = ((one.part, getattr(one, "expires_at", None)) for one in self._parts)
        return {part: end for part, end in ends if end is not None}

    def look_at_expiries(self, now: float) -> None:
        """Warn, once a day, of parts that expire soon; `now` is in seconds since 1970."""
        for part, expires_at in self.expiries().items():
            told_at = self._expiry_told_at.get(part, 0.0)
            if expires_at - now > WARNING_DAYS * DAY_SECONDS or now - told_at < DAY_SECONDS:
                continue
            self._expiry_told_at[part] = now
            days = (expires_at - now) / DAY_SECONDS
            if days > 0:
                self._log.warning(f"{part} expires soon", days=round(days, 1))
            else:
                self._log.error(f"{part} has expired", days=round(days, 1))


class UsersPart(Reloadable, Protocol):
    """The part that also takes users from the settings."""

    def reload(self, configured: Mapping[str, User] | None = None) -> bool: ...
