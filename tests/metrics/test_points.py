"""Points are added step by step, and steps that nobody knows stay unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics.histogram import WORK_BOUNDS
from maitred.metrics.points import BUCKETS, NAMES, Points, PointSum, charted, quantile

LAST = 1_000


def points(last: int, known: list[bool], **columns: list[int]) -> Points:
    return Points(last, known, columns, [()] * BUCKETS)


SERIES = st.builds(
    lambda last, rows: points(
        last,
        [one for one, _, _ in rows],
        added=[a for _, a, _ in rows],
        backlog=[b for *_, b in rows],
    ),
    st.integers(LAST - 8, LAST + 3),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 9)), max_size=12),
)


@given(st.lists(SERIES, max_size=4), st.integers(1, 6))
def test_each_step_is_the_sum_of_those_that_know_it(several: list[Points], steps: int) -> None:
    found = PointSum(LAST, steps)
    for one in several:
        found.add(one)
    shown = charted(found.points())
    for at in range(steps):
        step = LAST - steps + 1 + at
        there = [
            (one, place)
            for one in several
            if 0 <= (place := step - one.last + len(one.known) - 1) < len(one.known)
            and one.known[place]
        ]
        for name in ("added", "backlog"):
            expected = sum(one.columns[name][place] for one, place in there) if there else None
            assert shown[name][at] == expected
        assert shown["dead"][at] == (0 if there else None)


def test_waits_of_several_shards_have_quantiles_of_their_own() -> None:
    """Most tasks of the one shard began at once, few of the other waited long."""
    at_once: list[list[int]] = [[] for _ in range(BUCKETS)]
    at_once[0] = [98, 0]
    late: list[list[int]] = [[] for _ in range(BUCKETS)]
    late[8] = [2, 0]  # above half a second, up to one
    found = PointSum(LAST, 2)
    found.add(Points(LAST, [True, True], {}, at_once))
    found.add(Points(LAST, [True, True], {}, late))
    shown = charted(found.points())
    p50, p99 = shown["wait_p50"], shown["wait_p99"]
    assert p50[0] == pytest.approx(0.001 * 50 / 98)
    assert p99[0] == pytest.approx(0.75)
    assert p50[1] is p99[1] is None, "no task began"


def test_a_column_of_another_length_is_left_out_and_unknown_names_too() -> None:
    found = PointSum(LAST, 2)
    found.add(points(LAST, [True, True], added=[1], dead=[1, 2], later_release=[1, 1]))
    assert found.points().columns == {"dead": [1, 2]}


def test_a_chart_has_every_name_and_a_number_for_each_step() -> None:
    shown = charted(PointSum(LAST, 3).points())
    assert shown.keys() == {*NAMES, "wait_p50", "wait_p99"}
    assert set(map(tuple, shown.values())) == {(None, None, None)}


def counts(**by_bucket: int) -> list[int]:
    return [by_bucket.get(f"b{at}", 0) for at in range(BUCKETS)]


@pytest.mark.parametrize(
    ("share", "of", "expected"),
    [
        (0.5, counts(), None),
        (0.5, counts(b0=1), 0.0005),
        (1.0, counts(b0=10), 0.001),
        (0.5, counts(b1=10), 0.003),
        (0.5, counts(b0=5, b1=5), 0.001),
        (0.9, counts(b0=5, b1=5), 0.001 + 0.004 * 0.8),
        (0.99, counts(b0=1, b14=99), WORK_BOUNDS[-1]),
    ],
)
def test_a_quantile_lies_within_its_bucket(
    share: float, of: list[int], expected: float | None
) -> None:
    found = quantile(of, share)
    assert found == (None if expected is None else pytest.approx(expected))
