"""What goes wrong again and again, said once; and how long to wait before the next try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import (
    Closed,
    InvalidArgument,
    PermissionDenied,
    ProtocolViolation,
    Unauthenticated,
)

if TYPE_CHECKING:
    from random import Random

    from maitred.errors import MaitredError
    from maitred.logs import Logger
    from maitred.settings import Client

HOPELESS: Final = (InvalidArgument, PermissionDenied, Unauthenticated, ProtocolViolation, Closed)
"""Refusals that asking again does not change, unless somebody does something about it."""


class Outage:
    """Of one worker: the first failure is logged, and the first success after it."""

    def __init__(self, settings: Client, random: Random, log: Logger) -> None:
        self._first = settings.backoff_first_seconds
        self._longest = settings.backoff_longest_seconds
        self._random = random
        self._log = log
        self.lasts = False

    def failed(self, problem: MaitredError, tries: int) -> float:
        """The seconds to wait after so many tries in a row."""
        if not self.lasts:
            self.lasts = True
            if isinstance(problem, HOPELESS):
                self._log.error("the node refuses us; trying again", error=problem)
            else:
                self._log.warning("the node does not answer; trying again", error=problem)
        if isinstance(problem, HOPELESS):
            return self._longest
        longest = min(self._first * 2 ** min(tries - 1, 62), self._longest)
        return float(longest * (0.5 + 0.5 * self._random.random()))

    def worked(self) -> None:
        """Somebody got an answer."""
        if self.lasts:
            self.lasts = False
            self._log.info("the node answers again")
