"""Deletes queues for operators.

The store deletes all partitions of a queue at once; from then on the owner of a partition cannot
commit. Before that the shard asks every shard for the use of the queue, because tasks that need not
be persisted yet, workers and waiting queries are only in memory. Afterwards every shard lets go of
the queue's partitions, and refuses the requests that wait there with `QueueDeleted`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from maitred.errors import QueueDeleted, QueueInUse
from maitred.matching.records import PartitionKey
from maitred.node.request_table import RequestTable
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import DeletedQueue, DeleteQueue, Withdraw, Withdrawn

if TYPE_CHECKING:
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions


class _Use(NamedTuple):
    """The use of a queue, summed over all shards."""

    tasks: int
    workers: int
    queries: int


class Deletion:
    """Deletes queues, and lets go of those that another shard deletes."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self.requests = RequestTable(
            handlers={Opcode.DELETE: self._delete}, holders={Opcode.WITHDRAW: self._withdraw}
        )

    async def _delete(self, message: DeleteQueue) -> DeletedQueue:
        root = PartitionKey(message.namespace, message.queue, message.queue_type, 0)
        use = await self._ask_all(root, drop=False)
        if not message.force:
            _check_unused(root, use, use.tasks)
        contents = await self._partitions.store.delete_queue(root, force=message.force)
        if not contents.deleted:
            _check_unused(root, use, contents.tasks, contents.dead, contents.damaged)
        await self._ask_all(root, drop=True)
        if contents.partitions:
            self._shard.log.info(
                "queue deleted",
                namespace=root.namespace,
                queue=root.queue,
                tasks=contents.tasks,
                dead=contents.dead,
            )
        tasks = max(contents.tasks, use.tasks)
        return DeletedQueue(contents.partitions, tasks, contents.dead, use.workers)

    async def _ask_all(self, root: PartitionKey, *, drop: bool) -> _Use:
        """Ask every shard of every node. Once the queue is deleted, a silent shard does no harm:
        its next commit fails."""
        question = self._partitions.question
        asked = (
            question(Withdraw(0, 0, *root[:3], drop), owner=owner)
            for owner in self._shard.owners.everywhere()
        )
        answers = await asyncio.gather(*asked, return_exceptions=drop)
        found = [answer for answer in answers if isinstance(answer, Withdrawn)]
        return _Use(
            sum(answer.tasks for answer in found),
            len({session for answer in found for session in answer.workers}),
            sum(answer.queries for answer in found),
        )

    def _withdraw(self, message: Withdraw, held: DeferredReply) -> None:
        queue = message.namespace, message.queue, message.queue_type
        mine = [one for one in self._partitions.owned.values() if one.key[:3] == queue]
        answer = Withdrawn(
            sum(one.partition.own_tasks.open_tasks for one in mine),
            list({session for one in mine for session in _workers(one)}),
            sum(one.partition.allocator.lines.total for one in mine),
        )
        if message.drop:
            problem = QueueDeleted(
                f"The queue {message.namespace}/{message.queue} was deleted.",
                remedy="The next use of its name creates a new one.",
            )
            for one in mine:
                self._partitions.drop(one, problem)
            self._partitions.histories.queue_deleted(PartitionKey(*queue, 0))
        held.answer(answer)


def _workers(owned: Owned) -> set[bytes]:
    partition = owned.partition
    sessions = {offer.session for offer in partition.offers.unanswered()}
    sessions.update(supply.session for supply in partition.offers.sets)
    return sessions.union(partition.presence.workers)


def _check_unused(
    root: PartitionKey, use: _Use, tasks: int, dead: int = 0, damaged: int = 0
) -> None:
    queries = use.queries
    has = {"task": tasks, "dead letter": dead, "damaged row": damaged, "worker": use.workers}
    parts = [f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in has.items() if count]
    if queries:
        parts.append(f"{queries:,} waiting {'query' if queries == 1 else 'queries'}")
    if parts:
        raise QueueInUse(
            f"The queue {root.namespace}/{root.queue} has {', '.join(parts)}; nothing was deleted.",
            remedy="Stop its workers and empty it first, or force it (--force, ?force=true).",
        )
