"""Since when a series counts, over pages of a process and restarts of what it gathers from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics.cumulative import PAGES_KEPT, CumulativeSeries

BEGAN = 1_000


def since(series: CumulativeSeries, now: int, *sums: float) -> int:
    moment = series.moment(now)
    found = series.since("a", sums)
    series.end_page(moment)
    return found


def test_a_sum_that_grows_counts_since_the_process_began() -> None:
    series = CumulativeSeries(BEGAN)
    assert [since(series, 2_000 + one, one) for one in range(5)] == [BEGAN] * 5


def test_a_sum_that_fell_counts_since_the_page_before() -> None:
    series = CumulativeSeries(BEGAN)
    since(series, 2_000, 5)
    assert since(series, 3_000, 2) == 2_000
    assert since(series, 4_000, 3) == 2_000
    assert since(series, 5_000, 1) == 4_000


def test_one_bucket_that_fell_is_enough() -> None:
    series = CumulativeSeries(BEGAN)
    since(series, 2_000, 5, 1)
    assert since(series, 3_000, 4, 9) == 2_000


def test_a_series_that_was_away_for_a_while_is_still_known() -> None:
    series = CumulativeSeries(BEGAN)
    since(series, 2_000, 5)
    series.end_page(series.moment(3_000))
    assert since(series, 4_000, 2) == 3_000


def test_series_that_are_gone_are_forgotten() -> None:
    series = CumulativeSeries(BEGAN)
    since(series, 2_000, 5)
    for page in range(2 * PAGES_KEPT):
        series.end_page(series.moment(3_000 + page))
    assert len(series) == 0
    assert since(series, 9_000, 2) == BEGAN


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 5)), max_size=30))
def test_a_series_begins_before_its_page_whatever_the_clock_does(
    pages: list[tuple[int, int]],
) -> None:
    series = CumulativeSeries(BEGAN)
    last = BEGAN
    for now, total in pages:
        moment = series.moment(now)
        assert moment > last
        assert BEGAN <= series.since("a", (total,)) <= last
        series.end_page(moment)
        last = moment
