"""The gateway's line and its retries: bounded, fair to the important, honest about when."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.balancing.settings import InvalidSelectorSetting
from maitred.balancing.workers import RetryBudget, Shed, SheddingLine, SheddingSettings


def line_at(rate_per_second: float, **changes: float) -> SheddingLine[int]:
    """A line that knows at which rate slots become free, at time 1."""
    line: SheddingLine[int] = SheddingLine(0.0, SheddingSettings(**changes))  # type: ignore[arg-type]
    for number in range(int(rate_per_second)):
        line.freed((number + 1) / rate_per_second)
    return line


def admitted(line: SheddingLine[int], now: float, priority: int = 0) -> int:
    """How many of one priority are let in until one is not."""
    for number in count():
        if line.offer(number, now, priority=priority) is not None:
            return number
    raise AssertionError


def test_no_more_are_let_in_than_can_be_sent_within_the_target() -> None:
    assert admitted(line_at(10_000), 1.0) == pytest.approx(200, rel=0.05)
    assert admitted(line_at(500), 1.0) == pytest.approx(10, rel=0.2)


def test_while_the_rate_is_unknown_a_named_number_is_let_in() -> None:
    assert admitted(SheddingLine(0.0), 0.01) == SheddingSettings().length_first


def test_workers_that_stopped_let_nearly_nobody_in() -> None:
    assert admitted(line_at(10_000), 60.0) == 1


def test_low_priority_is_refused_first_and_high_goes_first() -> None:
    line = line_at(10_000)
    low = admitted(line, 1.0, priority=4)
    assert low == pytest.approx(40, rel=0.1), "four levels hold back a fifth each"
    assert admitted(line, 1.0, priority=4) == 0
    high = admitted(line, 1.0, priority=0)
    assert low + high == pytest.approx(200, rel=0.1)
    taken = [line.take(1.0)[0] for _ in range(high + low)]
    assert taken == [*range(high), *range(low)]
    assert line.take(1.0) == (None, [])


def test_now_or_never_is_never_queued() -> None:
    line: SheddingLine[int] = SheddingLine(0.0)
    assert line.offer(1, 0.0, do_not_queue=True) is Shed.DO_NOT_QUEUE
    assert not line


def test_a_deadline_is_looked_at_on_the_way_in_and_on_the_way_out() -> None:
    line = line_at(1_000)
    assert line.offer(0, 1.0, deadline=0.9) is Shed.TOO_LATE
    for number in range(10):
        assert line.offer(number, 1.0, deadline=1.1 if number < 5 else 9.0) is None
    assert line.offer(10, 1.0, deadline=1.005) is Shed.TOO_LATE, "ten before it take 10 ms"
    assert line.take(2.0) == (5, [0, 1, 2, 3, 4])
    assert len(line) == 4


def test_when_to_try_again_follows_from_the_drain() -> None:
    fast, slow = line_at(10_000), line_at(50)
    for line in (fast, slow):
        admitted(line, 1.0)
    assert 0.001 <= fast.retry_after_seconds(1.0) <= 0.02
    assert slow.retry_after_seconds(1.0) <= 0.5
    assert slow.retry_after_seconds(3_600.0) == SheddingSettings().retry_after_seconds_max
    assert SheddingLine[int](0.0).retry_after_seconds(0.0) == 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["offer", "again", "take", "freed", "hopeless"]),
            st.integers(-3, 9),
            st.floats(-0.05, 0.2),
            st.floats(0.0, 0.3),
        ),
        max_size=200,
    )
)
def test_everybody_who_was_let_in_comes_out_once_and_the_line_is_bounded(
    steps: list[tuple[str, int, float, float]],
) -> None:
    settings = SheddingSettings(length_max=30, length_first=20)
    line: SheddingLine[int] = SheddingLine(0.0, settings)
    inside: set[int] = set()
    now = 0.0
    for number, (kind, priority, elapsed, patience) in enumerate(steps):
        now += elapsed
        if kind in ("offer", "again"):
            deadline, again = now + patience, kind == "again"
            if line.offer(number, now, deadline=deadline, priority=priority, again=again) is None:
                inside.add(number)
        elif kind == "hopeless":
            before = len(inside)
            inside.difference_update(line.hopeless(now))
            assert bool(inside) == bool(before), "the next one may have its turn at any moment"
        elif kind == "take":
            item, late = line.take(now)
            for one in [*late, *([] if item is None else [item])]:
                inside.remove(one)
        else:
            line.freed(now)
        assert len(line) == len(inside) <= 60, "twice the bound, for those that were sent back"
        assert 0.0 < line.retry_after_seconds(now) <= settings.retry_after_seconds_max


def test_retries_are_a_fifth_and_ten_a_second() -> None:
    budget = RetryBudget(0.0)
    while budget.spend(0.0):
        pass
    for _ in range(100):
        budget.admitted()
    assert sum(budget.spend(0.0) for _ in range(100)) == pytest.approx(20, abs=1)
    assert sum(budget.spend(1.0) for _ in range(100)) == pytest.approx(10, abs=1)
    assert sum(budget.spend(3_600.0) for _ in range(10_000)) <= 130, "an hour is not saved up"
    assert not budget.spend(0.0), "a clock that was set back earns nothing"


@pytest.mark.parametrize(
    "wrong",
    [
        {"length_max": 0},
        {"priorities": True},
        {"wait_target_seconds": 0.0},
        {"retry_share": -1.0},
        {"wait_target_seconds": float("nan")},
        {"holdback": 0.3},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSelectorSetting):
        SheddingSettings(**wrong)  # type: ignore[arg-type]


def test_a_quiet_queue_does_not_forget_what_its_workers_can_do() -> None:
    line = line_at(10_000)
    line.passed(60.0)  # after a quiet minute somebody asks, and finds room
    assert admitted(line, 60.0) == pytest.approx(200, rel=0.05)


def test_what_is_asked_of_idle_workers_says_nothing_of_what_they_can_do() -> None:
    line: SheddingLine[int] = SheddingLine(0.0)
    for number in range(20):
        line.passed(number / 10)
        line.freed(number / 10)
    assert admitted(line, 2.0) == SheddingSettings().length_first


def test_who_leaves_the_line_makes_room_and_is_passed_over() -> None:
    line: SheddingLine[str] = SheddingLine(0.0, SheddingSettings(length_first=2))
    for name in ("one", "two"):
        assert line.offer(name, 0.0) is None
    assert line.offer("three", 0.0) is Shed.LINE_FULL
    line.remove("one")
    assert len(line) == 1
    assert line.offer("three", 0.0) is None
    assert [line.take(0.0)[0] for _ in range(3)] == ["two", "three", None]
    assert not line


def test_a_line_that_everybody_leaves_does_not_grow() -> None:
    line: SheddingLine[object] = SheddingLine(0.0)
    for _ in range(10_000):
        item = object()
        assert line.offer(item, 0.0) is None
        line.remove(item)
    assert sum(len(one) for one in line._lines) < 200
    assert line.take(0.0) == (None, [])


def test_one_that_a_worker_sent_back_is_the_next_of_its_priority() -> None:
    line: SheddingLine[str] = SheddingLine(0.0, SheddingSettings(length_first=2))
    for name in ("one", "two"):
        assert line.offer(name, 0.0, priority=1) is None
    assert line.offer("back", 0.0, priority=1, again=True) is None
    assert line.offer("late", 0.0, priority=1, deadline=0.0, again=True) is Shed.TOO_LATE
    assert line.offer("now", 0.0, do_not_queue=True, again=True) is Shed.DO_NOT_QUEUE
    assert line.offer("too", 0.0, again=True) is None
    assert line.offer("many", 0.0, again=True) is Shed.LINE_FULL, "twice the bound"
    assert [line.take(0.0)[0] for _ in range(4)] == ["too", "back", "one", "two"]


def test_queries_whose_deadline_passes_before_their_turn_are_refused_once_that_is_known() -> None:
    line: SheddingLine[int] = SheddingLine(0.0)
    for number in range(200):
        assert line.offer(number, 0.0, deadline=1.0) is None
    line.remove(7)
    assert line.hopeless(0.05) == [], "it is not known yet how fast slots become free"
    for number in range(10):
        line.freed(0.01 * number)
    found = line.hopeless(0.1)
    assert found == list(range(91, 200)), "a hundred a second, for nine tenths of a second"
    assert len(line) == 90
    assert line.hopeless(0.1) == []
    assert [line.take(0.1)[0] for _ in range(91)] == [*range(7), *range(8, 91), None]


def test_higher_priorities_are_counted_before_lower_ones() -> None:
    line: SheddingLine[int] = SheddingLine(0.0)
    for number in range(5):
        assert line.offer(10 + number, 0.0, deadline=0.22, priority=1) is None
    for number in range(10):
        assert line.offer(number, 0.0, deadline=0.22) is None
    for _ in range(10):
        line.freed(0.0)
    assert line.hopeless(0.1) == [12, 13, 14], "0.12 s are left, at a hundred a second"


def test_slow_queries_do_not_look_as_if_they_never_ended() -> None:
    """One slot, a second each: most windows are empty, and whoever waits has time enough."""
    line: SheddingLine[int] = SheddingLine(0.0)
    for number in range(5):
        assert line.offer(number, 0.0, deadline=30.0) is None
    for step in range(1, 200):
        now = step / 10
        if step % 10 == 0:
            line.freed(now)
        assert line.hopeless(now) == []
        if now > 2.0:
            assert 0.5 < line.wait_seconds(now) / 5 < 1.6
