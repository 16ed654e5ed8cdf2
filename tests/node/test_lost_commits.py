"""The database fails over to a server without the last commits: owners notice, and restore."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.errors import NotOwner, StoreUnavailable
from maitred.matching.records import PartitionKey, Terms
from maitred.membership.table import TIMELINE_VERSIONS
from maitred.protocol.tasks import FAILED, Add, DeadLetters, Describe, End, Finish, Finished
from maitred.store.fences import UNDONE_RANGES
from tests.node.members import Town, in_town
from tests.node.test_handover import OTHER, SESSION, add, finish, given_one, offer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from maitred.node.lost_commits import LostCommits
    from maitred.protocol.tasks import Given
    from tests.node.members import TownShard

RESTORED = "database lost commits of a partition; it was loaded again"
COMPARED = "database failed over; partitions compared with it"


def lost_commits(shard: TownShard) -> LostCommits:
    assert shard.partitions.lost_commits is not None
    return shard.partitions.lost_commits


def logged(shard: TownShard, event: str) -> list[dict[str, Any]]:
    return [fields for _, said, fields in shard.recorded.lines if said == event]


def new_timeline(town: Town) -> None:
    """Tell the view that the membership table tells after a failover, which undid some versions."""
    town.version += TIMELINE_VERSIONS - 3
    town.states()


async def drained(town: Town, queue: str, session: bytes = OTHER) -> list[bytes]:
    """Run all tasks of the queue. Restored ones may come before older ones, which are read."""
    payloads = []
    while (await town.ask(Describe("shop", queue, 1, 0, 0))).backlog:
        offered = await town.ask(offer(queue, session, slots=100))
        payloads += [one.payload for one in offered.tasks]
        for one in offered.tasks:
            assert await town.ask(finish(queue, one, session)) == Finished([])
    return sorted(payloads)


def test_tasks_that_the_database_lost_are_written_again() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await town.ask(add(queue, b"1", b"2"))
        standby = town.disk.contents.copy()
        await town.ask(add(queue, b"3"))
        delayed = Add("shop", queue, 1, 0, 0, 1, [b"4"], delay=50.0)
        await town.ask(delayed)
        running = await given_one(town, queue)
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        # The commit of the next task is refused by the fence, and its producer adds it again.
        with pytest.raises(NotOwner):
            await town.ask(add(queue, b"5"))
        await town.ask(add(queue, b"5"))
        (told,) = logged(shard, RESTORED)
        assert (told["tasks_before"], told["tasks_found"], told["tasks_restored"]) == (4, 2, 2)
        assert lost_commits(shard).restored == 2
        key = PartitionKey("shop", queue, 1, 0)
        await town.until(lambda: town.disk.contents.all()[key].backlog == 5)
        assert await town.ask(finish(queue, running)) == Finished([])
        began = town.loop.time()
        others = [await given_one(town, queue, OTHER) for _ in range(3)]
        assert town.loop.time() - began < 1.0, "no worker is waited for"
        assert sorted(one.payload for one in others) == [b"2", b"3", b"5"]
        numbers = {one.payload: one.sequence for one in others}
        assert numbers[b"5"] >> 32 == (numbers[b"2"] >> 32) + UNDONE_RANGES
        for one in others:
            assert await town.ask(finish(queue, one, OTHER)) == Finished([])
        assert await given_payload(town, queue) == b"4"

    in_town(main, lease_seconds=60.0)


async def given_payload(town: Town, queue: str) -> bytes:
    async with asyncio.timeout(60.0):
        while True:
            offered = await town.begin(offer(queue), seconds=60.0)
            if offered.tasks:
                (given,) = offered.tasks
                assert await town.ask(finish(queue, given)) == Finished([])
                return bytes(given.payload)


def test_a_second_failover_that_undoes_the_load_after_the_first_mixes_up_no_tasks() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await town.ask(add(queue, b"1"))
        standby = town.disk.contents.copy()
        await town.ask(add(queue, b"2"))
        town.disk.fail_over(standby.copy(), 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: len(logged(shard, RESTORED)) == 1)
        undone = await town.ask(add(queue, b"3", b"4"))
        # This standby has never heard of the first failover.
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: len(logged(shard, RESTORED)) == 2)
        # Restored tasks have rows of their own, as delayed ones do: one number would be one row.
        added = await town.ask(Add("shop", queue, 1, 0, 0, 1, [b"5", b"6", b"7"], delay=1.0))
        assert added.first >> 32 == (undone.first >> 32) + UNDONE_RANGES
        found = town.disk.contents.all()[PartitionKey("shop", queue, 1, 0)]
        await town.until(lambda: found.backlog == 7)
        assert await drained(town, queue) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
        await town.until(lambda: not found.backlog)
        assert not any((*found.segments, found.marks, found.later))
        owned = shard.partitions.owned[PartitionKey("shop", queue, 1, 0)]
        assert not owned.partition.own_tasks.open_tasks

    in_town(main)


def test_an_owner_without_changes_notices_on_the_new_timeline() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await town.ask(add(queue, b"1"))
        standby = town.disk.contents.copy()
        await town.ask(add(queue, b"2", b"3"))
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        # The membership table is on the new timeline, too, and tells all nodes a view.
        new_timeline(town)
        await town.until(lambda: bool(logged(shard, COMPARED)))
        assert logged(shard, COMPARED)[0] == {"partitions": 1, "overtaken": 1}
        key = PartitionKey("shop", queue, 1, 0)
        await town.until(lambda: town.disk.contents.all()[key].backlog == 3)
        # They are safe now: another member finds them.
        town.kill("a")
        town.states(a="dead")
        assert await drained(town, queue) == [b"1", b"2", b"3"]

    in_town(main)


def test_a_failover_that_loses_nothing_costs_one_read() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await town.ask(add(queue, b"1", b"2"))
        loads = shard.partitions.loader.loads
        town.disk.fail_over(town.disk.contents.copy(), 0.1)
        await asyncio.sleep(0.2)
        await town.ask(add(queue, b"3"))
        await town.until(lambda: bool(logged(shard, COMPARED)))
        assert logged(shard, COMPARED) == [{"partitions": 1, "overtaken": 0}]
        assert shard.partitions.loader.loads == loads
        assert await drained(town, queue) == [b"1", b"2", b"3"]
        assert not logged(shard, "partition given up")

    in_town(main)


def test_a_queue_whose_creation_was_lost_is_created_again_with_its_tasks() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        standby = town.disk.contents.copy()
        await town.ask(add(queue, b"1", b"2"))
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: bool(logged(shard, RESTORED)))
        assert await drained(town, queue) == [b"1", b"2"]

    in_town(main)


def test_a_queue_that_was_deleted_elsewhere_stays_deleted() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await town.ask(add(queue, b"1", b"2"))
        town.disk.contents.delete_queue(PartitionKey("shop", queue, 1, 0), force=True)
        town.disk.fail_over(town.disk.contents.copy(), 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: bool(logged(shard, COMPARED)))
        await town.ask(add(queue, b"3"))
        assert await drained(town, queue) == [b"3"]
        assert not logged(shard, RESTORED)

    in_town(main)


def test_what_another_owner_has_had_since_is_not_restored() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (old,) = town.of("a")
        await town.ask(add(queue, b"1"))
        standby = town.disk.contents.copy()
        await town.ask(add(queue, b"2"))
        old.is_frozen = True
        old.store.cut_off(1000.0)
        town.states(a="draining", told="bc")
        town.disk.fail_over(standby, 0.0)
        assert await drained(town, queue) == [b"1"]
        old.is_frozen = False
        old.store.reconnect()
        town.states(a="active")
        await town.until(lambda: bool(logged(old, COMPARED)))
        await town.ask(add(queue, b"3"))
        assert await drained(town, queue) == [b"3"]
        assert not logged(old, RESTORED)

    in_town(main)


def test_retries_are_restored_as_they_were() -> None:
    """A task that has a row of its own may be in its segment again, or nowhere."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        terms = Terms(retries=5, backoff_first=10.0)
        await town.ask(Add("shop", queue, 1, 0, 0, 1, [b"moved"], terms=terms))
        standby = town.disk.contents.copy()
        await town.ask(Add("shop", queue, 1, 0, 0, 1, [b"new"], terms=terms))
        for _ in range(2):
            await failed(town, queue, await given_one(town, queue))
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: bool(logged(shard, RESTORED)))
        assert logged(shard, RESTORED)[0]["tasks_restored"] == 1
        # The one that is in its segment again has lost the word of its failure.
        first, second = await given_one(town, queue), await given_one(town, queue, OTHER)
        assert (first.payload, first.attempt) == (b"moved", 1)
        assert (second.payload, second.attempt) == (b"new", 2)

    in_town(main)


