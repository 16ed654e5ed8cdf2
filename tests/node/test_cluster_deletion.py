"""A queue is deleted on all nodes of a cluster, unless a worker serves it anywhere."""

from __future__ import annotations

import inspect
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred.errors import QueueInUse
from maitred.membership.homes import ClusterHomes
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import DeletedQueue, DeleteQueue, Offer
from maitred.settings import Queue
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.node.clusters import cluster
from tests.node.in_process import in_a_loop, until

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.node.shard import Shard

PARTITIONS = 8


def asked(shard: Shard, message: Any, seconds: float = 30.0) -> list[Any]:  # noqa: ANN401
    outcomes: list[Any] = []
    shard.ask(message, seconds, outcomes.append)
    return outcomes


async def delete(shard: Shard, queue: str, *, force: bool = False) -> DeletedQueue:
    found = shard.handlers[Opcode.DELETE](DeleteQueue("n", queue, 1, 0, 0, force=force))
    assert inspect.isawaitable(found)
    return cast("DeletedQueue", await found)


@in_a_loop
async def test_a_worker_at_another_node_counts(tmp_path: Path) -> None:
    disk = SimulatedDisk(Random(1))
    async with cluster(tmp_path, 2, queues={"*": Queue(partitions=PARTITIONS)}) as there:
        for number, running in enumerate(there.nodes):
            for shard in running.shards:
                shard.keep_tasks(SimulatedStore(disk, f"{running.member}/{number}"))
        first, view = there.shard(0), there.shard(0).view
        assert view is not None
        queue, homes = there.queue_of(0), ClusterHomes(view)
        elsewhere = next(
            partition
            for partition in range(1, PARTITIONS)
            if homes.home(("n", queue, 1, partition), 0.0).member.id == there.nodes[1].member
        )
        offer = Offer("n", queue, 1, elsewhere, 0, 0, bytes(16), "worker", 1)
        offered = asked(first, offer)
        second = there.shard(1)._partitions
        assert second is not None
        await until(lambda: any(one.key.partition == elsewhere for one in second.owned.values()))
        with pytest.raises(QueueInUse, match="1 worker"):
            await delete(first, queue)
        assert (await delete(first, queue, force=True)).workers == 1
        await until(lambda: bool(offered))  # its long poll has ended
        assert not any(one.key.queue == queue for one in second.owned.values())
