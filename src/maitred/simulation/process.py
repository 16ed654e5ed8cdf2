"""A simulated process: tasks and sockets that live and die together.

Which process code belongs to is carried by a context variable, since asyncio already hands the
context from a task to its children and to every callback. A kill therefore needs no list of
tasks: the loop drops whatever would run in the context of a dead process, and keeps back whatever
would run in the context of a paused one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from maitred.simulation.errors import NoProcess, ProcessFailed, ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from maitred.simulation.trace import Trace

ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar(
    "maitred_simulated_process", default=None
)


def current_process() -> Process:
    """Return the simulated process that runs now; raise `NoProcess` outside of all."""
    process = PROCESS.get()
    if process is None:
        raise NoProcess(
            "This code runs in no simulated process, so it has no host and no network.",
            remedy="Start it with host.spawn(...).",
        )
    if process.dead:  # it killed itself, and this is the rest of its last step
        raise NoProcess(f"The process {process.name} is dead.")
    return process


class ProcessLoop(Protocol):
    """The simulated loop, as a process sees it."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future of this loop."""

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        """Create a task of the process in whose context it will run."""

    def call_soon(
        self,
        callback: Callable[..., object],
        /,
        *args: Any,  # noqa: ANN401
        context: contextvars.Context | None = None,
    ) -> object:
        """Run the callback after all that is ready."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that no code awaits."""

    def give_back(self, ready: list[Any], timers: list[tuple[float, int, Any]]) -> None:
        """Take back the events of a process that was paused."""


class ProcessTransport(Protocol):
    """An open end of a connection, as the process that owns it sees it."""

    def abort(self) -> None:
        """Close without sending what is buffered."""

    def kill(self) -> None:
        """Close as the kernel of a killed process does."""

    def pause(self) -> None:
        """Leave in the window what arrives, and in the buffer what waits for room."""

    def resume(self) -> None:
        """Read and send on."""

    def vanish(self, *, orderly: bool = False, silent: bool = False) -> None:
        """Close as the kernel of a dead process does; if `silent`, as a host without power."""

    def discard(self) -> None:
        """Discard the transport without a warning, because the world is over."""


class ProcessListener(Protocol):
    """A bound socket, as the process that owns it sees it."""

    def close(self) -> None:
        """Stop listening; connections that were accepted stay."""


class UnclaimedConnection(Protocol):
    """An established connection that its process has not taken yet."""

    def abandon(self) -> None:
        """Close the connection."""


