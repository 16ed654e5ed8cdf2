"""How many partitions a queue should have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.scaler import Scaler
from maitred.routing.counts import PartitionCounts
from maitred.settings import Scaling

SETTINGS = Scaling(tasks_per_second=100.0)


class Queue:
    """Counts that follow the scaler, with partitions that drain when they are told."""

    def __init__(self, partitions: int, settings: Scaling = SETTINGS) -> None:
        self.scaler = Scaler()
        self.settings = settings
        self.counts = PartitionCounts(partitions, partitions, 1)
        self.history = [(partitions, partitions)]
        self.now = 0.0

    def run(self, rate: float, seconds: float, *, drains: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += self.settings.look_seconds
            drained = dict.fromkeys(
                range(self.counts.write, self.counts.read), self.counts.version if drains else 0
            )
            wanted = self.scaler.wanted(self.counts, rate, drained, self.settings, self.now)
            if wanted is not None:
                read, write = wanted
                # Refuses what is not safe.
                self.counts = self.counts.changed(read=read, write=write, drained=drained)
                self.history.append(wanted)


@given(
    load=st.floats(0.0, 10.0),
    more=st.integers(-2, 3),
    each=st.sampled_from([1.0, 3.3, 5_000.0]),
    share=st.sampled_from([0.1, 0.5, 0.75, 0.9, 0.99]),
)
def test_a_constant_load_never_makes_it_swing(
    load: float, more: int, each: float, share: float
) -> None:
    rate = load * each
    queue = Queue(max(1, int(load) + more), Scaling(tasks_per_second=each, down_share=share))
    queue.run(rate, 3_000.0)
    writes = [write for _, write in queue.history]
    assert writes in (sorted(writes), sorted(writes, reverse=True))
    settled = len(queue.history)
    queue.run(rate, 3_000.0)
    assert len(queue.history) == settled
    assert queue.counts.read == queue.counts.write


@given(rates=st.lists(st.floats(0.0, 20_000.0), max_size=30), partitions=st.integers(1, 64))
def test_whatever_the_load_does_every_change_is_safe(rates: list[float], partitions: int) -> None:
    queue = Queue(partitions)
    for number, rate in enumerate(rates):
        queue.run(rate, 150.0, drains=number % 2 == 0)
        assert 1 <= queue.counts.write <= queue.counts.read <= 64


def test_growing_changes_both_counts_at_once() -> None:
    queue = Queue(1)
    queue.run(350.0, SETTINGS.up_after_seconds)
    assert queue.history == [(1, 1)]
    queue.run(350.0, 2 * SETTINGS.look_seconds)
    assert queue.history == [(1, 1), (4, 4)]


def test_a_burst_changes_nothing() -> None:
    queue = Queue(2)
    for _ in range(20):
        queue.run(1_000.0, SETTINGS.up_after_seconds - SETTINGS.look_seconds)
        queue.run(150.0, SETTINGS.look_seconds)
    assert queue.history == [(2, 2)]


def test_shrinking_lowers_write_first_and_read_when_they_are_drained() -> None:
    queue = Queue(4)
    queue.run(10.0, 10 * SETTINGS.down_after_seconds, drains=False)
    assert queue.history == [(4, 4), (4, 1)]
    queue.run(10.0, SETTINGS.look_seconds)
    assert queue.history == [(4, 4), (4, 1), (1, 1)]


def test_a_confirmation_of_another_version_does_not_count() -> None:
    scaler = Scaler()
    counts = PartitionCounts(3, 1, 7)
    assert scaler.wanted(counts, 10.0, {1: 7, 2: 7}, SETTINGS, 0.0) is None  # too early
    now = SETTINGS.down_after_seconds
    assert scaler.wanted(counts, 10.0, {1: 7, 2: 6}, SETTINGS, now) is None
    assert scaler.wanted(counts, 10.0, {1: 6, 2: 7}, SETTINGS, now) == (2, 1)
    assert scaler.wanted(counts, 10.0, {1: 7, 2: 7}, SETTINGS, now) == (1, 1)


def test_growing_again_while_it_shrinks_keeps_what_is_still_read() -> None:
    queue = Queue(8)
    queue.run(10.0, 500.0, drains=False)
    assert queue.counts.write == 1
    queue.run(350.0, 200.0, drains=False)
    assert (queue.counts.read, queue.counts.write) == (8, 4)


def test_it_stays_within_the_most() -> None:
    queue = Queue(1, Scaling(tasks_per_second=1.0, partitions_max=5))
    queue.run(1_000.0, 500.0)
    assert queue.history == [(1, 1), (5, 5)]


def test_it_leaves_alone_what_is_not_adaptive() -> None:
    queue = Queue(3, Scaling(tasks_per_second=100.0, adaptive=False))
    queue.run(10_000.0, 500.0)
    queue.run(0.0, 500.0)
    assert queue.history == [(3, 3)]
