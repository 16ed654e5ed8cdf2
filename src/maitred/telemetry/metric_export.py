"""Exports the metrics of a process by OTLP: the page that it serves, again and again."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from maitred.telemetry.exporting import (
    CLOSE_SECONDS,
    in_thread,
    log_failures,
    metric_exporter,
    own_log,
    start_thread,
)
from maitred.telemetry.metric_data import MetricPages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from opentelemetry.sdk.resources import Resource

    from maitred.logs import Logger
    from maitred.settings import Telemetry

_NOT_GATHERED: Final = "metrics were not gathered"


class MetricExport:
    """Exports the metrics page of a process every so many seconds, from a thread of its own.

    Nothing accumulates while the receiver is away: sums only grow, so the next page that arrives
    has everything. A page that is due while the last one is still being sent is left out.
    """

    def __init__(
        self,
        settings: Telemetry,
        log: Logger,
        page: Callable[[], Awaitable[str]],
        resource: Resource,
    ) -> None:
        self._seconds = settings.interval_seconds
        self._log = log
        self._page = page
        self._pages = MetricPages(resource, time.time_ns())
        self._exporter = metric_exporter(settings)
        self._turn = threading.Lock()
        """Held while a page is sent."""
        self._running = asyncio.create_task(self._run())
        log_failures(log)

    async def stop(self) -> None:
        """Export the metrics once more, for a bounded time."""
        self._running.cancel()
        await asyncio.wait((self._running,))
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                page = await self._page()
                ended = await in_thread(partial(self._send_last, page))
        except TimeoutError:
            ended = False
        except Exception:  # noqa: BLE001 - the process stops all the same
            self._log.exception(_NOT_GATHERED)
            return
        if not ended:
            self._exporter.shutdown()  # ends what hangs
            self._log.warning("the last metrics were not exported in time", seconds=CLOSE_SECONDS)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            if self._turn.locked():
                continue
            try:
                page = await self._page()
            except Exception:  # noqa: BLE001 - the next page may do better
                self._log.exception(_NOT_GATHERED)
                continue
            start_thread(partial(self._send, page))

    def _send(self, page: str) -> None:
        with self._turn:
            try:
                self._exporter.export(self._pages.data(page, time.time_ns()))
            except Exception as problem:  # noqa: BLE001 - the next page may do better
                own_log.error("Metrics were not exported: %r", problem)

    def _send_last(self, page: str) -> None:
        self._send(page)
        self._exporter.shutdown()
