"""A whole world from one seed: loop, network, hosts and every source of randomness.

    with World(seed=7, faults=Faults.stormy()) as world:
        server = world.host("server").spawn(serve)
        world.run(scenario(world))

Randomness is drawn from streams that are seeded by name, so that adding a host or a connection
leaves the others' fortunes as they were. What always holds: the same seed and the same code give
the same run, in every process on every machine; and what asyncio would only log fails the run.

One thing cannot be had: a killed process's coroutines stay suspended until the world closes, and
Python then closes them, which runs their finally blocks. By then there is nothing left to touch.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from maitred.errors import InvalidArgument
from maitred.simulation.errors import UnhandledErrors
from maitred.simulation.faults import Faults
from maitred.simulation.loop import Event
from maitred.simulation.network import Network
from maitred.simulation.network_loop import NetworkLoop
from maitred.simulation.process import PROCESS
from maitred.simulation.simulated_task import SimulatedTask
from maitred.simulation.trace import Trace
from maitred.simulation.transport import SimulatedTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Iterator
    from types import TracebackType
    from typing import Self

    from maitred.simulation.hosts import Host
    from maitred.simulation.loop import LoopLimits
    from maitred.simulation.process import Process

_Result = TypeVar("_Result")

_FAILURES_SHOWN = 5


class World:
    """A simulated world; use it in a `with` statement, or close it."""

    def __init__(
        self, seed: int, *, faults: Faults | None = None, limits: LoopLimits | None = None
    ) -> None:
        if type(seed) is not int:
            raise InvalidArgument(f"A seed is a whole number, not {seed!r}.")
        self.seed = seed
        self.loop = NetworkLoop(limits)
        self.trace = Trace(self.loop)
        self.network = Network(self.loop, self.trace, faults or Faults(), self.random)
        self.loop.network = self.network
        self.failures: list[str] = []
        """The uncaught exceptions; checked at the end of `run` and at `close`."""
        self._first_failure: BaseException | None = None
        self._closed = False
        self.loop.set_exception_handler(self._unhandled)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._dispose()
        if error is None:
            self.raise_failures()

    def host(self, name: str, *, group: str | None = None) -> Host:
        """Return the host of that name; create it, by default in its own group, the first time."""
        found = self.network.hosts.get(name)
        return found or self.network.add_host(name, group if group is not None else name)

    def random(self, name: str) -> Random:
        """Return a new stream for that name; equal names give equal streams."""
        return self.stream(self.seed, name)

    @staticmethod
    def stream(seed: int, name: str) -> Random:
        """Return what `random` returns in a world of that seed, without such a world."""
        # A text is seeded by its SHA-512, which no PYTHONHASHSEED changes.
        return Random(f"{seed}/{name}")

    def run(self, main: Coroutine[Any, Any, _Result]) -> _Result:
        """Run it, outside every process, until it is done; fail if anything went unhandled."""
        with collector_tamed():
            result: _Result = self.loop.run_until_complete(main)
        self.raise_failures()
        return result

    def calm(self) -> None:
        """End all faults and open all paths. Connections that broke before stay broken."""
        self.network.faults = self.network.faults.calm()
        self.network.heal()

    def fingerprint(self) -> str:
        """Return a checksum of all deliveries, connections and processes; equal for equal runs."""
        return self.trace.fingerprint()

    def raise_failures(self) -> None:
        """Raise `UnhandledErrors` if there were any."""
        if self.failures:
            count = len(self.failures)
            shown = "".join(f"\n  {failure}" for failure in self.failures[:_FAILURES_SHOWN])
            raise UnhandledErrors(
                f"{count} errors were not handled:{shown}"
            ) from self._first_failure

    def close(self) -> None:
        """End the world, and raise what went unhandled in it."""
        self._dispose()
        self.raise_failures()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = _process_of(context)
        if process is not None and process.exception_handler is not None and not process.dead:
            process.exception_handler(loop, context)
            return
        if (
            process is not None
            and process.dead
            and isinstance(context.get("future"), SimulatedTask)
        ):
            return  # a process that has ended could not retrieve the exceptions of its tasks
        error = context.get("exception")
        if self._first_failure is None:
            self._first_failure = error
        self._record(context.get("message", "An error"), error)

    def _record(self, message: str, error: BaseException | None) -> None:
        what = f": {type(error).__name__}: {error}" if error is not None else ""
        self.failures.append(f"{message}{what} (at {self.loop.now:.6f} s)")

    def _dispose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self.loop.known_tasks():
            self._dispose_task(task)
        self.network.discard()
        # Errors that the garbage collector finds from now on come after the end of the world.
        self.loop.set_exception_handler(lambda _loop, _context: None)
        # Closing a coroutine runs its `finally` blocks, and these may create further tasks.
        closed: set[SimulatedTask] = set()
        while left := [task for task in self.loop.known_tasks() if task not in closed]:
            for task in left:
                _close_coroutine(task)
            closed.update(left)
        self.loop.close()

    def _dispose_task(self, task: SimulatedTask) -> None:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001
        elif not task.cancelled() and task._log_traceback:  # noqa: SLF001
            error = task.exception()
            # A killed process could not retrieve the exceptions of its tasks.
            if not (task.process and task.process.killed):
                self._first_failure = self._first_failure or error
                self._record(f"The exception of {task.get_name()} was never retrieved", error)


def _process_of(context: dict[str, Any]) -> Process | None:
    """Return the process whose error asyncio reports in this context."""
    task = context.get("task") or context.get("future")
    if isinstance(task, SimulatedTask):
        return task.process
    transport = context.get("transport")
    if isinstance(transport, SimulatedTransport):
        return transport.process
    event = context.get("handle")
    return event.get_context().get(PROCESS) if isinstance(event, Event) else None


@contextlib.contextmanager
def collector_tamed() -> Iterator[None]:
    """Turn the automatic garbage collection off: the loop collects after fixed numbers of events.

    When the collector runs depends on everything the process ever allocated. What it finds can
    act: a forgotten async generator is closed on the loop, a forgotten poll is given back.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _close_coroutine(task: SimulatedTask) -> None:
    if task.done():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            task.get_coro().close()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S110 - its process is dead; the error comes too late
            pass
