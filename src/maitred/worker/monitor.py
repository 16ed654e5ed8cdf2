"""The monitoring port of a worker: health, readiness and metrics.

It has a thread and an event loop of its own: a handler that blocks the worker's loop is what an
operator wants to see, so the pages must not wait for that loop. They are also there before the
worker has found its node. The thread only reads counters of the worker; it changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import uvloop

from maitred import __version__
from maitred.metrics import families
from maitred.metrics.busiest import REST, busiest
from maitred.metrics.exposition import Samples, page
from maitred.metrics.histogram import Histogram
from maitred.monitor.listener import MonitorListener, ProbeVerdict
from maitred.monitor.loop_lag import LoopLag
from maitred.monitor.process_vitals import add_vitals
from maitred.settings import Telemetry
from maitred.telemetry.start import WORKER_SERVICE, end_telemetry, export_metrics
from maitred.worker.lifecycle import DRAINING, SERVING, STOPPED

if TYPE_CHECKING:
    from maitred.logs import Logger
    from maitred.settings import WorkerSettings
    from maitred.telemetry.tracing import Tracing
    from maitred.worker.served import Served
    from maitred.worker.statistics import WorkerStatistics
    from maitred.worker.worker import Worker

QUEUES_NAMED: Final = 100
"""Most queues of a worker that have series of their own; the others are summed."""

STOP_SECONDS: Final = 5.0
"""Longest time that a stopping worker waits for the thread."""


class WorkerMonitor:
    """Answers for one worker. Make it on the worker's loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        name: str,
        log: Logger,
        telemetry: Telemetry | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`telemetry` says whether the metrics are exported as well; `tracing` counts spans."""
        self._settings = settings
        self._name = name
        self._log = log
        self._telemetry = telemetry or Telemetry()
        self._tracing = tracing
        self.worker: Worker | None = None
        """The worker; None until it has found its node."""
        self._lag = LoopLag(asyncio.get_running_loop())
        self._listener = MonitorListener(self, log, open_metrics=settings.monitor_open_metrics)
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="maitred-monitor", daemon=True)
        self._named: set[str] = set()

    async def start(self) -> None:
        """Listen; raise `CannotStart`."""
        self._thread.start()
        await asyncio.wrap_future(self._opened)

    async def stop(self) -> None:
        """End the thread that serves the pages."""
        self._lag.stop()
        with suppress(RuntimeError):  # the thread has ended, and closed its loop
            self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    @property
    def url(self) -> str:
        """Where the pages are; empty if there are none."""
        if not self._listener.port:
            return ""
        host = self._settings.monitor_host or ""
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self._listener.port}"

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        settings = self._settings
        try:
            if settings.monitor_host is not None:
                await self._listener.open(settings.monitor_host, settings.monitor_port)
            exporting = export_metrics(
                self._telemetry, self._log, self.metrics, service=WORKER_SERVICE, worker=self._name
            )
        except BaseException as problem:  # noqa: BLE001 - the worker's loop raises it
            self._opened.set_exception(problem)
            return
        self._opened.set_result(None)
        await self._stopping.wait()
        await end_telemetry(None, exporting)
        await self._listener.close()

    # Pages, in the thread

    async def health(self) -> ProbeVerdict:
        """Return whether the worker's loop has had a turn within `stuck_seconds`."""
        stuck = monotonic() - self._lag.turned_at
        if stuck >= self._settings.stuck_seconds:
            sentence = f"The event loop has had no turn for {stuck:.0f} s; a handler blocks it."
            return ProbeVerdict(ok=False, state="stuck", problems=(sentence,))
        return ProbeVerdict(ok=True, state="alive")

    async def ready(self) -> ProbeVerdict:
        """Return whether the node knows the worker, and the worker takes work."""
        worker = self.worker
        if worker is None:
            return ProbeVerdict(ok=False, state="starting", problems=("No node was reached yet.",))
        phase = worker.lifecycle.phase
        if phase in (DRAINING, STOPPED):
            return ProbeVerdict(ok=False, state="stopping")
        problems = []
        if not worker.is_connected:
            problems.append("The worker has no connection to its node.")
        if phase is not SERVING:
            problems.append(f"The worker is {phase.value}.")
        elif not worker.ready.is_set():
            problems.append("The node does not know the worker yet.")
        return ProbeVerdict(not problems, "not ready" if problems else "ready", tuple(problems))

    async def metrics(self) -> str:
        """Return the metrics of the worker."""
        samples = Samples()
        samples.add(families.WORKER_INFO, 1, worker=self._name, release=__version__)
        samples.add(families.WORKER_READY, int((await self.ready()).ok))
        samples.add(families.WORKER_SLOTS, self._settings.slots)
        worker = self.worker
        if worker is not None:
            _add_slots(samples, worker)
            _add_counts(samples, worker.statistics)
            self._add_queues(samples, worker.served)
        add_vitals(samples, "worker", self._lag, self._tracing)
        return page(families.WORKER, [samples.lines])

    def _add_queues(self, samples: Samples, served: list[Served]) -> None:
        by_name = {one.name: one for one in served}
        activity = {name: float(one.runs.count) for name, one in by_name.items()}
        # The queues of a worker stay the same, and those with names keep them: no sum ever falls.
        if not self._named:
            self._named = busiest(activity, (), QUEUES_NAMED)
        runs, running, summed = Histogram(), 0, 0
        for name, one in by_name.items():
            busy = sum(len(origin.running) for origin in list(one.origins.values()))
            if name in self._named:
                labels = {"namespace": one.view.id.namespace, "queue": name}
                samples.add(families.WORKER_QUEUE_RUNNING, busy, **labels)
                samples.histogram(families.WORKER_RUN_SECONDS, one.runs, **labels)
                continue
            summed += 1
            running += busy
            runs.total += one.runs.total
            runs.counts = [a + b for a, b in zip(runs.counts, one.runs.counts, strict=True)]
        if summed:
            labels = {"namespace": REST, "queue": REST}
            samples.add(families.WORKER_QUEUE_RUNNING, running, **labels)
            samples.histogram(families.WORKER_RUN_SECONDS, runs, **labels)
        samples.add(families.WORKER_QUEUES_SUMMED, summed)


