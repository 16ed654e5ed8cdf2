"""Who owns a partition: the fence by owner, and which member acquired a partition last."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from maitred.errors import MaitredError
from maitred.matching.records import Acquired, Changes
from maitred.routing.counts import PartitionCounts
from maitred.store.interface import Acquisition, LastOwner, Refusal
from tests.store.engines import Postgres, Simulated, Sqlite, awaited
from tests.store.failover import fail_over, rows_now
from tests.store.postgres_server import empty_database
from tests.store.samples import ANY_SIZE, KEY, OTHER, THIRD, acquire, segment, write

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.store.interface import Store
    from tests.store.engines import Engine

A, B = "a1/first", "b2/second"


async def undo_an_acquisition(engine: Engine) -> None:
    """Do what an asynchronous failover does: undo a commit that raised a range id."""
    if isinstance(engine, Simulated):
        engine.disk.contents.all()[KEY].range_id -= 1
        return
    assert isinstance(engine, Postgres)
    connection = await asyncpg.connect(engine.location)
    await connection.execute("UPDATE maitred.partitions SET range_id = range_id - 1")
    await connection.close()


@pytest.fixture(params=["postgres", "simulated"])
def shared(request: pytest.FixtureRequest) -> Engine:
    if request.param == "simulated":
        return Simulated()
    return Postgres(empty_database(request.getfixturevalue("postgres_server")))


@awaited
async def test_of_two_owners_with_one_range_id_only_the_last_can_write(shared: Engine) -> None:
    one, two = await shared.open(owner=A), await shared.open(owner=B)
    assert (await acquire(one, KEY)).range_id == 1
    await undo_an_acquisition(shared)
    assert (await acquire(two, KEY)).range_id == 1
    assert not await write(one, KEY, 1, backlog=1, segments=[segment(1, 1, body=b"one")])
    assert await write(two, KEY, 1, backlog=1, segments=[segment(1, 1, body=b"two")])
    assert not await write(one, KEY, 1, segments_gone=[segment(1, 1)])
    assert [read.segment.body for read in await one.segments(KEY, 2, 0, 9, ANY_SIZE)] == [b"two"]
    # Whoever acquires again goes on.
    assert await acquire(one, KEY) == Acquired(2, None, 1, clean=False)
    assert await write(one, KEY, 2, backlog=1)
    assert not await write(two, KEY, 2, backlog=2)
    await asyncio.gather(one.close(), two.close())


@awaited
async def test_an_owner_whose_acquisition_was_undone_altogether_cannot_write(
    shared: Engine,
) -> None:
    nameless, named = await shared.open(), await shared.open(owner=A)
    await acquire(nameless, KEY)
    await acquire(named, KEY)
    # The row is again as the nameless owner left it.
    if isinstance(shared, Simulated):
        shared.disk.contents.all()[KEY].range_id = 2
        shared.disk.contents.all()[KEY].owner = ""
    else:
        assert isinstance(shared, Postgres)
        connection = await asyncpg.connect(shared.location)
        await connection.execute("UPDATE maitred.partitions SET owner = NULL")
        await connection.close()
    assert not await write(named, KEY, 2, backlog=1)
    # A store without an owner is checked by the range id alone.
    assert await write(nameless, KEY, 2, backlog=1)
    await asyncio.gather(nameless.close(), named.close())


@awaited
async def test_overtaken_by_name_harms_no_other_of_the_group(shared: Engine) -> None:
    one, two = await shared.open(owner=A), await shared.open(owner=B)
    for key in (KEY, OTHER):
        await acquire(one, key)
    await acquire(two, THIRD)
    group = [Changes(key, 1, 1, segments=[segment(1, 1)]) for key in (KEY, OTHER)]
    await acquire(two, OTHER)
    assert list(await one.commit(group)) == [OTHER]
    assert await one.partitions_with_tasks() == [KEY]
    await asyncio.gather(one.close(), two.close())


async def undo(engine: Engine, saved: Any = None) -> Any:  # noqa: ANN401 - whatever the engine has
    """Without an argument, note what a standby has now; with it, fail over to that standby."""
    if isinstance(engine, Simulated):
        if saved is not None:
            engine.disk.fail_over(saved.copy(), 0.0)
        return engine.disk.contents.copy()
    assert isinstance(engine, Postgres)
    if saved is None:
        return await rows_now(engine.location)
    return await fail_over(engine.location, saved)


async def reconnected(store: Store) -> None:
    """Use the connections that were cut until the store has new ones."""
    for _ in range(9):
        with suppress(MaitredError):
            await store.partitions()
            return


@awaited
async def test_an_owner_whose_last_commits_were_undone_cannot_write(shared: Engine) -> None:
    store = await shared.open(owner=A)
    noticed: list[None] = []
    store.watch(lambda: noticed.append(None))
    for key in (KEY, OTHER):
        await acquire(store, key)
    counts = PartitionCounts(3, 2, 7)
    assert await write(store, KEY, 1, backlog=1, segments=[segment(1, 1)], counts=counts)
    assert await write(store, OTHER, 1)
    saved = await undo(shared)
    assert await store.overtaken([KEY, OTHER, THIRD]) == []
    assert await write(store, KEY, 1, backlog=2, segments=[segment(2, 2)])
    await acquire(store, THIRD)
    assert not noticed
    await undo(shared, saved)
    await reconnected(store)
    assert noticed
    assert await store.overtaken([KEY, OTHER, THIRD]) == [KEY, THIRD]
    # The range id and the owner are right.
    assert not await write(store, KEY, 1, backlog=3, segments=[segment(3, 3)])
    assert await write(store, OTHER, 1), "it has lost nothing"
    # A version of the counts may have been told to clients and then undone.
    newer = PartitionCounts(3, 2, 7 + 999)
    assert await acquire(store, KEY) == Acquired(1001, newer, 1, clean=False, undone=True, own=True)
    assert await write(store, KEY, 1001, backlog=1)
    assert await acquire(store, KEY) == Acquired(1002, newer, 1, clean=False, own=True)
    # A partition whose creation was undone: no number is given out twice.
    assert await acquire(store, THIRD) == Acquired(1001, None, 0, clean=True, undone=True)
    assert await acquire(store, OTHER) == Acquired(1001, None, 0, clean=False, own=True)
    assert await store.overtaken([KEY, OTHER, THIRD]) == []
    await store.close()


@pytest.mark.parametrize("fails_over", [True, False])
@awaited
async def test_an_acquisition_whose_answer_is_lost_hides_no_failover(
    shared: Engine, *, fails_over: bool
) -> None:
    # One owner with two stores: what one store acquires, the other is not told.
    store, untold = await shared.open(owner=A), await shared.open(owner=A)
    await acquire(store, KEY)
    saved = await undo(shared)
    assert await write(store, KEY, 1)
    if fails_over:
        await undo(shared, saved)
        await asyncio.gather(reconnected(store), reconnected(untold))
    await acquire(untold, KEY)
    acquired = await acquire(store, KEY)
    assert (acquired.undone, acquired.own) == (fails_over, True)
    # Another owner in between has what the database has.
    other = await shared.open(owner=B)
    await acquire(other, KEY)
    acquired = await acquire(store, KEY)
    assert (acquired.undone, acquired.own) == (False, False)
    await asyncio.gather(store.close(), untold.close(), other.close())


@awaited
async def test_a_second_failover_may_undo_the_range_ids_after_the_first_one(shared: Engine) -> None:
    store = await shared.open(owner=A)
    await acquire(store, KEY)
    counts = PartitionCounts(3, 2, 7)
    assert await write(store, KEY, 1, counts=counts)
    saved = await undo(shared)  # both standbys stop here
    for failovers in (1, 2):
        await undo(shared, saved)
        await reconnected(store)
        raised = 1_000 * failovers
        newer = PartitionCounts(3, 2, 7 + raised - 1)
        assert await acquire(store, KEY) == Acquired(
            1 + raised, newer, 0, clean=False, undone=failovers > 1, own=True
        )
    await store.close()


@awaited
async def test_another_owner_since_is_no_loss(shared: Engine) -> None:
    one, two = await shared.open(owner=A), await shared.open(owner=B)
    await acquire(one, KEY)
    saved = await undo(shared)
    assert await write(one, KEY, 1, backlog=1, segments=[segment(1, 1)])
    await undo(shared, saved)
    await asyncio.gather(reconnected(one), reconnected(two))
    assert await acquire(two, KEY) == Acquired(1001, None, 0, clean=False)
    assert await one.overtaken([KEY]) == [KEY]
    assert await acquire(one, KEY) == Acquired(1002, None, 0, clean=False)
    await asyncio.gather(one.close(), two.close())


@awaited
async def test_a_partition_that_was_deleted_is_no_loss(shared: Engine) -> None:
    one, two = await shared.open(owner=A), await shared.open(owner=B)
    await acquire(one, KEY)
    assert await write(one, KEY, 1, backlog=1, segments=[segment(1, 1)])
    await two.delete_queue(KEY, force=True)
    assert await one.overtaken([KEY]) == [KEY]
    assert await acquire(one, KEY) == Acquired(2, None, 0, clean=True)
    await asyncio.gather(one.close(), two.close())


@awaited
async def test_the_member_that_acquired_last_is_told_until_it_leaves(shared: Engine) -> None:
    one, two = await shared.open(owner=A), await shared.open(owner=B)
    nameless = await shared.open()
    await acquire(one, KEY)
    await acquire(two, OTHER)
    await acquire(nameless, THIRD)
    by_a, by_b = LastOwner(1, "a1"), LastOwner(1, "b2")
    nobody = LastOwner(1, "")
    assert await one.owners([OTHER, KEY, THIRD]) == {KEY: by_a, OTHER: by_b, THIRD: nobody}
    assert await two.owners([KEY]) == {KEY: by_a}
    assert await two.owners([]) == {}
    assert await two.owners([KEY._replace(queue="unknown")]) == {}
    assert await write(one, KEY, 1, clean=True)
    assert await two.owners([KEY, OTHER]) == {KEY: nobody, OTHER: by_b}
    # It may stay after all.
    assert await write(one, KEY, 1)
    assert await two.owners([KEY]) == {KEY: by_a}
    assert await acquire(two, KEY) == Acquired(2, None, 0, clean=False)
    assert await one.owners([KEY]) == {KEY: LastOwner(2, "b2")}
    await acquire(nameless, KEY)
    assert await one.owners([KEY]) == {KEY: LastOwner(3, "")}
    await asyncio.gather(one.close(), two.close(), nameless.close())


@awaited
async def test_a_partition_that_another_owner_has_acquired_meanwhile_is_not_taken_away(
    shared: Engine,
) -> None:
    one, two = await shared.open(owner=A), await shared.open(owner=B)
    await acquire(one, KEY)
    await acquire(two, KEY)
    late = [
        Acquisition(KEY, makes=False, range_id=1),
        Acquisition(OTHER, makes=False, range_id=1),
        Acquisition(THIRD, range_id=0),
    ]
    # OTHER was deleted meanwhile, and nobody has made THIRD.
    made = Acquired(1, None, 0, clean=True)
    assert await one.acquire(late) == [Refusal.OVERTAKEN, Refusal.UNKNOWN, made]
    assert await two.owners([KEY]) == {KEY: LastOwner(2, "b2")}
    assert await write(two, KEY, 2)
    # One that was to be made does exist, and one that was deleted is made again.
    late = [Acquisition(THIRD, range_id=0), Acquisition(OTHER, range_id=5)]
    assert await two.acquire(late) == [Refusal.OVERTAKEN, made]
    # What is as expected is acquired.
    assert await one.acquire([Acquisition(KEY, range_id=2)]) == [Acquired(3, None, 0, clean=False)]
    await asyncio.gather(one.close(), two.close())


@awaited
async def test_of_two_that_make_a_partition_at_once_only_one_gets_it(shared: Engine) -> None:
    one, two = await shared.open(owner=A), await shared.open(owner=B)
    keys = [KEY._replace(queue=f"q{number}") for number in range(20)]
    found = await asyncio.gather(
        *(store.acquire([Acquisition(key, range_id=0)]) for key in keys for store in (one, two))
    )
    outcomes = [outcome for (outcome,) in found]
    assert outcomes.count(Acquired(1, None, 0, clean=True)) == len(keys)
    assert outcomes.count(Refusal.OVERTAKEN) == len(keys)
    await asyncio.gather(one.close(), two.close())


@awaited
async def test_the_files_of_one_node_name_no_owner(tmp_path: Path) -> None:
    store = await Sqlite(tmp_path).open(owner=A)
    await acquire(store, KEY)
    assert await store.owners([KEY]) == {}
    assert await store.overtaken([KEY]) == []
    await store.close()


@pytest.fixture
def location(postgres_server: Any) -> str:  # noqa: ANN401 - the package's own class
    return empty_database(postgres_server)


@awaited
async def test_a_node_of_the_release_before_goes_on_beside_new_ones(location: str) -> None:
    store = await Postgres(location).open(owner=A)
    old = await asyncpg.connect(location)
    # The statements of that release.
    make = "SELECT * FROM maitred.make_partitions($1, $2, $3, $4, $5, $6)"
    columns = ([KEY.namespace], [KEY.queue], [KEY.queue_type], [KEY.partition])
    (made,) = await old.fetch(make, *columns, [9], [9])
    acquire_again = (
        "UPDATE maitred.partitions AS p SET range_id = p.range_id + 1, found_clean = p.clean, "
        "clean = false RETURNING p.range_id"
    )
    assert (made["range_id"], await store.owners([KEY])) == (1, {KEY: LastOwner(1, "")})
    columns_left = ["'{}'"] * 33
    columns_given = ", ".join(["$1", "$2", "'{5}'", "'{f}'", "'{0}'", *columns_left])
    write_down = f"SELECT * FROM maitred.write_down({columns_given})"  # noqa: S608
    assert await old.fetch(write_down, [made["id"]], [1]) == []
    assert await acquire(store, KEY) == Acquired(2, None, 5, clean=False)
    assert [row[0] for row in await old.fetch(write_down, [made["id"]], [1])] == [made["id"]]
    assert await old.fetchval(acquire_again) == 3
    assert not await write(store, KEY, 2)
    assert await old.fetch(write_down, [made["id"]], [3]) == []
    assert (await acquire(store, KEY)).range_id == 4
    await old.close()
    await store.close()
