from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from maitred.balancing import RoundRobin, SelectorSettings
from maitred.routing.names import QueueId

QUEUE = QueueId("kitchen", "orders", 1)


def queues(count: int) -> list[QueueId]:
    return [QueueId("kitchen", f"orders-{number}", 1) for number in range(count)]


def test_it_starts_at_the_root_and_takes_turns() -> None:
    robin = RoundRobin(random.Random(1))
    assert [robin.write(QUEUE, 3, 0.0) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_reads_and_writes_have_their_own_turn() -> None:
    robin = RoundRobin(random.Random(1))
    assert [robin.write(QUEUE, 3, 0.0) for _ in range(2)] == [0, 1]
    assert robin.read(QUEUE, 3, 0.0).partition == 0
    assert robin.write(QUEUE, 3, 0.0) == 2


def test_queues_differ_by_namespace_name_and_type() -> None:
    robin = RoundRobin(random.Random(1))
    for queue in (QUEUE, QUEUE._replace(namespace="bar"), QUEUE._replace(type=0)):
        assert robin.write(queue, 3, 0.0) == 0


@given(partitions=some.integers(1, 40), rounds=some.integers(1, 5), before=some.integers(0, 50))
def test_whole_rounds_are_exactly_fair(partitions: int, rounds: int, before: int) -> None:
    robin = RoundRobin(random.Random(1))
    for _ in range(before):
        robin.write(QUEUE, partitions, 0.0)
    counts = Counter(robin.write(QUEUE, partitions, 0.0) for _ in range(partitions * rounds))
    assert set(counts.values()) == {rounds}


@given(changes=some.lists(some.integers(1, 20), min_size=1, max_size=8))
def test_it_is_fair_at_once_after_the_number_changed(changes: list[int]) -> None:
    robin = RoundRobin(random.Random(1))
    for partitions in changes:
        counts = Counter(robin.write(QUEUE, partitions, 0.0) for _ in range(partitions))
        assert counts == Counter(range(partitions))


def test_more_queues_than_it_remembers_do_not_all_start_at_the_root() -> None:
    robin = RoundRobin(random.Random(1), SelectorSettings(queues_max=10))
    names = queues(11)  # in turn, so that every queue is forgotten before it comes again
    for queue in names:
        robin.write(queue, 4, 0.0)
    counts = Counter(robin.write(queue, 4, 0.0) for _ in range(400) for queue in names)
    # 4,400 picks by chance: 1,100 each, standard deviation 28.7.
    assert all(abs(counts[partition] - 1_100) < 5 * 28.7 for partition in range(4))


def test_a_queue_in_use_is_not_forgotten() -> None:
    robin = RoundRobin(random.Random(1), SelectorSettings(queues_max=2))
    picks = []
    for queue in queues(100):
        robin.write(queue, 4, 0.0)
        picks.append(robin.write(QUEUE, 4, 0.0))
    assert picks == [turn % 4 for turn in range(100)]


@given(used=some.lists(some.integers(0, 9), max_size=60), queues_max=some.integers(1, 5))
def test_it_never_remembers_more_than_it_may(used: list[int], queues_max: int) -> None:
    robin = RoundRobin(random.Random(1), SelectorSettings(queues_max=queues_max))
    names = queues(10)
    for number in used:
        robin.write(names[number], 3, 0.0)
        robin.read(names[number], 3, 0.0)
        assert robin.entries <= 2 * queues_max
