"""What a handler can know about the attempt that it is: `maitred.current()`.

An async handler that is to stop is cancelled, as asyncio does. A plain function runs in a thread,
and threads cannot be stopped from outside: one that takes long looks at `cancelled` now and then.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor
    from typing import Any, Protocol

    class Meter(Protocol):
        """Who counts what is served and what waits: the worker. From any thread, but for
        `submitted`, which is for its loop."""

        @property
        def loop(self) -> asyncio.AbstractEventLoop: ...
        def wait(self, attempt: Attempt) -> None: ...
        def go_on(self, attempt: Attempt) -> None: ...
        def submitted(self, attempt: Attempt, executor: Executor) -> Any: ...  # noqa: ANN401
        def finished(self, executor: Executor, call: Any) -> None: ...  # noqa: ANN401

    class Source(Protocol):
        """Where a task came from."""

        @property
        def name(self) -> str: ...
        @property
        def partition(self) -> int: ...


class Attempt:
    """One attempt at a task, or a query. Outside of a worker there is one as well, which nobody
    stops."""

    __slots__ = ("calls", "cancelled", "counted", "key", "meter", "origin", "queued", "waits")

    def __init__(self, origin: Source, key: tuple[int, int]) -> None:
        self.origin = origin
        self.key = key
        """The task's sequence number, and the number of the attempt."""
        self.cancelled = False
        """Whether it should stop: the task was cancelled, its time is over, or somebody else has
        it by now."""
        self.unmeasured()

    def unmeasured(self) -> None:
        """Nobody counts it, as yet."""
        self.meter: Meter | None = None
        self.waits = 0
        """Places in it that wait for something inside of the worker."""
        self.calls = 0
        """Its calls that run in a pool of threads or processes."""
        self.queued = 0
        """Those that wait for one."""
        self.counted = False
        """Whether it counts as waiting."""

    @property
    def number(self) -> int:
        """1 for the first."""
        return self.key[1]

    @property
    def user(self) -> str:
        """Whose query it is; empty for a task."""
        return ""

    @property
    def query_id(self) -> str:
        """The gateway and its number for the query, as its query table has them; empty for a
        task."""
        return ""

    @property
    def task_id(self) -> str:
        """As `Task.id` has it; empty for a query."""
        return f"{self.origin.name}/{self.origin.partition}/{self.key[0]}"

    def __repr__(self) -> str:
        return f"<Attempt {self.number} at {self.task_id}>"


class _Nowhere(NamedTuple):
    name: str = "-/-"
    partition: int = 0


_NOBODY: Final = Attempt(_Nowhere(), (0, 1))
running: Final[ContextVar[Attempt]] = ContextVar("maitred.current", default=_NOBODY)
"""Set by the worker."""


def current() -> Attempt:
    """The attempt that this code is part of."""
    return running.get()
