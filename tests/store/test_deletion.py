"""Quotas of queues, and partitions that are deleted: what every engine does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.matching.records import Acquired, PartitionKey
from maitred.routing.counts import PartitionCounts
from maitred.store.interface import Acquisition, EmptyPartition, QueueContents, QueueQuota, Refusal
from tests.store.engines import Engine, awaited, opened
from tests.store.samples import (
    KEY,
    OTHER,
    THIRD,
    acquire,
    dead,
    everything,
    gone,
    later,
    result,
    segment,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.store.interface import Store

PLENTY = 1_000


def contents(partitions: int, tasks: int, dead: int, *, deleted: bool = True) -> QueueContents:
    return QueueContents(deleted, partitions, tasks, dead)


def root(queue: str, namespace: str = "shop", queue_type: int = 1) -> PartitionKey:
    return PartitionKey(namespace, queue, queue_type, 0)


async def ask(
    store: Store, keys: Iterable[PartitionKey], namespace: int, total: int = PLENTY
) -> list[Acquired | Refusal]:
    quota = QueueQuota(namespace, total)
    return await store.acquire([Acquisition(key, quota=quota) for key in keys])


@awaited
async def test_a_group_is_acquired_in_its_order(engine: Engine) -> None:
    keys = [PartitionKey("shop", "é\"'\\", 1, n) for n in (3, 0, 7)]
    async with opened(engine, 0, 1) as (one, two):
        await acquire(two, keys[1])
        await acquire(two, keys[1])
        found = await one.acquire([Acquisition(key) for key in keys])
        assert found == [
            Acquired(1, None, 0, clean=True),
            Acquired(3, None, 0, clean=False),
            Acquired(1, None, 0, clean=True),
        ]
        for key, acquired in zip(keys, found, strict=True):
            assert await write(one, key, acquired.range_id, segments=[segment(1, 2)], backlog=2)
        assert await two.partitions() == sorted(keys)


@awaited
async def test_what_must_exist_is_not_made(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        await acquire(one, OTHER)
        group = [Acquisition(key, makes=False) for key in (KEY, OTHER, THIRD)]
        found = await two.acquire(group)
        assert found == [Refusal.UNKNOWN, Acquired(2, None, 0, clean=False), Refusal.UNKNOWN]
        assert await one.partitions() == [OTHER]


@awaited
async def test_a_namespace_has_as_many_queues_as_its_quota_allows(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        await ask(one, [root("a"), root("b")], 3)
        # The same name with another type is another queue; another partition is not.
        assert not isinstance((await ask(two, [PartitionKey("shop", "a", 1, 1)], 3))[0], Refusal)
        found = await ask(two, [root("a", queue_type=2), root("c"), root("a"), root("d")], 3)
        full = Refusal.NAMESPACE_FULL
        assert [isinstance(each, Acquired) or each for each in found] == [True, full, True, full]
        assert await one.queue_count("shop") == await two.queue_count("shop") == 3
        assert isinstance((await ask(one, [root("c", "other")], 3))[0], Acquired)
        assert await one.queue_count("other") == 1
        assert await one.queue_count("none") == 0


@awaited
async def test_a_store_has_as_many_queues_as_it_may(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        found = await ask(one, [root("a", f"n{n}") for n in range(4)], PLENTY, 3)
        assert [isinstance(each, Acquired) for each in found] == [True, True, True, False]
        assert (await ask(two, [root("a", "n9")], PLENTY, 3)) == [Refusal.STORE_FULL]
        assert isinstance((await ask(two, [root("a", "n1")], PLENTY, 3))[0], Acquired)


@awaited
async def test_two_makers_keep_the_quota_together(engine: Engine) -> None:
    async with opened(engine, 0, 1) as stores:
        asked = [ask(stores[n % 2], [root(f"q{n}")], 5) for n in range(20)]
        found = [each for (each,) in await asyncio.gather(*asked)]
        assert sum(isinstance(each, Acquired) for each in found) == 5
        assert await stores[0].queue_count("shop") == 5


@awaited
async def test_names_of_a_namespace(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        for store, key in ((one, KEY), (two, OTHER), (two, THIRD), (one, root("x", "other"))):
            await acquire(store, key)
        assert await one.queues("shop", 9) == await two.queues("shop", 9) == ["mails", "thumbnails"]
        assert await one.queues("shop", 1) == ["mails"]
        assert await one.queues("none", 9) == []


@awaited
async def test_empty_partitions_page_by_page(engine: Engine) -> None:
    counts = PartitionCounts(2, 2, 5)
    async with opened(engine, 0, 1) as (one, two):
        for store, key in ((one, KEY), (two, OTHER), (two, THIRD)):
            await acquire(store, key)
        await write(one, KEY, 1, counts=counts)
        rows = [
            EmptyPartition(KEY, 1, counts),
            EmptyPartition(OTHER, 1, None),
            EmptyPartition(THIRD, 1, None),
        ]
        assert await one.empty_partitions(None, 9) == rows
        assert await two.empty_partitions(None, 2) == rows[:2]
        assert await one.empty_partitions(OTHER, 9) == rows[2:]
        assert await one.empty_partitions(THIRD, 9) == []
        await write(two, OTHER, 1, backlog=1, segments=[segment(1, 1)])
        assert await one.empty_partitions(None, 9) == [rows[0], rows[2]]


@awaited
async def test_what_holds_nothing_is_forgotten(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        for store, key in ((one, KEY), (two, OTHER), (two, THIRD)):
            await acquire(store, key)
        assert await one.forget([(KEY, 1)]) == [], "its queue has another partition"
        assert await one.forget([(THIRD, 2), (OTHER, 1), (KEY, 1)]) == [KEY, OTHER]
        assert await two.partitions() == [THIRD]
        assert await one.forget([(KEY, 1), (OTHER, 1)]) == []
        assert not await write(two, OTHER, 1, segments=[segment(1, 1)]), "its owner was overtaken"
        assert not await write(one, KEY, 1, segments=[segment(1, 1)])
        assert await two.partitions() == [THIRD]


@pytest.mark.parametrize(
    "what",
    [
        {"segments": [segment(1, 1)], "backlog": 1},
        {"later": [later(1, 5.0)], "backlog": 1},
        {"dead": [dead(1)]},
        {"results": [result(1, 5.0)]},
    ],
    ids=lambda what: next(iter(what)),
)
@awaited
async def test_what_holds_anything_is_not_forgotten(
    engine: Engine, what: dict[str, object]
) -> None:
    async with opened(engine, 0, 1) as (one, two):
        await acquire(one, KEY)
        assert await write(one, KEY, 1, **what)
        before = await everything(one, KEY)
        assert await two.forget([(KEY, 1)]) == []
        assert await everything(two, KEY) == before
        assert (await acquire(two, KEY)).range_id == 2


@awaited
async def test_the_next_life_begins_above_all_earlier_ones(engine: Engine) -> None:
    """Sequence numbers begin with the range id: none of them repeats, in whichever file."""
    async with opened(engine, 0, 1) as (one, two):
        for expected in range(1, 5):
            assert (await acquire(one, KEY)).range_id == expected
        assert await two.forget([(KEY, 4)]) == [KEY]
        assert await acquire(two, KEY) == Acquired(5, None, 0, clean=True)
        assert (await acquire(one, THIRD)).range_id == 5
        assert (await acquire(one, KEY)).range_id == 6
        assert not await write(two, KEY, 5)
        await write(one, KEY, 6, counts=PartitionCounts(1, 1, 40))
        await one.delete_queue(KEY, force=False)
        # Whoever holds counts of version 40 must hear of newer ones.
        assert await acquire(two, KEY) == Acquired(42, None, 0, clean=True)


@awaited
async def test_no_partition_gets_what_a_deleted_one_had(engine: Engine) -> None:
    """A store that still knows the place of a deleted partition reads nothing of another one's."""
    async with opened(engine, 0, 1) as (one, two):
        await acquire(one, KEY)
        await acquire(two, KEY)
        await two.delete_queue(KEY, force=True)
        await acquire(one, THIRD)
        await write(one, THIRD, 3, segments=[segment(1, 5)], backlog=5, dead=[dead(9)])
        nothing = await everything(one, root("none"))
        for store in (one, two):
            assert await everything(store, KEY) == nothing
        assert (await acquire(two, KEY)).range_id == 3
        assert (await acquire(one, KEY)).range_id == 4
        assert len((await everything(two, THIRD))["segments"]) == 1


