"""Tells which workers attend at a shard, over all its queues, and which of its tasks they run."""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidArgument
from maitred.matching.attempt_proofs import session_of
from maitred.node.query_requests import worker_row
from maitred.node.request_table import RequestTable, restrict_to_readable
from maitred.protocol.frames import Opcode
from maitred.protocol.worker_overview import (
    QUEUES_MAX,
    TASKS_MAX,
    AttendingWorker,
    WorkersListed,
    WorkerTask,
    WorkerTasksShown,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from maitred.matching.attendance import Attendance
    from maitred.matching.records import PartitionKey
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.protocol.worker_overview import ListWorkers, ShowWorkerTasks

PORTION: Final = 1_000
"""Attendances, or running tasks, that are looked at in one turn of the loop: about a
millisecond."""

_Key = tuple[str, bytes]
"""Name and session of a worker, the order of lists."""


class WorkerOverview:
    """Serves the requests about workers of many queues, for one shard."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._loop = partitions.loop
        self.requests = RequestTable(
            handlers={
                Opcode.LIST_WORKERS: self._list,
                Opcode.WORKER_TASKS: self._tasks,
            },
            admissions={
                Opcode.LIST_WORKERS: restrict_to_readable,
                Opcode.WORKER_TASKS: restrict_to_readable,
            },
        )

    async def _list(self, message: ListWorkers) -> WorkersListed:
        if message.queue and not message.namespace:
            raise InvalidArgument("A queue is named together with its namespace.")
        within = None if message.within is None else frozenset(message.within)
        part = message.match.lower()

        def is_meant(key: PartitionKey) -> bool:
            return (
                not key.partition
                and (within is None or key.namespace in within)
                and message.namespace in ("", key.namespace)
                and message.queue in ("", key.queue)
            )

        found: dict[_Key, tuple[Attendance, list[PartitionKey]]] = {}
        looked_at = 0
        async for owned in self._each(is_meant):
            for one in owned.partition.presence.workers.values():
                key = (one.worker, one.session)
                if key <= message.after or (part and part not in one.worker.lower()):
                    continue
                latest, queues = found.get(key, (one, []))
                queues.append(owned.key)
                found[key] = (one if one.heard > latest.heard else latest, queues)
            looked_at += len(owned.partition.presence.workers)
            if looked_at >= PORTION:
                looked_at = 0
                await asyncio.sleep(0)
        page = nsmallest(message.most, found)
        now = self._loop.time()
        workers = []
        for key in page:
            latest, queues = found[key]
            named = sorted((one.namespace, one.queue) for one in queues)
            row = worker_row(latest, now)
            workers.append(AttendingWorker(row, named[:QUEUES_MAX], len(named)))
        return WorkersListed(workers, more=len(found) > len(page))

    async def _tasks(self, message: ShowWorkerTasks) -> WorkerTasksShown:
        within = None if message.within is None else frozenset(message.within)
        found: dict[bytes, list[WorkerTask]] = {}
        wanted = frozenset(message.sessions)

        def is_meant(key: PartitionKey) -> bool:
            return message.namespace in ("", key.namespace) and (
                within is None or key.namespace in within
            )

        async for owned in self._each(is_meant):
            key, wall = owned.key, owned.partition.ledger.wall
            for looked_at, task in enumerate(list(owned.partition.own_tasks.leases.values()), 1):
                session = session_of(task.holder)
                if session in wanted:
                    tasks = found.setdefault(session, [])
                    if len(tasks) < TASKS_MAX:
                        since = task.given_at + wall
                        place = (key.namespace, key.queue, key.partition, task.sequence)
                        tasks.append(WorkerTask(*place, task.attempt + 1, since))
                if looked_at % PORTION == 0:
                    await asyncio.sleep(0)
        return WorkerTasksShown(found)

    async def _each(self, is_meant: Callable[[PartitionKey], bool]) -> AsyncIterator[Owned]:
        """Yield the loaded partitions that are meant; other requests get their turns meanwhile."""
        for number, owned in enumerate(list(self._partitions.owned.values()), 1):
            if is_meant(owned.key):
                yield owned
            if number % PORTION == 0:
                await asyncio.sleep(0)
