from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from maitred.balancing import BacklogHint, SelectorSettings, Weighted
from maitred.balancing.weighted import proportional, weight_of
from maitred.routing.names import QueueId

QUEUE = QueueId("kitchen", "orders", 1)


def report(weighted: Weighted, backlogs: list[int], now: float = 0.0) -> None:
    """Poll until every partition has answered, each with its backlog."""
    missing = set(range(len(backlogs)))
    while missing:
        poll = weighted.read(QUEUE, len(backlogs), now)
        poll.done(now, BacklogHint(backlogs[poll.partition]))
        missing.discard(poll.partition)


def picks(weighted: Weighted, partitions: int, count: int, now: float = 0.0) -> list[int]:
    return [weighted.read(QUEUE, partitions, now).partition for _ in range(count)]


@pytest.mark.parametrize(
    ("backlog", "rate", "weight"),
    [(0, 0.0, 0), (7, 0.01, 7), (7, 0.011, 8), (0, 100.0, 1), (5, 250.0, 8), (2**63 - 1, 0, 2**63)],
)
def test_the_weight_is_backlog_and_tasks_on_their_way(
    backlog: int, rate: float, weight: int
) -> None:
    assert weight_of(BacklogHint(backlog, rate)) == weight


def test_writes_take_turns_whatever_was_reported() -> None:
    weighted = Weighted(random.Random(1))
    report(weighted, [0, 0, 5_000])
    assert [weighted.write(QUEUE, 3, 0.0) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_it_takes_turns_until_every_partition_has_reported() -> None:
    weighted = Weighted(random.Random(1))
    for turn in range(30):
        poll = weighted.read(QUEUE, 3, 0.0)
        assert poll.partition == turn % 3
        if poll.partition != 2:
            poll.done(0.0, BacklogHint(9_999))


def test_it_takes_turns_unless_a_weight_is_above_the_threshold() -> None:
    weighted = Weighted(random.Random(1))
    report(weighted, [0, 100, 0])
    assert picks(weighted, 3, 6) == [0, 1, 2, 0, 1, 2]


def test_reads_follow_the_weights() -> None:
    weighted = Weighted(random.Random(1))
    report(weighted, [100, 300, 600, 0])
    counts = Counter(picks(weighted, 4, 10_000))
    # Nine reads in ten by weight, one in ten in turn.
    expected = [900 + 250, 2_700 + 250, 5_400 + 250, 0 + 250]
    for partition, count in enumerate(expected):
        assert abs(counts[partition] - count) < 5 * math.sqrt(10_000 * 0.25)
    assert counts[3] == 250


@given(
    backlogs=some.lists(some.integers(0, 2**63 - 1), min_size=1, max_size=12),
    seed=some.integers(0, 2**32),
    before=some.integers(0, 25),
    every=some.integers(1, 12),
)
def test_no_partition_starves(backlogs: list[int], seed: int, before: int, every: int) -> None:
    weighted = Weighted(random.Random(seed), SelectorSettings(round_robin_every=every))
    partitions = len(backlogs)
    report(weighted, backlogs)
    picks(weighted, partitions, before)
    assert set(picks(weighted, partitions, every * partitions)) == set(range(partitions))


def test_weights_fade() -> None:
    weighted = Weighted(random.Random(1), SelectorSettings(weight_half_life_seconds=10))
    report(weighted, [0, 0, 1_000], now=0.0)
    # 1,000 halves three times to 125, which still counts, and a fourth time to 62.5: then turns.
    assert Counter(picks(weighted, 3, 100, now=30.0))[2] > 80
    assert Counter(picks(weighted, 3, 99, now=40.0)) == Counter({0: 33, 1: 33, 2: 33})


def test_a_clock_set_back_changes_nothing() -> None:
    weighted = Weighted(random.Random(1))
    report(weighted, [200, 200, 200], now=1_000.0)
    counts = Counter(picks(weighted, 3, 3_000, now=0.0))
    assert all(abs(count - 1_000) < 200 for count in counts.values())


def test_reports_survive_a_smaller_number_and_fade_meanwhile() -> None:
    weighted = Weighted(random.Random(1), SelectorSettings(weight_half_life_seconds=10))
    report(weighted, [0, 0, 0, 8_000], now=0.0)
    assert set(picks(weighted, 2, 50, now=1.0)) == {0, 1}
    assert Counter(picks(weighted, 4, 100, now=2.0))[3] > 80
    assert Counter(picks(weighted, 4, 100, now=90.0))[3] == 25


def test_a_new_partition_has_to_report_first() -> None:
    weighted = Weighted(random.Random(1))
    report(weighted, [0, 8_000])
    assert Counter(picks(weighted, 3, 300)) == Counter({0: 100, 1: 100, 2: 100})


def test_an_enormous_claim_does_not_shut_out_the_others() -> None:
    weighted = Weighted(random.Random(1))
    report(weighted, [2**63 - 1, 0, 0])
    counts = Counter(picks(weighted, 3, 300))
    assert counts[1] >= 10
    assert counts[2] >= 10


def test_a_report_of_a_forgotten_queue_is_dropped() -> None:
    weighted = Weighted(random.Random(1), SelectorSettings(queues_max=1))
    poll = weighted.read(QUEUE, 1, 0.0)
    weighted.read(QUEUE._replace(queue="other"), 1, 0.0)
    poll.done(0.0, BacklogHint(5_000))
    assert weighted.entries == 1


@given(
    weights=some.lists(some.floats(0, 1e18), min_size=1, max_size=10).filter(any),
    seed=some.integers(0, 2**32),
)
def test_only_what_weighs_something_is_drawn(weights: list[float], seed: int) -> None:
    assert weights[proportional(weights, random.Random(seed))] > 0


class AlmostOne:
    """The largest number that a source may give, where rounding would go beyond the end."""

    def random(self) -> float:
        return math.nextafter(1.0, 0.0)

    def randrange(self, stop: int, /) -> int:
        return stop - 1


def test_rounding_never_leads_beyond_the_end() -> None:
    assert proportional([0.1] * 10 + [0.0], AlmostOne()) < 10
    assert proportional([1.0, 0.0], AlmostOne()) == 0


def test_reports_of_partitions_that_are_no_more_are_forgotten_in_the_end() -> None:
    settings = SelectorSettings(weight_half_life_seconds=10)
    weighted = Weighted(random.Random(1), settings)
    report(weighted, [50] * 2_000, now=0.0)
    assert weighted.entries >= 2_000
    report(weighted, [50], now=1_000.0)
    picks(weighted, 1, 20, now=1_000.0)
    assert weighted.entries < 10


def test_a_clock_that_was_set_back_does_not_stop_the_fading() -> None:
    weighted = Weighted(random.Random(1), SelectorSettings(weight_half_life_seconds=10))
    report(weighted, [0, 0, 0, 8_000], now=1e6)
    assert Counter(picks(weighted, 4, 100, now=0.0))[3] > 80
    assert Counter(picks(weighted, 4, 100, now=200.0))[3] == 25
