"""One attempt at a task, from the call of its handler to its end.

An async handler is a task of the loop, a plain function runs in a thread; either way the slot is
taken until the handler has really ended. What the node is told may come earlier: a thread cannot be
stopped, so when its time is over that is told at once. An async handler is cancelled, and has a
little time to clean up before it is told all the same.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from maitred.app.attempt import Attempt, running
from maitred.protocol.tasks import DONE
from maitred.worker import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.worker.bench import Bench
    from maitred.worker.origin import Origin
    from maitred.worker.outcomes import Ending


class Execution(Attempt):
    """What `maitred.current()` shows, and what the worker knows besides."""

    __slots__ = (
        "_bench",
        "_call",
        "_entered",
        "_timer",
        "_why",
        "begun_at",
        "lease_ends_at",
        "proof",
        "task",
        "told",
    )

    origin: Origin

    def __init__(
        self,
        bench: Bench,
        origin: Origin,
        key: tuple[int, int],
        proof: bytes,
        now: float,
        lease_ends_at: float,
    ) -> None:
        self.origin = origin
        self.key = key
        self.proof = proof
        """Shown to the node with whatever is said of this attempt."""
        self.cancelled = False
        self.meter = None  # as `unmeasured` does, without a call for each task
        self.waits = self.calls = self.queued = 0
        self.counted = False
        self.begun_at = now
        self.lease_ends_at = lease_ends_at
        """What has not begun by then does not: another worker may have it. Each
        heartbeat that the node answers moves it on."""
        self.told = False
        """Whether the node knows of the end already, or does not want to."""
        self._bench = bench
        self._why: Ending | None = None
        """How it ends, if it was stopped."""
        self._entered = False
        self.task: asyncio.Task[None] | None = None
        """Calls the handler on the loop (`run`); None: a thread does."""
        self._timer: asyncio.TimerHandle | None = None

    def begin_in_thread(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Beside the loop."""
        running.set(self)
        bench = self._bench
        self._call = bench.capacity.enter_thread(self)
        bench.loop.run_in_executor(
            bench.threads, copy_context().run, self._call_in_thread, function, args, named
        ).add_done_callback(self._thread_ended)

    def limit(self, seconds: float) -> None:
        """The time that the attempt may take."""
        self._timer = self._bench.loop.call_later(seconds, self._time_is_over, seconds)

    def runs_as(self, task: asyncio.Task[Any]) -> bool:
        """Whether that task of the loop calls the handler."""
        return self.task is task

    @property
    def is_over(self) -> bool:
        """Whether the lease may have ended."""
        return self.lease_ends_at <= self._bench.clock()

    # Stopping

    def revoke(self) -> bool:
        """Somebody cancelled the task; False if that was known."""
        if self.cancelled:
            return False
        self._why = outcomes.stopped()
        self._stop()
        return True

    def lose(self) -> None:
        """It is somebody else's by now; whatever comes of it does not count."""
        self.told = True
        if not self.cancelled:
            self._stop()

    def _stop(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()
            if not self._entered:  # it will never run, not even our own part of it
                self.task.add_done_callback(self._never_ran)

    def _time_is_over(self, seconds: float) -> None:
        self._timer = None
        self._why = why = outcomes.timed_out(seconds)
        if self.task is None:
            self.cancelled = True
            self._tell(why)
            return
        if not self.cancelled:
            self._stop()
        self._timer = self._bench.loop.call_later(
            self._bench.settings.stop_seconds, self._tell, why
        )

    def _tell(self, ending: Ending) -> None:
        self._timer = None
        if not self.told:
            self._bench.tell(self, ending)

    # The end

    async def run(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        """Call an async handler, and tell how it ended."""
        self._entered = True
        bench = self._bench
        if self.lease_ends_at <= bench.clock():  # `is_over`, without a call for each task
            bench.lapsed(self)
            return
        running.set(self)  # in the task's own context, so that there is nothing to set back
        try:
            result = await function(*args, **named)
        except GeneratorExit:
            raise
        except KeyboardInterrupt as problem:
            # Somebody's Ctrl-C, where nobody has a handler for the signal: it is meant for all.
            self._end(outcomes.raised(problem))
            raise
        except BaseException as problem:  # noqa: BLE001 - SystemExit would end the loop
            self._end(outcomes.raised(problem))
        else:
            ending = (
                outcomes.NOTHING if result is None else outcomes.returned(result, bench.most_bytes)
            )
            if self._timer is None and self._why is None:  # `_end`, without a call for each task
                self.task = None
                bench.ended(self, ending)
            else:
                self._end(ending)

    def _never_ran(self, _: object) -> None:
        self._end(outcomes.raised(asyncio.CancelledError()))

    def _call_in_thread(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Ending | None:
        """How it ended; None if it was cancelled or lost before a thread had time for it."""
        if self.cancelled or self.is_over:
            return None
        return outcomes.called(function, args, named, self._bench.most_bytes)

    def _thread_ended(self, future: asyncio.Future[Ending | None]) -> None:
        capacity = self._bench.capacity
        capacity.left_pool(capacity.threads, self._call)
        ending = future.result()
        if ending is not None:
            self._end(ending)
        elif self.cancelled:
            self._end(outcomes.stopped())
        else:
            self._bench.lapsed(self)

    def _end(self, ending: Ending) -> None:
        self.task = None  # its context has us: only the garbage collector would free either
        if self._timer is not None:
            self._timer.cancel()
        if self._why is not None and ending[0] != DONE:  # it raised because it was told to stop
            ending = self._why
        self._bench.ended(self, ending)
