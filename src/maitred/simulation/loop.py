"""An asyncio event loop on which time is a number.

The problem: code that waits, retries and times out has to be run for hours, thousands of times,
with the same outcome for the same seed. So time stands still while anything is ready, and jumps to
the next timer when nothing is. Everything above (tasks, futures, locks, streams) is asyncio's own.

Rejected: a selector loop with a patched clock. It still asks the kernel once a turn, and its
heap of handles compares in Python; it runs a third as many events.

What always holds: timers of the same moment run in the order in which they were set, and after
what was ready before; nothing of a dead or paused process runs; the loop keeps every task until it
is done and numbers tasks for hashing, so that neither the garbage collector nor an address decides
on an order.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import warnings
from collections import deque
from collections.abc import Callable  # noqa: TC003 - a Struct resolves its fields
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVarTuple

from msgspec import Struct

from maitred.simulation.errors import Deadlock, TooManyEvents, TooMuchTime
from maitred.simulation.process import PROCESS
from maitred.simulation.refusals import Refusals
from maitred.simulation.simulated_task import SimulatedTask
from maitred.simulation.stuck_tasks import describe_waiting

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Coroutine, Generator

_Arguments = TypeVarTuple("_Arguments")

_EVENTS_A_COLLECTION = 250_000
"""A world runs without the automatic garbage collection, whose times are not repeatable; instead
there is a collection after this many events. Costs some 1 % of the time."""

_CLEANED_FROM = 1024
"""Shorter lists of timers and tasks are not worth cleaning."""


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """The limits of a run, so that a livelock cannot hang the machine."""

    max_events: int = 50_000_000
    """Most events of one run; about four minutes of CPU."""

    max_virtual_seconds: float = 31 * 86_400.0
    """Most virtual time of one run."""


class Event(Struct, eq=False):
    """One callback to come. It has the methods of asyncio's `TimerHandle`, and is made in a third
    of the time: one is made for each event, and the constructor of a `Struct` is not Python code.
    """

    moment: float
    callback: Callable[..., object] | None
    arguments: tuple[Any, ...]
    context: contextvars.Context | None

    def cancel(self) -> None:
        """Never run the callback, and release what it holds at once."""
        self.context = None
        self.callback = None
        self.arguments = ()

    def cancelled(self) -> bool:
        """Return whether the event was cancelled."""
        return self.context is None

    def when(self) -> float:
        """Return the virtual time at which the event runs."""
        return self.moment

    def get_context(self) -> contextvars.Context:
        """Return the context in which the event runs."""
        return self.context or contextvars.Context()

    def __repr__(self) -> str:
        name = getattr(self.callback, "__qualname__", self.callback)
        return f"<Event at {self.moment} {'cancelled' if self.cancelled() else name}>"


class SimulatedLoop(Refusals):
    """A loop without kernel: virtual time, and only what the network schedules on it."""

    _stopping: bool

    def __init__(self, limits: LoopLimits | None = None) -> None:
        super().__init__()
        self.limits = limits or LoopLimits()
        self.now = 0.0
        """The virtual time in seconds; reading it is faster than calling `time()`."""
        self.events = 0
        """Callbacks and task steps that have run."""
        self.bare_context = contextvars.Context()
        """The context of events of the world itself, which belong to no process."""
        self._queue: deque[Event] = deque()
        self._timers: list[tuple[float, int, Event]] = []
        self._timers_cleaned_at = _CLEANED_FROM
        self._sequence = 0
        self._tasks: list[SimulatedTask] = []
        self._tasks_cleaned_at = _CLEANED_FROM
        self._task_number = 0
        self._last_event = self._next_check = self.limits.max_events
        self._last_moment = self.limits.max_virtual_seconds

    def __del__(self) -> None:
        """Do nothing. asyncio's method would close the loop and complain; this loop holds nothing
        of the kernel, and may be half built: Ctrl-C can end `__init__` anywhere."""

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self.now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: contextvars.Context | None = None,
    ) -> Event:
        """Run it after everything that is ready now."""
        if context is None:
            context = contextvars.copy_context()
        event = Event(self.now, callback, args, context)
        self._queue.append(event)
        return event

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: contextvars.Context | None = None,
    ) -> Event:
        """Do what `call_soon` does: there are no other threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: contextvars.Context | None = None,
    ) -> Event:
        """Run it when `delay` virtual seconds have passed."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: contextvars.Context | None = None,
    ) -> Event:
        """Run it at that virtual time, after all that was set for the same time before."""
        if context is None:
            context = contextvars.copy_context()
        event = Event(when, callback, args, context)
        self._sequence = sequence = self._sequence + 1
        heapq.heappush(self._timers, (when, sequence, event))
        if sequence % _CLEANED_FROM == 0 and len(self._timers) > self._timers_cleaned_at:
            self._drop_cancelled_timers()
        return event

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        **options: Any,  # noqa: ANN401 - name and context, and whatever later Pythons add
    ) -> SimulatedTask:
        """Create a task of the process in whose context it will run."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        self._task_number = number = self._task_number + 1
        if options.get("name") is None:
            # asyncio's own numbers go on from run to run, and errors would differ by them.
            options["name"] = f"task-{number}"
        # asyncio's __init__ puts the task into a set, so it needs its number before. An __init__ of
        # our own would take as long as asyncio's.
        task = SimulatedTask.__new__(SimulatedTask)
        task.number = number
        context = options.get("context")
        task.process = PROCESS.get(None) if context is None else context.get(PROCESS)
        asyncio.Task.__init__(task, coro, loop=self, **options)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_cleaned_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_cleaned_at = max(_CLEANED_FROM, 2 * len(self._tasks))
        return task

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,  # noqa: ARG002 - there are no threads
        func: Callable[..., Any],
        *args: object,
    ) -> asyncio.Future[Any]:
        """Run it inline, as an event of its own: blocking work takes no virtual time."""
        future = self.create_future()
        self.call_soon(_run_inline, future, func, args)
        return future

    def run_until_complete(self, future: Any) -> Any:  # noqa: ANN401 - as the loop it overrides
        """Run like asyncio's loop; the limits of events and time count from here."""
        self._last_event = self.events + self.limits.max_events
        self._next_check = min(self._last_event, self.events + _EVENTS_A_COLLECTION)
        self._last_moment = self.now + self.limits.max_virtual_seconds
        return super().run_until_complete(future)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Do nothing: there is no executor."""

    def pending_tasks(self) -> list[SimulatedTask]:
        """Return the unfinished tasks of living processes, oldest first."""
        return [
            task
            for task in self._tasks
            if not task.done() and not (task.process and task.process.dead)
        ]

    def known_tasks(self) -> list[SimulatedTask]:
        """Return all unfinished tasks, also of dead processes, and those that finished lately."""
        return list(self._tasks)

    def close(self) -> None:
        """Forget everything that would have run."""
        super().close()
        with warnings.catch_warnings():
            # Coroutines that never started may be among them; they will never be awaited.
            warnings.simplefilter("ignore")
            self._queue.clear()
            self._timers.clear()

    def _run_once(self) -> None:
        # BaseEventLoop calls this until stop(). Staying inside, and doing everything here rather
        # than in functions of their own, saves three calls an event.
        queue, timers, bare = self._queue, self._timers, self.bare_context
        pop, take = heapq.heappop, queue.popleft
        while not self._stopping:
            # Queue the timers that are due; if nothing is ready, go to the next one's time first.
            now = self.now
            while timers:
                moment, sequence, event = timers[0]
                if moment > now and queue:
                    break
                pop(timers)
                context = event.context
                if context is None:
                    continue
                if context is not bare:
                    process = context.get(PROCESS)
                    if process is not None and process.halted:
                        if process.paused:
                            process.kept_timers.append((moment, sequence, event))
                        continue  # and time does not go there
                if moment > now:
                    if moment > self._last_moment:
                        raise self._too_much_time()
                    self.now = now = moment
                queue.append(event)
            skipped = 0
            size = len(queue)
            if not size:
                raise self._deadlock()
            for _ in range(size):  # what these make ready belongs to the next batch
                event = take()
                context = event.context
                if context is None:
                    skipped += 1
                    continue
                try:
                    if context is bare:  # the network's own, which belongs to no process
                        event.callback(*event.arguments)  # type: ignore[misc]
                        continue
                    process = context.get(PROCESS)
                    if process is not None and process.halted:
                        if process.paused:
                            process.kept_ready.append(event)
                        skipped += 1
                        continue
                    context.run(event.callback, *event.arguments)  # type: ignore[arg-type]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio: the handler decides
                    self._report(event, error)
            self.events += size - skipped
            if self.events > self._next_check:
                if self.events > self._last_event:
                    raise self._too_many_events()
                gc.collect()
                self._next_check = min(self._last_event, self.events + _EVENTS_A_COLLECTION)

    def give_back(self, ready: list[Event], timers: list[tuple[float, int, Event]]) -> None:
        """Take back the callbacks and timers of a process that was paused."""
        self._queue.extend(ready)
        for moment, sequence, event in sorted(timers, key=lambda timer: timer[:2]):
            if moment > self.now:
                heapq.heappush(self._timers, (moment, sequence, event))
            else:
                self._queue.append(event)

    def _deadlock(self) -> Deadlock:
        return Deadlock(
            "Nothing is ready and no timer is set, but the run is not finished. "
            f"Waiting:{describe_waiting(self.pending_tasks())}"
        )

    def _too_much_time(self) -> TooMuchTime:
        return TooMuchTime(
            f"The run reached {self.limits.max_virtual_seconds:g} virtual seconds. "
            f"Waiting:{describe_waiting(self.pending_tasks())}",
            remedy="Raise Limits.max_virtual_seconds if this is not a hang.",
        )

    def _report(self, event: Event, error: BaseException) -> None:
        self.call_exception_handler(
            {"message": f"Exception in {event!r}", "exception": error, "handle": event}
        )

    def _too_many_events(self) -> TooManyEvents:
        return TooManyEvents(
            f"The run reached {self.limits.max_events:,} events at {self.now:g} s. "
            f"Waiting:{describe_waiting(self.pending_tasks())}",
            remedy="Raise Limits.max_events if nothing spins.",
        )

    def _drop_cancelled_timers(self) -> None:
        # Most timers are timeouts that never happen: without this the heap would keep them all.
        # In place, because _run_once holds on to the list.
        self._timers[:] = [entry for entry in self._timers if entry[2].context is not None]
        heapq.heapify(self._timers)
        self._timers_cleaned_at = max(_CLEANED_FROM, 2 * len(self._timers))


def _run_inline(
    future: asyncio.Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    if future.cancelled():
        return
    try:
        result = function(*arguments)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the code that awaits the future gets it
        if isinstance(error, StopIteration):  # which no future accepts
            error = RuntimeError("The function in the executor raised StopIteration.")
        future.set_exception(error)
    else:
        future.set_result(result)
