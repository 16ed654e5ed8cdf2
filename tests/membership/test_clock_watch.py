"""How far a node's clock is ahead of the database's, from bounds that heartbeats give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.membership.clock_watch import CLOCK_WARNING_SECONDS, ClockWatch

SECONDS = st.floats(0, 3_600)


def test_clocks_that_can_be_the_same_count_as_the_same() -> None:
    watch = ClockWatch()
    watch.measured(1_000.0, 999.0, 1_004.0)
    watch.measured(1_010.0, 1_010.0, 1_010.0)
    assert watch.ahead_seconds == 0.0
    assert not watch.is_apart


def test_a_clock_that_was_set_back_during_a_heartbeat_says_nothing() -> None:
    watch = ClockWatch()
    watch.measured(1_000.0, 1_300.0, 1_000.5)
    assert watch.ahead_seconds == 0.0


@pytest.mark.parametrize("sign", [1, -1])
def test_clocks_minutes_apart_are_apart(sign: int) -> None:
    watch = ClockWatch()
    watch.measured(10_000.0, 10_000.0 + sign * 300, 10_000.0 + sign * 300 + 0.01)
    assert watch.ahead_seconds == pytest.approx(sign * 300, abs=0.02)
    assert watch.is_apart
    watch.measured(10_001.0, 10_001.0 + CLOCK_WARNING_SECONDS / 2, 10_002.5)
    assert not watch.is_apart, "the clock was set"


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20))
def test_the_estimate_is_off_by_no_more_than_the_quickest_heartbeat_took(
    ahead: float, beats: list[tuple[float, float]]
) -> None:
    watch = ClockWatch()
    now = 1.8e9
    for there, back in beats:
        watch.measured(now, now - there + ahead, now + back + ahead)
        now += 10_000.0
    quickest = min(there + back for there, back in beats)
    assert abs(watch.ahead_seconds - ahead) <= quickest + 1e-5
