"""The last hour of a shard's queues: exact in sum, and bounded in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics import series
from maitred.metrics.points import BUCKETS, COUNTS, GAUGES, STEPS, WIDTH, charted
from maitred.metrics.series import (
    BACK_STEPS,
    CHOOSE_STEPS,
    HIGHEST,
    NAMESPACES_MAX,
    QUEUES_MAX,
    SeriesTable,
)

if TYPE_CHECKING:
    import pytest

    from maitred.metrics.points import Points

FIRST = 180_000_000
"""A step of the year 2027."""

Queue = tuple[str, str]
SHOP: Queue = ("shop", "mails")


def counted(added: int = 0, ended: int = 0, waits: int = 0) -> list[int]:
    return [added, ended, 0, 0, 0, waits, *[0] * (BUCKETS - 1)]


def sample(
    table: SeriesTable,
    step: int,
    happened: dict[Queue, list[int]] | None = None,
    gauges: dict[Queue, tuple[int, int, int]] | None = None,
    shared: dict[str, int] | None = None,
) -> bool:
    """As a shard does: a queue is told of if something happened to it, or if it has something."""
    happened, gauges = happened or {}, gauges or {}
    if not table.begin(step):
        return False
    for queue in {**happened, **gauges}:
        gauge = gauges.get(queue, (0, 0, 0))
        free = (shared or {}).get(queue[0], 0)
        backlog, running, own = gauge
        table.add(queue, happened.get(queue), (backlog, running, own + free), own)
    table.end(shared or {})
    return True


def shown(points: Points, name: str) -> list[float | None]:
    return charted(points)[name]


def test_the_last_hour_is_kept_and_no_more() -> None:
    table = SeriesTable()
    for step in range(FIRST, FIRST + STEPS + 10):
        assert sample(table, step, {SHOP: counted(added=step % 1_000, waits=1)})
    points = table.of_queue(SHOP, STEPS)
    assert points.last == FIRST + STEPS + 9
    assert shown(points, "added") == [
        step % 1_000 for step in range(FIRST + 10, FIRST + STEPS + 10)
    ]
    assert shown(points, "wait_p50") == [0.0005] * STEPS
    assert shown(table.of_queue(SHOP, 3), "added") == shown(points, "added")[-3:]
    assert table.of_all(STEPS).columns == table.of_namespace("shop", STEPS).columns
    assert shown(table.of_queue(("shop", "other"), STEPS), "added") == [None] * STEPS


def test_a_quiet_queue_has_zeros_and_not_the_points_of_an_hour_ago() -> None:
    table = SeriesTable()
    sample(table, FIRST, {SHOP: counted(added=7)}, {SHOP: (5, 4, 3)})
    for step in range(FIRST + 1, FIRST + STEPS):
        sample(table, step)
    assert shown(table.of_queue(SHOP, STEPS), "added") == [7] + [0] * (STEPS - 1)
    sample(table, FIRST + STEPS)
    for points in (table.of_namespace("shop", STEPS), table.of_all(STEPS)):
        for name in ("added", *GAUGES):
            assert shown(points, name) == [0] * STEPS


def test_what_was_not_measured_is_not_known() -> None:
    """Before the shard began, before the queue was seen, and while the shard stood still."""
    table = SeriesTable()
    sample(table, FIRST)
    sample(table, FIRST + 1, {SHOP: counted(added=1)})
    sample(table, FIRST + 4, {SHOP: counted(added=9)})
    assert shown(table.of_queue(SHOP, 6), "added") == [None, None, 1, None, None, 9]
    assert shown(table.of_all(6), "added") == [None, 0, 1, None, None, 9]
    # A gap of more than an hour: no slot shows what was in it before.
    sample(table, FIRST + 4 + STEPS, {SHOP: counted(added=2)})
    assert shown(table.of_all(STEPS), "added") == [None] * (STEPS - 1) + [2]


def test_a_point_that_is_being_written_is_not_known_yet() -> None:
    table = SeriesTable()
    for step in range(FIRST, FIRST + STEPS):
        sample(table, step, {SHOP: counted(added=1)})
    assert table.begin(FIRST + STEPS)
    table.add(SHOP, counted(added=100), (0, 0, 0), 0)
    points = table.of_queue(SHOP, STEPS)
    assert points.last == FIRST + STEPS - 1
    assert shown(points, "added") == [None] + [1] * (STEPS - 1)
    table.end({})
    assert shown(table.of_queue(SHOP, 2), "added") == [1, 100]


def test_a_clock_that_is_set_back_a_little_is_waited_for() -> None:
    table = SeriesTable()
    sample(table, FIRST, {SHOP: counted(added=1)})
    for back in range(BACK_STEPS + 1):
        assert not sample(table, FIRST - back, {SHOP: counted(added=5)})
    assert sample(table, FIRST + 1, {SHOP: counted(added=2)})
    assert shown(table.of_queue(SHOP, 3), "added") == [None, 1, 2]


def test_a_clock_that_is_set_back_far_begins_anew() -> None:
    table = SeriesTable()
    sample(table, FIRST, {SHOP: counted(added=1)})
    back = FIRST - 10 * STEPS
    assert sample(table, back, {SHOP: counted(added=2)})
    assert table.last == back
    assert shown(table.of_all(2), "added") == [None, 2]


EVENTS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from("uvwxyz")),
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2)),
    max_size=6,
)


@given(st.lists(EVENTS, min_size=1, max_size=3 * CHOOSE_STEPS), st.integers(1, 4))
def test_whichever_queues_have_series_the_sums_are_exact(
    steps: list[dict[Queue, tuple[int, int, int]]], most: int
) -> None:
    table = SeriesTable(queues_max=most)
    for step, events in enumerate(steps, FIRST):
        happened = {queue: counted(a, b, a) for queue, (a, b, _) in events.items()}
        gauges = {queue: (a, b, own) for queue, (a, b, own) in events.items()}
        sample(table, step, happened, gauges, {"a": 10})
        assert table.statistics()["queues"] <= most
    whole = table.of_all(len(steps))
    assert shown(whole, "added") == [sum(a for a, *_ in one.values()) for one in steps]
    assert shown(whole, "ended") == [sum(b for _, b, _ in one.values()) for one in steps]
    # Slots that are on offer to several queues count once.
    own = [sum(own for *_, own in one.values()) for one in steps]
    assert shown(whole, "slots_free") == [10 + slots for slots in own]
    for namespace in "bc":
        points = table.of_namespace(namespace, len(steps))
        expected = [
            sum(a for (there, _), (a, *_) in one.items() if there == namespace) for one in steps
        ]
        known = [number or 0 for number in shown(points, "added")]
        assert known == expected


def test_the_busiest_queues_have_series_and_keep_them() -> None:
    table = SeriesTable(queues_max=2)
    small, large, third = ("shop", "small"), ("shop", "large"), ("shop", "third")
    step = FIRST
    while step % CHOOSE_STEPS:
        step += 1
    sample(table, step - 3, {small: counted(added=1)})
    sample(table, step - 2, {large: counted(added=100)})
    # There is no room for a third one until the next choice, and then it has no past.
    sample(table, step - 1, {third: counted(added=10)})
    assert shown(table.of_queue(third, 1), "added") == [None]
    sample(table, step)
    sample(table, step + 1, {third: counted(added=11), small: counted(added=1)})
    assert shown(table.of_queue(third, 3), "added") == [None, None, 11]
    assert shown(table.of_queue(small, 3), "added") == [None] * 3
    assert shown(table.of_queue(large, 4), "added") == [100, 0, 0, 0]
    # The sum has what it always had.
    assert shown(table.of_namespace("shop", 5), "added") == [1, 100, 10, 0, 12]


def test_a_queue_of_which_nothing_was_heard_for_an_hour_makes_room() -> None:
    tables = SeriesTable(queues_max=2), SeriesTable(queues_max=3)
    for table in tables:
        sample(table, FIRST, {SHOP: counted(added=1)})
        for step in range(FIRST + 1, FIRST + STEPS + CHOOSE_STEPS + 1):
            sample(table, step, {("shop", "busy"): counted(added=1)})
        sample(table, step + 1, {("shop", "new"): counted(added=1)})
        assert shown(table.of_queue(("shop", "new"), 1), "added") == [1]
    assert shown(tables[0].of_queue(SHOP, STEPS), "added") == [None] * STEPS
    assert shown(tables[1].of_queue(SHOP, STEPS), "added") == [0] * STEPS


def test_memory_is_bounded_whatever_the_queues_do() -> None:
    table = SeriesTable()
    counts = [1] * (len(COUNTS) + BUCKETS)
    for step in range(FIRST, FIRST + 2 * CHOOSE_STEPS):
        queues = [(f"n{number % 500}", f"{step}-{number}") for number in range(1_000)]
        sample(table, step, dict.fromkeys(queues, counts), dict.fromkeys(queues, (1, 1, 1)))
    assert table.statistics() == {"queues": QUEUES_MAX, "namespaces": NAMESPACES_MAX}
    assert (QUEUES_MAX + NAMESPACES_MAX + 1) * WIDTH * STEPS * 4 < 10 * 2**20


def test_the_activity_of_so_many_queues_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "ACTIVITY_MAX", 5)
    table = SeriesTable(queues_max=1)
    for step in range(FIRST, FIRST + 2 * CHOOSE_STEPS):
        queues = [("shop", f"{step}-{number}") for number in range(9)]
        sample(table, step, {queue: counted(added=at) for at, queue in enumerate(queues, 1)})
        assert len(table._queues._activity) <= 5 + CHOOSE_STEPS * 9
    sample(table, FIRST + 2 * CHOOSE_STEPS + CHOOSE_STEPS - FIRST % CHOOSE_STEPS)
    kept = [int(queue.split("-")[1]) for _, queue in table._queues._activity]
    assert len(kept) == 5
    assert min(kept) >= 6, "the busiest ones"


def test_a_number_that_is_too_large_is_the_largest() -> None:
    table = SeriesTable()
    sample(table, FIRST, {SHOP: counted(added=2**40)}, {SHOP: (-1, 3, 0)})
    points = table.of_queue(SHOP, 1)
    assert (shown(points, "added"), shown(points, "backlog")) == ([HIGHEST], [0])
