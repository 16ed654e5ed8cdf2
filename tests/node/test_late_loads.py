"""Loads that take long: the view, and the owner of the partition, may be others when they end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import Draining, MaitredError, NotOwner, Unavailable
from maitred.matching.records import PartitionKey, Terms
from maitred.protocol.cluster import HandOver
from maitred.protocol.tasks import (
    DONE,
    Add,
    Added,
    Await,
    Describe,
    End,
    Finish,
    Given,
    Offer,
    Outcome,
    PartitionDescription,
)
from tests.node.members import Town, in_town

if TYPE_CHECKING:
    from tests.node.members import TownShard

SESSION = b"a worker's own.."
FOUND_SECONDS = 2.0
"""By then the caretaker has looked for partitions with tasks, and does not for 28 s."""


def add(queue: str, payload: bytes) -> Add:
    return Add("shop", queue, 1, 0, 0, 1, [payload], terms=Terms(retention=60.0))


async def done_one(town: Town, queue: str) -> Added:
    """Add a task to the queue, and have it done; its result is in the memory of the owner."""
    added = await town.ask(add(queue, b"1"))
    assert isinstance(added, Added)
    offered = await town.ask(Offer("shop", queue, 1, 0, 0, 1, SESSION, "worker", 1))
    (given,) = offered.tasks
    assert isinstance(given, Given)
    end = End(given.sequence, given.attempt, given.proof, DONE, b"\xc3")
    await town.ask(Finish("shop", queue, 1, 0, 0, SESSION, [end]))
    return added


class SlowCalls:
    """Calls of one method of a shard's store, which reach the store when the test says so."""

    def __init__(self, shard: TownShard, method: str) -> None:
        self.begun = 0
        self._go = asyncio.Event()
        self._call = getattr(shard.store, method)
        setattr(shard.store, method, self._later)

    async def _later(self, *given: Any) -> Any:  # noqa: ANN401 - as the store has it
        self.begun += 1
        await self._go.wait()
        return await self._call(*given)

    def arrive(self) -> None:
        self._go.set()


def stored(town: Town) -> list[PartitionKey]:
    """Return the partitions that have tasks in the store."""
    return town.disk.contents.partitions_with_tasks()


async def left_by_all(town: Town, queue: str) -> None:
    """Make a queue, and have all shards let it go."""
    await town.ask(Add("shop", queue, 1, 0, 0, 1, [b"0"], terms=Terms(retention=0.0)))
    offered = await town.ask(Offer("shop", queue, 1, 0, 0, 1, SESSION, "worker", 1))
    (given,) = offered.tasks
    assert isinstance(given, Given)
    end = End(given.sequence, given.attempt, given.proof, DONE, b"\xc3")
    await town.ask(Finish("shop", queue, 1, 0, 0, SESSION, [end]))
    owner = town.owner(queue)
    await owner.partitions.let_go(owner.partitions.owned[PartitionKey("shop", queue, 1, 0)])
    assert not any(shard.holds for shard in town.shards.values())


