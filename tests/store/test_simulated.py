"""The simulated store in the simulated world: kills, outages, and the same again for one seed."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from maitred.errors import MaitredError, OutcomeUnknown, StoreFull, StoreUnavailable
from maitred.matching.records import Changes
from maitred.simulation.store import DiskFaults, SimulatedDisk, SimulatedStore
from maitred.simulation.world import World
from maitred.store.fences import UNDONE_RANGES
from maitred.store.interface import COMMAND_SECONDS
from tests.store.samples import ANY_SIZE, KEY, OTHER, acquire, segment, write

if TYPE_CHECKING:
    from collections.abc import Coroutine

SEEDS = range(40)


async def committing(disk: SimulatedDisk, confirmed: list[int]) -> None:
    """Writes one segment after another, and remembers which are safe."""
    store = SimulatedStore(disk)
    range_id = (await acquire(store, KEY)).range_id
    while True:
        number = 10 * (len(confirmed) + 1)
        if await write(store, KEY, range_id, segments=[segment(number, number)]):
            confirmed.append(number)


def killed_at(seed: int, posthumous: float, moment: float) -> tuple[list[int], list[int], str]:
    """What a killed process was told, what is on the disk, and the run's fingerprint."""
    confirmed: list[int] = []
    with World(seed) as world:
        disk = SimulatedDisk(world.random("disk"), DiskFaults(posthumous_probability=posthumous))
        process = world.host("node").spawn(committing(disk, confirmed))

        async def scenario() -> None:
            await asyncio.sleep(moment)
            process.kill()
            await asyncio.sleep(1.0)

        world.run(scenario())
        there = [read.segment.first for read in disk.contents.segments(KEY, 2, 0, 10**9, ANY_SIZE)]
        return confirmed, there, world.fingerprint()


@pytest.mark.parametrize("posthumous", [0.0, 0.5, 1.0])
def test_what_was_confirmed_is_there_and_at_most_one_more(posthumous: float) -> None:
    more = set()
    for seed in SEEDS:
        confirmed, there, _ = killed_at(seed, posthumous, 0.05)
        assert confirmed
        assert there[: len(confirmed)] == confirmed
        more.add(len(there) - len(confirmed))
    # With posthumous writes always, the one under way always arrives; otherwise both happen.
    assert more == ({1} if posthumous == 1.0 else {0, 1})


def test_the_same_seed_is_the_same_run() -> None:
    assert killed_at(7, 0.5, 0.1) == killed_at(7, 0.5, 0.1)
    assert killed_at(7, 0.5, 0.1) != killed_at(8, 0.5, 0.1)


def test_what_arrives_after_its_process_was_replaced_is_kept_out() -> None:
    """What range ids are there for: a dead process's write after the next owner came."""
    with World(1) as world:
        disk = SimulatedDisk(world.random("disk"), DiskFaults(posthumous_probability=1.0))

        async def first() -> None:
            store = SimulatedStore(disk)
            await acquire(store, KEY)
            disk.slow_for(0.1, 1000.0)
            await write(store, KEY, 1, backlog=9, segments=[segment(1, 9)])

        async def second() -> None:
            store = SimulatedStore(disk)
            assert (await acquire(store, KEY)).range_id == 2
            await asyncio.sleep(10.0)
            assert await store.segments(KEY, 2, 0, 9, ANY_SIZE) == []
            assert await write(store, KEY, 2, backlog=1)

        async def scenario() -> None:
            process = world.host("node").spawn(first)
            await asyncio.sleep(0.05)
            process.kill()
            disk.calm()
            await world.host("node").spawn(second).wait()

        world.run(scenario())


def in_a_world(scenario: Coroutine[None, None, None]) -> None:
    with World(3) as world:
        world.run(scenario)


def test_down_full_and_well_again() -> None:
    async def scenario() -> None:
        disk = SimulatedDisk(Random(1))
        store = SimulatedStore(disk)
        await acquire(store, KEY)
        disk.fill_for(5.0)
        with pytest.raises(StoreFull):
            await write(store, KEY, 1, segments=[segment(1, 1)])
        assert await store.segments(KEY, 2, 0, 9, ANY_SIZE) == []  # reading needs no room
        disk.fail_for(5.0)
        for refused in (
            store.commit([Changes(KEY, 1, 1)]),
            acquire(store, OTHER),
            store.dead_count(KEY),
        ):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await refused
        await asyncio.sleep(5.0)
        assert await write(store, KEY, 1, backlog=3)
        assert await store.partitions() == [KEY]

    in_a_world(scenario())


def test_an_outage_leaves_commits_under_way_unknown() -> None:
    outcomes = set()

    async def scenario(seed: int) -> None:
        disk = SimulatedDisk(Random(seed))
        store = SimulatedStore(disk)
        await acquire(store, KEY)
        under_way = asyncio.ensure_future(store.commit([Changes(KEY, 1, 5)]))
        await asyncio.sleep(0.001)
        disk.fail_for(1.0)
        try:
            await under_way
            told = "done"
        except MaitredError as problem:
            told = problem.code
        disk.calm()
        there = (await acquire(store, KEY)).backlog == 5
        assert there or told != "done"
        assert not there or told != "store-unavailable"
        outcomes.add((told, there))

    for seed in SEEDS:
        in_a_world(scenario(seed))
    assert outcomes == {
        ("done", True),
        (OutcomeUnknown.code, True),
        (StoreUnavailable.code, False),
    }


