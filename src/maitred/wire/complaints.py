"""Rate-limited log lines about protocol errors of peers, whose garbage must not fill the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError

QUIET_SECONDS: Final = 60.0
"""Seconds without a further line about the same error code. The next line tells how many were left
out."""


class ComplaintLog(Protocol):
    """The part of a logger that `Complaints` uses."""

    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - anything
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401


class Complaints:
    """Writes at most one line per error code every `quiet_seconds`."""

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
        """By error code: when a line was last written, and how many were left out since. Its size
        is bounded by the number of codes."""

    def say(
        self,
        event: str,
        peer: str,
        problem: MaitredError,
        level: Literal["info", "warning"] = "warning",
    ) -> None:
        """Log the problem, unless a line about its code was written within `quiet_seconds`."""
        now = self._loop.time()
        said = self._said.get(problem.code)
        if said is not None and now - said[0] < self._quiet_seconds:
            self._said[problem.code] = (said[0], said[1] + 1)
            return
        self._said[problem.code] = (now, 0)
        write = self._log.info if level == "info" else self._log.warning
        write(event, peer=peer, error=problem, unsaid=said[1] if said else 0)