def _add_slots(samples: Samples, worker: Worker) -> None:
    capacity = worker.capacity
    samples.add(families.WORKER_BUSY, worker.statistics.busy)
    samples.add(families.WORKER_LIMIT, min(capacity.limit, worker.statistics.slots))
    samples.add(families.WORKER_LIMIT_REASON, 1, reason=capacity.reason)
    samples.add(families.WORKER_WAITING, capacity.waiting)


def _add_counts(samples: Samples, counts: WorkerStatistics) -> None:
    samples.add(families.WORKER_BEGUN, counts.begun, kind="task")
    samples.add(families.WORKER_BEGUN, counts.queries, kind="query")
    for outcome in ("done", "failed", "timed_out", "stopped"):
        name = outcome.replace("_", "-")
        samples.add(families.WORKER_ENDED, getattr(counts, outcome), outcome=name)
    for cause, count in (
        ("returned", counts.returned - counts.lapsed),
        ("lapsed", counts.lapsed),
        ("invalid-reservation", counts.refused),
        ("no-room", counts.full),
    ):
        samples.add(families.WORKER_REFUSED, count, cause=cause)
    for cause in ("lost", "late", "unreported"):
        samples.add(families.WORKER_REPORTS, getattr(counts, cause), cause=cause)
    samples.add(families.WORKER_OFFERS, counts.offers)
    samples.add(families.WORKER_RESERVED, counts.unused)
    samples.add(families.WORKER_BLOCKED, counts.blocked)
    samples.add(families.WORKER_BLOCKED_SECONDS, round(counts.blocked_seconds, 3))
    samples.add(families.WORKER_STARVED, round(counts.starved_seconds, 3))
