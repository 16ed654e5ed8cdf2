"""What every engine does: the sentences of `store/interface.py`, one test each."""

from __future__ import annotations

import asyncio

import pytest

from maitred.errors import StoreUnavailable
from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.ledger import NEVER_EXPIRES
from maitred.matching.records import Acquired, Changes, PartitionKey, Result
from maitred.routing.counts import PartitionCounts
from maitred.store.interface import SIGNING_KEY_BYTES, Document, SegmentRead
from tests.store.engines import Engine, awaited, opened
from tests.store.samples import (
    ANY_SIZE,
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


@awaited
async def test_the_first_owner_finds_a_clean_and_empty_partition(engine: Engine) -> None:
    async with opened(engine) as store:
        assert await acquire(store, KEY) == Acquired(1, None, 0, clean=True)
        assert await everything(store, KEY) == await everything(store, OTHER)


@awaited
async def test_a_store_tells_its_state_and_nothing_secret(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        key = await store.signing_key()
        told = repr(store)
        assert told.startswith("<")
        assert "Store " in told
        assert "closed" not in told
    assert "closed" in repr(store)
    assert repr(key) not in told
    assert "://" not in told


@awaited
async def test_the_next_owner_is_told_what_the_last_one_left(engine: Engine) -> None:
    counts = PartitionCounts(8, 4, 12)
    async with opened(engine) as store:
        await acquire(store, KEY)
        assert await write(store, KEY, 1, backlog=7, counts=counts)
        assert await write(store, KEY, 1, backlog=5)
    async with opened(engine) as store:
        assert await acquire(store, KEY) == Acquired(2, counts, 5, clean=False)
        assert await write(store, KEY, 2, backlog=4, clean=True)
    async with opened(engine) as store:
        assert await acquire(store, KEY) == Acquired(3, counts, 4, clean=True)
        # Clean is what the last one said, not what he found.
        assert await acquire(store, KEY) == Acquired(4, counts, 4, clean=False)


@awaited
async def test_the_next_owner_gets_the_controls_of_the_queue(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        await acquire(store, OTHER)
        row = Result(CONTROLS_ROW, NEVER_EXPIRES, b"controls")
        assert await write(store, KEY, 1, results=[row])
        assert await write(store, KEY, 1, results=[row._replace(body=b"newer")])
    async with opened(engine) as store:
        # Expired results are forgotten, however far ahead the clock is; the controls are none.
        assert await store.forget_results(1e11, 1_000) == 0
        assert await acquire(store, KEY) == Acquired(2, None, 0, clean=False, controls=b"newer")
        assert await acquire(store, OTHER) == Acquired(2, None, 0, clean=False)
        # A queue with controls is not as new: it is not forgotten, and its controls go with it.
        assert await store.forget([(KEY, 2), (OTHER, 2)]) == [OTHER]
        assert (await store.delete_queue(KEY, force=False)).deleted
        assert (await acquire(store, KEY)).controls is None


@awaited
async def test_what_was_overtaken_writes_nothing_and_harms_no_other(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (old, new):
        for key in (KEY, OTHER, THIRD):
            await acquire(old, key)
        await write(old, KEY, 1, backlog=3, segments=[segment(1, 3)], later=[later(9, 5.0)])
        await acquire(new, KEY)
        before = await everything(new, KEY)
        overtaken = await old.commit(
            [
                Changes(OTHER, 1, 1, segments=[segment(1, 1)]),
                Changes(
                    KEY,
                    1,
                    100,
                    segments=[segment(4, 5)],
                    segments_gone=[gone(segment(1, 3))],
                    marks=[2],
                    later=[later(10, 1.0)],
                    later_gone=[9],
                    dead=[dead(3)],
                    results=[result(1, 9.0)],
                    counts=PartitionCounts(2, 2, 2),
                    clean=True,
                ),
                Changes(THIRD, 1, 2, dead=[dead(2)]),
            ]
        )
        assert list(overtaken) == [KEY]
        assert await everything(new, KEY) == before
        assert await new.result(KEY, 1) is None
        assert [read.segment for read in await new.segments(OTHER, 2, 0, 9, ANY_SIZE)] == [
            segment(1, 1)
        ]
        assert await new.dead(THIRD, 0, 9, ANY_SIZE) == [dead(2)]
        assert await acquire(new, KEY) == Acquired(3, None, 3, clean=False)
        assert await acquire(old, OTHER) == Acquired(2, None, 1, clean=False)


@awaited
async def test_a_range_id_of_the_future_and_a_stranger_write_nothing(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        await acquire(one, KEY)
        assert not await write(one, KEY, 2, segments=[segment(1, 1)])
        assert not await write(two, OTHER, 1, segments=[segment(1, 1)])
        assert await two.segments(KEY, 2, 0, 9, ANY_SIZE) == []
        assert await two.partitions() == [KEY]


@awaited
async def test_whoever_acquires_again_can_go_on(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, two):
        await acquire(one, KEY)
        await acquire(two, KEY)
        assert not await write(one, KEY, 1)
        assert (await acquire(one, KEY)).range_id == 3
        assert await write(one, KEY, 3, backlog=1)
        assert not await write(two, KEY, 2)


@awaited
async def test_segments_come_in_order_and_as_few_as_are_needed(engine: Engine) -> None:
    parts = [segment(1, 10), segment(11, 30), segment(31, 31), segment(40, 99)]
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, segments=[parts[2], parts[0]])
        await write(store, KEY, 1, segments=[parts[3], segment(2, 200, 0), parts[1]])

        async def read(after: int, tasks: int) -> list[int]:
            return [
                read.segment.first for read in await store.segments(KEY, 2, after, tasks, ANY_SIZE)
            ]

        assert await read(0, 10**9) == [1, 11, 31, 40]
        assert await read(0, 1) == await read(0, 10) == [1]
        assert await read(0, 11) == [1, 11]
        assert await read(1, 21) == [11, 31]
        assert await read(39, 1) == [40]
        assert await read(40, 1) == []
        assert await read(0, 0) == []
        assert await store.segments(KEY, 2, 0, 31, ANY_SIZE) == [
            SegmentRead(p, frozenset()) for p in parts[:3]
        ]
        assert await store.segments(KEY, 4, 0, 31, ANY_SIZE) == []


@awaited
async def test_many_segments_of_one_task_each(engine: Engine) -> None:
    parts = [segment(first, first) for first in range(1, 200)]
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, segments=parts)
        for after, tasks in ((0, 7), (0, 8), (0, 9), (0, 40), (0, 41), (100, 60), (0, 198)):
            found = await store.segments(KEY, 2, after, tasks, ANY_SIZE)
            assert [one.segment for one in found] == parts[after : after + tasks]
        assert len(await store.segments(KEY, 2, 150, 1_000, ANY_SIZE)) == 49


@awaited
async def test_segments_are_as_few_as_have_so_many_bytes(engine: Engine) -> None:
    sizes = {1: 100, 11: 50, 21: 1, 31: 500_000}
    parts = [segment(first, first + 9, body=bytes(size)) for first, size in sizes.items()]
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, segments=[*parts, segment(1, 40, 0, bytes(1000))])

        async def read(after: int, tasks: int, most_bytes: int) -> list[int]:
            found = await store.segments(KEY, 2, after, tasks, most_bytes)
            return [read.segment.first for read in found]

        assert await read(0, 99, 1) == await read(0, 99, 100) == [1]
        assert await read(0, 99, 101) == await read(0, 99, 150) == [1, 11]
        assert await read(0, 99, 151) == [1, 11, 21]
        assert await read(0, 99, 152) == [1, 11, 21, 31]
        assert await read(0, 11, 152) == [1, 11]  # what is reached first
        assert await read(21, 99, 1) == [31]  # however large it is
        assert await read(0, 99, 0) == [1]
        assert await read(0, 0, 99) == []


@awaited
async def test_a_mark_goes_with_the_last_segment_it_lies_in(engine: Engine) -> None:
    """Segments of two priorities of one group overlap, and a mark does not say whose it is."""
    urgent, usual, after = segment(1, 9, 0), segment(2, 10, 2), segment(11, 20, 2)
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, segments=[urgent, usual, after])
        await write(store, KEY, 1, marks=[1, 5, 10, 11, 5])
        assert await store.segments_around(KEY, 5) == [
            SegmentRead(urgent, frozenset({1, 5})),
            SegmentRead(usual, frozenset({5, 10})),
        ]
        await write(store, KEY, 1, segments_gone=[gone(urgent)], marks=[6])
        assert await store.segments_around(KEY, 5) == [SegmentRead(usual, frozenset({5, 6, 10}))]
        await write(store, KEY, 1, segments_gone=[gone(usual)], marks=[7])
        assert await store.segments_around(KEY, 5) == []
        assert await store.segments_around(KEY, 11) == [SegmentRead(after, frozenset({11}))]
        # Nothing is left of the marks, which a segment of the same place would show.
        await write(store, KEY, 1, segments=[usual])
        assert await store.segments(KEY, 2, 0, 1, ANY_SIZE) == [SegmentRead(usual, frozenset())]


@awaited
async def test_marks_and_segments_are_the_partitions_own(engine: Engine) -> None:
    async with opened(engine) as store:
        for key in (KEY, OTHER):
            await acquire(store, key)
            await write(store, key, 1, segments=[segment(1, 9)], marks=[3])
        await write(store, KEY, 1, segments_gone=[gone(segment(1, 9))])
        assert await store.segments_around(KEY, 3) == []
        assert await store.segments_around(OTHER, 3) == [SegmentRead(segment(1, 9), frozenset({3}))]


@awaited
async def test_segments_around(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        parts = [segment(1, 3), segment(7, 9), segment(2, 8, 4), segment(8, 8, 0)]
        await write(store, KEY, 1, segments=parts)

        async def around(sequence: int) -> list[tuple[int, int]]:
            found = await store.segments_around(KEY, sequence)
            return [(read.segment.priority, read.segment.first) for read in found]

        assert await around(1) == [(2, 1)]
        assert await around(3) == [(2, 1), (4, 2)]
        assert await around(5) == [(4, 2)]
        assert await around(8) == [(0, 8), (2, 7), (4, 2)]
        assert await around(10) == await around(0) == []


@awaited
async def test_later_the_earliest_first(engine: Engine) -> None:
    exact = 1_800_000_000.123_456_7
    async with opened(engine) as store:
        await acquire(store, KEY)
        waiting = [later(3, exact), later(1, 7.5), later(2, 7.5), later(4, 0.1)]
        await write(store, KEY, 1, later=waiting)
        assert await store.later(KEY, 7.5, 9, ANY_SIZE) == [later(4, 0.1)]
        assert await store.later(KEY, exact, 2, ANY_SIZE) == [later(4, 0.1), later(1, 7.5)]
        assert [task.sequence for task in await store.later(KEY, exact + 1, 9, ANY_SIZE)] == [
            4,
            1,
            2,
            3,
        ]
        assert await store.later(KEY, exact + 1, 0, ANY_SIZE) == []
        assert await store.later_one(KEY, 3) == later(3, exact)
        assert await store.later_one(KEY, 5) is None
        assert await store.later_one(OTHER, 3) is None


@awaited
async def test_later_ones_are_as_few_as_have_so_many_bytes(engine: Engine) -> None:
    sizes = {1: 100, 2: 50, 3: 1, 4: 500_000}
    async with opened(engine) as store:
        await acquire(store, KEY)
        waiting = [later(number, 9.0 - number, bytes(size)) for number, size in sizes.items()]
        await write(store, KEY, 1, later=waiting)

        async def read(before: float, most: int, most_bytes: int) -> list[int]:
            found = await store.later(KEY, before, most, most_bytes)
            return [task.sequence for task in found]

        assert await read(10.0, 9, 1) == await read(10.0, 9, 500_000) == [4]
        assert await read(10.0, 9, 500_001) == [4, 3]
        assert await read(10.0, 9, 500_002) == await read(10.0, 9, 500_051) == [4, 3, 2]
        assert await read(10.0, 9, 500_052) == [4, 3, 2, 1]
        assert await read(10.0, 2, 500_052) == [4, 3]  # what is reached first
        assert await read(10.0, 9, 0) == [4]
        assert await read(10.0, 0, 9) == []


@awaited
async def test_later_tasks_in_pages_over_equal_moments(engine: Engine) -> None:
    exact = 1_800_000_000.123_456_7
    dues = {1: 7.5, 2: 0.1, 3: 7.5, 4: exact, 5: 7.5, 6: 0.1 + 0.2, 7: exact}
    order = [
        (due, number) for number, due in sorted(dues.items(), key=lambda one: (one[1], one[0]))
    ]
    async with opened(engine) as store:
        for key in (KEY, OTHER):
            await acquire(store, key)
        await write(store, KEY, 1, later=[later(*one) for one in dues.items()])
        await write(store, OTHER, 1, later=[later(8, 7.5)])
        for most in (1, 2, 3, 7, 8):
            found: list[tuple[float, int]] = []
            after = 0.0, 0
            while page := await store.later_after(KEY, after, most, ANY_SIZE):
                assert len(page) == min(most, len(order) - len(found))
                found += [(task.due, task.sequence) for task in page]
                after = found[-1]
            assert found == order
        assert await store.later_after(KEY, (7.5, 1), 2, ANY_SIZE) == [later(3, 7.5), later(5, 7.5)]
        # A place at which no task is: that of a task of another partition, for one.
        assert await store.later_after(KEY, (7.5, 2**63 - 1), 1, ANY_SIZE) == [later(4, exact)]
        assert await store.later_after(KEY, (7.5, 0), 1, ANY_SIZE) == [later(1, 7.5)]
        assert await store.later_after(KEY, (0.0, 0), 0, ANY_SIZE) == []
        assert await store.later_after(KEY, (0.0, 0), -1, ANY_SIZE) == []
        assert await store.later_after(THIRD, (0.0, 0), 9, ANY_SIZE) == []


@awaited
async def test_pages_of_later_tasks_go_on_though_some_are_gone(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, later=[later(number, 5.0) for number in range(1, 7)])
        first = await store.later_after(KEY, (0.0, 0), 2, ANY_SIZE)
        assert [task.sequence for task in first] == [1, 2]
        # The last of the page goes, and the next; one moves to the end; a new one is due before.
        await write(store, KEY, 1, later_gone=[2, 3], later=[later(4, 9.0), later(7, 4.0)])
        rest = await store.later_after(KEY, (5.0, 2), 9, ANY_SIZE)
        assert [(task.due, task.sequence) for task in rest] == [(5.0, 5), (5.0, 6), (9.0, 4)]


@awaited
async def test_a_page_of_later_tasks_is_as_small_as_has_so_many_bytes(engine: Engine) -> None:
    sizes = {1: 100, 2: 50, 3: 1, 4: 500_000}
    async with opened(engine) as store:
        await acquire(store, KEY)
        waiting = [later(number, 9.0 - number, bytes(size)) for number, size in sizes.items()]
        await write(store, KEY, 1, later=waiting)

        async def read(after: tuple[float, int], most: int, most_bytes: int) -> list[int]:
            found = await store.later_after(KEY, after, most, most_bytes)
            return [task.sequence for task in found]

        start = 0.0, 0
        assert await read(start, 9, 0) == await read(start, 9, 500_000) == [4]
        assert await read(start, 9, 500_001) == [4, 3]
        assert await read((5.0, 4), 9, 51) == [3, 2]
        assert await read((5.0, 4), 9, 52) == [3, 2, 1]
        assert await read((5.0, 4), 1, 52) == [3]  # what is reached first
        assert await read((6.0, 3), 9, 1) == [2]  # however large it is
        assert await read((8.0, 1), 9, 52) == []


@awaited
async def test_a_later_task_can_move_and_go(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, later=[later(1, 5.0), later(2, 6.0), later(3, 7.0)])
        await write(store, KEY, 1, later=[later(1, 9.0, b"again")], later_gone=[2, 1])
        assert await store.later(KEY, 10.0, 9, ANY_SIZE) == [later(3, 7.0), later(1, 9.0, b"again")]
        assert await store.later(KEY, 6.5, 9, ANY_SIZE) == []
        assert [await store.later_count(KEY, most) for most in (-1, 0, 1, 2, 9)] == [0, 0, 1, 2, 2]
        assert await store.later_count(THIRD, 9) == 0


@awaited
async def test_dead_letters_in_pages(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        await acquire(store, OTHER)
        await write(store, KEY, 1, dead=[dead(n) for n in range(25, 0, -1)])
        await write(store, OTHER, 1, dead=[dead(3)])
        pages, after = [], 0
        while page := await store.dead(KEY, after, 10, ANY_SIZE):
            pages.append([letter.sequence for letter in page])
            after = page[-1].sequence
        assert pages == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)]]
        size = len(dead(1).body)
        for most_bytes, count in ((0, 1), (1, 1), (size, 1), (size + 1, 2), (3 * size, 3)):
            found = await store.dead(KEY, 4, 10, most_bytes)
            assert found == [dead(n) for n in range(5, 5 + count)]
        assert await store.dead_one(KEY, 7) == dead(7)
        assert await store.dead_one(KEY, 26) is None
        assert await store.dead_count(KEY) == 25
        await write(store, KEY, 1, dead_gone=[7, 8, 25], dead=[dead(8)])
        assert await store.dead_one(KEY, 7) is None
        assert await store.dead_count(KEY) == 23
        assert await store.dead_count(OTHER) == 1


