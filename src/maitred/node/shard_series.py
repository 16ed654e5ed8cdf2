"""The last hour of a shard's queues: samples their meters every ten seconds, and answers SERIES.
What else is sampled at these moments, such as workers, follows.

All shards sample at the same moments of the wall clock, so that their points can be added. A shard
with ten thousand queues samples them in portions, so that no request waits for all of them.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import InvalidArgument
from maitred.matching.queue_meter import RECENT_STEPS
from maitred.metrics.histogram import WORK_BOUNDS
from maitred.metrics.points import STEP_SECONDS, PointSum
from maitred.metrics.series import SeriesTable
from maitred.node.queue_gauges import passed_slots
from maitred.node.request_table import RequestTable, restrict_to_readable
from maitred.protocol.frames import Opcode
from maitred.protocol.queue_overview import SeriesShown

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from msgspec import Struct

    from maitred.matching.queue_meter import QueueMeter
    from maitred.metrics.points import Points
    from maitred.node.partitions import Partitions
    from maitred.protocol.queue_overview import ShowSeries

PORTION: Final = 256
"""Partitions, and meters, that are looked at in one turn of the loop: a third of a millisecond."""

SETS_PORTION: Final = 4_096
"""Sets of shared slots, of all partitions, that are looked at in one turn of the loop."""

SUMMED_AT_ONCE: Final = 8
"""Namespaces that are summed in one turn of the loop: a millisecond."""

EARLY_SECONDS: Final = 0.5
"""A timer may ring a little before its time, by the wall clock."""

_Gauges = list[int]
"""Backlog, running tasks, free slots, and how many of these are offered to this queue alone."""

_NOTHING: Final = [0, 0, 0, 0]


class StepSampler(Protocol):
    """Measures something else once a step."""

    async def sample(self, step: int) -> None:
        """Measure a step that is over."""


class ShardSeries:
    """Keeps the series of one shard, and tells them."""

    def __init__(self, partitions: Partitions, samplers: Sequence[StepSampler] = ()) -> None:
        self._partitions = partitions
        self._samplers = samplers
        self._shard = partitions.shard
        self._table = SeriesTable()
        self.requests = RequestTable(
            handlers={Opcode.SERIES: self._show},
            admissions={Opcode.SERIES: restrict_to_readable},
        )

    def begin(self) -> None:
        """Sample from now on, until the shard closes."""
        self._shard.spawn(self._run())

    def statistics(self) -> dict[str, int]:
        """Return how many series there are, by kind."""
        return self._table.statistics()

    # Sampling

    async def _run(self) -> None:
        while True:
            now = self._partitions.wall_clock()
            await asyncio.sleep(STEP_SECONDS - now % STEP_SECONDS)
            now = self._partitions.wall_clock()
            await self.sample(int((now + EARLY_SECONDS) // STEP_SECONDS) - 1)

    async def sample(self, step: int) -> None:
        """Measure a step that is over."""
        for sample in (self._sample, *(one.sample for one in self._samplers)):
            with self._shard.failures_logged("series not sampled"):
                await sample(step)

    async def _sample(self, step: int) -> None:
        """Add the points of the queues."""
        table = self._table
        if not table.begin(step):
            return
        gauges = await self._gauges()
        meters = iter(self._partitions.meters.all())
        turns = table.step % RECENT_STEPS == 0
        while portion := list(islice(meters, PORTION)):
            for name, meter in portion:
                counts = meter.step()
                if turns:
                    meter.turn()
                found = gauges.get(meter)
                if counts is not None or found is not None:
                    backlog, running, free, own = found or _NOTHING
                    table.add(name, counts, (backlog, running, free), own)
            await asyncio.sleep(0)
        table.end(self._partitions.supplies.free_by_namespace())

    async def _gauges(self) -> dict[QueueMeter, _Gauges]:
        """Return what each queue has now, by its meter, without those that have nothing."""
        found: dict[QueueMeter, _Gauges] = {}
        left, sets_left = PORTION, SETS_PORTION
        for owned in list(self._partitions.owned.values()):
            partition = owned.partition
            own_tasks, offers = partition.own_tasks, partition.offers
            open_tasks = own_tasks.open_tasks
            # Most of ten thousand queues have none of these.
            if open_tasks or offers.slots or offers.sets:
                running = len(own_tasks.leases)
                free = own = 0
                if offers.slots or offers.sets:
                    passed = passed_slots(owned)
                    free, own = offers.free - passed, offers.slots - passed
                there = found.get(partition.meter)
                if there is not None:
                    there[0] += open_tasks - running
                    there[1] += running
                    there[2] += free
                    there[3] += own
                elif open_tasks or free:
                    found[partition.meter] = [open_tasks - running, running, free, own]
                sets_left -= len(offers.sets)
            left -= 1
            if left <= 0 or sets_left <= 0:
                left, sets_left = PORTION, SETS_PORTION
                await asyncio.sleep(0)
        return found

    # Answers

    def _show(self, message: ShowSeries) -> Struct | Coroutine[None, None, Struct]:
        table, steps = self._table, message.steps
        if message.queue:
            if not message.namespace:
                raise InvalidArgument(
                    "A queue is named with its namespace.", remedy="Name the namespace, too."
                )
            return _told(table.of_queue((message.namespace, message.queue), steps))
        if message.namespace:
            return _told(table.of_namespace(message.namespace, steps))
        if message.within is None:
            return _told(table.of_all(steps))
        return self._sum(message.within, steps)

    async def _sum(self, within: Sequence[str], steps: int) -> SeriesShown:
        """Sum the namespaces of a user who may not read all."""
        table = self._table
        found = PointSum(table.last, steps)
        wanted = iter(sorted({*within} & {*table.namespaces}))
        while portion := list(islice(wanted, SUMMED_AT_ONCE)):
            for namespace in portion:
                found.add(table.of_namespace(namespace, steps))
            await asyncio.sleep(0)
        return _told(found.points())


def _told(points: Points) -> SeriesShown:
    return SeriesShown(
        STEP_SECONDS,
        points.last,
        bytes(points.known),
        {name: list(column) for name, column in points.columns.items()},
        list(WORK_BOUNDS),
        [list(waits) for waits in points.waits],
    )
