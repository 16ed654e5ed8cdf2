"""The things that the parts of one worker share: its identity, settings, counters and phase."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from maitred.protocol.sessions import session_of_secret
from maitred.worker.failure_log import FailureLog
from maitred.worker.lifecycle import WorkerLifecycle
from maitred.worker.outage import Outage
from maitred.worker.statistics import WorkerStatistics

if TYPE_CHECKING:
    from random import Random

    from maitred.client.client import AsyncClient
    from maitred.logs import Logger
    from maitred.settings import WorkerSettings
    from maitred.telemetry.tracing import Tracing


class WorkerContext:
    """Passed to every part of one worker that talks to the node or counts."""

    def __init__(
        self,
        *,
        client: AsyncClient,
        settings: WorkerSettings,
        name: str,
        secret: bytes,
        random: Random,
        log: Logger,
        tracing: Tracing | None = None,
    ) -> None:
        self.client = client
        self.settings = settings
        self.name = name
        """The name by which people recognise the worker."""
        self.secret = secret
        """Sent only with ATTEND: a process that knows it could attend as this worker."""
        self.session = session_of_secret(secret)
        """Identifies the worker in every other message."""
        self.log = log
        self.tracing = tracing
        """Records the spans of attempts and queries; None: the worker does not trace."""
        self.address = ""
        """Where gateways reach the worker, as it is announced; empty: nowhere, or not yet."""
        self.statistics = WorkerStatistics(settings.slots)
        clock = asyncio.get_running_loop().time
        self.failures = FailureLog(log, clock)
        """Logs what goes wrong with tasks and queries."""
        self.outage = Outage(client.settings, random, log, clock)
        self.lifecycle = WorkerLifecycle()
        self.reroutes = 0
        """How often partitions may have got other owners since the worker was made."""
        self._rerouted = asyncio.Event()

    def rerouted(self) -> None:
        """End all rests: partitions may have other owners, which can be asked at once."""
        self.reroutes += 1
        self._rerouted.set()
        self._rerouted = asyncio.Event()

    async def rest(self, seconds: float, since: int) -> None:
        """Wait before the next try, unless partitions may have got other owners since the last one,
        when `reroutes` was `since`."""
        if self.reroutes != since:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rerouted.wait()