class Process:
    """One process on one host. It lives as long as its main coroutine, or until it is killed."""

    def __init__(
        self,
        number: int,
        name: str,
        *,
        host_name: str,
        loop: ProcessLoop,
        world_context: contextvars.Context,
        trace: Trace,
    ) -> None:
        """Create a process that does not run yet; no kill stops callbacks in `world_context`."""
        self.number = number
        self.name = name
        self.host_name = host_name
        self.dead = False
        self.paused = False
        self.halted = False
        """Whether the process is dead or paused, so that nothing of it runs."""
        self.kept_ready: list[Any] = []
        """The callbacks that were ready when the process was paused, or became ready since."""
        self.kept_timers: list[tuple[float, int, Any]] = []
        """The timers that the loop took out of its heap while the process was paused."""
        # Dictionaries for their order: sets of objects would iterate by memory address.
        self.transports: dict[ProcessTransport, None] = {}
        self.listeners: dict[ProcessListener, None] = {}
        self.unclaimed: dict[UnclaimedConnection, None] = {}
        """Connections that were established for the process, which has not taken them yet."""
        self.exception_handler: ExceptionHandler | None = None
        """The handler that the process gave to `loop.set_exception_handler`; it gets the errors of
        this process only. None if the process gave none."""
        self.killed = False
        self._timers_first = bool(number % 2)
        """Whether the process runs timers that are due, and what they make ready, before it reads,
        as uvloop does; asyncio's own loops read first. Every world has processes of both kinds."""
        self._loop = loop
        self._world_context = world_context
        self._trace = trace
        self._finished: asyncio.Future[Any] = loop.create_future()
        self._awaited = False

    def __repr__(self) -> str:
        return f"<Process {self.name} {'dead' if self.dead else 'alive'}>"

    def start(self, main: Coroutine[Any, Any, Any] | Callable[[], Awaitable[Any]]) -> None:
        """Start the main coroutine; called once, by `Host.spawn`."""
        # A context of its own: processes share nothing, not even context variables.
        context = contextvars.Context()
        context.run(PROCESS.set, self)
        task = self._loop.create_task(_called(main, self.name), name=self.name, context=context)
        task.add_done_callback(self._main_done, context=self._world_context)
        self._trace.note(b"start", self.number)

    async def wait(self) -> Any:  # noqa: ANN401 - whatever main returns
        """Return the result of main or raise its exception; raise `ProcessKilled` after a kill."""
        self._awaited = True
        return await asyncio.shield(self._finished)

    def kill(self) -> None:
        """Kill the process, as SIGKILL does: no finally block runs, and its peers see a reset."""
        if not self.dead:
            self.killed = True
            self._end(ProcessKilled(f"The process {self.name} was killed."), b"kill")
            self._abandon_unclaimed()
            for transport in list(self.transports):
                transport.kill()

    def lose_power(self) -> None:
        """End the process like a kill, but without a sign to its peers; for `Host.crash`."""
        if not self.dead:
            self.killed = True
            self._end(ProcessKilled(f"The host of {self.name} lost power."), b"crash")
            for transport in list(self.transports):
                transport.vanish(silent=True)

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does: nothing of it runs until it is resumed. Its kernel
        goes on: connections to it are established, and what is sent to it fills its windows."""
        if not self.halted:
            self.paused = self.halted = True
            self._trace.note(b"pause", self.number)
            for transport in list(self.transports):
                transport.pause()

    def resume(self) -> None:
        """Let a paused process go on, as SIGCONT does: first come the callbacks that were ready,
        then reads and the timers that became due meanwhile, in the order of the process's loop."""
        if not self.paused or self.dead:
            return
        self.paused = self.halted = False
        self._trace.note(b"resume", self.number)
        ready, self.kept_ready = self.kept_ready, []
        timers, self.kept_timers = self.kept_timers, []
        if self._timers_first:
            self._loop.give_back(ready, timers)
            # After the timers, and then after the callbacks that they made ready.
            self._soon(self._soon, self._read_on)
        else:
            self._loop.give_back(ready, [])
            self._read_on()
            self._loop.give_back([], timers)

    def _soon(self, callback: Callable[..., object], *args: Any) -> None:  # noqa: ANN401
        self._loop.call_soon(callback, *args, context=self._world_context)

    def _read_on(self) -> None:
        if not self.halted:
            for transport in list(self.transports):
                transport.resume()

    def _main_done(self, task: asyncio.Task[Any]) -> None:
        if self.dead:
            return
        error = (
            ProcessKilled(f"The main coroutine of {self.name} was cancelled.")
            if task.cancelled()
            else task.exception()
        )
        self._end(error, b"exit", None if error else task.result())
        self._abandon_unclaimed()
        for transport in list(self.transports):
            transport.vanish(orderly=True)

    def _abandon_unclaimed(self) -> None:
        for connection in self.unclaimed:
            connection.abandon()
        self.unclaimed.clear()

    def _end(self, error: BaseException | None, what: bytes, result: object = None) -> None:
        self.dead = self.halted = True
        self.paused = False
        self.kept_ready.clear()
        self.kept_timers.clear()
        self._trace.note(what, self.number)
        for listener in list(self.listeners):
            listener.close()
        if error is None:
            self._finished.set_result(result)
        else:
            self._finished.set_exception(error)
            self._finished.exception()  # marks it as seen: it is reported here, or by wait()
            if not self._awaited and not isinstance(error, ProcessKilled):
                self._loop.call_exception_handler(
                    {"message": f"The process {self.name} failed", "exception": error}
                )


async def _called(main: Any, name: str) -> Any:  # noqa: ANN401 - what main is and returns
    try:
        return await (main if inspect.iscoroutine(main) else main())
    except SystemExit as stop:  # ends this process, not the world
        if stop.code:
            raise ProcessFailed(f"The process {name} exited with {stop.code!r}.") from None
        return None
