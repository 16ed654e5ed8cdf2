"""Log lines about refused requests: one for each cause, with the number of requests.

A caller can be refused as often as it asks, also one that has not logged in. So requests are only
counted, by the code of the error; a look once a second logs the causes whose number has risen, each
at most once in `QUIET_SECONDS`. No caller can make the log longer than that, whatever it does, and
nothing that a caller sent is in these lines.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from maitred import errors

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from maitred.logs import Logger

QUIET_SECONDS: Final = 10.0
"""Least seconds between two lines about the same cause."""

CAUSES_MAX: Final = 200
"""Most causes that are told apart, more than there are codes."""


def _codes(*classes: type[errors.MaitredError]) -> Iterator[str]:
    for one in classes:
        yield one.code
        yield from _codes(*one.__subclasses__())


SERIOUS: Final = frozenset(
    _codes(
        errors.Overloaded,
        errors.StoreUnavailable,
        errors.Unauthenticated,
        errors.PermissionDenied,
        errors.InvalidProof,
        errors.InternalError,
        errors.OutcomeUnknown,
        errors.TlsFailed,
    )
)
"""Causes that an operator should know of: warnings. The mistakes of callers are information."""

ROUTINE: Final = frozenset(
    _codes(
        errors.Cancelled,
        errors.DeadlineExceeded,
        errors.NotOwner,
        errors.Draining,
        errors.CutOff,
        errors.Closed,
        errors.IdleTooLong,
        errors.InvalidReservation,
        errors.SlotTaken,
        errors.TaskNotDone,
        errors.QueryNotAnswered,
    )
)
"""Causes that belong to every day, such as a long poll that a client takes back, a partition that
has moved, or a handler that failed, which its worker logs: logged at `debug`."""


class RefusalLog:
    """Logs the errors that a process gives as answers, which others count."""

    def __init__(self, refused: Counter[str], log: Logger) -> None:
        """`refused` counts the errors since the start of the process, by code."""
        self._refused = refused
        self._log = log
        self._said: dict[str, tuple[float, int]] = {}
        """By code: when it was last logged, and its count then."""

    def look(self, now: float) -> None:
        """Log the causes for which requests were refused since they were last logged."""
        for code, count in self._refused.items():
            at, before = self._said.get(code, (-inf, 0))
            if count == before or now - at < QUIET_SECONDS:
                continue
            if code not in self._said and len(self._said) >= CAUSES_MAX:
                continue
            self._said[code] = (now, count)
            write = self._log.info
            if code in SERIOUS:
                write = self._log.warning
            elif code in ROUTINE:
                write = self._log.debug
            write("requests refused", code=code, requests=count - before, total=count)
