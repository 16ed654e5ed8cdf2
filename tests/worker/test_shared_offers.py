"""Where a worker with many queues has its slots on offer, and how they are divided."""

from __future__ import annotations

import asyncio
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred.client.queues import QueueView
from maitred.errors import Cancelled, MaitredError, Overloaded, UnknownRequest
from maitred.protocol.refusals import encode_error
from maitred.protocol.shared_offers import OfferedMany, OfferMany
from maitred.protocol.tasks import Counts, Given, Offered
from maitred.routing.names import QueueId
from maitred.settings import ClientSettings, WorkerSettings
from maitred.worker import shared_offers
from maitred.worker.context import WorkerContext
from maitred.worker.shared_offers import PARTITIONS_SHARED, SharedOffers
from tests.node.in_process import RecordedLog, in_a_loop, until

if TYPE_CHECKING:
    from collections.abc import Coroutine

LONG = 3_600.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a moment is for the worker, it is not over while a busy machine runs a test."""
    for name in ("PRESSED_SECONDS", "FULL_SECONDS", "HASTY_SECONDS"):
        monkeypatch.setattr(shared_offers, name, LONG)


TASK = Given(0, 7, 1, bytes(16), 0.0, b"payload")


class Answering:
    """An offer that waits at a node."""

    def __init__(self, message: OfferMany, connection: object) -> None:
        self.connection = connection
        self.message = message
        self.future: asyncio.Future[OfferedMany] = asyncio.get_running_loop().create_future()
        self.taken_back = False

    async def answer(self) -> OfferedMany:
        return await self.future

    def take_back(self) -> None:
        self.taken_back = True
        if not self.future.done():
            self.future.set_exception(Cancelled("taken back"))

    def give(self, *gifts: tuple[int, Offered], **more: Any) -> None:  # noqa: ANN401
        self.future.set_result(OfferedMany(list(gifts), **more))


class ServedQueue:
    """What matters of a queue here."""

    def __init__(self, name: str, view: QueueView) -> None:
        self.name = name
        self.view = view
        self.posts: list[Any] = []
        self.grouped = 0
        self.held_back = False


class House:
    """A worker with these queues, each on the shard of its number; and a node that is not there."""

    def __init__(self, *shards: int, slots: int = 8) -> None:
        self.free = slots
        self.said: list[Answering] = []
        self.got: list[tuple[str, int]] = []
        self.failed: list[str] = []
        self.rests: list[float] = []
        self.lost = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.shards = {f"q{number}": shard for number, shard in enumerate(shards)}
        self.served = [
            ServedQueue(f"n/{queue}", QueueView(QueueId("n", queue, 1), "weighted", Random(1)))
            for queue in self.shards
        ]
        self.settings = ClientSettings()
        context = WorkerContext(
            client=cast("Any", self),
            settings=WorkerSettings(slots=slots),
            name="ant",
            secret=bytes(32),
            random=Random(1),
            log=RecordedLog(),
        )
        context.outage = cast("Any", self)
        self.offering = SharedOffers(
            context,
            cast("Any", self.served),
            free=lambda: self.free,
            take=self._take,
            freed=self.supply,
            spawn=self._spawn,
            rest=self._rest,
            connection_lost=self._connection_lost,
        )
        self._soon = False
        self._ended = False

    # The client

    clustered = False
    link = object()
    """The connection over which all answers come."""

    def place(self, partition: tuple[str, str, int, int]) -> tuple[str, int, float]:
        return "node", self.shards[partition[1]], inf

    def wall_clock(self) -> float:
        return 0.0

    def hold(self, message: OfferMany, _seconds: float) -> Answering:
        self.said.append(Answering(message, self.link))
        return self.said[-1]

    # The worker

    def worked(self, _queue: str, _partition: int) -> None: ...

    def _take(self, served: Any, offered: Offered, link: object, _now: float) -> None:  # noqa: ANN401
        assert link is self.link
        self.got.append((served.name, len(offered.tasks)))
        self.free -= len(offered.tasks)

    def supply(self) -> None:
        if not self._soon and not self._ended:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._supply)

    def _supply(self) -> None:
        self._soon = False
        if not self._ended:
            self.offering.supply(self.free)

    def _spawn(self, offering: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(cast("Any", offering))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _rest(self, seconds: float, _since: int) -> None:
        self.rests.append(seconds)

    def _connection_lost(self) -> None:
        self.lost += 1

    async def turns(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def open(self) -> dict[int, int]:
        """Slots that are on offer, by shard."""
        found: dict[int, int] = {}
        for one in self.said:
            if not one.future.done():
                shard = self.shards[one.message.queue]
                found[shard] = found.get(shard, 0) + one.message.slots
        return found

    def held(self, shard: int) -> Answering:
        (found,) = [
            one
            for one in self.said
            if not one.future.done() and self.shards[one.message.queue] == shard
        ]
        return found

    async def end(self) -> None:
        self._ended = True
        self.offering.stop()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def tasks(count: int) -> Offered:
    return Offered([TASK] * count, 10.0, 0, 0.0)


@in_a_loop
async def test_all_slots_are_on_offer_at_every_shard_and_each_set_is_named_once() -> None:
    house = House(0, 0, 1, 0, 1)
    house.supply()
    await house.turns()
    assert house.open() == {0: 8, 1: 8}
    names = [[member.queue for member in one.message.members] for one in house.said]
    assert names == [["q0", "q1", "q3"], ["q2", "q4"]]
    house.held(0).give((2, tasks(3)))
    await house.turns()
    assert house.got == [("n/q3", 3)]
    assert house.open() == {0: 5, 1: 8}
    assert house.held(0).message.members == []
    assert house.held(0).message.number == house.said[0].message.number
    await house.end()


@in_a_loop
async def test_slots_are_divided_among_shards_where_work_waits() -> None:
    house = House(0, 1, 2, slots=8)
    house.supply()
    await house.turns()
    house.held(0).give((0, tasks(4)), urgency=7, hungry=3)
    await house.turns()
    assert house.open() == {0: 4, 1: 8, 2: 8}  # only one is known to have work
    house.held(1).give((0, tasks(4)), urgency=7, hungry=1)
    await house.turns()
    assert house.free == 0
    house.held(0).give(urgency=7, hungry=3)
    house.free = 8
    house.offering.supply(8)
    await house.turns()
    assert house.open() == {0: 6, 1: 2, 2: 8}
    await house.end()


@in_a_loop
async def test_one_slot_goes_round_among_shards_where_work_waits() -> None:
    house = House(0, 1, slots=2)
    house.supply()
    await house.turns()
    turns = []
    for shard in (0, 1):
        house.held(shard).give((0, tasks(1)), urgency=7, hungry=1)
    await house.turns()
    house.free = 1
    house.supply()
    await house.turns()
    for _ in range(6):
        (shard,) = house.open()
        turns.append(shard)
        house.held(shard).give((0, tasks(1)), urgency=7, hungry=1)
        await house.turns()
        house.free = 1
        house.supply()
        await house.turns()
    assert turns in ([0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0])
    await house.end()


@in_a_loop
async def test_the_shard_with_the_most_urgent_work_gets_the_slots() -> None:
    house = House(0, 1, slots=4)
    house.supply()
    await house.turns()
    house.held(0).give((0, tasks(2)), urgency=7, hungry=5)
    house.held(1).give((0, tasks(2)), urgency=2, hungry=1)
    await house.turns()
    house.free = 4
    house.supply()
    await house.turns()
    assert house.open() == {1: 4}
    await house.end()


@in_a_loop
async def test_a_shard_that_turns_out_to_have_no_work_does_not_keep_the_slots() -> None:
    house = House(0, 1, slots=4)
    house.supply()
    await house.turns()
    house.held(0).give((0, tasks(2)), urgency=7, hungry=1)
    house.held(1).give((0, tasks(2)), urgency=2, hungry=1)
    await house.turns()
    house.free = 4
    house.supply()
    await house.turns()
    assert house.open() == {1: 4}
    for post in house.offering.posts:
        post.pressed_until = -inf
    house.supply()
    await house.turns()
    assert house.open() == {0: 4, 1: 4}
    await house.end()


@in_a_loop
async def test_offers_are_taken_back_when_no_slot_has_been_free_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(0, 1, slots=2)
    house.supply()
    await house.turns()
    monkeypatch.setattr(shared_offers, "FULL_SECONDS", 0.001)
    house.held(0).give((0, tasks(2)))
    await until(lambda: not house.open())
    assert house.said[1].taken_back
    house.free = 1
    house.supply()
    await house.turns()
    assert house.open() == {0: 1, 1: 1}
    await house.end()


@in_a_loop
async def test_a_set_that_was_forgotten_is_named_again() -> None:
    house = House(0, 0)
    house.supply()
    await house.turns()
    house.held(0).give((0, tasks(1)))
    await house.turns()
    assert not house.held(0).message.members
    house.held(0).give(known=False)
    await house.turns()
    assert len(house.held(0).message.members) == 2
    house.held(0).give(known=False)  # a node that cannot keep it is not asked in haste
    await house.turns()
    assert len(house.rests) == 1
    await house.end()


@in_a_loop
async def test_partitions_that_live_elsewhere_move_to_another_set() -> None:
    house = House(0, 0)
    house.supply()
    await house.turns()
    house.held(0).give(elsewhere=[(1, 5)])
    await house.turns()
    members = [[one.queue for one in said.message.members] for said in house.said[1:]]
    assert members == [["q0"], ["q1"]]
    await house.end()


@in_a_loop
async def test_new_partitions_are_named_and_the_old_set_is_left() -> None:
    house = House(0, 0)
    house.supply()
    await house.turns()
    first = house.held(0)
    house.served[1].view.learn(Counts(3, 3, 1))
    house.offering.changed()
    await house.turns()
    assert first.taken_back
    members = [(one.queue, one.partition) for one in house.held(0).message.members]
    assert members == [("q0", 0), ("q1", 0), ("q1", 1), ("q1", 2)]
    assert house.held(0).message.number != first.message.number
    house.served[1].view.learn(Counts(200, 200, 2))
    house.offering.changed()
    await house.turns()
    assert len(house.held(0).message.members) == 1 + PARTITIONS_SHARED
    await house.end()


@in_a_loop
async def test_a_queue_that_is_held_back_is_left_out() -> None:
    house = House(0, 0, 0)
    house.served[1].held_back = True
    house.supply()
    await house.turns()
    assert [one.queue for one in house.held(0).message.members] == ["q0", "q2"]
    assert [bool(one.posts) for one in house.served] == [True, False, True]
    await house.end()


@in_a_loop
async def test_an_older_node_is_not_asked_again() -> None:
    house = House(0, 0)
    house.supply()
    await house.turns()
    house.held(0).future.set_exception(UnknownRequest("There is no request 0x75."))
    await house.turns()
    assert not house.offering.available
    await house.end()


@in_a_loop
async def test_a_member_that_is_refused_is_said_and_named_again_later() -> None:
    house = House(0, 0)
    seen: list[tuple[str, int, str]] = []

    def failed(queue: str, partition: int, problem: MaitredError) -> float:
        seen.append((queue, partition, problem.code))
        return 0.01

    house.failed = cast("Any", failed)
    house.supply()
    await house.turns()
    house.held(0).give(refused=[(1, encode_error(Overloaded("Too many.")))])
    await house.turns()
    assert seen == [("n/q1", 0, "overloaded")]
    await until(lambda: len([one for one in house.said if one.message.members]) == 2)
    await house.end()


@in_a_loop
async def test_partitions_that_moved_to_another_shard_are_offered_slots_there_at_once() -> None:
    house = House(0, 0, 1, slots=4)
    house.supply()
    await house.turns()
    first = {one.message.number: one for one in house.said}
    assert len(first) == 2
    house.shards["q1"] = 1
    house.offering.rerouted()
    # The old long polls are taken back before the worker's next turn.
    assert all(one.taken_back for one in first.values())
    await house.turns()
    sets = [[member.queue for member in one.message.members] for one in house.said[2:]]
    assert sets == [["q0"], ["q1", "q2"]]
    await house.end()


@in_a_loop
async def test_in_a_cluster_the_view_decides_and_not_the_shard_that_says_elsewhere() -> None:
    house = House(0, 0)
    house.clustered = True
    house.supply()
    await house.turns()
    house.held(0).give(elsewhere=[(0, 17)])
    await house.turns()
    assert {post.place[1] for post in house.offering.posts} == {0}
    assert len(house.rests) == 1, "it is not asked in haste"
    await house.end()
