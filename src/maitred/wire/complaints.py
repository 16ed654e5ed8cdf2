"""Rate-limited log lines about protocol errors of peers, whose garbage must not fill the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from maitred.line_budget import LineBudgets, left_out

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError

QUIET_SECONDS: Final = 60.0
"""Seconds without a further line about the same error code."""


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
        self._budgets = LineBudgets(quiet_seconds)

    def say(
        self,
        event: str,
        peer: str,
        problem: MaitredError,
        level: Literal["info", "warning"] = "warning",
    ) -> None:
        """Log the problem, unless a line about its code was written within `quiet_seconds`."""
        unlogged = self._budgets.take(problem.code, self._loop.time())
        if unlogged is not None:
            write = self._log.info if level == "info" else self._log.warning
            write(event, peer=peer, error=problem, **left_out(unlogged))
