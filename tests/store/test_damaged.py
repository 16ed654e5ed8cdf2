"""Rows that were set aside: what every engine does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.matching.records import Damaged
from tests.store.engines import awaited, opened
from tests.store.samples import ANY_SIZE, KEY, acquire, dead, gone, later, segment, write

if TYPE_CHECKING:
    from maitred.matching.records import DamagedKind
    from tests.store.engines import Engine

BEFORE = (-1, "")


def damaged(kind: DamagedKind, first: int, last: int, body: bytes = b"\x00bad") -> Damaged:
    count = last - first + 1 if kind in {"segment", "later"} else 0
    return Damaged(kind, first, last, count, 2, 0.1, 1.7e9 + 0.3, "4", "Why.", (2,), body)


def listed(row: Damaged) -> Damaged:
    return row._replace(body=b"", size=len(row.body))


@awaited
async def test_rows_are_set_aside_and_kept_as_they_were(engine: Engine) -> None:
    rows = [damaged("segment", 1, 4), damaged("dead", 7, 7), damaged("later", 9, 9)]
    async with opened(engine) as store:
        await acquire(store, KEY)
        before = [segment(1, 4), segment(5, 6)]
        await write(store, KEY, 1, segments=before, later=[later(9, 5.0)], dead=[dead(7)])
        assert await write(
            store,
            KEY,
            1,
            segments_gone=[gone(before[0])],
            later_gone=[9],
            dead_gone=[7],
            damaged=rows,
        )
        assert await store.damaged_count(KEY) == (3, 5)
    async with opened(engine) as store:
        assert [one.segment for one in await store.segments(KEY, 2, -1, 9, ANY_SIZE)] == before[1:]
        assert await store.later(KEY, 99.0, 9, ANY_SIZE) == []
        assert await store.later_after(KEY, (0.0, 0), 9, ANY_SIZE) == []
        assert await store.dead(KEY, -1, 9, ANY_SIZE) == []
        assert await store.dead_count(KEY) == 0
        assert await store.damaged(KEY, BEFORE, 9) == [listed(row) for row in rows]
        assert await store.damaged(KEY, (1, "segment"), 1) == [listed(rows[1])]
        assert await store.damaged_one(KEY, "segment", 1) == rows[0]._replace(size=4)
        assert await store.damaged_one(KEY, "later", 1) is None
        assert [row.first for row in await store.damaged_around(KEY, 4)] == [1]
        assert await store.damaged_around(KEY, 5) == []


@awaited
async def test_what_the_engine_could_not_read_stays_out_of_everything(engine: Engine) -> None:
    """It stands in its own table still, and does so for ever: nobody dares to delete it."""
    rows = [damaged(kind, 1, 1, b"") for kind in ("dead", "later", "segment")]
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(
            store,
            KEY,
            1,
            segments=[segment(1, 1), segment(2, 2)],
            later=[later(1, 5.0), later(2, 5.0)],
            dead=[dead(1), dead(2)],
        )
        await write(store, KEY, 1, damaged=rows)
        for _ in range(2):
            found = await store.segments(KEY, 2, -1, 9, ANY_SIZE)
            assert [one.segment.first for one in found] == [2]
            assert await store.segments_around(KEY, 1) == []
            assert [one.sequence for one in await store.later(KEY, 9.0, 9, ANY_SIZE)] == [2]
            page = await store.later_after(KEY, (0.0, 0), 1, ANY_SIZE)
            assert [one.sequence for one in page] == [2]
            assert [one.sequence for one in await store.dead(KEY, -1, 9, ANY_SIZE)] == [2]
            await write(store, KEY, 1, damaged_gone=[(row.kind, row.first) for row in rows])
            assert await store.damaged(KEY, BEFORE, 9) == []
            assert await store.damaged_count(KEY) == (0, 0)
            assert await store.damaged_around(KEY, 1) == []


@awaited
async def test_who_was_overtaken_sets_nothing_aside_and_brings_nothing_back(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (old, new):
        await acquire(old, KEY)
        await write(old, KEY, 1, damaged=[damaged("later", 3, 3)])
        await acquire(new, KEY)
        assert not await write(old, KEY, 1, damaged=[damaged("later", 4, 4)])
        assert not await write(old, KEY, 1, damaged_gone=[("later", 3)])
        assert [row.first for row in await new.damaged(KEY, BEFORE, 9)] == [3]
        assert await write(new, KEY, 2, damaged_gone=[("later", 3)])
        assert await new.damaged(KEY, BEFORE, 9) == []


@awaited
async def test_a_partition_with_damaged_rows_is_not_forgotten(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, damaged=[damaged("result", 3, 3)])
        assert await store.forget([(KEY, 1)]) == []
        held = await store.delete_queue(KEY, force=False)
        assert (held.deleted, held.damaged) == (False, 1)
        assert (await store.delete_queue(KEY, force=True)).deleted
        await acquire(store, KEY)
        assert await store.damaged(KEY, BEFORE, 9) == []
