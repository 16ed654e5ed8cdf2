"""Slots that many partitions share: each is drawn once, by the most urgent, in turn."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as some

from maitred.matching.records import PRIORITIES, PartitionKey
from maitred.matching.shared_supplies import URGENCIES, SharedSupplies
from maitred.matching.slots import SharedOffer, SharedSupply

NOW = 100.0
TASK = PRIORITIES + 2


def key(number: int) -> PartitionKey:
    return PartitionKey("shop", f"queue-{number}", 1, 0)


class Line:
    """A partition with so many tasks, all of one urgency; a closed one cannot take any."""

    def __init__(
        self, supplies: SharedSupplies, number: int, tasks: int, urgency: int = TASK
    ) -> None:
        self.key = key(number)
        self.supplies = supplies
        self.there = supplies.at(self.key)
        self.tasks = tasks
        self.level = urgency
        self.closed = False
        self.got: list[SharedOffer] = []

    def urgency(self) -> int | None:
        return self.level if self.tasks else None

    def match_some(self, most: int, now: float) -> int:
        assert now == NOW
        query_end = 0
        while self.tasks and query_end < most and not self.closed:
            supply = self.supplies.first(self.there)
            if supply is None:
                break
            self.got.append(self.supplies.draw(supply, self.there))
            self.tasks -= 1
            query_end += 1
        return query_end


def named(
    supplies: SharedSupplies, numbers: range, session: bytes = b"w" * 16, number: int = 1
) -> SharedSupply:
    members = {key(one): index for index, one in enumerate(numbers)}
    supply = SharedSupply(session, "", "shop", number, members, [0] * len(members))
    supplies.name(supply)
    return supply


def offered(
    supplies: SharedSupplies, supply: SharedSupply, slots: int, until: float = NOW + 60
) -> SharedOffer:
    offer = SharedOffer(supply, None, slots, NOW, until)
    supplies.offer(offer, NOW)
    supplies.serve(supply, NOW)
    return offer


def test_a_hot_queue_gets_all_slots() -> None:
    supplies = SharedSupplies()
    lines = [Line(supplies, number, 0) for number in range(32)]
    supply = named(supplies, range(32))
    lines[7].tasks = 100
    supplies.note(lines[7])
    offer = offered(supplies, supply, 32)
    assert len(lines[7].got) == 32
    assert (offer.left, supply.free) == (0, 0)


def test_equally_urgent_queues_take_turns() -> None:
    supplies = SharedSupplies()
    lines = [Line(supplies, number, 1_000) for number in range(6)]
    supply = named(supplies, range(6))
    for line in lines:
        supplies.note(line)
    for _ in range(30):
        offered(supplies, supply, 2)
    assert [len(line.got) for line in lines] == [10] * 6


def test_many_more_hungry_queues_than_the_worker_serves_are_in_turn_as_well() -> None:
    supplies = SharedSupplies()
    lines = [Line(supplies, number, 1_000) for number in range(100)]
    supply = named(supplies, range(50, 54))
    for line in lines:
        supplies.note(line)
    for _ in range(40):
        offered(supplies, supply, 1)
    assert [len(line.got) for line in lines] == [0] * 50 + [10] * 4 + [0] * 46


def test_the_most_urgent_go_first() -> None:
    supplies = SharedSupplies()
    low = Line(supplies, 0, 10, PRIORITIES + 4)
    high = Line(supplies, 1, 3, PRIORITIES + 0)
    query = Line(supplies, 2, 2, PRIORITIES - 1)
    supply = named(supplies, range(3))
    for line in (low, high, query):
        supplies.note(line)
    offered(supplies, supply, 6)
    assert [len(line.got) for line in (query, high, low)] == [2, 3, 1]
    assert supplies.waiting(supply) == (PRIORITIES + 4, 1)


def test_one_that_cannot_take_a_slot_does_not_keep_it_from_others() -> None:
    supplies = SharedSupplies()
    closed = [Line(supplies, number, 5) for number in range(3)]
    open_ = Line(supplies, 3, 5)
    supply = named(supplies, range(4))
    for line in (*closed, open_):
        line.closed = line is not open_
        supplies.note(line)
    offered(supplies, supply, 2)
    assert len(open_.got) == 2


def test_workers_with_free_slots_take_turns() -> None:
    supplies = SharedSupplies()
    line = Line(supplies, 0, 0)
    workers = [named(supplies, range(2), bytes([one]) * 16) for one in range(3)]
    for worker in workers:
        offered(supplies, worker, 4)
    line.tasks = 6
    line.match_some(6, NOW)
    assert Counter(offer.supply for offer in line.got) == dict.fromkeys(workers, 2)


def test_a_slot_that_is_given_back_is_free_again_unless_its_offer_was_answered() -> None:
    supplies = SharedSupplies()
    line = Line(supplies, 0, 2)
    supply = named(supplies, range(1))
    supplies.note(line)
    offer = offered(supplies, supply, 2)
    supplies.give_back(offer)
    assert (supply.free, list(supplies.returned)) == (1, [supply])
    supplies.close(offer)
    supplies.give_back(offer)
    assert supply.free == 0


def test_a_set_that_is_forgotten_leaves_nothing_behind() -> None:
    told: list[SharedOffer] = []
    supplies = SharedSupplies(told.append)
    Line(supplies, 0, 0)
    supply = named(supplies, range(3))
    offer = offered(supplies, supply, 2)
    supplies.forget_at(key(0))
    assert told == [offer]
    assert not supplies.sets
    assert not supplies._at
    assert not supplies._free
    assert supplies.find(supply.holder, "shop", 1) is None


def test_a_set_that_is_named_again_replaces_the_first() -> None:
    told: list[SharedOffer] = []
    supplies = SharedSupplies(told.append)
    offer = offered(supplies, named(supplies, range(3)), 2)
    second = named(supplies, range(2))
    assert told == [offer]
    assert supplies.find(second.holder, "shop", 1) is second
    assert set(supplies._at) == {key(0), key(1)}


def test_the_sets_that_were_used_longest_ago_make_room() -> None:
    supplies = SharedSupplies(places_max=10)
    first, second, third = (named(supplies, range(4), bytes([one]) * 16) for one in range(3))
    assert list(supplies.sets.values()) == [second, third]
    offered(supplies, second, 1)
    named(supplies, range(4), b"z" * 16)
    assert third.key not in supplies.sets
    assert second.key in supplies.sets
    assert first.key not in supplies.sets


def test_unused_sets_are_forgotten_and_offers_end() -> None:
    supplies = SharedSupplies()
    supply, other = (named(supplies, range(2), bytes([one]) * 16) for one in range(2))
    offer = offered(supplies, supply, 1, until=NOW + 10)
    assert supplies.next_due() == NOW + 10
    assert supplies.due(NOW + 9) == []
    assert supplies.due(NOW + 10) == [offer]
    supplies.forget_unused(NOW + 50)
    assert list(supplies.sets.values()) == [supply]
    assert other.key not in supplies.sets
    supplies.close(offer)
    supplies.forget_unused(NOW + 50)
    assert not supplies.sets


@settings(max_examples=200)
@given(
    some.lists(some.tuples(some.integers(0, 9), some.integers(0, URGENCIES - 1)), max_size=40),
    some.lists(some.tuples(some.integers(0, 2), some.integers(1, 5)), max_size=12),
)
def test_every_slot_is_drawn_once_and_none_is_idle_while_somebody_waits(
    tasks: list[tuple[int, int]], offers: list[tuple[int, int]]
) -> None:
    supplies = SharedSupplies()
    lines = [Line(supplies, number, 0) for number in range(10)]
    workers = [
        named(supplies, numbers, bytes([one]) * 16)
        for one, numbers in enumerate((range(10), range(5), range(3, 10)))
    ]
    made: list[tuple[SharedOffer, int]] = []
    for number, urgency in tasks:
        lines[number].tasks += 1
        lines[number].level = urgency
        supplies.note(lines[number])
    for at, slots in offers:
        made.append((offered(supplies, workers[at], slots), slots))
    drawn = Counter(offer for line in lines for offer in line.got)
    for offer, slots in made:
        assert drawn[offer] + offer.left == slots
    assert sum(drawn.values()) + sum(line.tasks for line in lines) == len(tasks)
    for worker in workers:
        if worker.free:
            assert not any(
                lines[number].tasks for number in range(10) if key(number) in worker.members
            )