async def failed(town: Town, queue: str, given: Given) -> None:
    end = End(given.sequence, given.attempt, given.proof, FAILED, b"\xc3")
    finished = await town.ask(Finish("shop", queue, 1, 0, 0, SESSION, [end]))
    assert isinstance(finished, Finished)
    assert not finished.late
    assert not finished.refused


def test_a_dead_letter_whose_retry_was_undone_is_tried_again_once() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        terms = Terms(retries=0, retention=3600.0)
        await town.ask(Add("shop", queue, 1, 0, 0, 1, [b"1"], terms=terms))
        given = await given_one(town, queue)
        await failed(town, queue, given)
        key = PartitionKey("shop", queue, 1, 0)
        await town.until(lambda: bool(town.disk.contents.all()[key].dead))
        assert town.disk.contents.all()[key].results[given.sequence].body
        standby = town.disk.contents.copy()
        await town.ask(DeadLetters("shop", queue, 1, 0, 0, "retry", [given.sequence]))
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: bool(logged(shard, RESTORED)))
        found = town.disk.contents.all()[key]
        await town.until(lambda: bool(found.later))
        assert not found.dead, "an operator would have it run once more"
        assert not found.results[given.sequence].body, "it has not failed for good"
        assert await drained(town, queue) == [b"1"]

    in_town(main)


