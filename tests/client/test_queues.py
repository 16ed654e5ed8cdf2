"""Which partition a client goes to: by its handler's selection, and by what answers tell."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from maitred.balancing import BACKLOG_MAX
from maitred.client.queues import QueueView
from maitred.errors import ProtocolViolation
from maitred.protocol.tasks import Counts, Offered
from maitred.routing.names import QueueId

QUEUE = QueueId("shop", "mails", 1)
PARTITIONS = 4
BUSY = 2
NOW = 100.0


def view(selection: str) -> QueueView:
    """Of a queue with some partitions; the same draw of lots for all."""
    made = QueueView(QUEUE, selection, Random(7))
    made.learn(Counts(PARTITIONS, PARTITIONS, 1))
    return made


def in_turn(picked: list[int]) -> bool:
    """Whether each is the one after the one before."""
    return all((a + 1) % PARTITIONS == b for a, b in pairwise(picked))


def test_the_selection_is_the_handlers() -> None:
    turns, lots = view("round-robin"), view("random")
    assert in_turn([turns.to_read(NOW).partition for _ in range(20)])
    assert in_turn([turns.to_write(NOW) for _ in range(20)])
    for picked in (
        [lots.to_read(NOW).partition for _ in range(20)],
        [lots.to_write(NOW) for _ in range(20)],
    ):
        assert not in_turn(picked)
        assert set(picked) == set(range(PARTITIONS))
    # Where offers that nobody has answered yet count, no partition gets a second before all have
    # one, and who has been answered is next.
    fewest = view("fewest-polls")
    held = [fewest.to_read(NOW) for _ in range(PARTITIONS)]
    assert {poll.partition for poll in held} == set(range(PARTITIONS))
    fewest.heard(held[1], Offered([], 10.0, 0, 0.0), NOW)
    assert fewest.to_read(NOW).partition == held[1].partition


def offers(queue: QueueView, count: int, backlog: int) -> Counter[int]:
    """Where so many go, if one partition always answers with this backlog, the others with none."""
    went: Counter[int] = Counter()
    for _ in range(count):
        poll = queue.to_read(NOW)
        went[poll.partition] += 1
        queue.heard(poll, Offered([], 10.0, backlog if poll.partition == BUSY else 0, 0.0), NOW)
    return went


def test_offers_follow_the_backlog_that_answers_tell() -> None:
    queue = view("weighted")
    offers(queue, PARTITIONS, 10_000)  # all have answered once
    assert offers(queue, 100, 10_000)[BUSY] > 80
    # The others are still asked now and then, and when the backlog is gone they are asked as often.
    offers(queue, 20, 0)
    assert set(offers(queue, 100, 0).values()) == {25}


def test_an_impossible_answer_still_gives_its_tasks() -> None:
    queue = view("weighted")
    before = queue.counts
    for answer in (
        Offered([], 10.0, BACKLOG_MAX + 1, 0.0),
        Offered([], 10.0, 0, -1.0),
        Offered([], 10.0, 0, 0.0, Counts(1, 2, 9)),
    ):
        queue.heard(queue.to_read(NOW), answer, NOW)
        assert queue.counts == before
    with pytest.raises(ProtocolViolation):
        queue.learn(Counts(0, 0, 9))
    queue.heard(queue.to_read(NOW), Offered([], 10.0, 0, 0.0, Counts(1, 1, 0)), NOW)
    assert queue.counts == before, "an older version"
    queue.heard(queue.to_read(NOW), Offered([], 10.0, 0, 0.0, Counts(6, 5, 9)), NOW)
    assert (queue.counts.read, queue.counts.write) == (6, 5)
