"""Partitions move between the members of a cluster: nothing is lost, and hardly anything waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import json
from msgspec.structs import replace

from maitred.errors import NotOwner, TaskForgotten, Unavailable
from maitred.matching.records import Acquired, PartitionKey, Terms
from maitred.membership.homes import ClusterHomes, FormerHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.node.deferred_reply import HeldHere
from maitred.protocol.cluster import HandedOver, HandOver
from maitred.protocol.queries import Allocate, Allocated, Attend, Attended, Subscribe
from maitred.protocol.shared_offers import OfferedMany, OfferMany, SetMember
from maitred.protocol.tasks import (
    DONE,
    Add,
    Await,
    Describe,
    End,
    Finish,
    Finished,
    Given,
    Heard,
    Heartbeat,
    Offer,
    Offered,
    Outcome,
)
from maitred.settings import QuerySettings, Scaling
from maitred.simulation.hosts import EPOCH_SECONDS
from maitred.store.interface import COMMAND_SECONDS, Acquisition
from tests.node.members import Town, in_town

if TYPE_CHECKING:
    from maitred.protocol.messages import AnyRequest
    from tests.node.members import TownShard

SESSION = b"a worker's own.."
OTHER = b"another worker.."
GATEWAY = b"a gateway's own."
QUICK_SECONDS = 0.1
"""A handover takes a few milliseconds of the simulated network and store; recovery takes 3 s."""
LOADED_MOST = 32
"""Partitions that a new owner loads at a time, so that its store serves requests meanwhile."""


def add(queue: str, *payloads: bytes, retention: float = 60.0) -> Add:
    return Add("shop", queue, 1, 0, 0, 1, list(payloads), terms=Terms(retention=retention))


def offer(queue: str, session: bytes = SESSION, slots: int = 1) -> Offer:
    return Offer("shop", queue, 1, 0, 0, 1, session, "worker", slots)


def finish(queue: str, given: Given, session: bytes = SESSION) -> Finish:
    end = End(given.sequence, given.attempt, given.proof, DONE, b"\xc3")
    return Finish("shop", queue, 1, 0, 0, session, [end])


def beat(queue: str, given: Given, session: bytes = SESSION) -> Heartbeat:
    running = [(given.sequence, given.attempt, given.proof)]
    return Heartbeat("shop", queue, 1, 0, 0, session, "worker", running)


async def given_one(town: Town, queue: str, session: bytes = SESSION) -> Given:
    offered = await town.ask(offer(queue, session))
    (given,) = offered.tasks
    assert isinstance(given, Given)
    return given


def test_a_handover_takes_no_recovery_and_running_tasks_stay_with_their_workers() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1", b"2", b"3"))
        running = await given_one(town, queue)
        town.states(a="draining")
        began = town.loop.time()
        others = await town.ask(offer(queue, OTHER, slots=5))
        assert town.loop.time() - began < QUICK_SECONDS
        assert [one.payload for one in others.tasks] == [b"2", b"3"]
        heard = town.begin(beat(queue, running))
        finished = await town.ask(finish(queue, running))
        assert finished == Finished([])
        assert not heard.done() or heard.result() == Heard([], [])
        for one in others.tasks:
            assert await town.ask(finish(queue, one, OTHER)) == Finished([])
        assert town.disk.contents.use().queues == {}
        (old,) = town.of("a")
        assert old.holds == []
        assert old.partitions.statistics()["handed_over"] == 1

    in_town(main)


def test_the_lease_of_a_running_task_ends_in_time_at_the_next_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        await given_one(town, queue)
        await asyncio.sleep(6.0)
        town.states(a="draining")
        began = town.loop.time()
        waiting = town.begin(offer(queue, OTHER))
        await asyncio.sleep(3.5)
        assert not waiting.done(), "the first worker's lease is not over"
        again = await waiting
        assert [one.attempt for one in again.tasks] == [2]
        assert 4.0 - QUICK_SECONDS <= town.loop.time() - began < 7.0

    in_town(main, lease_seconds=10.0)


def test_without_an_answer_the_next_owner_waits_for_claims() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1", b"2"))
        await given_one(town, queue)
        town.kill("a")
        town.states(a="dead")
        began = town.loop.time()
        await town.ask(offer(queue, OTHER))
        assert 3.0 <= town.loop.time() - began < 4.0

    in_town(main)


def test_a_frozen_owner_is_asked_once_and_does_not_delay_every_partition() -> None:
    async def main(town: Town) -> None:
        queues = [one for one in map("q{}".format, range(60)) if town.owner(one).place.host == "a"]
        for queue in queues:
            await town.ask(add(queue, b"1"))
        for shard in town.of("a"):
            shard.is_frozen = True
        town.states(told="bc", a="draining")
        began = town.loop.time()
        await asyncio.gather(*(town.ask(offer(queue)) for queue in queues))
        assert len(queues) > 10
        assert town.loop.time() - began < 2.5 + 3.0 + 1.0

    in_town(main)


def test_every_long_poll_is_answered_so_that_its_caller_asks_the_next_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        running = await given_one(town, queue)
        allocate = Allocate("shop", queue, 1, 0, 0, 1, GATEWAY, 1)
        attend = Attend("shop", queue, 1, 0, 0, SESSION, "worker", "", 1, 0, "online")
        await town.ask(attend)
        requests: dict[str, AnyRequest] = {
            "await": Await("shop", queue, 1, 0, 0, running.sequence),
            "heartbeat": beat(queue, running),
            "allocate": allocate,
            "attend": Attend("shop", queue, 1, 0, 0, SESSION, "worker", "", 1, 0, "online"),
        }
        waiting = {name: town.begin(message) for name, message in requests.items()}
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in waiting.values())
        town.states(a="draining")
        await town.until(lambda: all(one.done() for one in waiting.values()), QUICK_SECONDS)
        assert isinstance(waiting["await"].result(), NotOwner)
        assert waiting["heartbeat"].result() == Heard([], [])
        assert waiting["allocate"].result() == Allocated([])
        assert isinstance(waiting["attend"].result(), Attended)

    in_town(main)


def test_an_offer_and_a_subscription_are_answered_when_the_partition_moves() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        waiting = town.begin(offer(queue))
        subscribed = town.begin(Subscribe("shop", queue, 1, 0, 0, GATEWAY, 1))
        await asyncio.sleep(0.5)
        roster = await subscribed
        subscribed = town.begin(Subscribe("shop", queue, 1, 0, 0, GATEWAY, roster.version))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        assert not subscribed.done()
        town.states(a="draining")
        await town.until(lambda: waiting.done() and subscribed.done(), QUICK_SECONDS)
        assert isinstance(waiting.result(), Offered)
        assert waiting.result().tasks == []
        assert isinstance(subscribed.result(), NotOwner)

    in_town(main, queries=QuerySettings(policy="p2c-peak-ewma"))


def test_results_in_memory_move_with_their_partition() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        added = await town.ask(add(queue, b"1"))
        await town.ask(finish(queue, await given_one(town, queue)))
        town.states(a="draining")
        await town.until(lambda: town.of("a")[0].holds == [])
        told = await town.ask(Await("shop", queue, 1, 0, 0, added.first))
        assert told == Outcome("done", 1, b"\xc3")

    in_town(main)


def test_rule_6_reservations_carry_the_range_id_of_their_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        told = []
        for state in ("active", "draining"):
            town.states(a=state)
            await town.until(lambda: town.of("a")[0].holds == [])
            waiting = town.begin(offer(queue))
            await town.ask(Allocate("shop", queue, 1, 0, 0, 1, GATEWAY, 1))
            (reserved,) = (await waiting).reserved
            told.append(reserved.range_id)
        assert 0 < told[0] < told[1]

    in_town(main)


def test_rule_8_a_result_that_only_a_dead_owner_had_is_lost_in_words() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        added = await town.ask(add(queue, b"1"))
        await town.ask(finish(queue, await given_one(town, queue)))
        town.kill("a")
        town.states(a="dead")
        began = town.loop.time()
        with pytest.raises(TaskForgotten, match="no longer known"):
            await town.ask(Await("shop", queue, 1, 0, 0, added.first))
        assert town.loop.time() - began < QUICK_SECONDS

    in_town(main, memory_seconds=100.0)


def test_rule_5_ends_and_heartbeats_at_the_old_owner_are_refused_with_not_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        running = await given_one(town, queue)
        (old,) = town.of("a")
        town.states(a="draining")
        await town.until(lambda: old.holds == [])
        for message in (finish(queue, running), beat(queue, running)):
            with pytest.raises(NotOwner):
                await town.ask(message, old)
        assert await town.ask(finish(queue, running)) == Finished([])

    in_town(main)


def test_requests_to_a_partition_that_is_leaving_are_refused_with_not_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        (old,) = town.of("a")
        town.disk.slow_for(1.0, 50.0)
        (owned,) = old.partitions.owned.values()
        old.partitions.handovers.begin(owned)
        with pytest.raises(NotOwner):
            await town.ask(offer(queue), old)
        await town.until(lambda: old.holds == [])

    in_town(main)


def test_rule_3_an_elided_end_counts_though_the_lease_is_over() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        waiting = town.begin(offer(queue))
        await asyncio.sleep(0.1)
        adding = town.begin(add(queue, b"1", retention=0.0))
        (given,) = (await waiting).tasks
        (old,) = town.of("a")
        old.lasts = False
        assert await town.ask(finish(queue, given)) == Finished([])
        assert (await adding).first == given.sequence
        assert old.partitions.writer.statistics()["commits"] == 0

    in_town(main, hold_seconds=5.0)


def test_rules_1_and_2_an_owner_without_a_lease_withholds_tasks_until_it_is_renewed() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"stored"))
        (old,) = town.of("a")
        old.lasts = False
        waiting = town.begin(offer(queue))
        wanting = town.begin(Allocate("shop", queue, 1, 0, 0, 1, GATEWAY, 1))
        await asyncio.sleep(2.0)
        assert not waiting.done()
        assert not wanting.done()
        old.lasts = True
        await town.until(wanting.done, 0.2)
        assert len(wanting.result().allocations) == 1
        assert (await given_one(town, queue)).payload == b"stored"
        assert "lease renewed" in old.recorded.events("info")

    in_town(main)


async def withheld(town: Town) -> tuple[str, TownShard, asyncio.Future[Any]]:
    """Return a queue with a stored task, its owner, whose lease has run out, and an offer that
    waits there."""
    queue = town.queue_of("a")
    await town.ask(add(queue, b"stored"))
    (old,) = town.of("a")
    old.lasts = False
    waiting = town.begin(offer(queue))
    await asyncio.sleep(0.5)
    return queue, old, waiting


def test_rules_1_and_2_an_owner_whose_lease_ran_out_is_overtaken_before_it_is_renewed() -> None:
    """It was not declared dead, and has not heard of the move: its lease is renewed first."""

    async def main(town: Town) -> None:
        queue, old, waiting = await withheld(town)
        old.is_frozen = True
        town.states(told="bc", a="draining")
        given = await given_one(town, queue, OTHER)
        assert await town.ask(finish(queue, given, OTHER)) == Finished([])
        old.is_frozen = False
        old.lasts = True
        late = town.begin(offer(queue), old)  # it comes before the shard has asked the store
        await town.until(lambda: waiting.done() and late.done())
        assert isinstance(waiting.result(), NotOwner)
        assert isinstance(late.result(), NotOwner)
        assert old.holds == []

    in_town(main)


def test_a_renewed_lease_is_not_enough_while_the_store_cannot_confirm_the_owner() -> None:
    async def main(town: Town) -> None:
        _, old, waiting = await withheld(town)
        town.disk.fail_for(3.0)
        old.lasts = True
        await asyncio.sleep(2.0)
        assert not waiting.done()
        await town.until(waiting.done)
        (given,) = waiting.result().tasks
        assert given.payload == b"stored"

    in_town(main)


def test_a_comparison_that_the_store_never_answers_does_not_withhold_a_partition_for_ever() -> None:
    async def main(town: Town) -> None:
        _, old, waiting = await withheld(town)
        town.disk.slow_for(0.3, 1_000_000.0)  # the comparison begins now, and takes minutes
        old.lasts = True
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await town.until(waiting.done, COMMAND_SECONDS + 1.0)
        (given,) = waiting.result().tasks
        assert given.payload == b"stored"

    in_town(main)


def test_a_partition_that_was_being_loaded_when_the_lease_ran_out_is_doubted() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"stored"))
        town.states(told="bc", a="draining")
        new = town.owner(queue)
        loading = town.begin(offer(queue))
        await town.until(lambda: bool(new.partitions.loading))
        await asyncio.sleep(0.001)  # it has begun, and asks the last owner
        new.lasts = False
        new.lasts = True
        await town.until(lambda: bool(new.holds))
        (owned,) = new.partitions.owned.values()
        assert not owned.partition.hand_out.is_trusted()
        await town.until(loading.done)
        assert [one.payload for one in loading.result().tasks] == [b"stored"]

    in_town(main)


def test_a_store_that_fails_answers_that_nothing_was_released() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        adding = town.begin(offer(queue))
        await asyncio.sleep(0.1)
        unsafe = town.begin(add(queue, b"1"))
        given = (await adding).tasks[0]
        town.disk.fail_for(10.0)
        (old,) = town.of("a")
        asked = town.begin(HandOver("shop", queue, 1, 0, 0, 1), old)
        began = town.loop.time()
        handed = await asked
        assert isinstance(handed, HandedOver)
        assert not handed.released
        assert [one.sequence for one in handed.attempts] == [given.sequence]
        assert 2.0 <= town.loop.time() - began < 2.2
        assert old.holds == [(queue, 0)]
        await town.until(lambda: old.holds == [])  # the store is back
        again = await town.ask(HandOver("shop", queue, 1, 0, 0, 1), old)
        assert again.released
        assert [one.sequence for one in again.attempts] == [given.sequence]
        await unsafe

    in_town(main, hold_seconds=5.0, lease_seconds=60.0)


def test_an_owner_by_a_newer_view_does_not_let_go() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        (old,) = town.of("a")
        town.states()
        with pytest.raises(NotOwner, match="newer view"):
            await town.ask(HandOver("shop", queue, 1, 0, 0, town.version - 1), old)
        assert old.holds == [(queue, 0)]

    in_town(main)


def test_a_partition_that_nobody_has_is_answered_at_once() -> None:
    async def main(town: Town) -> None:
        (old,) = town.of("a")
        handed = await town.ask(HandOver("shop", "never", 1, 0, 0, 1), old)
        assert handed == HandedOver(released=False)

    in_town(main)


def test_idle_partitions_are_let_go_at_once_and_their_next_owners_load_nothing() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(Add("shop", queue, 1, 0, 0, 1, [b"1"], terms=Terms(retention=0.0)))
        await town.ask(finish(queue, await given_one(town, queue)))
        (old,) = town.of("a")
        await asyncio.sleep(0.2)
        town.states(a="draining")
        await town.until(lambda: old.holds == [], QUICK_SECONDS)
        assert all(shard.holds == [] for shard in town.shards.values())

    in_town(main)


def test_partitions_with_tasks_of_a_dead_member_are_loaded_without_a_request() -> None:
    async def main(town: Town) -> None:
        queues = [one for one in map("q{}".format, range(90)) if town.owner(one).place.host == "a"]
        for queue in queues:
            await town.ask(add(queue, b"1"))
        town.kill("a")
        town.states(a="dead")
        await town.until(
            lambda: len(town.of("b")[0].holds) + len(town.of("c")[0].holds) == len(queues)
        )
        loads = sum(shard.partitions.loader.loads for shard in town.of("b") + town.of("c"))
        assert loads < len(queues)

    in_town(main)


def test_partitions_with_tasks_of_a_dead_member_are_loaded_a_few_at_a_time() -> None:
    async def main(town: Town) -> None:
        queues = [one for one in map("q{}".format, range(300)) if town.owner(one).place.host == "a"]
        for queue in queues:
            await town.ask(add(queue, b"1"))
        (new,) = town.of("b")
        acquire, loading = new.store.acquire, []

        async def noted(acquisitions: Any) -> Any:  # noqa: ANN401 - as the store takes them
            loading.append(len(new.partitions.loading))
            return await acquire(acquisitions)

        new.store.acquire = noted  # type: ignore[method-assign,assignment]
        town.kill("a")
        town.states(a="dead")
        await town.until(lambda: len(new.holds) == len(queues))
        assert len(queues) > 3 * LOADED_MOST
        assert max(loading) <= LOADED_MOST

    in_town(main, names="ab")


def test_tasks_and_slots_of_different_nodes_meet_at_the_parent() -> None:
    """No worker asks at the partition of the task, and no task comes to that of the worker."""

    async def main(town: Town) -> None:
        found = (f"q{number}" for number in range(1000))
        queue = next(
            one
            for one in found
            if len({town.owner(one, part).place.host for part in range(3)}) == 3
        )
        task = Add("shop", queue, 1, 1, 0, 1, [b"1"])
        slot = Offer("shop", queue, 1, 2, 0, 1, SESSION, "worker", 1)
        for first, second in ((task, slot), (slot, task)):
            waiting = town.begin(replace(first))
            await asyncio.sleep(1.0)
            answers = [await town.begin(replace(second)), await waiting]
            (offered,) = [one for one in answers if isinstance(one, Offered)]
            (given,) = offered.tasks
            assert (given.partition, given.payload) == (1, b"1")

    in_town(main, partitions=3, lease_seconds=60.0, scaling=Scaling(adaptive=False))


def test_a_view_that_moves_nothing_reads_nothing_of_the_store() -> None:
    """A list of all partitions with tasks costs the database of a large cluster seconds."""

    async def main(town: Town) -> None:
        shard = town.of("b")[0]
        moves = shard.partitions.moves
        assert moves is not None
        before = moves._changed
        town.states(b="active")
        await asyncio.sleep(1.0)
        assert moves._changed is before
        town.states(a="draining")
        assert moves._changed is not before

    in_town(main)


def test_a_next_owner_that_does_not_pull_is_not_waited_for() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        (old,) = town.of("a")
        for name in "bc":
            town.of(name)[0].is_frozen = True
        town.states(told="a", a="draining")
        await town.until(lambda: old.holds == [], 3.0)

    in_town(main)


def test_a_third_owner_in_between_makes_the_word_of_the_first_void() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        key = PartitionKey("shop", queue, 1, 0)
        shard = town.of("b")[0]
        takeovers = shard.partitions.takeovers
        assert takeovers is not None
        owners = await takeovers.owners([key])
        await takeovers.pull(key, owners[key])
        await town.of("c")[0].store.acquire([Acquisition(key)])
        (acquired,) = await shard.store.acquire([Acquisition(key)])
        assert isinstance(acquired, Acquired)
        assert takeovers.inherited(key, acquired) is None

    in_town(main)


def test_a_member_that_was_drained_gets_its_partitions_back() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1", b"2"))
        running = await given_one(town, queue)
        for state in ("draining", "active") * 3:
            town.states(a=state)
            began = town.loop.time()
            await town.ask(Describe("shop", queue, 1, 0, 0))
            assert town.loop.time() - began < QUICK_SECONDS
        assert [shard.holds for shard in town.shards.values()].count([(queue, 0)]) == 1
        assert await town.ask(finish(queue, running)) == Finished([])
        assert (await given_one(town, queue)).payload == b"2"

    in_town(main)


def test_a_node_that_stops_hands_over_first() -> None:
    async def main(town: Town) -> None:
        queues = [one for one in map("q{}".format, range(90)) if town.owner(one).place.host == "a"]
        running = {}
        for queue in queues:
            await town.ask(add(queue, b"1", b"2"))
            running[queue] = await given_one(town, queue)
        (old,) = town.of("a")
        town.states(a="draining")
        assert await old.drain()
        assert old.partitions.statistics()["handed_over"] == len(queues)
        for queue, given in running.items():
            assert (await given_one(town, queue, OTHER)).payload == b"2"
            assert await town.ask(finish(queue, given)) == Finished([])

    in_town(main)


def test_a_change_of_the_batch_size_hands_partitions_over_to_other_shards() -> None:
    async def main(town: Town) -> None:
        moves_at = EPOCH_SECONDS + 100.0
        change = {"old": 0, "new": 4, "start": moves_at, "end": moves_at}
        town.states(spread_batch=json.encode(change).decode())
        partitions = range(4)
        for number in partitions:
            await town.ask(Add("shop", "q", 1, number, 0, 1, [b"1"]))
        running = {}
        for number in partitions:
            asked = Offer("shop", "q", 1, number, 0, 1, SESSION, "worker", 1)
            running[number] = (await town.ask(asked)).tasks[0]
        before = [town.owner("q", number) for number in partitions]
        await asyncio.sleep(moves_at + 0.1 - town.wall_clock())
        after = [town.owner("q", number) for number in partitions]
        assert before != after
        for number in partitions:
            given = running[number]
            began = town.loop.time()
            end = End(given.sequence, given.attempt, given.proof, DONE, b"\xc3")
            done = Finish("shop", "q", 1, number, 0, SESSION, [end])
            assert await town.ask(done) == Finished([])
            assert town.loop.time() - began < QUICK_SECONDS

    in_town(main, partitions=4, lease_seconds=300.0, shards=2, scaling=Scaling(adaptive=False))


def test_two_shards_that_load_the_same_partition_do_not_wait_for_each_other() -> None:
    """The last owner was asked by a client with an old view, at the moment of the change."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        (old,) = town.of("a")
        town.states(a="draining")
        await town.ask(Describe("shop", queue, 1, 0, 0))
        new = town.owner(queue)
        town.disk.slow_for(1.0, 20.0)
        for shard in (old, new):  # both forget it, as after an unknown outcome of a commit
            shard.partitions.lost(PartitionKey("shop", queue, 1, 0), NotOwner("For the test."))
        began = town.loop.time()
        asked = town.begin(Describe("shop", queue, 1, 0, 0))
        late = Describe("shop", queue, 1, 0, 5_000)
        await town.until(lambda: bool(new.partitions.loading))
        old.holders[late.opcode](late, HeldHere(town.loop, lambda: None, lambda _: None))
        assert not isinstance(await asked, Exception)
        assert town.loop.time() - began < 1.0

    in_town(main)