@pytest.mark.parametrize("unanswered", [(0,), (1,), (0, 1, 3)])
def test_tasks_are_restored_although_answers_to_acquisitions_are_lost(
    unanswered: tuple[int, ...],
) -> None:
    """The acquisition was made, so that the next one finds no commit missing. Each one that is
    answered is followed by a read that fails, after which the partition is acquired once more."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await town.ask(add(queue, b"1"))
        standby = town.disk.contents.copy()
        await town.ask(add(queue, b"2"))
        acquire, read = shard.store.acquire, shard.store.segments
        made: list[int] = []
        failures = [1, 1]

        async def acquires(group: Sequence[Any]) -> list[Any]:
            made.append(len(made))
            if made[-1] in unanswered:
                town.disk.contents.acquire(group, shard.store.owner)
                raise StoreUnavailable("The answer of the store is lost.")
            return await acquire(group)

        async def reads(*given: Any, **named: Any) -> Sequence[Any]:  # noqa: ANN401 - as it is
            if failures:
                failures.pop()
                raise StoreUnavailable("The store is away again.")
            return await read(*given, **named)

        shard.store.acquire = acquires  # type: ignore[method-assign]
        shard.store.segments = reads  # type: ignore[assignment]
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: bool(logged(shard, RESTORED)))
        assert len(made) > max(unanswered)
        assert not failures
        assert await drained(town, queue) == [b"1", b"2"]
        assert len(logged(shard, RESTORED)) == 1

    in_town(main)


def test_a_store_that_fails_meanwhile_is_asked_again() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await town.ask(add(queue, b"1"))
        standby = town.disk.contents.copy()
        await town.ask(add(queue, b"2"))
        failures = [1, 1]
        read = shard.store.segments

        async def reads(*given: Any, **named: Any) -> Sequence[Any]:  # noqa: ANN401 - as it is
            if failures:
                failures.pop()
                raise StoreUnavailable("The store is away again.")
            return await read(*given, **named)

        shard.store.segments = reads  # type: ignore[assignment]
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(0.2)
        new_timeline(town)
        await town.until(lambda: bool(logged(shard, RESTORED)))
        assert not failures
        assert await drained(town, queue) == [b"1", b"2"]
        assert len(logged(shard, RESTORED)) == 1

    in_town(main)
