"""A limited number of queues have series of their own, and nothing is lost or counted twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics.busiest import STAY_FACTOR, SummedCounts, busiest

ACTIVITY = st.dictionaries(st.text(max_size=3), st.floats(0, 1e9), max_size=30)


@given(ACTIVITY, st.sets(st.text(max_size=3), max_size=5), st.integers(0, 10))
def test_never_more_than_the_limit_and_never_fewer_than_possible(
    activity: dict[str, float], named: set[str], most: int
) -> None:
    chosen = busiest(activity, named, most)
    assert len(chosen) == min(most, len(activity))
    assert chosen <= set(activity)


@given(ACTIVITY, st.sets(st.text(max_size=3), max_size=5), st.integers(1, 10))
def test_a_queue_without_a_name_is_at_most_twice_as_busy(
    activity: dict[str, float], named: set[str], most: int
) -> None:
    chosen = busiest(activity, named, most)
    left = set(activity) - chosen
    if chosen and left:
        assert max(activity[one] for one in left) <= STAY_FACTOR * min(
            activity[one] for one in chosen
        )


def test_names_do_not_change_hands_for_a_little() -> None:
    activity = {"a": 10.0, "b": 11.0}
    assert busiest(activity, {"a"}, 1) == {"a"}
    assert busiest(activity, set(), 1) == {"b"}
    assert busiest({"a": 10.0, "b": 21.0}, {"a"}, 1) == {"b"}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_the_sum_and_the_own_series_only_grow_and_are_exact(
    looks: list[tuple[int, bool]],
) -> None:
    summed, total, count = SummedCounts(1), [0.0], 0
    own_before = total_before = 0.0
    for more, has_name in looks:
        count += more
        own = summed.look([count], None if has_name else total)[0]
        assert own + total[0] == count
        assert own >= own_before
        assert total[0] >= total_before
        assert has_name or own == own_before  # what is counted in the sum is not in the series
        own_before, total_before = own, total[0]
