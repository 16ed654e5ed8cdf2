"""What strangers do wrong, said now and then: garbage that they send must not fill the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError

QUIET_SECONDS: Final = 60.0
"""After a complaint of one kind. The next one says how many there were meanwhile."""


class ComplaintLog(Protocol):
    """The part of a log that takes complaints."""

    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - anything
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401


class Complaints:
    """Writes at most one line about each code of error in so many seconds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        log: ComplaintLog,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._loop = loop
        self._log = log
        self._quiet_seconds = quiet_seconds
        self._said: dict[str, tuple[float, int]] = {}
        """When it was said last, and how often it was not since. No more than there are codes."""

    def say(
        self,
        event: str,
        peer: str,
        problem: MaitredError,
        level: Literal["info", "warning"] = "warning",
    ) -> None:
        """Write it down, unless the same was said a moment ago."""
        now = self._loop.time()
        said = self._said.get(problem.code)
        if said is not None and now - said[0] < self._quiet_seconds:
            self._said[problem.code] = (said[0], said[1] + 1)
            return
        self._said[problem.code] = (now, 0)
        write = self._log.info if level == "info" else self._log.warning
        write(event, peer=peer, error=problem, unsaid=said[1] if said else 0)
