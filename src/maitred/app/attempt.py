"""What a handler can know about the attempt that runs it: `maitred.current()`.

An async handler that has to stop is cancelled, as asyncio does. A plain function runs in a thread,
and threads cannot be stopped from outside: one that takes long should check `cancelled` now and
then.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor
    from typing import Any, Protocol

    from maitred.redaction import Redaction

    class Meter(Protocol):
        """Counts what is served and what waits inside a worker. Any thread may call it, but
        `submitted` only the worker's event loop."""

        @property
        def loop(self) -> asyncio.AbstractEventLoop: ...
        def wait(self, attempt: Attempt) -> None: ...
        def go_on(self, attempt: Attempt) -> None: ...
        def submitted(self, attempt: Attempt, executor: Executor) -> Any: ...  # noqa: ANN401
        def finished(self, executor: Executor, call: Any) -> None: ...  # noqa: ANN401

    class Source(Protocol):
        """The queue and the partition that a task came from."""

        @property
        def name(self) -> str: ...
        @property
        def partition(self) -> int: ...


class Attempt:
    """One attempt at a task, or a query. Outside of a worker there is a default one, which is never
    cancelled."""

    __slots__ = ("calls", "cancelled", "counted", "key", "meter", "origin", "queued", "waits")

    def __init__(self, origin: Source, key: tuple[int, int]) -> None:
        self.origin = origin
        self.key = key
        """The task's sequence number, and the number of the attempt."""
        self.cancelled = False
        """Whether the handler should stop: the task was cancelled, its deadline passed, or another
        worker has it by now."""
        self.unmeasured()

    def unmeasured(self) -> None:
        """Reset the measurements: no worker counts this attempt yet."""
        self.meter: Meter | None = None
        self.waits = 0
        """Number of its `waiting()` blocks that are entered now."""
        self.calls = 0
        """Its calls that run in a pool of threads or processes."""
        self.queued = 0
        """Its calls that a pool has not yet begun."""
        self.counted = False
        """Whether the worker counts it as waiting."""

    @property
    def number(self) -> int:
        """Number of this attempt, from 1."""
        return self.key[1]

    @property
    def user(self) -> str:
        """User whose query it is; empty for a task."""
        return ""

    @property
    def query_id(self) -> str:
        """The gateway and its number for the query, as in its query table; empty for a task."""
        return ""

    @property
    def labels(self) -> dict[str, str | int]:
        """What a log line of this code should say of it: queue and handler, with task and attempt
        or with the query. Empty outside of a worker."""
        return {}

    def trace_headers(self) -> dict[str, str]:
        """Return the headers `traceparent` and `tracestate` with which a request by HTTP continues
        the trace of this attempt, whether or not the worker records spans; empty if there is no
        trace."""
        return {}

    def redaction(self) -> Redaction | None:
        """Return what keeps texts free of the handler's hidden arguments; None if it hides
        nothing."""
        return None

    @property
    def task_id(self) -> str:
        """Id of the task, the same as `Task.id`; empty for a query."""
        return f"{self.origin.name}/{self.origin.partition}/{self.key[0]}"

    def __repr__(self) -> str:
        return f"<Attempt {self.number} at {self.task_id}>"


class _Nowhere(NamedTuple):
    name: str = "-/-"
    partition: int = 0


_NOBODY: Final = Attempt(_Nowhere(), (0, 1))
running: Final[ContextVar[Attempt]] = ContextVar("maitred.current", default=_NOBODY)
"""The attempt that this code is part of; the worker sets it."""


def current() -> Attempt:
    """Return the attempt that this code is part of."""
    return running.get()
