"""Whether the store can be written, as a partition knows."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.errors import MaitredError

UNSAFE_SECONDS = 2.0
"""While the store cannot be written, a producer whose task is at a worker hears after this time
that the outcome is unknown, unless the worker was faster. So long a store may also take for a
commit before it counts as away. A disk that others use, or a database server that writes a
checkpoint, holds a commit up for some hundred milliseconds; a producer that is told to wait longer
runs into its own deadline (10 s) without being told why."""


class StoreHealth:
    """The store's last word."""

    __slots__ = ("problem", "unsafe_until")

    def __init__(self) -> None:
        self.problem: MaitredError | None = None
        """Why nothing can be written now."""
        self.unsafe_until = inf
        """When the next producer hears that the outcome is unknown, while nothing can be
        written."""

    def fails(self, problem: MaitredError, now: float) -> None:
        """A commit failed, or is not answered."""
        self.problem = problem
        self.unsafe_until = now

    def answers(self) -> None:
        """The store has written something."""
        self.problem = None
        self.unsafe_until = inf

    def tell_by(self, at: float) -> None:
        """A producer that waits is told then, at the latest."""
        self.unsafe_until = min(self.unsafe_until, at)

    def tell_again_at(self, at: float) -> None:
        """All who waited long enough were told; the next one has then."""
        self.unsafe_until = at

    def raise_problem(self) -> None:
        """Raise the problem, if there is one."""
        if self.problem is not None:
            raise self.problem.with_traceback(None)