def test_a_shard_without_a_lease_takes_no_partition() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (old,) = town.of("a")
        old.lasts = False
        with pytest.raises(Unavailable, match="lease"):
            await town.ask(add(queue, b"1"))
        assert old.partitions.loader.loads == 0

    in_town(main)


def test_shared_offers_are_answered_and_named_again_at_the_next_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        members = [SetMember(queue, 1, 0, 1)]
        shared = OfferMany("shop", queue, 1, 0, 0, SESSION, "worker", 2, 1, members)
        waiting = town.begin(shared)
        await asyncio.sleep(0.1)
        town.states(a="draining")
        await town.until(waiting.done, QUICK_SECONDS)
        assert waiting.result() == OfferedMany([], known=False, urgency=10)
        again = town.begin(OfferMany("shop", queue, 1, 0, 0, SESSION, "worker", 2, 1, members))
        await town.ask(add(queue, b"1"))
        ((index, offered),) = (await again).gifts
        assert index == 0
        assert len(offered.tasks) == 1

    in_town(main)


def test_a_task_that_a_worker_took_at_the_parent_is_known_to_the_next_owner_of_the_child() -> None:
    async def main(town: Town) -> None:
        town.states(b="draining", c="draining")
        (first,) = town.of("a")
        await town.ask(Add("shop", "q", 1, 3, 0, 1, [b"1"]))
        offered = await town.ask(offer("q"))
        (given,) = offered.tasks
        assert given.partition == 3
        town.states(b="active", c="active", a="draining")
        await town.until(lambda: first.holds == [])
        waiting = [
            town.begin(Offer("shop", "q", 1, number, 0, 1, OTHER, "worker", 5))
            for number in range(4)
        ]
        await asyncio.sleep(5.0)
        assert not any(one.done() and one.result().tasks for one in waiting)
        end = End(given.sequence, given.attempt, given.proof, DONE, b"\xc3")
        done = Finish("shop", "q", 1, 3, 0, SESSION, [end])
        assert await town.ask(done) == Finished([])

    in_town(main, partitions=4, lease_seconds=60.0, scaling=Scaling(adaptive=False))


