"""What a handler can know about the attempt that it is: `maitred.current()`.

An async handler that is to stop is cancelled, as asyncio does. A plain function runs in a thread,
and threads cannot be stopped from outside: one that takes long looks at `cancelled` now and then.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final


class Attempt:
    """One attempt at a task. Outside of a worker there is one as well, which nobody stops."""

    __slots__ = ("cancelled", "number", "partition", "queue", "sequence")

    def __init__(self, queue: str, partition: int, sequence: int, number: int) -> None:
        self.queue = queue
        """`namespace/queue`."""
        self.partition = partition
        self.sequence = sequence
        self.number = number
        """1 for the first."""
        self.cancelled = False
        """Whether it should stop: the task was cancelled, its time is over, or somebody else has
        it by now."""

    @property
    def task_id(self) -> str:
        """As `Task.id` has it."""
        return f"{self.queue}/{self.partition}/{self.sequence}"

    def __repr__(self) -> str:
        return f"<Attempt {self.number} at {self.task_id}>"


_NOBODY: Final = Attempt("", 0, 0, 1)
running: Final[ContextVar[Attempt]] = ContextVar("maitred.current", default=_NOBODY)
"""Set by the worker."""


def current() -> Attempt:
    """The attempt that this code is part of."""
    return running.get()
