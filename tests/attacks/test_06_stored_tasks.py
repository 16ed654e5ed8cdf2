"""One producer cannot fill the disk that all namespaces share: quotas of stored tasks and bytes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

import maitred
from maitred.errors import StorageQuotaExceeded, StoreFull, StoreUnavailable, TaskForgotten
from maitred.gateway.http.statuses import status_of
from maitred.matching.failures import FAILURE_BYTES
from maitred.matching.quotas import OVERDRAFT_LEAST
from maitred.matching.records import SEQUENCES_PER_RANGE, Terms
from maitred.matching.task_memory import FLOOR_BYTES
from maitred.node.stored_quotas import StoredQuotas
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    Add,
    Added,
    Await,
    Describe,
    End,
    Finish,
    Offer,
    Offered,
    Outcome,
    PartitionDescription,
)
from maitred.settings import Limits, Namespace, Queue
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import in_a_loop, node, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.matching.records import PartitionKey
    from maitred.store.interface import SegmentRead
    from tests.node.in_process import NodeUnderTest

SESSION = b"0123456789abcdef"
UNKNOWN = SEQUENCES_PER_RANGE + 1_000
"""A number that a task may have had, so that the store has to be asked for it."""


class House:
    """A node with its store, and a client."""

    def __init__(self, made: NodeUnderTest, client: AsyncClient) -> None:
        self.node = made
        self.client = client

    async def add(
        self,
        queue: str = "mails",
        tasks: int = 1,
        size: int = 0,
        *,
        namespace: str = "evil",
        partition: int = 0,
        delay: float = 0.0,
        terms: Terms = Terms(),  # noqa: B008 - immutable
    ) -> int:
        """Add a batch of tasks of that size."""
        payloads = [bytes(size)] * tasks
        message = Add(namespace, queue, 1, partition, 0, 1, payloads, 2, delay, 0.0, terms)
        answer = await self.client.request(message, 20)
        assert isinstance(answer, Added)
        return answer.first

    async def described(self, partition: int = 0) -> PartitionDescription:
        answer = await self.client.request(Describe("evil", "mails", 1, partition, 0), 20)
        assert isinstance(answer, PartitionDescription)
        return answer

    async def until_stored(self, tasks: int, partitions: int = 1) -> None:
        """Wait until the shards of all these partitions have looked, and found so many."""
        for partition in range(partitions):
            async with asyncio.timeout(30):
                while (await self.described(partition)).queue_stored.tasks != tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


@asynccontextmanager
async def house(
    directory: Path,
    *,
    shards: int = 1,
    **settings: Any,  # noqa: ANN401 - whatever a node has
) -> AsyncIterator[House]:
    async with node(directory, shards=shards, **settings) as made:
        stores = []
        for number, shard in enumerate(made.shards):
            stores.append(await open_sqlite(directory / "data", number))
            shard.keep_tasks(stores[-1])
        try:
            async with maitred.connect(f"maitred://127.0.0.1:{made.port}") as client:
                yield House(made, client)
        finally:
            for shard in made.shards:
                shard.close()
            for store in stores:
                await store.close()


@in_a_loop
async def test_a_namespace_that_is_full_is_refused_and_its_neighbour_is_not(tmp_path: Path) -> None:
    quotas = {"evil": Namespace(stored_bytes=2**20)}
    async with house(tmp_path, namespaces=quotas) as one:
        added = 0
        with pytest.raises(StorageQuotaExceeded) as refused:  # noqa: PT012 - until it is full
            for number in range(1000):
                await one.add(f"q{number % 7}", 4, 20_000)
                added += 4
        assert added * 20_000 < 2**20 <= (added + 5) * 20_000
        assert status_of(refused.value) == 429
        assert "Namespace evil" in refused.value.sentence
        assert refused.value.remedy
        with pytest.raises(StorageQuotaExceeded):  # nor in a new queue, nor for later
            await one.add("another", 1, 60_000, delay=1000.0)
        assert await one.add("mails", 50, 20_000, namespace="shop") >= 0
        line, *_ = [fields for _, event, fields in one.node.log.lines if event == "tasks refused"]
        assert line["namespace"] == "evil"
        assert one.node.shard.errors["storage-quota-exceeded"] == 2


@in_a_loop
async def test_a_restart_does_not_empty_the_count(tmp_path: Path) -> None:
    """Partitions that nobody has asked for yet hold stored tasks all the same."""
    quotas = {"*": Namespace(stored_tasks=50)}
    async with house(tmp_path, namespaces=quotas) as one:
        await one.add("mails", 30)
        await one.add("bills", 20, delay=1000.0)
    async with house(tmp_path, namespaces=quotas) as one:
        with pytest.raises(StorageQuotaExceeded):
            await one.add("a-new-one")


@in_a_loop
async def test_the_first_task_after_a_restart_waits_until_the_store_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With looks that come late, a shard would take the namespace for empty."""
    quotas = {"*": Namespace(stored_tasks=50)}
    async with house(tmp_path, namespaces=quotas) as one:
        await one.add("mails", 50)
    monkeypatch.setattr(StoredQuotas, "begin", lambda _: None)
    async with house(tmp_path, namespaces=quotas) as one:
        with pytest.raises(StorageQuotaExceeded):
            await one.add("a-new-one")


