"""Counts the calls that run in a pool of threads or processes and those that wait for it. Pure.

An executor does not tell when it begins a call, but it begins calls in their order and has a known
number of workers: the calls beyond these wait. So counting is enough, and no thread has to report.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    class Caller(Protocol):
        """The attempt that a call in a pool belongs to (see `app.attempt.Attempt`)."""

        calls: int
        queued: int


@dataclass(slots=True, eq=False)
class PooledCall:
    """One call in a pool."""

    caller: Caller
    running: bool = False
    over: bool = False


class CallPool:
    """Counts the calls that run in one executor and those that wait for it. `changed` is called
    with the attempt whose call begins to run."""

    __slots__ = ("_changed", "_waiting", "_workers", "active")

    def __init__(self, workers: int | None, changed: Callable[[Caller], None]) -> None:
        self._workers = workers
        """None: unknown, so no call counts as waiting."""
        self._changed = changed
        self._waiting: deque[PooledCall] = deque()
        self.active = 0

    @property
    def waiting(self) -> int:
        """Calls that no worker of the pool has taken up."""
        return len(self._waiting)

    def enter(self, caller: Caller) -> PooledCall:
        """Count a call that was submitted."""
        call = PooledCall(caller)
        if self._workers is None or self.active < self._workers:
            self._run(call)
        else:
            caller.queued += 1
            self._waiting.append(call)
        return call

    def leave(self, call: PooledCall) -> None:
        """Count the end of a call, also of one that was taken back before it began; a second time
        has no effect."""
        if call.over:
            return
        call.over = True
        if not call.running:
            call.caller.queued -= 1
            self._waiting.remove(call)
            return
        self.active -= 1
        call.caller.calls -= 1
        if self._waiting:
            following = self._waiting.popleft()
            following.caller.queued -= 1
            self._run(following)
            self._changed(following.caller)

    def _run(self, call: PooledCall) -> None:
        call.running = True
        call.caller.calls += 1
        self.active += 1
