"""Slots of a worker that are on offer to many queues of a shard at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import Cancelled, ConnectionLost, MaitredError, PermissionDenied
from maitred.protocol.queries import Allocate, Allocated, Suspect
from maitred.protocol.refusals import decode_error
from maitred.protocol.shared_offers import OfferedMany, OfferMany, SetMember
from maitred.protocol.tasks import (
    DONE,
    RETURNED,
    Add,
    Added,
    Await,
    Counts,
    Describe,
    End,
    Finish,
    Finished,
    Given,
    Offer,
    PartitionDescription,
    Resize,
)
from maitred.settings import Limits, Queue, User
from tests.node.in_process import in_a_loop, until
from tests.node.querying import GATEWAY, SECONDS, WORKER, Stage, stage, waits
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.client.long_poll import LongPoll

OTHER = b"another worker.."
HASHED = cheaply("s")
USERS = {
    "cook": User(secret=HASHED, permissions={"n": ["work", "produce"]}),
    "mallory": User(secret=HASHED, permissions={"n": ["work"], "evil": ["work"]}),
}


def names_at(here: Stage, shard: int, count: int, namespace: str = "n") -> list[str]:
    """Queues whose roots belong to that shard."""
    owner = here.node.shards[0].owner_of
    names = (f"many{number}" for number in range(10_000))
    found = (name for name in names if owner(Describe(namespace, name, 1, 0, 0)) == shard)
    return [next(found) for _ in range(count)]


def many(
    queues: Sequence[str],
    slots: int,
    *,
    named: bool = True,
    number: int = 1,
    session: bytes = WORKER,
    namespace: str = "n",
) -> OfferMany:
    members = [SetMember(queue, 1, 0, 0) for queue in queues] if named else []
    return OfferMany(namespace, queues[0], 1, 0, 0, session, "ant", slots, number, members)


async def add(client: AsyncClient, queue: str, count: int = 1, **more: Any) -> int:  # noqa: ANN401
    payloads = [f"{queue} {number}".encode() for number in range(count)]
    added = await client.request(Add("n", queue, 1, 0, 0, 0, payloads, **more), SECONDS)
    assert isinstance(added, Added)
    return added.first


async def answer(held: LongPoll) -> OfferedMany:
    found = await held.answer()
    assert isinstance(found, OfferedMany)
    return found


def given(found: OfferedMany) -> dict[int, list[bytes]]:
    """Payloads by member."""
    return {index: [task.payload for task in offered.tasks] for index, offered in found.gifts}


async def known(here: Stage, sets: int = 1) -> None:
    """Until the node knows so many sets, and their partitions are loaded."""
    shards: list[Any] = [*here.node.shards]

    def ready() -> bool:
        parts = [shard._partitions for shard in shards]
        found = [supply for part in parts for supply in part.supplies.sets.values()]
        there = all(
            key in part.owned
            for part in parts
            for s in part.supplies.sets.values()
            for key in s.members
        )
        return len(found) >= sets and there

    await until(ready)


async def finish(
    client: AsyncClient,
    queue: str,
    task: Given,
    how: int,
    session: bytes = WORKER,
) -> None:
    end = End(task.sequence, task.attempt, task.proof, how)
    told = await client.request(Finish("n", queue, 1, 0, 0, session, [end]), SECONDS)
    assert isinstance(told, Finished)
    assert (told.late, told.refused) == ([], [])


@in_a_loop
async def test_a_slot_is_taken_once_by_whichever_queue_comes_first(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, producer = await here.client(), await here.client()
        queues = names_at(here, 0, 5)
        offer = worker.hold(many(queues, 1), SECONDS)
        await known(here)
        await add(producer, queues[3])
        found = await answer(offer)
        assert given(found) == {3: [f"{queues[3]} 0".encode()]}
        await_it = producer.hold(Await("n", queues[2], 1, 0, 0, await add(producer, queues[2])), 9)
        await waits(await_it)  # its slot is taken
        ((_, offered),) = found.gifts
        await finish(worker, queues[3], offered.tasks[0], DONE)
        second = await answer(worker.hold(many(queues, 1, named=False), SECONDS))
        assert given(second) == {2: [f"{queues[2]} 0".encode()]}
        await_it.take_back()


@in_a_loop
async def test_a_hot_queue_gets_all_slots_in_one_answer(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, producer = await here.client(), await here.client()
        queues = names_at(here, 0, 32)
        await add(producer, queues[9], 40)
        found = await answer(worker.hold(many(queues, 32), SECONDS))
        if not found.gifts:  # the partition was not loaded yet
            found = await answer(worker.hold(many(queues, 32, named=False), SECONDS))
        assert list(given(found)) == [9]
        assert len(given(found)[9]) == 32
        assert (found.urgency, found.hungry) == (7, 1)


@in_a_loop
async def test_busy_queues_share_by_priority_first_and_then_in_turn(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, producer = await here.client(), await here.client()
        queues = names_at(here, 0, 6)
        for queue in queues:
            await add(producer, queue, 20)
        await add(producer, queues[5], 2, priority=0)
        first = await answer(worker.hold(many(queues, 2), SECONDS))
        assert list(given(first)) == [5]
        assert (first.urgency, first.hungry) == (7, 6)
        counts = dict.fromkeys(range(6), 0)
        for _ in range(9):
            found = await answer(worker.hold(many(queues, 2, named=False), SECONDS))
            for index, payloads in given(found).items():
                counts[index] += len(payloads)
        assert counts == dict.fromkeys(range(6), 3)


@in_a_loop
async def test_queries_of_busy_queues_take_turns(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, gateway = await here.client(), await here.client()
        queues = names_at(here, 0, 3)
        offer = worker.hold(many(queues, 1), SECONDS)
        await known(here)
        asking = {
            queue: gateway.hold(Allocate("n", queue, 1, 0, 0, 0, GATEWAY, 2), SECONDS)
            for queue in queues
        }
        served = []
        for _ in range(3):
            found = await answer(offer)
            ((index, offered),) = found.gifts
            assert len(offered.reserved) == 1
            allocated = await asking[queues[index]].answer()
            assert isinstance(allocated, Allocated)
            assert [one.token for one in allocated.allocations] == [offered.reserved[0].token]
            served.append(index)
            offer = worker.hold(many(queues, 1, named=False), SECONDS)
        assert sorted(served) == [0, 1, 2]
        offer.take_back()


@in_a_loop
async def test_a_task_that_is_given_back_has_had_no_attempt(tmp_path: Path) -> None:
    """Between two sets a slot may be taken twice; then the second task stands where it stood."""
    async with stage(tmp_path) as here:
        worker, producer = await here.client(), await here.client()
        queues = names_at(here, 0, 2)
        await add(producer, queues[0], 3)
        found = await answer(worker.hold(many(queues, 1), SECONDS))
        ((_, offered),) = found.gifts
        (task,) = offered.tasks
        await finish(worker, queues[0], task, RETURNED)
        found = await answer(worker.hold(many(queues, 3, named=False), SECONDS))
        ((_, offered),) = found.gifts
        assert [one.payload for one in offered.tasks] == [
            f"{queues[0]} {number}".encode() for number in range(3)
        ]
        assert [one.attempt for one in offered.tasks] == [1, 1, 1]


@in_a_loop
async def test_a_worker_whose_connection_is_lost_leaves_no_slots_behind(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, producer = await here.client(), await here.client()
        queues = names_at(here, 0, 3)
        offer = worker.hold(many(queues, 4), SECONDS)
        await known(here)
        partitions: Any = here.node.shards[0]._partitions
        await worker.close()
        with pytest.raises(MaitredError):
            await offer.answer()
        await until(lambda: not any(s.free for s in partitions.supplies.sets.values()))
        await add(producer, queues[0])
        other = await here.client()
        found = await answer(other.hold(many(queues, 1, session=OTHER), SECONDS))
        assert [one.attempt for _, offered in found.gifts for one in offered.tasks] == [1]


@in_a_loop
async def test_an_offer_that_is_taken_back_gets_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, producer = await here.client(), await here.client()
        queues = names_at(here, 0, 3)
        offer = worker.hold(many(queues, 4), SECONDS)
        await known(here)
        described = await producer.request(Describe("n", queues[1], 1, 0, 0), SECONDS)
        assert isinstance(described, PartitionDescription)
        assert (described.offers, described.workers) == (4, ["ant"])
        assert described.served_seconds_ago == 0
        offer.take_back()
        with pytest.raises(Cancelled):
            await offer.answer()
        await add(producer, queues[1])
        described = await producer.request(Describe("n", queues[1], 1, 0, 0), SECONDS)
        assert isinstance(described, PartitionDescription)
        assert (described.running, described.offers, described.workers) == (0, 0, [])


@in_a_loop
async def test_a_set_that_the_node_does_not_know_is_to_be_named(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker = await here.client()
        queues = names_at(here, 0, 3)
        for number in (1, 2):
            found = await answer(worker.hold(many(queues, 1, named=False, number=number), SECONDS))
            assert (found.known, found.gifts) == (False, [])
        offer = worker.hold(many(queues, 1), SECONDS)
        await waits(offer)
        offer.take_back()


@in_a_loop
async def test_a_partition_that_is_let_go_is_named_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker = await here.client()
        queues = names_at(here, 0, 3)
        offer = worker.hold(many(queues, 1), SECONDS)
        await known(here)
        partitions: Any = here.node.shards[0]._partitions
        (key, *_) = partitions.owned
        partitions.lost(key, ConnectionLost("It is somebody else's."))
        found = await answer(offer)
        assert (found.known, found.gifts) == (False, [])
        assert not partitions.supplies.sets


@in_a_loop
async def test_members_of_another_shard_are_told(tmp_path: Path) -> None:
    async with stage(tmp_path, shards=2) as here:
        worker = await here.client()
        here_, there = names_at(here, 0, 2), names_at(here, 1, 2)
        found = await answer(worker.hold(many([*here_, *there], 1), SECONDS))
        assert found.elsewhere == [(2, 1), (3, 1)]
        assert not found.gifts


@in_a_loop
async def test_a_queue_that_may_not_be_made_is_told_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, limits=Limits(queues=2)) as here:
        worker, producer = await here.client(), await here.client()
        queues = names_at(here, 0, 3)
        found = await answer(worker.hold(many(queues, 1), SECONDS))
        assert [index for index, _ in found.refused] == [2]
        assert decode_error(found.refused[0][1]).code == "too-many-queues"
        offer = worker.hold(many(queues, 1, named=False), SECONDS)
        await add(producer, queues[1])
        assert list(given(await answer(offer))) == [1]


@in_a_loop
async def test_new_counts_are_told(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, admin = await here.client(), await here.client()
        queues = names_at(here, 0, 2)
        await admin.request(Resize("n", queues[1], 1, 0, 0, 3, 3), SECONDS)
        found = await answer(worker.hold(many(queues, 1), SECONDS))
        ((index, offered),) = found.gifts
        assert (index, offered.tasks) == (1, [])
        assert isinstance(offered.counts, Counts)
        assert (offered.counts.read, offered.counts.write) == (3, 3)


@in_a_loop
async def test_a_suspected_worker_is_asked_to_offer_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, gateway = await here.client(), await here.client()
        queues = names_at(here, 0, 2)
        offer = worker.hold(many(queues, 1), SECONDS)
        await known(here)
        await gateway.request(Suspect("n", queues[1], 1, 0, 0, WORKER), SECONDS)
        found = await answer(offer)
        assert (found.known, found.gifts) == (True, [])


@in_a_loop
async def test_offers_of_both_kinds_take_turns(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        worker, other, producer = await here.client(), await here.client(), await here.client()
        queues = names_at(here, 0, 2)
        shared = worker.hold(many(queues, 4), SECONDS)
        await known(here)
        plain = other.hold(Offer("n", queues[0], 1, 0, 0, 0, OTHER, "bee", 4), SECONDS)
        partitions: Any = here.node.shards[0]._partitions
        await until(lambda: any(one.partition.offers.slots for one in partitions.owned.values()))
        await add(producer, queues[0], 4)
        assert [len(found) for found in given(await answer(shared)).values()] == [2]
        assert len((await plain.answer()).tasks) == 2


@in_a_loop
async def test_a_node_that_stops_answers_shared_offers(tmp_path: Path) -> None:
    async with stage(tmp_path, queues={"*": Queue(recovery_seconds=0.0)}) as here:
        worker = await here.client()
        queues = names_at(here, 0, 2)
        offer = worker.hold(many(queues, 1), SECONDS)
        await known(here)
        draining = asyncio.ensure_future(here.node.shards[0].drain())
        assert (await answer(offer)).gifts == []
        await worker.close()
        await draining


# Attacks


@in_a_loop
async def test_a_set_is_of_its_user_alone(tmp_path: Path) -> None:
    """Who knows a session can neither use, nor replace, nor fill up the set of its worker."""
    async with stage(tmp_path, users=USERS) as here:
        cook, mallory = await here.client("cook", "s"), await here.client("mallory", "s")
        queues = names_at(here, 0, 3)
        offer = cook.hold(many(queues, 1), SECONDS)
        await known(here)
        stolen = await answer(mallory.hold(many(queues, 1, named=False), SECONDS))
        assert not stolen.known
        forged = mallory.hold(many(queues[:1], 8), SECONDS)
        await known(here, 2)
        forged.take_back()
        with pytest.raises(Cancelled):
            await forged.answer()
        await waits(offer)
        await add(cook, queues[2])
        found = await answer(offer)
        assert list(given(found)) == [2]


@in_a_loop
async def test_a_set_reaches_no_namespace_without_the_permission(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS) as here:
        mallory = await here.client("mallory", "s")
        queues = names_at(here, 0, 2, "evil")
        with pytest.raises(PermissionDenied):
            await mallory.hold(many(queues, 1, namespace="other"), SECONDS).answer()
        offer = mallory.hold(many(queues, 1, namespace="evil"), SECONDS)
        await known(here)
        partitions: Any = here.node.shards[0]._partitions
        assert {key.namespace for key in partitions.owned} == {"evil"}
        offer.take_back()