@in_a_loop
async def test_a_quota_of_a_queue_holds_over_all_its_partitions_and_shards(tmp_path: Path) -> None:
    queue = Queue(stored_tasks=40, partitions=4)
    async with house(tmp_path, shards=2, queues={"evil/mails": queue}) as one:
        for partition in range(4):
            await one.add("mails", 10, partition=partition)
        await one.until_stored(40, partitions=4)
        for partition in range(4):
            with pytest.raises(StorageQuotaExceeded, match="Queue evil/mails"):
                await one.add("mails", 1, partition=partition)
        assert await one.add("bills", 1) >= 0
        stored = (await one.described()).queue_stored
        assert (stored.tasks, stored.most_tasks, stored.most_bytes) == (40, 40, None)
        assert (await one.described()).namespace_stored.tasks >= 40


@in_a_loop
async def test_tasks_that_fail_at_once_do_not_get_round_the_quota(tmp_path: Path) -> None:
    """A producer with a worker of its own: what a worker takes at once is not refused, and then it
    is put off for years."""
    quotas = {"evil": Namespace(stored_tasks=10)}
    terms = Terms(retries=5, backoff_first=1e8, backoff_longest=1e8)
    most = 10 + OVERDRAFT_LEAST.tasks
    async with house(tmp_path, namespaces=quotas) as one:
        taken = 0
        with pytest.raises(StorageQuotaExceeded):  # noqa: PT012 - until it is full
            for _ in range(40):
                taken += await _fail(one, 100, terms)
        await one.until_stored(taken)
        assert taken <= most


@in_a_loop
async def test_results_do_not_get_round_the_quota(tmp_path: Path) -> None:
    """A producer with a worker of its own has results kept for years."""
    quotas = {"evil": Namespace(stored_bytes=2**20)}
    size, tasks = 400_000, 60
    most = 2**20 + OVERDRAFT_LEAST.bytes
    async with house(tmp_path, namespaces=quotas) as one:
        for _ in range(tasks // 5):
            await _end_in_time(one, 5, Terms(retention=1e8), DONE, bytes(size))
        described = await one.described()
        assert described.backlog == described.running == 0
        assert described.finished == tasks
        assert described.not_kept >= tasks - most // size
        async with asyncio.timeout(30):
            while not (await one.described()).namespace_stored.bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await one.described()).namespace_stored.bytes <= most
        last = await one.client.request(Await("evil", "mails", 1, 0, 0, described.read_level), 20)
        assert isinstance(last, Outcome)
        assert last.status == "done"  # from memory
        assert any("not kept" in event for _, event, _ in one.node.log.lines)
    kept = 0
    async with house(tmp_path, namespaces=quotas) as one:
        # Which of them had room depends on when the sums of the store were read.
        for sequence in range(described.read_level - tasks + 1, described.read_level + 1):
            try:
                await one.client.request(Await("evil", "mails", 1, 0, 0, sequence), 20)
            except TaskForgotten:
                continue
            kept += 1
    assert 0 < kept <= most // size


@in_a_loop
async def test_failures_do_not_get_round_the_quota(tmp_path: Path) -> None:
    """Each dead letter has the error of its last attempt, which the worker chose."""
    quotas = {"evil": Namespace(stored_bytes=2**20)}
    failure = msgpack.encode(("ValueError", "x" * 400_000, ""))
    most = 2**20 + OVERDRAFT_LEAST.bytes
    async with house(tmp_path, namespaces=quotas) as one:
        for _ in range(12):
            await _end_in_time(one, 5, Terms(retries=0), FAILED, failure)
        await one.until_stored(60)
        described = await one.described()
        assert described.dead == 60
        assert described.namespace_stored.bytes <= most + 60 * FAILURE_BYTES
        assert described.not_kept >= 60 - most // len(failure)