def test_no_permit_is_taken_without_a_lease() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(queue, b"1"))
        (old,) = town.of("a")
        old.lasts = False
        with pytest.raises(Unavailable, match="lease"):
            await town.ask(Allocate("shop", queue, 1, 0, 0, 1, GATEWAY, 1))
        assert old.partitions.left_to_hand_over() == 0

    in_town(main, queries=QuerySettings(concurrent=5))


@pytest.mark.parametrize("placement", ["wrap", "steady"])
@pytest.mark.parametrize("batch", ["0", "3", '{"old": 0, "new": 5, "start": 1, "end": 9e9}'])
def test_the_former_shard_of_a_partition_is_computed_without_the_former_view(
    placement: str, batch: str
) -> None:
    members = tuple(
        ClusterMember(
            id=f"{number:016x}",
            node="",
            host=f"10.0.0.{number}",
            port=4747,
            member_port=4746,
            shards=number + 1,
            shard_ports=(),
            state=MemberState.ACTIVE,
        )
        for number in range(1, 6)
    )

    def view(version: int, *alive: int) -> ClusterView:
        return ClusterView(
            cluster="c",
            version=version,
            members=tuple(members[one] for one in alive),
            spread_batch=batch,
            placement=placement,
        )

    old, new = ClusterHomes(view(1, 0, 1, 2, 3)), FormerHomes(view(2, 1, 2, 4))
    for number in range(200):
        address = ("shop", f"q{number // 10}", 1, number % 10)
        for now in (0.0, 1e9, 9e9):
            home = old.home(address, now)
            assert home.shard in new.shards(home.member, address)
