"""The yardsticks are right: formulas against known values, and simulation against formulas."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as some
from studies.queue_model.queueing import (
    ErlangC,
    even_p_value,
    interval_95,
    jain_index,
    largest_deviation,
    quantile,
    single_queue_waits,
    upper_gamma_share,
)


def test_one_server_is_the_textbook_queue() -> None:
    # M/M/1: the probability to wait is rho, the mean wait rho / (mu - lambda).
    queue = ErlangC(rate_per_second=8, service_seconds=0.1, servers=1)
    assert queue.wait_probability == pytest.approx(0.8)
    assert queue.mean_seconds == pytest.approx(0.8 / 2)
    assert queue.quantile_seconds(0.1) == 0
    assert queue.quantile_seconds(0.9) == pytest.approx(math.log(0.8 / 0.1) / 2)


def test_erlang_c_of_the_tables() -> None:
    # Two servers at a load of 1: 1/3. Ten at a load of 8: 0.4092, as printed in tables.
    assert ErlangC(1, 1, 2).wait_probability == pytest.approx(1 / 3)
    assert ErlangC(8, 1, 10).wait_probability == pytest.approx(0.4092, abs=5e-5)


def test_a_thousand_servers_do_not_overflow() -> None:
    assert 0 < ErlangC(990, 1, 1_000).wait_probability < 1


@pytest.mark.parametrize(("rate", "servers"), [(112.0, 8), (40.0, 4), (16.0, 1)])
def test_the_single_queue_agrees_with_the_formula(rate: float, servers: int) -> None:
    service = 0.05
    formula = ErlangC(rate, service, servers)
    means = []
    waited = []
    for seed in range(30):
        source = random.Random(seed)
        now = 0.0
        jobs = []
        for _ in range(5_000):
            now += source.expovariate(rate)
            jobs.append((now, source.expovariate(1 / service)))
        # The first tasks meet an empty queue; they would pull the mean down.
        waits = single_queue_waits(jobs, servers)[500:]
        means.append(fmean(waits))
        waited.append(fmean(wait > 0 for wait in waits))
    for sample, expected in ((means, formula.mean_seconds), (waited, formula.wait_probability)):
        error = stdev(sample) / math.sqrt(len(sample))
        assert abs(fmean(sample) - expected) < 4 * error
        # And the bound means something: the standard error is a few per cent at most.
        assert error < 0.06 * expected


@given(
    some.lists(some.tuples(some.integers(0, 30), some.integers(0, 9)), min_size=1, max_size=40),
    some.integers(1, 5),
)
def test_nobody_idles_while_a_job_waits(jobs: list[tuple[int, int]], servers: int) -> None:
    jobs.sort()
    waits = single_queue_waits(jobs, servers)
    for (arrival, _), wait in zip(jobs, waits, strict=True):
        # Whole numbers, so half a unit before its start every server is surely within a job.
        moment = arrival + wait - 0.5
        busy = sum(
            other + waited < moment < other + waited + length
            for (other, length), waited in zip(jobs, waits, strict=True)
        )
        assert busy <= servers
        if wait > 0:
            assert busy == servers


def test_quantiles() -> None:
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([0.0, 10.0], 0.5) == 5.0
    assert quantile([float(n) for n in range(101)], 0.99) == 99.0


def test_evenness() -> None:
    assert jain_index([5, 5, 5]) == pytest.approx(1.0)
    assert jain_index([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain_index([0, 0]) == 1.0
    assert largest_deviation([1, 3]) == 0.25
    assert largest_deviation([0, 0]) == 0.0


def test_chi_square_of_the_tables() -> None:
    # The 5 % points of the chi-square distribution, for 1, 3, 10 and 100 degrees of freedom.
    for freedom, point in ((1, 3.841), (3, 7.815), (10, 18.307), (100, 124.342)):
        assert upper_gamma_share(freedom / 2, point / 2) == pytest.approx(0.05, abs=2e-4)
    assert upper_gamma_share(2, 0) == 1.0
    assert upper_gamma_share(5, 400) < 1e-100


def test_even_p_values() -> None:
    assert even_p_value([100, 100, 100]) == pytest.approx(1.0)
    assert even_p_value([200, 100, 100]) < 1e-6
    assert even_p_value([7]) == 1.0
    assert even_p_value([0, 0]) == 1.0


def test_intervals() -> None:
    assert interval_95([3.0]) == 0.0
    assert interval_95([1.0, 1.0, 1.0]) == 0.0
    assert interval_95([0.0, 2.0]) == pytest.approx(12.706)
    assert interval_95([0.0, 2.0] * 200) == pytest.approx(0.1, rel=0.01)
