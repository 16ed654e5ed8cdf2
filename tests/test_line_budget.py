"""No kind of line is written more often than its budget allows, and nothing is left uncounted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.line_budget import KEYS_KEPT, LineBudget, LineBudgets, left_out

steps = st.lists(st.floats(0, 5, allow_subnormal=False), min_size=1, max_size=100)


@given(steps=steps, seconds=st.floats(0.01, 10), burst=st.integers(1, 20))
def test_lines_are_bounded_and_every_event_is_counted(
    steps: list[float], seconds: float, burst: int
) -> None:
    budget = LineBudget(seconds, burst)
    now = counted = lines = 0.0
    for step in steps:
        now += step
        unlogged = budget.take(now)
        if unlogged is not None:
            lines += 1
            counted += 1 + unlogged
    assert lines <= burst + sum(steps) / seconds + 0.001
    assert counted + budget.unlogged == len(steps)


@given(seconds=st.floats(0.01, 10), burst=st.integers(1, 20), now=st.floats(0, 1e6))
def test_a_budget_that_was_left_alone_is_full_again(seconds: float, burst: int, now: float) -> None:
    budget = LineBudget(seconds, burst)
    while budget.take(now) is not None:
        pass
    later = now + (burst + 1) * seconds
    assert [budget.take(later) is None for _ in range(burst)] == [False] * burst


@given(events=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2)), max_size=100))
def test_a_noisy_key_takes_nothing_from_the_others(events: list[tuple[str, float]]) -> None:
    now = 0.0
    budgets, alone = LineBudgets(1.0, 2), {key: LineBudget(1.0, 2) for key in "abc"}
    for key, step in events:
        now += step
        assert budgets.take(key, now) == alone[key].take(now)


def test_many_keys_are_bounded_together() -> None:
    budgets = LineBudgets(1.0, 5, together_seconds=0.1, together=20)
    keys = [f"queue {number}" for number in range(3 * KEYS_KEPT)]
    assert sum(budgets.take(key, 0.0) is not None for key in keys) == 20
    assert len(budgets._budgets) == KEYS_KEPT
    assert budgets.take(keys[-1], 1.0) == 1, "what the others took is counted for its key"


def test_the_field_of_a_line() -> None:
    assert left_out(0) == {}
    assert left_out(7) == {"unlogged": 7}
