"""Whether the store can be written, as far as a partition knows."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.errors import MaitredError

UNSAFE_SECONDS = 2.0
"""How long a commit or a read may take before the store counts as away. While it is away, a
producer whose task is at a worker hears after this time that the outcome is unknown, unless the
worker is faster. A disk that other programs use, or a database server that writes a checkpoint,
delays a commit by some hundred milliseconds. If this were longer, the producer's own deadline
(10 s) might pass without a reason."""


class StoreHealth:
    """The problem of the store, if it has one, and when producers are told of it."""

    __slots__ = ("problem", "unsafe_until")

    def __init__(self) -> None:
        self.problem: MaitredError | None = None
        """Why nothing can be written now."""
        self.unsafe_until = inf
        """When the next producer hears that the outcome is unknown, while nothing can be
        written."""

    def fails(self, problem: MaitredError, now: float) -> None:
        """Note that a commit failed, or is not answered."""
        self.problem = problem
        self.unsafe_until = now

    def answers(self) -> None:
        """Note that the store has written something: new tasks are taken again."""
        self.problem = None
        self.unsafe_until = inf

    def tell_by(self, at: float) -> None:
        """Have a producer that waits told by then."""
        self.unsafe_until = min(self.unsafe_until, at)

    def tell_again_at(self, at: float) -> None:
        """Note that all producers that waited long enough were told; the next one is due then."""
        self.unsafe_until = at

    def raise_problem(self) -> None:
        """Raise the problem, if there is one."""
        if self.problem is not None:
            raise self.problem.with_traceback(None)