def test_drawn_faults_strike_and_calm_ends_them() -> None:
    outcomes = set()

    async def scenario() -> None:
        faults = DiskFaults(failure_probability=0.2, unknown_probability=0.2)
        disk = SimulatedDisk(Random(4), faults)
        store = SimulatedStore(disk)
        while True:
            try:
                range_id = (await acquire(store, KEY)).range_id
                break
            except StoreUnavailable:
                continue
        for number in range(1, 200):
            made = segment(number, number)
            try:
                told = "done" if await write(store, KEY, range_id, segments=[made]) else "overtaken"
            except MaitredError as problem:
                told = problem.code
            there = any(disk.contents.segments_around(KEY, number))
            outcomes.add((told, there))
        disk.calm()
        for number in range(1, 50):
            assert await write(store, KEY, range_id, marks=[number])

    in_a_world(scenario())
    assert outcomes == {
        ("done", True),
        (OutcomeUnknown.code, True),
        (OutcomeUnknown.code, False),
        (StoreUnavailable.code, False),
    }


def test_a_slow_disk_takes_longer() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        disk = SimulatedDisk(Random(1), DiskFaults(delay_min_seconds=0.01, delay_max_seconds=0.01))
        store = SimulatedStore(disk)
        await acquire(store, KEY)
        assert loop.time() == pytest.approx(0.02)
        disk.slow_for(1.0, 50.0)
        await acquire(store, KEY)
        assert loop.time() == pytest.approx(1.02)
        await asyncio.sleep(1.0)
        await acquire(store, KEY)
        assert loop.time() == pytest.approx(2.04)

    in_a_world(scenario())


def test_a_database_that_does_not_answer_in_time_fails_the_call_and_may_write_later() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        disk = SimulatedDisk(Random(1), DiskFaults(delay_min_seconds=0.01, delay_max_seconds=0.01))
        store = SimulatedStore(disk, "a/1", answer_seconds=COMMAND_SECONDS)
        range_id = (await acquire(store, KEY)).range_id
        slowness = 2 * COMMAND_SECONDS / 0.01
        began = loop.time()
        disk.slow_for(0.1, slowness)
        reading = asyncio.ensure_future(store.partitions())
        writing = asyncio.ensure_future(write(store, KEY, range_id, backlog=7))
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await reading
        with pytest.raises(OutcomeUnknown, match="did not answer in time"):
            await writing
        assert loop.time() == pytest.approx(began + COMMAND_SECONDS)
        assert disk.contents.all()[KEY].backlog == 0
        assert await store.partitions() == [KEY]  # it waits for no earlier call
        await store.close()
        assert loop.time() == pytest.approx(began + COMMAND_SECONDS + 0.02)
        await asyncio.sleep(COMMAND_SECONDS)
        assert disk.contents.all()[KEY].backlog == 7

    in_a_world(scenario())


def test_a_write_whose_answer_is_late_is_done_in_time() -> None:
    async def scenario() -> None:
        disk = SimulatedDisk(Random(1), DiskFaults(delay_min_seconds=0.01, delay_max_seconds=0.01))
        store = SimulatedStore(disk, "a/1", answer_seconds=COMMAND_SECONDS)
        range_id = (await acquire(store, KEY)).range_id
        disk.slow_for(0.1, 0.75 * COMMAND_SECONDS / 0.01)
        with pytest.raises(OutcomeUnknown, match="did not answer in time"):
            await write(store, KEY, range_id, backlog=7)
        assert disk.contents.all()[KEY].backlog == 7

    in_a_world(scenario())


def test_a_call_to_a_disk_of_its_own_waits_for_as_long_as_the_disk_takes() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        disk = SimulatedDisk(Random(1), DiskFaults(delay_min_seconds=0.01, delay_max_seconds=0.01))
        disk.slow_for(0.1, 2 * COMMAND_SECONDS / 0.01)
        assert await SimulatedStore(disk).partitions() == []
        assert loop.time() == pytest.approx(4 * COMMAND_SECONDS)

    in_a_world(scenario())


def test_storms_differ() -> None:
    assert len({DiskFaults.drawn(Random(seed)) for seed in range(50)}) > 20


def test_a_process_that_is_cut_off_fails_alone_and_never_knows_what_was_under_way() -> None:
    with World(1) as world:
        disk = SimulatedDisk(world.random("disk"))

        async def scenario() -> None:
            cut, other = SimulatedStore(disk), SimulatedStore(disk)
            range_id = (await acquire(cut, KEY)).range_id
            writing = asyncio.ensure_future(write(cut, KEY, range_id, backlog=7))
            await asyncio.sleep(0)
            cut.cut_off(10.0)
            with pytest.raises(OutcomeUnknown):
                await writing
            with pytest.raises(StoreUnavailable):
                await cut.partitions()
            assert await other.partitions() == [KEY]
            assert disk.contents.all()[KEY].backlog == 7
            cut.reconnect()
            assert await write(cut, KEY, range_id, backlog=0)

        world.run(scenario())


def test_a_failover_to_an_asynchronous_standby_loses_the_last_writes() -> None:
    with World(1) as world:
        disk = SimulatedDisk(world.random("disk"))

        async def scenario() -> None:
            store = SimulatedStore(disk)
            assert (await acquire(store, KEY)).range_id == 1
            assert await write(store, KEY, 1, backlog=9, segments=[segment(1, 9)])
            standby = disk.contents.copy()
            assert (await acquire(store, KEY)).range_id == 2
            assert await write(store, KEY, 2, backlog=10, segments=[segment(10, 10)])
            disk.fail_over(standby, 1.0)
            with pytest.raises(StoreUnavailable):
                await store.partitions()
            await asyncio.sleep(1.0)
            found = await store.segments(KEY, 2, 0, 99, ANY_SIZE)
            assert [read.segment.first for read in found] == [1]
            # No number is given out twice.
            assert (await acquire(store, KEY)).range_id == 1 + UNDONE_RANGES

        world.run(scenario())
