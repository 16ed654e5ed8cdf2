from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from maitred.balancing import FewestPolls, Poll
from maitred.routing.names import QueueId

QUEUE = QueueId("kitchen", "orders", 1)


class StartAt:
    """A source whose every start is given."""

    def __init__(self, start: int) -> None:
        self.start = start

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int, /) -> int:
        return self.start % stop


def hold(polls: FewestPolls, partitions: int, count: int) -> list[Poll]:
    return [polls.read(QUEUE, partitions, 0.0) for _ in range(count)]


@given(partitions=some.integers(1, 20), count=some.integers(0, 100), seed=some.integers(0, 2**32))
def test_polls_are_spread_as_evenly_as_can_be(partitions: int, count: int, seed: int) -> None:
    held = hold(FewestPolls(random.Random(seed)), partitions, count)
    counts = Counter(poll.partition for poll in held)
    assert {counts[partition] for partition in range(partitions)} <= {
        count // partitions,
        -(-count // partitions),
    }


def test_ties_go_to_the_first_from_the_start() -> None:
    source = StartAt(2)
    polls = FewestPolls(source)
    held = hold(polls, 4, 4)
    assert [poll.partition for poll in held] == [2, 3, 0, 1]
    source.start = 1
    assert polls.read(QUEUE, 4, 0.0).partition == 1


def test_a_strictly_smaller_count_wins() -> None:
    polls = FewestPolls(StartAt(0))
    held = hold(polls, 3, 6)
    held[2].done(0.0)  # the first poll of partition 2
    assert polls.read(QUEUE, 3, 0.0).partition == 2


def test_counts_survive_a_smaller_number() -> None:
    polls = FewestPolls(StartAt(0))
    held = hold(polls, 4, 4)
    held += hold(polls, 2, 2)
    assert [polls.outstanding(QUEUE, partition) for partition in range(4)] == [2, 2, 1, 1]
    assert polls.read(QUEUE, 4, 0.0).partition == 2


def test_a_queue_without_polls_is_forgotten() -> None:
    polls = FewestPolls(random.Random(1))
    held = hold(polls, 4, 9)
    assert polls.entries == 4
    for poll in held:
        poll.done(0.0)
    assert polls.entries == 0


def test_writes_are_spread_evenly() -> None:
    polls = FewestPolls(random.Random(1))
    counts = Counter(polls.write(QUEUE, 4, 0.0) for _ in range(4_000))
    assert all(abs(counts[partition] - 1_000) < 5 * 27.4 for partition in range(4))


class Polling(RuleBasedStateMachine):
    """The counts are those of the polls that are held, whatever happened before."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = FewestPolls(random.Random(0))
        self.held: list[Poll] = []

    @rule(partitions=some.integers(1, 6), queue=some.integers(0, 2))
    def read(self, partitions: int, queue: int) -> None:
        name = QUEUE._replace(type=queue)
        before = [self.polls.outstanding(name, partition) for partition in range(partitions)]
        poll = self.polls.read(name, partitions, 0.0)
        assert before[poll.partition] == min(before)
        self.held.append(poll)

    @rule(number=some.integers(0, 50), again=some.booleans())
    def end(self, number: int, again: bool) -> None:
        if self.held:
            poll = self.held.pop(number % len(self.held))
            poll.done(0.0)
            if again:
                poll.done(0.0)

    @rule(number=some.integers(0, 50))
    def lose(self, number: int) -> None:
        if self.held:
            del self.held[number % len(self.held)]

    @invariant()
    def counted(self) -> None:
        expected = Counter((poll.queue, poll.partition) for poll in self.held)
        for (queue, partition), count in expected.items():
            assert self.polls.outstanding(queue, partition) == count
        assert self.polls.entries == len(expected)


TestPolling = Polling.TestCase
