"""The meters of a shard's queues: bounded in number, exact in sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.queue_meter import (
    COUNTERS,
    END_STATUSES,
    LEAST_SECONDS,
    STEP_SIZE,
    QueueMeter,
)
from maitred.matching.queue_meters import QueueCounts, QueueMeters, QueueName

EVENT = st.tuples(st.integers(0, 9), st.integers(0, 3))


def happen(meters: QueueMeters, queue: int, what: int) -> None:
    meter = meters.of(("shop", str(queue)))
    meter.added += 1
    if what == 1:
        meter.ends["done"] += 1
        meter.ran(0.5)
    elif what == 2:
        meter.retried += 1
        meter.waits.add(0.1)
    elif what == 3:
        meter.ends["failed"] += 1
        meter.dead += 1


class Reader:
    """Adds up what Prometheus has seen: the last value of every series, whether it still is there
    or not."""

    def __init__(self, meters: QueueMeters, most: int) -> None:
        self._meters = meters
        self._most = most
        self._series: dict[QueueName, QueueCounts] = {}

    def read(self) -> list[QueueCounts]:
        meters = self._meters
        named = meters.choose({}, self._most)
        assert len(named) <= self._most
        found = {name: meters.look(name) for name in meters.names()}
        self._series |= {name: one for name, one in found.items() if one is not None}
        return [*self._series.values(), meters.rest()]


@given(st.lists(st.lists(EVENT, max_size=20), max_size=6), st.integers(0, 4))
def test_whichever_queues_have_names_the_sums_are_exact(
    rounds: list[list[tuple[int, int]]], most: int
) -> None:
    meters = QueueMeters(set)
    reader = Reader(meters, most)
    total, done, dead = 0, 0, 0
    for events in rounds:
        for queue, what in events:
            happen(meters, queue, what)
            total += 1
            done += what == 1
            dead += what == 3
        found = reader.read()
        assert sum(one.counters["added"] for one in found) == total
        assert sum(one.counters["dead"] for one in found) == dead
        assert sum(one.ends["done"] for one in found) == done
        assert sum(sum(one.run_counts) for one in found) == done


def test_queues_that_are_not_loaded_are_forgotten_and_not_lost() -> None:
    loaded = {("shop", "0")}
    meters = QueueMeters(lambda: loaded, meters_max=10)
    reader = Reader(meters, 3)
    for queue in range(1_000):
        happen(meters, queue, 1)
        reader.read()
        assert len(meters) <= 10
    assert ("shop", "0") in meters.names()
    found = reader.read()
    assert sum(one.counters["added"] for one in found) == 1_000
    assert sum(one.ends["done"] for one in found) == 1_000


def test_the_counts_are_taken_apart_as_they_were_put_together() -> None:
    meters = QueueMeters(set)
    meter = meters.of(("shop", "q"))
    for number, name in enumerate(COUNTERS):
        setattr(meter, name, number + 1)
    for number, status in enumerate(END_STATUSES):
        meter.ends[status] = 100 + number
    meter.waits.add(0.002, 7)
    meter.ran(3.0)
    counts = QueueCounts.of(meter.counts())
    assert list(counts.counters.values()) == list(range(1, len(COUNTERS) + 1))
    assert list(counts.ends.values()) == [100, 101, 102, 103]
    assert (sum(counts.wait_counts), counts.wait_seconds) == (7, 0.014)
    assert (sum(counts.run_counts), counts.run_seconds) == (1, 3.0)


def test_tasks_that_end_in_the_millisecond_in_which_they_began_have_a_service_time() -> None:
    # 0 would mean that it is unknown, and an autoscaler would be told of a second for each.
    meter = QueueMeter()
    assert meter.service_seconds == 0.0
    meter.ran(0.0)
    assert meter.service_seconds == LEAST_SECONDS


@given(st.lists(st.lists(EVENT, max_size=20), max_size=6))
def test_the_steps_of_a_meter_add_up_to_its_counts(rounds: list[list[tuple[int, int]]]) -> None:
    meters = QueueMeters(set)
    total = [0] * STEP_SIZE
    for events in rounds:
        for _, what in events:
            happen(meters, 0, what)
        meter = meters.of(("shop", "0"))
        step = meter.step()
        assert (step is None) is (not events)
        total = [before + new for before, new in zip(total, step or [0] * STEP_SIZE, strict=True)]
        assert meter.step() is None
    meter = meters.of(("shop", "0"))
    ended = meter.ends["done"] + meter.ends["failed"]
    assert total == [meter.added, ended, 0, meter.dead, meter.retried, *meter.waits.counts]


def test_attempts_that_failed_for_any_reason_are_one_number_of_a_step() -> None:
    meter = QueueMeter()
    meter.failed, meter.timed_out, meter.lost = 1, 10, 100
    step = meter.step()
    assert step is not None
    assert step[2] == 111


def test_what_is_recent_is_forgotten_after_the_second_turn() -> None:
    meter = QueueMeter()
    assert meter.recent() == ([], 0)
    for _ in range(3):
        meter.ran(0.3)
    meter.timed_out += 1
    meter.turn()
    meter.ran(0.3)
    meter.lost += 1
    runs, failed = meter.recent()
    assert (sum(runs), failed) == (4, 2)
    meter.turn()
    runs, failed = meter.recent()
    assert (sum(runs), failed) == (1, 1)
    meter.turn()
    assert meter.recent() == ([], 0)
