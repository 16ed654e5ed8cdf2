"""How many partitions a queue has is kept with the queue, whatever the settings say later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import maitred
from maitred.cli.admin_letters import letter_counts
from maitred.matching.records import Terms
from maitred.node import caretaker
from maitred.protocol.tasks import (
    FAILED,
    Add,
    Added,
    DeadLetters,
    End,
    Finish,
    Offer,
    Offered,
    Resize,
)
from maitred.routing.names import QueueId
from maitred.settings import Queue
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import in_a_loop, node

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from maitred.client.client import AsyncClient
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
            # The root tells them to whoever asks it for something; this keeps nobody waiting.
            asked = Add("shop", "mails", 1, 0, 0, 0, [b"x"], delay=3600.0)
            answer = await client.request(asked, 5)
            assert isinstance(answer, Added)
        made.shard.close()
        await store.close()
    return answer.counts


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


async def dead_letter_of_a_removed_partition(client: AsyncClient) -> int:
    """Its number; it is the only one, and lies in partition 1 of two."""
    task = Add("shop", "mails", 1, 1, 0, 1, [b"x"], terms=Terms(retries=0))
    added = await client.request(task, 5)
    assert isinstance(added, Added)
    offered = await client.request(Offer("shop", "mails", 1, 1, 0, 1, SESSION, "worker", 1), 5)
    assert isinstance(offered, Offered)
    failed = [End(added.first, 1, offered.tasks[0].proof, FAILED)]
    await client.request(Finish("shop", "mails", 1, 1, 0, SESSION, failed), 5)
    for read, write in ((2, 1), (1, 1)):
        await client.request(Resize("shop", "mails", 1, 0, 0, read, write), 5)
    return added.first


@in_a_loop
async def test_dead_letters_of_a_partition_that_was_removed_are_still_found(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, queues={"*": Queue(partitions=2, hold_seconds=0.0)}) as made:
        store = await open_sqlite(tmp_path / "data", 0)
        made.shard.keep_tasks(store)
        async with maitred.connect(f"maitred://127.0.0.1:{made.port}") as client:
            await dead_letter_of_a_removed_partition(client)
            found = await letter_counts(client, QueueId("shop", "mails", 1))
            assert found.totals == {0: 0, 1: 1}
        made.shard.close()
        await store.close()


@in_a_loop
async def test_a_task_of_a_partition_that_was_removed_is_found_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead letter that is tried again there is a task, and nobody asks for such a partition."""
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    queue = Queue(partitions=2, hold_seconds=0.0, recovery_seconds=0.0)
    number = -1
    for crashed in (False, True):
        async with node(tmp_path, queues={"*": queue}) as made:
            store = await open_sqlite(tmp_path / "data", 0)
            made.shard.keep_tasks(store)
            async with maitred.connect(f"maitred://127.0.0.1:{made.port}") as client:
                if not crashed:
                    number = await dead_letter_of_a_removed_partition(client)
                    retry = DeadLetters("shop", "mails", 1, 1, 0, "retry", [number])
                    await client.request(retry, 5)
                else:
                    offer = Offer("shop", "mails", 1, 0, 0, 0, SESSION, "worker", 1)
                    offered = await client.request(offer, 5)
                    assert isinstance(offered, Offered)
                    assert [task.sequence for task in offered.tasks] == [number]
            made.shard.close()
            await store.close()