@awaited
async def test_a_queue_is_deleted_with_all_partitions(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        for store, key in ((one, KEY), (two, OTHER), (two, THIRD)):
            await acquire(store, key)
        await write(one, KEY, 1, results=[result(1, 5.0)])
        assert await one.delete_queue(KEY, force=False) == QueueContents(
            deleted=True, partitions=2, tasks=0, dead=0
        )
        assert await two.partitions() == [THIRD]
        assert await one.delete_queue(KEY, force=False) == QueueContents(
            deleted=True, partitions=0, tasks=0, dead=0
        )
        assert not await write(two, OTHER, 1)
        await acquire(two, KEY)
        assert await two.result(KEY, 1) is None


@awaited
async def test_a_queue_with_tasks_is_deleted_by_force_alone(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        for store, key in ((one, KEY), (two, OTHER), (two, THIRD)):
            await acquire(store, key)
        await write(one, KEY, 1, dead=[dead(7)], segments=[segment(1, 1)], marks=[1])
        await write(two, OTHER, 1, backlog=3, segments=[segment(1, 2)], later=[later(5, 1.0)])
        await write(two, THIRD, 1, backlog=2, segments=[segment(1, 2)])
        before = await everything(one, OTHER)
        assert await one.delete_queue(KEY, force=False) == QueueContents(
            deleted=False, partitions=2, tasks=3, dead=1
        )
        assert await everything(two, OTHER) == before
        assert await one.delete_queue(KEY, force=True) == QueueContents(
            deleted=True, partitions=2, tasks=3, dead=1
        )
        assert await two.partitions() == [THIRD]
        assert not await write(two, OTHER, 1, segments_gone=[gone(segment(1, 2))])
        for key in (KEY, OTHER):
            await acquire(two, key)
            assert await everything(two, key) == await everything(two, root("none"))
        assert len((await everything(one, THIRD))["segments"]) == 1