def test_an_acquisition_that_arrives_late_takes_nothing_from_the_present_owner() -> None:
    """Else the present owner would not notice, go on in memory, and lose the results of tasks."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await left_by_all(town, queue)
        (old,) = town.of("a")
        slow = SlowCalls(old, "acquire")
        late = town.begin(add(queue, b"late"), old)
        await town.until(lambda: slow.begun == 1)
        town.states(a="draining")
        added = await done_one(town, queue)
        slow.arrive()
        assert isinstance(await late, NotOwner)
        more = await town.ask(add(queue, b"2"))
        assert isinstance(more, Added)
        assert town.owner(queue).holds == [(queue, 0)]
        told = await town.ask(Await("shop", queue, 1, 0, 0, added.first))
        assert told == Outcome("done", 1, b"\xc3")

    in_town(main, memory_seconds=100.0)


@pytest.mark.parametrize(
    ("change", "refused"),
    [("moves", NotOwner), ("stops", Draining), ("loses its lease", Unavailable)],
)
def test_a_shard_that_may_no_longer_acquire_when_it_has_looked_up_the_owner_does_not(
    change: str, refused: type[MaitredError]
) -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await left_by_all(town, queue)
        (old,) = town.of("a")
        slow = SlowCalls(old, "owners")
        late = town.begin(add(queue, b"late"), old)
        await town.until(lambda: slow.begun == 1)
        loads = old.partitions.loader.loads
        if change == "moves":
            town.states(a="draining")
        elif change == "stops":
            old.draining = True
        else:
            old.lasts = False
        slow.arrive()
        assert isinstance(await late, refused)
        assert old.partitions.loader.loads == loads

    in_town(main)


def test_an_owner_that_joined_while_it_was_looked_up_is_asked() -> None:
    """By the view from before the look-up that member does not exist, so it would count as dead."""

    async def main(town: Town) -> None:
        town.states(a="dead")
        queue = next(
            f"q{number}" for number in range(10_000) if town.owner(f"q{number}").place.host == "b"
        )
        await left_by_all(town, queue)
        (shard,) = town.of("b")
        slow = SlowCalls(shard, "owners")
        late = town.begin(Describe("shop", queue, 1, 0, 0), shard)
        await town.until(lambda: slow.begun == 1)
        town.states(a="active", b="draining", c="dead")
        added = await done_one(town, queue)
        town.states(told="b", a="draining", b="active")
        slow.arrive()
        assert isinstance(await late, PartitionDescription)
        told = await town.ask(Await("shop", queue, 1, 0, 0, added.first))
        assert told == Outcome("done", 1, b"\xc3")

    in_town(main, memory_seconds=100.0)


def test_a_partition_with_tasks_that_leaves_and_comes_back_meanwhile_is_loaded_again() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await asyncio.sleep(FOUND_SECONDS)
        await town.ask(add(queue, b"1"))
        await town.until(lambda: bool(stored(town)))
        slow = SlowCalls(shard, "commit")
        town.states(told="a", a="draining")
        await town.until(lambda: slow.begun == 1)
        town.states(told="a", a="active")
        await asyncio.sleep(0.1)
        slow.arrive()
        await town.until(lambda: shard.partitions.handovers.handed_over == 1)
        await town.until(lambda: shard.holds == [(queue, 0)], 3.0)

    in_town(main)


def test_partitions_with_tasks_are_looked_for_again_when_a_load_under_way_fails() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("b")
        town.states(a="draining", c="draining")
        assert town.owner(queue) is shard
        await asyncio.sleep(FOUND_SECONDS)
        await town.ask(add(queue, b"1"))
        await town.until(lambda: bool(stored(town)))
        shard.partitions.lost(PartitionKey("shop", queue, 1, 0), NotOwner("For the test."))
        slow = SlowCalls(shard, "acquire")
        asked = town.begin(Describe("shop", queue, 1, 0, 0), shard)
        await town.until(lambda: slow.begun == 1)
        town.states(b="active", a="active", c="active")
        town.states(a="draining", c="draining")
        await asyncio.sleep(0.1)
        town.disk.fail_for(0.5)
        slow.arrive()
        assert isinstance(await asked, Unavailable)
        await town.until(lambda: shard.holds == [(queue, 0)], 3.0)

    in_town(main)


def test_a_load_that_was_overtaken_asks_the_owner_in_between() -> None:
    """The partition moves away and back while the store has not answered."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await left_by_all(town, queue)
        (old,) = town.of("a")
        slow = SlowCalls(old, "acquire")
        late = town.begin(add(queue, b"late"), old)
        await town.until(lambda: slow.begun == 1)
        town.states(a="draining")
        added = await done_one(town, queue)
        between = town.owner(queue)
        town.states(told="a", a="active")
        slow.arrive()
        assert isinstance(await late, Added)
        assert between.partitions.statistics()["handed_over"] == 1
        told = await town.ask(Await("shop", queue, 1, 0, 0, added.first), old)
        assert told == Outcome("done", 1, b"\xc3")

    in_town(main, memory_seconds=100.0)


def test_a_partition_that_two_shards_make_at_once_belongs_to_the_present_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (old,) = town.of("a")
        slow = SlowCalls(old, "acquire")
        late = town.begin(add(queue, b"late"), old)
        await town.until(lambda: slow.begun == 1)
        town.states(a="draining")
        added = await done_one(town, queue)
        slow.arrive()
        assert isinstance(await late, NotOwner)
        assert isinstance(await town.ask(add(queue, b"2")), Added)
        told = await town.ask(Await("shop", queue, 1, 0, 0, added.first))
        assert told == Outcome("done", 1, b"\xc3")

    in_town(main, memory_seconds=100.0)


def test_a_partition_whose_acquisition_is_under_way_is_handed_over_when_it_is_loaded() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await left_by_all(town, queue)
        (old,) = town.of("a")
        slow = SlowCalls(old, "acquire")
        adding = town.begin(add(queue, b"1"), old)
        await town.until(lambda: slow.begun == 1)
        town.states(told="a", a="draining")
        asked = town.begin(HandOver("shop", queue, 1, 0, 0, town.version), old)
        slow.arrive()
        handed = await asked
        assert handed.released
        assert isinstance(await adding, Added | NotOwner)

    in_town(main)


def test_partitions_with_tasks_are_looked_for_when_a_draining_node_is_gone() -> None:
    """The node may have died before it had handed over everything."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        town.states(a="draining")
        owner = town.owner(queue)
        await asyncio.sleep(FOUND_SECONDS)
        await town.ask(add(queue, b"1"))
        await town.until(lambda: bool(stored(town)))
        owner.partitions.lost(PartitionKey("shop", queue, 1, 0), NotOwner("For the test."))
        assert not owner.holds
        town.states(a="dead")
        await town.until(lambda: owner.holds == [(queue, 0)], 3.0)

    in_town(main)


def test_a_shard_without_its_lease_deletes_no_idle_partition() -> None:
    """Its node may have been declared dead, and another node may have loaded the partition."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await left_by_all(town, queue)
        (owner,) = town.of("a")
        owner.lasts = False
        await asyncio.sleep(400.0)
        assert queue in town.disk.contents.queues("shop", 10)
        owner.lasts = True
        await asyncio.sleep(400.0)
        assert queue not in town.disk.contents.queues("shop", 10)

    in_town(main, forget_seconds=100.0)