@awaited
async def test_results_are_kept_until_they_are_forgotten(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        await acquire(store, OTHER)
        await write(store, KEY, 1, results=[result(n, float(n)) for n in range(1, 8)])
        await write(store, OTHER, 1, results=[result(1, 2.5)])
        assert await store.result(KEY, 1) == result(1, 1.0)
        assert await store.forget_results(3.0, 2) == 2  # those of 1.0 and 2.0
        assert await store.forget_results(3.0, 10) == 1
        assert await store.forget_results(3.0, 10) == 0
        assert await store.result(OTHER, 1) is None
        assert await store.result(KEY, 2) is None
        assert await store.result(KEY, 3) == result(3, 3.0)
        await write(store, KEY, 1, results=[result(3, 99.0)])
        assert await store.forget_results(50.0, 0) == 0
        assert await store.forget_results(50.0, 99) == 4
        assert await store.result(KEY, 3) == result(3, 99.0)


@awaited
async def test_rows_of_histories_are_results_that_are_read_in_order(engine: Engine) -> None:
    rows = {-(n << 32): b"\x00\xff" * (n * 100_000) for n in range(1, 8)}  # up to 1.4 MB
    async with opened(engine) as store:
        await acquire(store, KEY)
        await acquire(store, OTHER)
        assert await store.history(KEY, -(2**62), 9, ANY_SIZE) == []
        written = [Result(number, 9.0, body) for number, body in rows.items()]
        await write(store, KEY, 1, results=[*written, result(0, 9.0), result(1, 9.0)])
        await write(store, OTHER, 1, results=[Result(-1, 9.0, b"other")])
    async with opened(engine) as store:
        found = await store.history(KEY, -(2**62), 9, ANY_SIZE)
        assert found == sorted(rows.items()), "those of other results are left out"
        assert await store.history(KEY, found[1].number, 3, ANY_SIZE) == found[2:5]
        assert await store.history(KEY, -(2**62), 9, 1) == found[:1]
        size = len(found[0].body) + 1
        assert await store.history(KEY, -(2**62), 9, size) == found[:2]
        assert await store.history(KEY, -1, 9, ANY_SIZE) == []
        assert await store.history(KEY, -(2**62), 0, ANY_SIZE) == []
        assert await store.history(THIRD, -(2**62), 9, ANY_SIZE) == []
        assert await store.history(OTHER, -(2**62), 9, ANY_SIZE) == [(-1, b"other")]
        use = (await store.use()).queues["shop", "mails"].bytes
        assert use > sum(map(len, rows.values())), "they count against quotas"
        await acquire(store, KEY)
        await write(store, KEY, 2, results=[Result(found[0].number, 0.0, b"")])
        assert await store.history(KEY, -(2**62), 1, ANY_SIZE) == [(found[0].number, b"")]
        assert await store.forget_results(1.0, 9) == 1
        assert await store.history(KEY, -(2**62), 9, ANY_SIZE) == found[1:]
        assert await store.forget([(KEY, 2)]) == []
        assert (await store.delete_queue(KEY, force=False)).deleted
        await acquire(store, KEY)
        assert await store.history(KEY, -(2**62), 9, ANY_SIZE) == []


@awaited
async def test_partitions_in_order(engine: Engine) -> None:
    keys = [
        PartitionKey("a", "b", 1, 0),
        PartitionKey("a", "b", 1, 1),
        PartitionKey("a", "b", 2, 0),
        PartitionKey("a", "é\"'\\", 1, 2),
        PartitionKey("z", "B", 1, 10),
        PartitionKey("z", "a", 1, 2),
    ]
    async with opened(engine, 0, 1) as (one, two):
        for number, key in enumerate(reversed(keys)):
            await acquire((one, two)[number % 2], key)
        assert await one.partitions() == await two.partitions() == keys


@awaited
async def test_partitions_with_tasks_in_order(engine: Engine) -> None:
    children = [PartitionKey("a", "é\"'\\", 1, 2), PartitionKey("z", "B", 1, 10)]
    root, empty = PartitionKey("a", "b", 1, 0), PartitionKey("a", "b", 1, 1)
    async with opened(engine, 0, 1) as (one, two):
        for store, key in ((two, children[1]), (one, children[0]), (one, root), (two, empty)):
            await acquire(store, key)
            if key is not empty:
                assert await write(store, key, 1, backlog=1, segments=[segment(1, 1)])
        assert await one.children_with_tasks() == await two.children_with_tasks() == children
        with_tasks = [root, *children]
        assert await one.partitions_with_tasks() == await two.partitions_with_tasks() == with_tasks
        assert await write(one, children[0], 1, backlog=0, segments_gone=[segment(1, 1)])
        assert await two.children_with_tasks() == children[1:]
        assert await two.partitions_with_tasks() == [root, children[1]]


@awaited
async def test_all_of_it_lasts(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(
            store,
            KEY,
            1,
            segments=[segment(1, 500, body=bytes(range(256)) * 300), segment(600, 601, 4)],
            marks=[2, 499],
            later=[later(3, 5.5, b"\0\xff")],
            dead=[dead(4)],
            results=[result(5, 8.0)],
        )
        before = await everything(store, KEY)
    async with opened(engine, 3) as (store,):
        assert await everything(store, KEY) == before
        assert before["segments"][0].marks == {2, 499}
        assert await store.result(KEY, 5) == result(5, 8.0)


@awaited
async def test_a_large_group_is_one(engine: Engine) -> None:
    """More rows than one statement of SQLite takes; some of them overtaken."""
    keys = [PartitionKey("shop", "many", 1, n) for n in range(40)]
    async with opened(engine, 0, 1) as (store, other):
        for key in keys:
            await acquire(store, key)
        await acquire(other, keys[17])
        group = [
            Changes(key, 1, 100, later=[later(n, float(n)) for n in range(50)]) for key in keys
        ]
        assert await store.commit(group) == [keys[17]]
        for key in keys:
            assert len(await store.later(key, 1e9, 99, ANY_SIZE)) == (0 if key is keys[17] else 50)
        assert await store.commit([]) == []


@awaited
async def test_the_same_changes_twice_are_the_same_once(engine: Engine) -> None:
    """Whoever does not know whether a commit was done may do it again."""
    async with opened(engine) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, segments=[segment(1, 5)], later=[later(9, 1.0)])
        again = Changes(
            KEY,
            1,
            5,
            segments=[segment(6, 9)],
            segments_gone=[gone(segment(1, 5))],
            marks=[7],
            later=[later(10, 2.0)],
            later_gone=[9],
            dead=[dead(11)],
            results=[result(9, 3.0)],
        )
        assert await store.commit([again]) == []
        before = await everything(store, KEY)
        assert await store.commit([again]) == []
        assert await everything(store, KEY) == before


@awaited
async def test_calls_may_overlap(engine: Engine) -> None:
    keys = [PartitionKey("shop", "many", 1, n) for n in range(30)]
    async with opened(engine, 0, 1) as stores:
        both = [acquire(store, key) for key in keys for store in stores]
        range_ids = [acquired.range_id for acquired in await asyncio.gather(*both)]
        assert sorted(range_ids) == [1] * 30 + [2] * 30
        commits = [
            stores[n % 2].commit([Changes(key, range_ids[2 * n + n % 2], n)])
            for n, key in enumerate(keys)
        ]
        overtaken = await asyncio.gather(*commits)
        for n, key in enumerate(keys):
            assert list(overtaken[n]) == ([] if range_ids[2 * n + n % 2] == 2 else [key])


@awaited
async def test_groups_that_cross_do_not_wait_for_each_other_for_ever(engine: Engine) -> None:
    keys = [PartitionKey("shop", "many", 1, n) for n in range(10)]
    async with opened(engine, 0, 1) as (one, two):
        for key in keys:
            await acquire(one, key)
            await acquire(two, key)
        forth = [Changes(key, 2, 1) for key in keys]
        back = [Changes(key, 2, 2) for key in reversed(keys)]
        async with asyncio.timeout(30):
            for _ in range(10):
                assert not any(await asyncio.gather(one.commit(forth), two.commit(back)))


@awaited
async def test_a_closed_store_says_so(engine: Engine) -> None:
    store = await engine.open()
    await acquire(store, KEY)
    under_way = asyncio.ensure_future(store.commit([Changes(KEY, 1, 5)]))
    await asyncio.sleep(0)
    await store.close()
    assert await under_way == []
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await acquire(store, KEY)


@awaited
async def test_whoever_stops_waiting_leaves_the_store_whole(engine: Engine) -> None:
    async with opened(engine) as store:
        await acquire(store, KEY)
        under_way = asyncio.ensure_future(store.commit([Changes(KEY, 1, 5)]))
        await asyncio.sleep(0)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        assert await write(store, KEY, 1, backlog=6)
        # Two that overlap are done in any order.
        assert (await acquire(store, KEY)).backlog in {5, 6}


@awaited
async def test_all_shards_have_one_signing_key_for_ever(engine: Engine) -> None:
    async with opened(engine, *range(4)) as stores:
        keys = await asyncio.gather(*(store.signing_key() for store in stores))
        assert {len(key) for key in keys} == {SIGNING_KEY_BYTES}
        assert len(set(keys)) == 1, "whoever asks first makes it, and nobody makes another"
    async with opened(engine, 7) as (later,):
        assert await later.signing_key() == keys[0]


@awaited
async def test_a_document_is_replaced_only_by_who_knows_its_version(engine: Engine) -> None:
    async with opened(engine, 0, 1) as (one, other):
        assert await one.document("tokens") is None
        assert not await one.replace_document("tokens", 3, b"of no version that there is")
        assert await one.replace_document("tokens", 0, b"first")
        assert not await other.replace_document("tokens", 0, b"too late")
        assert await other.document("tokens") == Document(1, b"first")
        assert await other.document("tokens", 1) is None, "known already"
        assert await other.replace_document("tokens", 1, b"")
        assert await one.document("tokens", 1) == Document(2, b"")
        assert await one.document("others") is None
    async with opened(engine, 7) as (later,):
        assert await later.document("tokens", 1) == Document(2, b"")


@awaited
async def test_of_many_who_replace_a_document_at_once_one_succeeds(engine: Engine) -> None:
    async with opened(engine, *range(4)) as stores:
        for version in range(3):
            done = await asyncio.gather(
                *(
                    store.replace_document("tokens", version, b"%d" % number)
                    for number, store in enumerate(stores)
                )
            )
            assert sorted(done) == [False, False, False, True]
            found = await stores[0].document("tokens")
            assert found == Document(version + 1, b"%d" % done.index(True))
