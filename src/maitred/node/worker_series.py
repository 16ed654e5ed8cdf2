"""The last hour of the workers that attend at a shard: their measured limits, and busy slots.

A worker attends at the roots of all its queues, so several shards may know its past: each tells
what it knows. The past is that of one start of the worker, which has a session of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.metrics.gauge_series import GaugeTable
from maitred.metrics.points import STEP_SECONDS
from maitred.metrics.series import is_left_out
from maitred.node.request_table import RequestTable, restrict_to_readable
from maitred.protocol.frames import Opcode
from maitred.protocol.gauge_series import GaugesShown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.matching.attendance import Attendance
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.protocol.gauge_series import ShowWorkerSeries

COLUMNS: Final = ("limit", "busy", "slots")
"""What is measured at the end of a step, as the worker reported it last: how many tasks and queries
it takes at a time (not known if it does not say), how many slots are in use, how many there are."""

WORKERS_MAX: Final = 1_000
"""Most workers of a shard with a series. With 4.4 KiB each, all take 4.3 MiB at most."""

PORTION: Final = 1_000
"""Partitions, and attendances, that are looked at in one turn of the loop: less than a
millisecond."""


class WorkerSeries:
    """Keeps the series of the workers of one shard, and tells them."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._table = GaugeTable[bytes](len(COLUMNS), WORKERS_MAX)
        self._last = -1
        self.requests = RequestTable(
            handlers={Opcode.WORKER_SERIES: self._show},
            admissions={Opcode.WORKER_SERIES: restrict_to_readable},
        )

    def statistics(self) -> dict[str, int]:
        """Return how many workers have a series."""
        return {"workers": len(self._table)}

    async def sample(self, step: int) -> None:
        """Add what the workers reported last."""
        if is_left_out(step, self._last):
            return
        found: dict[bytes, Attendance] = {}
        async for owned in self._roots():
            for session, one in owned.partition.presence.workers.items():
                latest = found.get(session)
                if latest is None or one.heard > latest.heard:
                    found[session] = one
        for session, one in found.items():
            self._table.write(session, step, (one.limit, one.busy, one.slots))
        self._table.forget(step)
        self._last = step

    async def _roots(self) -> AsyncIterator[Owned]:
        """Yield the partitions at which workers attend; other requests get their turns
        meanwhile."""
        left = PORTION
        for owned in list(self._partitions.owned.values()):
            left -= 1
            if not owned.key.partition and owned.partition.presence.workers:
                yield owned
                left -= len(owned.partition.presence.workers)
            if left <= 0:
                left = PORTION
                await asyncio.sleep(0)

    async def _show(self, message: ShowWorkerSeries) -> GaugesShown:
        last = self._last
        known = await self._may_tell(message)
        columns = self._table.read(message.session, last, message.steps) if known else []
        return GaugesShown(STEP_SECONDS, last, dict(zip(COLUMNS, columns, strict=False)))

    async def _may_tell(self, message: ShowWorkerSeries) -> bool:
        """Whether the worker serves a queue here that the user may read. Users who may read all
        namespaces are also told of a worker that attends elsewhere by now."""
        within, wanted = message.within, message.namespace
        if within is None and not wanted:
            return True
        async for owned in self._roots():
            key = owned.key
            if (
                wanted in ("", key.namespace)
                and (within is None or key.namespace in within)
                and message.session in owned.partition.presence.workers
            ):
                return True
        return False
