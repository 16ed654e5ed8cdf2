"""The base of the records of scenarios: the violations found, and what processes logged.

A record stands outside of the world: processes write into it, and no fault touches it.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Any, Final

from maitred.simulation.errors import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.logs import Logger


STAYED_BEHIND: Final = "Every client has left, and this stayed behind"


EXPECTED: Final = ("store ", "this member is dead", "the cluster has declared this node dead")
"""How errors begin that are logged as they should be: the faults of the disk, and the end of a node
that the others could not reach."""


class ScenarioRecord:
    """Collects the violations and the complaints of one run."""

    noun = "thing"
    """The thing that each story of the record is about, as a noun."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        """The failures that processes reported of themselves."""
        self.found: list[Violation] = []
        """The violations. A handler that raises one only fails, so it is kept here as well."""

    def violation(self, story: object, what: str) -> Violation:
        """Record that a task or query did something that it must not do; return the error."""
        found = Violation(f"A {self.noun} {what}: {story}")
        self.found.append(found)
        return found

    def check(self) -> None:
        """Raise what was found so far."""
        if self.found:
            raise self.found[0]
        if self.complaints:
            raise Violation(f"A process complained: {self.complaints[:3]}")

    def log(self) -> Logger:
        """Return a log that adds errors to the complaints."""
        return ErrorLog(self.complaints)


class ErrorLog:
    """A log that keeps only what a healthy process never logs: errors, and exceptions."""

    def __init__(self, complaints: list[str]) -> None:
        self._complaints = complaints

    def debug(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def info(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        if not event.startswith(EXPECTED):
            self._complaints.append(f"{event} {fields}")

    def exception(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        self._complaints.append(f"{event} {fields} {traceback.format_exc()}")

    def bind(self, **_fields: Any) -> Logger:  # noqa: ANN401
        return self


async def until_nothing(
    left: Callable[[], object], problem: str, seconds: float, *, every: float = 1.0
) -> None:
    """Wait until nothing is left; raise `Violation` with the problem after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while found := left():
        if loop.time() >= end:
            raise Violation(f"{problem}: {found}")
        await asyncio.sleep(every)
