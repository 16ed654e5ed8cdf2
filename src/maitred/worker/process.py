"""A worker as a process: waits for its node, serves, and drains when a signal comes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from maitred.errors import NO, MaitredError
from maitred.surroundings import StopSignals, Surroundings
from maitred.telemetry.start import worker_tracing
from maitred.worker.monitor import WorkerMonitor
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from maitred.app.app import App
    from maitred.app.handler import Handler
    from maitred.app.session import Session
    from maitred.client.client import AsyncClient
    from maitred.logs import Logger
    from maitred.settings import Telemetry, WorkerSettings

CONNECT_PAUSE_SECONDS = 1.0
"""Pause between two attempts to connect at the start; each attempt has its own backoff."""

COME_BACK_SECONDS = 1.0
"""Longest pause before a lost node is tried again: a restarted node gives its workers
`recovery_seconds`, three by default, to report the tasks they run before it gives them to
others."""


def default_name() -> str:
    """Return a name by which people recognise the worker; it need not be unique."""
    return f"{socket.gethostname()}:{os.getpid()}"


async def work(
    app: App,
    handlers: Sequence[Handler[Any, Any, Any]],
    settings: WorkerSettings,
    name: str,
    log: Logger,
    forced: Callable[[int], None],
    telemetry: Telemetry,
) -> bool:
    """Serve until a signal comes, then drain; return False if tasks had to be left unfinished.

    A second signal calls `forced` with its number, which ends the process.
    """
    tracing = worker_tracing(telemetry, log, name=name)
    app.prefer(backoff_longest_seconds=COME_BACK_SECONDS)
    app.trace_with(tracing)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    worker: Worker | None = None

    def force(number: int) -> None:
        log.warning(
            "forced to stop by a second signal; the node gives running tasks to other workers",
            signal=signal.Signals(number).name,
        )
        forced(number)

    def stop() -> None:
        stopping.set()
        if worker is not None:
            worker.stop()

    signals = StopSignals()
    signals.watch(loop, stop, force)
    monitor: WorkerMonitor | None = None
    try:
        if settings.monitor_host is not None or telemetry.metrics:
            monitor = WorkerMonitor(settings, name, log, telemetry, tracing)
            await monitor.start()
        session = await _connected(app, stopping, log)
        if session is None:
            return True
        worker = Worker(
            session.client,
            handlers,
            settings,
            name,
            Surroundings.real(tracing),
            log,
            connecting=partial(_connecting, app),
            monitor_url="" if monitor is None else monitor.url,
        )
        if monitor is not None:
            monitor.worker = worker
        if stopping.is_set():
            worker.stop()
        # Imported modules stay: the garbage collector need not look through them again and again.
        gc.collect()
        gc.freeze()
        finished = await worker.run()
        log.info("worker has stopped", worker=name, **worker.statistics.rounded())
        return finished
    finally:
        await app.close()
        ends = [] if tracing is None else [tracing.close()]
        if monitor is not None:
            ends.append(monitor.stop())
        await asyncio.gather(*ends)  # both wait for the receiver
        signals.ignore(loop)


@asynccontextmanager
async def _connecting(app: App) -> AsyncIterator[AsyncClient]:
    """Open another connection of the app, on the running loop."""
    try:
        yield (await app.session()).client
    finally:
        await app.close()


async def _connected(app: App, stopping: asyncio.Event, log: Logger) -> Session | None:
    """Connect to the node, for as long as it takes; return None if the worker was stopped first.
    Raise an error that no retry can mend."""
    told = False
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        while True:
            opening = asyncio.ensure_future(app.session())
            await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
                return None
            try:
                return opening.result()
            except MaitredError as problem:
                if problem.retry is NO:
                    raise
                if not told:
                    told = True
                    log.warning("no node answers yet; trying again until one does", error=problem)
            await asyncio.wait({stopped}, timeout=CONNECT_PAUSE_SECONDS)
            if stopped.done():
                return None
    finally:
        stopped.cancel()
