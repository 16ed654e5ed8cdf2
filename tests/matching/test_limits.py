"""Limits of events a second: exact, fractional, and never stuck."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.limits import Limiter
from maitred.routing.counts import PartitionCounts
from tests.matching.driver import Driver


@given(
    rate=st.floats(1e-3, 1e6),
    burst=st.floats(0.0, 20.0),
    began=st.floats(0.0, 1e9),
    most=st.integers(1, 60),
)
def test_it_never_stalls_and_never_lets_too_many_through(
    rate: float, burst: float, began: float, most: int
) -> None:
    limiter = Limiter(rate, burst, began)
    now, happened = began, 0
    for _ in range(20 * most):
        while limiter.allows(now) and happened < most:
            limiter.count()
            happened += 1
        if happened == most:
            break
        after = limiter.next_at(now)
        assert after > now, "not allowed now, so later"
        now = after
    assert happened == most
    rounding = 1e-6 + (now * 1e-15 * rate) * (happened + 1)
    assert happened <= limiter.burst + (now - began) * rate + rounding


@pytest.mark.parametrize("began", [1000.0, 12_345_678.9])
def test_half_a_task_a_second_is_one_every_two_seconds(began: float) -> None:
    driver = Driver(rate_per_second=0.5, now=began)
    driver.add(20)
    driver.offer(slots=1)
    for _ in range(9):
        driver.pass_time(1.9)
        waiting = driver.offer(slots=1)
        driver.pass_time(0.05)
        assert not waiting.answered
        driver.pass_time(0.05 + 1e-6)
        assert waiting.answered
    times = [run.at for run in driver.given]
    assert len(times) == 10


def test_the_rate_of_a_queue_is_shared_by_its_partitions() -> None:
    driver = Driver(counts=PartitionCounts(4, 4, 1), rate_per_second=40.0)
    driver.add(100)
    driver.offer(slots=100)
    given = 0
    for _ in range(100):
        driver.pass_time(0.1)
        driver.offer(slots=100)
    given = len(driver.given)
    assert 98 <= given <= 102


def test_a_new_count_changes_the_share_from_then_on() -> None:
    driver = Driver(counts=PartitionCounts(1, 1, 1), rate_per_second=10.0)
    driver.add(100)
    for _ in range(10):
        driver.offer(slots=10)
        driver.pass_time(0.1)
    before = len(driver.given)
    assert 10 <= before <= 11
    driver.partition.set_counts(PartitionCounts(5, 5, 2), driver.now)
    for _ in range(50):
        driver.offer(slots=10)
        driver.pass_time(0.1)
    assert 9 <= len(driver.given) - before <= 11


def test_expired_tasks_do_not_use_up_the_rate() -> None:
    driver = Driver(rate_per_second=0.5)
    driver.add(50, expires=1.0)
    kept = driver.add()
    driver.pass_time(2.0)
    assert driver.take_one().sequence == kept.sequences[0]


def test_a_limit_does_not_make_it_look_all_the_time_while_it_recovers() -> None:
    driver = Driver(rate_per_second=2.0)
    driver.add(2)
    driver.crash()
    driver.offer()
    assert driver.next_look > driver.now
    driver.pass_time(5.0)
    assert len(driver.given) == 1