async def _fail(one: House, slots: int, terms: Terms) -> int:
    """Offer slots, add as many tasks, and fail them all."""
    return await _end(one, slots, terms, FAILED, b"\xc0")


async def _end_in_time(one: House, slots: int, terms: Terms, how: int, body: bytes) -> None:
    """The same; a commit that ends during a look counts twice until the next one."""
    async with asyncio.timeout(30):
        while True:
            try:
                assert await _end(one, slots, terms, how, body) == slots
            except StorageQuotaExceeded:
                await asyncio.sleep(0.05)
            else:
                return


async def _end(one: House, slots: int, terms: Terms, how: int, body: bytes) -> int:
    """Offer slots, add as many tasks, and end them all like this."""
    offer = Offer("evil", "mails", 1, 0, 0, 1, SESSION, "evil", slots)
    offered = asyncio.ensure_future(one.client.request(offer, 20))
    try:
        partitions = one.node.shard._partitions
        assert partitions is not None
        await until(lambda: any(each.partition.offers.slots for each in partitions.owned.values()))
        await one.add("mails", slots, terms=terms)
        answer = await offered
    finally:
        offered.cancel()
        await asyncio.gather(offered, return_exceptions=True)
    assert isinstance(answer, Offered)
    ends = [End(task.sequence, task.attempt, task.proof, how, body) for task in answer.tasks]
    await one.client.request(Finish("evil", "mails", 1, 0, 0, SESSION, ends), 20)
    return len(ends)


@in_a_loop
async def test_a_disk_that_is_nearly_full_takes_no_new_tasks(tmp_path: Path) -> None:
    """Before SQLite meets the end of it: what was acknowledged needs room as well."""
    async with house(tmp_path, limits=Limits(free_disk_bytes=2**50)) as one:
        with pytest.raises(StoreFull, match="has less than") as refused:
            await one.add()
        assert isinstance(refused.value, StoreUnavailable)
        assert "limits.free_disk_bytes" in (refused.value.remedy or "")


@in_a_loop
async def test_many_queues_with_a_backlog_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Each queue keeps the front of its backlog in memory; all of them share a budget."""
    queues, tasks, size = 12, 8, 50_000
    async with house(tmp_path, limits=Limits(waiting_bytes=4 * size)) as one:
        for number in range(queues):
            for _ in range(tasks):
                await one.add(f"q{number}", 1, size)
        partitions = one.node.shard._partitions
        assert partitions is not None
        floor = queues * (FLOOR_BYTES + size)
        assert partitions._memory.used <= 4 * size + floor < queues * tasks * size / 2
        for _ in range(tasks):  # all of it is there, for those who work
            offer = Offer("evil", "q7", 1, 0, 0, 1, SESSION, "evil", 1)
            answer = await one.client.request(offer, 20)
            assert isinstance(answer, Offered)
            ((task,),) = [answer.tasks]
            ends = [End(task.sequence, task.attempt, task.proof)]
            await one.client.request(Finish("evil", "q7", 1, 0, 0, SESSION, ends), 20)


@in_a_loop
async def test_a_flood_of_questions_for_stored_tasks_keeps_no_neighbour_waiting(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as one:
        partitions = one.node.shard._partitions
        assert partitions is not None
        for namespace in ("evil", "shop"):
            await one.add(namespace=namespace)
        read, gate, order = partitions.store.segments_around, asyncio.Event(), []

        async def slowly(key: PartitionKey, sequence: int) -> list[SegmentRead]:
            await gate.wait()
            order.append(key.namespace)
            return await read(key, sequence)

        partitions.store.segments_around = slowly  # type: ignore[method-assign]
        flood = [
            asyncio.ensure_future(
                one.client.request(Await("evil", "mails", 1, 0, 0, UNKNOWN + number), 20)
            )
            for number in range(200)
        ]
        shard = one.node.shard
        await until(lambda: shard.in_flight == 200)
        waiting = one.client.request(Await("shop", "mails", 1, 0, 0, UNKNOWN), 20)
        asked = asyncio.ensure_future(waiting)
        await until(lambda: shard.in_flight == 201)
        gate.set()
        await asyncio.gather(asked, *flood, return_exceptions=True)
        assert order.index("shop") <= 3
        assert order.count("evil") == 200
