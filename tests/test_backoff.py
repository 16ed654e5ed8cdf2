"""Waits double up to a limit, and are spread."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.backoff import backoff_seconds

FIRST, LONGEST = 0.1, 5.0


class Fixed(Random):
    """Draws the same number each time."""

    def __init__(self, drawn: float) -> None:
        super().__init__()
        self._drawn = drawn

    def random(self) -> float:
        return self._drawn


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0.1), (1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (8, 5.0), (10**6, 5.0)],
)
def test_each_failure_doubles_the_wait_up_to_the_longest(failures: int, seconds: float) -> None:
    shortest = backoff_seconds(failures, FIRST, LONGEST, Fixed(0.0))
    longest = backoff_seconds(failures, FIRST, LONGEST, Fixed(1.0))
    assert (shortest, longest) == pytest.approx((seconds / 2, seconds))


@given(
    st.integers(min_value=0, max_value=10**9),
    st.floats(min_value=1e-6, max_value=1e6),
    st.floats(min_value=1e-6, max_value=1e6),
    st.randoms(use_true_random=False),
)
def test_no_wait_is_shorter_than_half_or_longer_than_the_limit(
    failures: int, first: float, longest: float, random: Random
) -> None:
    wait = backoff_seconds(failures, first, longest, random)
    assert min(first, longest) / 2 <= wait <= longest
