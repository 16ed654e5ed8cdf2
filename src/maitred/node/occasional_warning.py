"""A warning that callers can provoke at will, and that therefore must not fill the log."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from maitred.logs import Logger

QUIET_SECONDS: Final = 1.0
"""From one line to the next, which tells how many were left out: a flood of refusals shows in the
log within a second, and costs one line a second."""


class OccasionalWarning:
    """Logs one kind of event at most once a second, and counts those that it leaves out."""

    __slots__ = ("_event", "_left_out", "_log", "_said_at")

    def __init__(self, log: Logger, event: str) -> None:
        self._log = log
        self._event = event
        self._said_at = -inf
        self._left_out = 0

    def say(self, now: float, **fields: Any) -> None:  # noqa: ANN401 - as loggers take them
        """Log the event with these fields, unless it was logged less than a second ago."""
        if now - self._said_at < QUIET_SECONDS:
            self._left_out += 1
            return
        more = {"more": self._left_out} if self._left_out else {}
        self._log.warning(self._event, **fields, **more)
        self._said_at = now
        self._left_out = 0
