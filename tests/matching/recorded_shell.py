"""The shell in which tests run the node's driver: time stands still, and questions are on record.

A test says when time passes, when a read of the store arrives, and what the parent answers.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from maitred.security.directory import Directory
from maitred.settings import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from maitred.logs import Logger
    from maitred.matching.records import Later, PartitionKey
    from maitred.node.driver_shell import TreeRequest
    from maitred.node.owned import Owned
    from maitred.node.peer_calls import Done
    from maitred.store.interface import SegmentRead
    from tests.matching.model_store import ModelStore

Found = TypeVar("Found")

USERS = Directory(Node())
"""No users, so no user has limits."""


class RecordedTimer:
    """A callback of `RecordedLoop` and its time."""

    def __init__(self, timers: dict[RecordedTimer, float], run: Callable[[], object]) -> None:
        self._timers = timers
        self.run = run

    def cancel(self) -> None:
        self._timers.pop(self, None)


class RecordedLoop:
    """A loop that runs callbacks when it is told to, at the time that a test sets."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.time = time
        self._soon: list[Callable[[], object]] = []
        self._timers: dict[RecordedTimer, float] = {}

    def call_soon(self, callback: Callable[..., object], /, *arguments: Any) -> None:  # noqa: ANN401
        self._soon.append(lambda: callback(*arguments))

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        /,
        *arguments: Any,  # noqa: ANN401
    ) -> RecordedTimer:
        timer = RecordedTimer(self._timers, lambda: callback(*arguments))
        self._timers[timer] = when
        return timer

    @property
    def next_at(self) -> float:
        """When the first timer rings."""
        return min(self._timers.values(), default=inf)

    def ring(self) -> None:
        """Run the timers that are due."""
        for timer, when in list(self._timers.items()):
            if when <= self.time():
                timer.cancel()
                timer.run()

    def run(self) -> bool:
        """Run what is to be run soon; return whether there was something."""
        soon, self._soon = self._soon, []
        for run in soon:
            run()
        return bool(soon)


class Question:
    """A request to the parent that is not answered yet."""

    def __init__(self, done: Done, recalled: Callable[[Question], None]) -> None:
        self.done = done
        self._recalled = recalled
        self.is_given_up = self.is_recalled = False

    def give_up(self) -> None:
        """Note it: no answer may arrive any more."""
        self.is_given_up = True

    def recall(self) -> None:
        self.is_recalled = True
        self._recalled(self)


class Arrival:
    """A read that the store has answered; the answer is on its way."""

    def __await__(self) -> Generator[Arrival, None, None]:
        yield self


class RaisingLog:
    """Raises what the driver logs as a failure, so that the test fails with it."""

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        raise fields.get("exc_info") or AssertionError(event)

    def warning(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        """Ignore a warning."""

    debug = info = warning
    exception = error

    def bind(self, **_: Any) -> Logger:  # noqa: ANN401
        return self


class RecordedShell:
    """Runs the driver for one partition, and records what it asks of the parent."""

    def __init__(
        self,
        time: Callable[[], float],
        store: ModelStore,
        recalled: Callable[[Question], None],
    ) -> None:
        self.loop = RecordedLoop(time)
        self.log = RaisingLog()
        self.users = USERS
        self.errors: Counter[str] = Counter()
        self.damaged: Counter[str] = Counter()
        self.tracing = None
        self.asked: list[TreeRequest] = []
        """Every request that was sent, in order."""
        self.reads: list[Coroutine[Any, Any, None]] = []
        """Reads that the store has answered and that have not arrived, if they are `slow`."""
        self.slow_reads = False
        self._store = store
        self._recalled = recalled

    def ask(self, message: TreeRequest, _seconds: float, done: Done) -> Question:
        self.asked.append(message)
        return Question(done, self._recalled)

    def spawn(self, running: Coroutine[Any, Any, None]) -> None:
        try:
            running.send(None)
        except StopIteration:
            return
        self.reads.append(running)

    def answer_read(self) -> None:
        """Let the oldest read arrive."""
        try:
            self.reads.pop(0).send(None)
        except StopIteration:
            return
        raise AssertionError("a read waits twice")

    def restart(self) -> None:
        """Forget all that is on its way, as a process does that dies."""
        for one in self.reads:
            one.close()
        self.reads = []
        self.loop = RecordedLoop(self.loop.time)

    # The store and its writer, as the driver uses them

    async def segments(
        self, _key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        return await self._arrive(self._store.read(priority, after, tasks, most_bytes))

    async def later(
        self, _key: PartitionKey, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        return await self._arrive(self._store.read_later(before, most, most_bytes))

    async def _arrive(self, found: Found) -> Found:
        if self.slow_reads:
            await Arrival()
        return found

    def look_at(self, owned: Owned, now: float) -> None:
        """Do nothing: the test says when a commit begins."""
