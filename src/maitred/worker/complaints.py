"""What strangers do wrong, said once: whoever sends garbage must not fill the log with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError
    from maitred.logs import Logger

QUIET_SECONDS: Final = 60.0
"""After a complaint of one kind. The next one says how many there were meanwhile."""


class Complaints:
    """Of one worker, by the code of the error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self._loop = loop
        self._log = log
        self._said: dict[str, tuple[float, int]] = {}
        """When it was said last, and how often it was not since. No more than there are codes."""

    def say(self, event: str, peer: str, problem: MaitredError) -> None:
        """Write it down, unless the same was said a moment ago."""
        now = self._loop.time()
        last, silent = self._said.get(problem.code, (-QUIET_SECONDS, 0))
        if now - last < QUIET_SECONDS and problem.code in self._said:
            self._said[problem.code] = (last, silent + 1)
            return
        self._said[problem.code] = (now, 0)
        self._log.warning(event, peer=peer, error=problem, unsaid=silent)
