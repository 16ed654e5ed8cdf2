"""How many partitions a queue has is kept with the queue, whatever the settings say later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import maitred
from maitred.protocol.tasks import Add, Added, Offer, Offered
from maitred.settings import Queue
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import in_a_loop, node

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.protocol.tasks import Counts

SESSION = b"a worker's own.."


async def told(directory: Path, partitions: int, partition: int | None) -> Counts | None:
    """The counts that a node with this setting tells; with a partition, a task is left there."""
    queue = Queue(partitions=partitions)
    async with node(directory, queues={"*": queue}) as made:
        store = await open_sqlite(directory / "data", 0)
        made.shard.keep_tasks(store)
        async with maitred.connect(f"maitred://127.0.0.1:{made.port}") as client:
            if partition is not None:
                added = await client.request(Add("shop", "mails", 1, partition, 0, 0, [b"x"]), 5)
                assert isinstance(added, Added)
                assert added.first > 0
            offer = Offer("shop", "mails", 1, 0, 0, 0, SESSION, "worker", 1)
            offered = await client.request(offer, 0.5)
            assert isinstance(offered, Offered)
        made.shard.close()
        await store.close()
    return offered.counts


@in_a_loop
async def test_fewer_partitions_in_the_settings_leave_no_task_behind(tmp_path: Path) -> None:
    first = await told(tmp_path, 4, 3)
    assert first is not None
    assert first.read == 4
    # What lies in partition 3 is only found by those who know that there is one.
    assert await told(tmp_path, 2, None) == first
    assert await told(tmp_path, 1, None) == first


@in_a_loop
async def test_more_partitions_in_the_settings_hold_for_a_queue_that_had_one(
    tmp_path: Path,
) -> None:
    assert await told(tmp_path, 1, 0) is None
    more = await told(tmp_path, 3, 2)
    assert more is not None
    assert (more.read, more.write) == (3, 3)
