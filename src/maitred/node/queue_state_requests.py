"""Lists of queues for operators: what every queue has at this shard, without asking partitions.

The rows of a page are read when it is asked for. The order of all queues is some seconds old: a
shard with ten thousand queues looks at them in portions, and not more often than a hundredth of its
time allows.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from maitred.errors import MaitredError
from maitred.matching.queue_order import QueueFilter, QueueOrder
from maitred.node.queue_gauges import QueueGauges
from maitred.node.request_table import RequestTable, restrict_to_readable
from maitred.protocol.frames import Opcode
from maitred.protocol.queue_overview import QueueStateRow, QueueStatesListed
from maitred.protocol.tasks import Describe
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maitred.matching.partition import Partition
    from maitred.matching.queue_meters import QueueName
    from maitred.matching.records import PartitionKey
    from maitred.node.partitions import Partitions
    from maitred.protocol.queue_overview import ListQueueStates, QueueSort

PORTION: Final = 256
"""Partitions that are looked at in one turn of the loop: half a millisecond."""

FRESH_SECONDS: Final = 1.0
"""For how long an order is used, at least."""

LOOK_SHARE: Final = 0.01
"""Largest share of the time for putting queues in order."""

STORED_SECONDS: Final = 10.0
"""For how long it is remembered which of the queues that are not loaded belong to this shard."""

UNUSED_SECONDS: Final = 60.0
"""After this time without a request everything is forgotten: names of ten thousand queues take some
megabytes."""

DIGITS: Final = 3
"""Digits after the point of seconds and rates."""


class _Ordered:
    """An order of the queues, and when it is looked up again."""

    def __init__(self) -> None:
        self.order = QueueOrder()
        self.stale_at = -inf
        self.looking = asyncio.Lock()


class QueueStateRequests:
    """Serves QUEUE_STATES in one shard."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._orders: dict[QueueSort, _Ordered] = {}
        self._keys: dict[QueueName, list[PartitionKey]] = {}
        """The partitions of each queue that were loaded at the last look; none for a queue that
        only the store has."""
        self._stored: list[QueueName] = []
        """Queues with stored tasks whose root belongs to this shard."""
        self._stored_at = -inf
        self._forgetting: asyncio.TimerHandle | None = None
        self.requests = RequestTable(
            handlers={Opcode.QUEUE_STATES: self._answer},
            admissions={Opcode.QUEUE_STATES: restrict_to_readable},
        )

    async def _answer(self, message: ListQueueStates) -> QueueStatesListed:
        await self._fresh("name")
        if message.names:
            within = message.within
            names = [
                name
                for name in dict.fromkeys((one[0], one[1]) for one in message.names)
                if name in self._keys and (within is None or name[0] in within)
            ]
            return QueueStatesListed(self._rows(names), None, len(names))
        order = await self._fresh(message.sort)
        after = message.after
        place = None if after is None else (-after[0], after[1], after[2])
        wanted = QueueFilter(message.namespace, message.match, message.within)
        page = order.page(place, message.most, wanted)
        cursor = None
        if page.more:
            value, namespace, queue = page.places[-1]
            cursor = (-value, namespace, queue)
        rows = self._rows((namespace, queue) for _, namespace, queue in page.places)
        return QueueStatesListed(rows, cursor, page.total)

    # Orders

    async def _fresh(self, sort: QueueSort) -> QueueOrder:
        """Return an order, after it was looked up again if it is too old."""
        self._forget_later()
        known = self._orders.setdefault(sort, _Ordered())
        async with known.looking:
            begun = self._loop.time()
            if begun >= known.stale_at:
                looked = self._names() if sort == "name" else self._values(sort)
                for _ in known.order.update(await looked):
                    await asyncio.sleep(0)
                now = self._loop.time()
                known.stale_at = now + max(FRESH_SECONDS, (now - begun) / LOOK_SHARE)
        return known.order

    async def _names(self) -> dict[QueueName, float]:
        """Look up which queues there are."""
        keys: dict[QueueName, list[PartitionKey]] = {}
        owned = iter(list(self._partitions.owned))
        while portion := list(islice(owned, PORTION)):
            for key in portion:
                keys.setdefault((key.namespace, key.queue), []).append(key)
            await asyncio.sleep(0)
        for name in await self._stored_here():
            keys.setdefault(name, [])
        self._keys = keys
        return dict.fromkeys(keys, 0.0)

    async def _values(self, sort: QueueSort) -> dict[QueueName, float]:
        """Look up the number of each queue, without those for which it is 0."""
        values: dict[QueueName, float] = {}
        if sort == "dead":
            found = iter(self._partitions.stored.dead_letters())
            while names := list(islice(found, PORTION)):
                values |= {name: dead for name, dead in names if self._has_root(name)}
                await asyncio.sleep(0)
            return values
        number, sums = _NUMBERS[sort], sort != "oldest"
        owned = iter(list(self._partitions.owned.values()))
        while portion := list(islice(owned, PORTION)):
            now = self._loop.time()
            for one in portion:
                value = number(one.partition, now)
                if value:
                    name = (one.key.namespace, one.key.queue)
                    before = values.get(name, 0.0)
                    values[name] = before + value if sums else max(before, value)
            await asyncio.sleep(0)
        if sort == "backlog":
            stored = self._partitions.stored
            for name in self._stored:
                if not self._keys.get(name) and (backlog := stored.backlog(name)):
                    values[name] = backlog
        rounded = ((name, round(value, DIGITS)) for name, value in values.items())
        return {name: value for name, value in rounded if value}

    async def _stored_here(self) -> list[QueueName]:
        """Return the queues with stored tasks or dead letters whose root belongs to this shard:
        nobody else tells of those that are not loaded."""
        if self._loop.time() - self._stored_at >= STORED_SECONDS:
            here = []
            names = iter(self._partitions.stored.names())
            while portion := list(islice(names, PORTION)):
                here += [name for name in portion if self._is_here(name)]
                await asyncio.sleep(0)
            self._stored, self._stored_at = here, self._loop.time()
        return self._stored

    def _is_here(self, name: QueueName) -> bool:
        """Return whether the root of the queue belongs to this shard."""
        try:
            return self._shard.owner_of(Describe(*name, TASKS, 0, 0)) == self._shard.number
        except MaitredError:  # without a view of the cluster no root does
            return False

    def _has_root(self, name: QueueName) -> bool:
        """Return whether this shard tells what the root of the queue knows: it has loaded the root,
        or no partition of a queue whose root belongs here."""
        keys = self._keys.get(name)
        return any(not key.partition for key in keys) if keys else self._is_here(name)

    # Rows

    def _rows(self, names: Iterable[QueueName]) -> list[QueueStateRow]:
        """Return what these queues have now."""
        now, owned = self._loop.time(), self._partitions.owned
        rows = []
        for name in names:
            gauge = QueueGauges()
            for key in self._keys.get(name, ()):
                one = owned.get(key)
                if one is not None:
                    gauge.add(one, now)
            rows.append(self._row(name, gauge))
        return rows

    def _row(self, name: QueueName, gauge: QueueGauges) -> QueueStateRow:
        stored = self._partitions.stored
        meter = self._partitions.meters.known(name)
        recent_runs, recent_failed = ([], 0) if meter is None else meter.recent()
        has_root = gauge.has_root
        backlog = gauge.backlog
        if not gauge.loaded and self._is_here(name):
            has_root, backlog = True, stored.backlog(name)
        return QueueStateRow(
            *name,
            backlog=backlog,
            oldest_seconds=round(gauge.oldest, DIGITS),
            running=gauge.running,
            slots_free=gauge.free,
            added_per_second=round(gauge.added_per_second, DIGITS),
            finished_per_second=round(gauge.finished_per_second, DIGITS),
            failed=0 if meter is None else meter.failed_attempts,
            died=0 if meter is None else meter.dead,
            dead=stored.dead(name) if has_root else 0,
            partitions=gauge.partitions,
            loaded=gauge.loaded,
            workers=gauge.workers,
            queries_waiting=gauge.queries,
            pause=gauge.pause,
            delayed=gauge.delayed,
            recent_failed=recent_failed,
            recent_runs=recent_runs,
        )

    # Memory

    def _forget_later(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = self._loop.call_later(UNUSED_SECONDS, self._forget)

    def _forget(self) -> None:
        self._orders, self._keys = {}, {}
        self._stored, self._stored_at = [], -inf
        self._forgetting = None


_NUMBERS: Final[Mapping[str, Callable[[Partition, float], float]]] = {
    "backlog": lambda partition, _: partition.waiting,
    "oldest": lambda partition, now: partition.backlog_age(now),
    "added": lambda partition, now: partition.intake.added.per_second(now),
}
"""The number of a partition by which queues are put in order."""
