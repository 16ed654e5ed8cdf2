"""What holds for every selector, whatever its algorithm."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as some

from maitred.balancing import ALGORITHMS, BacklogHint, SelectorSettings, selector
from maitred.errors import InvalidPartition, MaitredError, UnknownAlgorithm
from maitred.routing.names import QueueId

QUEUE = QueueId("kitchen", "orders", 1)

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@given(
    name=some.sampled_from(ALGORITHMS),
    seed=some.integers(0, 2**32),
    calls=some.lists(
        some.tuples(
            some.integers(1, 12),  # partitions, changing from call to call
            some.booleans(),
            some.integers(0, 3),  # queue
            some.one_of(some.none(), some.integers(0, 2**63 - 1)),
            some.floats(0, 100),
        ),
        max_size=80,
    ),
)
def test_every_pick_is_in_range_while_partitions_come_and_go(
    name: str, seed: int, calls: list[tuple[int, bool, int, int | None, float]]
) -> None:
    chosen = selector(name, random.Random(seed), SelectorSettings(queues_max=2))
    held = []
    for partitions, reading, number, backlog, now in calls:
        queue = QueueId("kitchen", f"orders-{number}", 1)
        if not reading:
            assert 0 <= chosen.write(queue, partitions, now) < partitions
            continue
        poll = chosen.read(queue, partitions, now)
        assert 0 <= poll.partition < partitions
        if backlog is None:
            held.append(poll)
        else:
            poll.done(now, BacklogHint(backlog, 3.5))
    for poll in held:
        poll.done(100.0)


@every_algorithm
@pytest.mark.parametrize("partitions", [0, -1, True, 1.5, "4", None])
def test_a_queue_without_partitions_is_refused(name: str, partitions: int) -> None:
    chosen = selector(name, random.Random(1))
    with pytest.raises(InvalidPartition):
        chosen.write(QUEUE, partitions, 0.0)
    with pytest.raises(InvalidPartition):
        chosen.read(QUEUE, partitions, 0.0)
    assert chosen.entries == 0


@every_algorithm
def test_one_partition_leaves_no_choice(name: str) -> None:
    chosen = selector(name, random.Random(1))
    for now in range(30):
        assert chosen.write(QUEUE, 1, now) == 0
        poll = chosen.read(QUEUE, 1, now)
        assert poll.partition == 0
        poll.done(now, BacklogHint(10**6))


@every_algorithm
def test_the_same_seed_picks_the_same(name: str) -> None:
    def picks() -> list[int]:
        chosen = selector(name, random.Random(7))
        answers = []
        for now in range(200):
            poll = chosen.read(QUEUE, 5, now)
            answers += [chosen.write(QUEUE, 5, now), poll.partition]
            poll.done(now, BacklogHint(now * 7 % 400))
        return answers

    assert picks() == picks()


@pytest.mark.parametrize(
    ("name", "hint"), [("weightd", "Did you mean 'weighted'?"), ("x", "Choose one of: ")]
)
def test_an_unknown_name_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UnknownAlgorithm, match="selection algorithm") as caught:
        selector(name, random.Random(1))
    assert hint in str(caught.value)
    assert caught.value.code == "unknown-algorithm"


@pytest.mark.parametrize(
    "bad",
    [
        {"queues_max": 0},
        {"queues_max": True},
        {"queues_max": 2.0},
        {"round_robin_every": 0},
        {"weight_threshold": -1},
        {"weight_threshold": float("nan")},
        {"weight_threshold": 10**400},
        {"weight_half_life_seconds": 0},
        {"weight_half_life_seconds": float("nan")},
        {"weight_half_life_seconds": "1"},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(MaitredError, match=next(iter(bad))) as caught:
        SelectorSettings(**bad)  # type: ignore[arg-type]
    assert caught.value.code == "invalid-selector-setting"


@every_algorithm
def test_it_tells_what_it_is(name: str) -> None:
    chosen = selector(name, random.Random(1))
    poll = chosen.read(QUEUE, 3, 0.0)
    assert repr(chosen).startswith("<")
    assert "'orders'" in repr(poll)
    poll.done(0.0)


@every_algorithm
def test_far_more_queue_names_than_are_kept_leave_nothing_behind(name: str) -> None:
    queues_max = 1_000
    names = 50_000  # after so many it is like after a million: fifty times what is remembered
    chosen = selector(name, random.Random(1), SelectorSettings(queues_max=queues_max))
    hint = BacklogHint(500, 1.0)

    def use(first: int, last: int) -> None:
        for number in range(first, last):
            queue = QueueId("kitchen", f"orders-{number}", 1)
            chosen.write(queue, 4, 0.0)
            chosen.read(queue, 4, 0.0).done(0.0, hint)

    use(0, 7_000)
    entries = chosen.entries
    # A read and a write position, and of the weighted one the report of the partition polled.
    assert entries <= 3 * queues_max
    gc.collect()
    # Measured apart from the many: tracing every allocation would take long.
    tracemalloc.start()
    try:
        use(7_000, 11_000)
        first_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        use(11_000, names - 7_000)
        tracemalloc.start()
        use(names - 7_000, names)
        last_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert chosen.entries <= entries
    assert last_bytes <= first_bytes * 1.1 + 40_000
