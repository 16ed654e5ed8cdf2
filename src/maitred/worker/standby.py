"""Heartbeats that do not depend on the handlers' loop.

A handler that blocks the worker's loop (a `time.sleep`, a slow library call in an `async def`)
stops everything on it, heartbeats too, and after a lease the node would give the worker's tasks to
others while they run. So a thread with a loop of its own watches the worker's loop. While that is
blocked, the thread renews the leases of all tasks that the worker has, by a connection of its own:
those that run, that wait for their turn on the loop, and that have ended and are not reported yet.

While the loop is in time the thread only looks four times a second, and costs no task anything. To
run the handlers in another thread instead would cost every task two switches between threads.

Code that holds the GIL (some C extensions) stops this thread as well. Nothing in the process can
renew a lease then; the thread logs that as soon as it runs again.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, suppress
from math import inf
from time import process_time
from typing import TYPE_CHECKING, Final, cast

import uvloop

from maitred.errors import Cancelled, DeadlineExceeded, MaitredError
from maitred.protocol.tasks import Heard, Heartbeat
from maitred.worker.heartbeats import LEASE_SHARE, SHORTEST_SECONDS
from maitred.worker.pulse import BlockDetector, Sighting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import End
    from maitred.worker.block_reports import BlockReports
    from maitred.worker.context import WorkerContext
    from maitred.worker.execution import Execution, Origin
    from maitred.worker.pulse import Pulse

    Connecting = Callable[[], AbstractAsyncContextManager[AsyncClient]]
    """Opens another connection to the node, on the loop that it is called on."""

LOOK_SECONDS: Final = 0.25
"""Seconds between two looks at the worker's loop."""

RETRY_SECONDS: Final = 0.5
"""Pause before the next try at a node that could not be reached or refused a heartbeat."""

STOP_SECONDS: Final = 5.0
"""Longest time that a stopping worker waits for the thread, which only closes a connection."""


class StandbyHeartbeats:
    """The watching thread of one worker. Make it on the worker's loop."""

    def __init__(
        self,
        *,
        context: WorkerContext,
        connecting: Connecting,
        pulse: Pulse,
        origins: Callable[[], Iterable[Origin]],
        lost: Callable[[Execution], None],
        reports: BlockReports,
    ) -> None:
        self._context = context
        self._connecting = connecting
        self._pulse = pulse
        self._origins = origins
        self._lost = lost
        """Stops an attempt that another worker has; called on the worker's loop."""
        self._reports = reports
        self._detector = BlockDetector(context.settings.blocked_seconds)
        self._worker_loop = asyncio.get_running_loop()
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        self._client: AsyncClient | None = None
        self._thread = threading.Thread(target=self._run, name="maitred-heartbeats", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread, and disconnect it. From the worker's loop."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    # In the thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._watch())
        finally:
            self._loop.close()

    async def _watch(self) -> None:
        clock = self._pulse.time
        async with AsyncExitStack() as connections:
            keeping: asyncio.Task[None] | None = None
            while not self._stopping.is_set():
                due, cpu_seconds = clock() + LOOK_SECONDS, process_time()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._stopping.wait()
                overslept = clock() - due
                sighting = self._detector.look(clock(), self._pulse.at, overslept)
                if sighting is Sighting.BLOCKED:
                    self._reports.blocked(
                        self._detector.lasted, overslept, process_time() - cpu_seconds
                    )
                    keeping = self._loop.create_task(self._keep_leases(connections))
                elif sighting is Sighting.FREED:
                    self._reports.freed(self._detector.lasted)
                    await _ended(keeping)
            await _ended(keeping)

    async def _keep_leases(self, connections: AsyncExitStack) -> None:
        """Renew all leases until this is cancelled. No task can arrive meanwhile: the loop that
        reads is blocked."""
        client = await self._connected(connections)
        async with asyncio.TaskGroup() as group:
            for origin in self._origins():
                group.create_task(self._renew(client, origin))

    async def _connected(self, connections: AsyncExitStack) -> AsyncClient:
        while self._client is None:
            try:
                self._client = await connections.enter_async_context(self._connecting())
            except MaitredError as problem:
                self._reports.not_renewed(problem)
                await asyncio.sleep(RETRY_SECONDS)
        return self._client

    async def _renew(self, client: AsyncClient, origin: Origin) -> None:
        clock = self._pulse.time
        while True:
            # Each copy is atomic: the worker's loop may go on at any moment.
            running = {
                key: execution
                for key, execution in origin.running.copy().items()
                if execution.lease_ends_at > -inf
            }
            mentioned = {key: execution.proof for key, execution in running.items()}
            # The answer names tasks: an end is not mentioned beside the next attempt at its task.
            next_ones = {sequence for sequence, _ in running}
            for end in untold(origin):
                if end.sequence not in next_ones:
                    mentioned[end.sequence, end.attempt] = end.proof
            if not mentioned:
                return
            interval = max(origin.lease_seconds * LEASE_SHARE, SHORTEST_SECONDS)
            sent_at = clock()
            message = Heartbeat(
                *origin.queue,
                origin.partition,
                0,
                self._context.session,
                self._context.name,
                [(*key, proof) for key, proof in mentioned.items()],
            )
            try:
                held = client.hold(message, interval, grace_seconds=interval / 2)
                heard = cast("Heard", await held.answer())
            except (Cancelled, DeadlineExceeded):
                continue
            except MaitredError as problem:
                self._reports.not_renewed(problem)
                await asyncio.sleep(min(RETRY_SECONDS, interval))
                continue
            self._hear(running, heard, sent_at + origin.lease_seconds)
            await asyncio.sleep(max(0.0, sent_at + interval - clock()))

    def _hear(
        self, running: dict[tuple[int, int], Execution], heard: Heard, lease_ends_at: float
    ) -> None:
        lost, revoked = frozenset(heard.lost), frozenset(heard.revoked)
        for (sequence, _), execution in running.items():
            if sequence in lost:
                execution.lease_ends_at = (
                    -inf
                )  # at once: its handler may begin before `_lost` is called
                self._on_worker_loop(self._lost, execution)
            else:
                execution.lease_ends_at = lease_ends_at
                if sequence in revoked:
                    self._on_worker_loop(execution.revoke)

    def _on_worker_loop(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # it is closed
            self._worker_loop.call_soon_threadsafe(function, *arguments)


def untold(origin: Origin) -> list[End]:
    """Return the ends that the node has not confirmed yet; any thread may call it."""
    sending = origin.sending.copy()
    return [*origin.ends.copy(), *(end for _, ends in sending.values() for end in ends)]


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
