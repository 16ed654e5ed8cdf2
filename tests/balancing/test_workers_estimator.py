"""The worker's own limit, measured: against workers with hidden permits."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.balancing.workers import EstimatorSettings, LimitEstimator


class Box:
    """A worker with permits that nobody is told of, kept as full as its limit allows."""

    def __init__(self, permits: int, first: int, way_seconds: float = 0.0, seed: int = 1) -> None:
        self.permits = permits
        self.estimator = LimitEstimator(first, 10_000, 0.0)
        self.serving = self.waiting = self.in_flight = 0
        self.now = 0.0
        self.way = way_seconds
        self.random = Random(seed)
        self.events: list[tuple[float, int, str]] = []
        self.number = 0
        self.pressed = False
        self.served = self.waited = 0.0
        """Seconds, of all that were served, or waited, together."""

    def at(self, time: float, what: str) -> None:
        self.number += 1
        heappush(self.events, (time, self.number, what))

    def serve(self) -> None:
        while self.waiting and self.serving < self.permits:
            self.waiting -= 1
            self.serving += 1
            self.at(self.now + self.random.expovariate(20.0), "ends")
        self.estimator.observe(self.serving, self.waiting, self.now)

    def run(self, seconds: float, demand: int = 10**9) -> None:
        end = self.now + seconds
        self.serve()
        while True:
            while self.in_flight < min(self.estimator.limit(self.now), demand):
                self.in_flight += 1
                self.estimator.claimed(self.in_flight, pressed=self.pressed)
                self.at(self.now + self.way / 2, "arrives")
            if not self.events or self.events[0][0] > end:
                self.now = end
                return
            before = self.now
            self.now, _, what = heappop(self.events)
            self.served += self.serving * (self.now - before)
            self.waited += self.waiting * (self.now - before)
            if what == "arrives":
                self.waiting += 1
            elif what == "ends":
                self.serving -= 1
                self.at(self.now + self.way / 2, "answered")
            else:
                self.in_flight -= 1
            self.serve()
            if what == "ends":
                self.estimator.ended()


@settings(deadline=None, max_examples=15)
@given(permits=st.integers(2, 120), first=st.integers(1, 300), seed=st.integers(0, 100))
def test_the_limit_finds_the_permits_from_below_and_from_above(
    permits: int, first: int, seed: int
) -> None:
    box = Box(permits, first, seed=seed)
    box.run(3.0)
    assert permits <= box.estimator.limit(box.now) <= permits * 1.15 + 5
    assert box.estimator.parallel == pytest.approx(permits, rel=0.05, abs=0.5)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_the_end_of_a_query_in_one_call_is_the_same_as_in_three(seed: int) -> None:
    random = Random(seed)
    one, three = (LimitEstimator(8, 40, 0.0, EstimatorSettings(ends_min=2)) for _ in range(2))
    serving = waiting = 0
    now = 0.0
    for _ in range(300):
        now += random.choice((0.0, 0.0, 0.001, 0.02, -0.001))
        if serving and random.random() < 0.5:
            serving -= 1
            good = random.random() < 0.8
            limit = one.observe_end(serving, waiting, now, good=good)
            three.observe(serving, waiting, now)
            if good:
                three.ended()
            assert limit == three.limit(now)
        else:
            serving, waiting = serving + 1, random.randrange(3)
            claimed = random.randrange(60)
            for each in (one, three):
                each.observe(serving, waiting, now)
                each.claimed(claimed)
    for name in LimitEstimator.__slots__:
        assert getattr(one, name) == getattr(three, name)


def test_the_mean_service_time_is_right_however_the_load_changes() -> None:
    box = Box(50, 50)
    box.run(2.0)
    assert box.estimator.mean_service_seconds == pytest.approx(0.05, rel=0.2)
    box.run(1.0, demand=0)
    assert box.estimator.mean_service_seconds == pytest.approx(0.05, rel=0.25)


def test_a_long_way_is_in_the_limit_and_the_worker_stays_busy() -> None:
    box = Box(50, 50, way_seconds=0.05)
    box.run(3.0)
    box.served = box.waited = 0.0
    box.run(1.0)
    assert 85 <= box.estimator.limit(box.now) <= 135, "as many are under way as are served"
    assert box.served > 0.85 * (box.served + box.waited)


@pytest.mark.parametrize("permits", [4, 11, 40])
def test_where_the_limit_is_right_it_is_seldom_tried_whether_more_can_be_done(permits: int) -> None:
    box = Box(permits, 2 * permits)
    box.run(2.0)
    box.waited = 0.0
    box.run(10.0)
    assert box.waited / 10.0 < 0.2, "so many waited on average"
    assert box.estimator.limit(box.now) >= permits


@pytest.mark.parametrize(("pressed", "within"), [(True, 0.3), (False, 1.0)])
def test_a_small_worker_that_can_do_twice_as_much_is_soon_known_to(
    pressed: bool, within: float
) -> None:
    for seed in range(20):
        box = Box(11, 11, seed=seed)
        box.run(5.0)
        box.permits, box.pressed = 22, pressed
        box.run(within)
        assert box.estimator.limit(box.now) >= 21


@pytest.mark.parametrize("after", [10, 20, 400])
def test_a_change_of_the_permits_is_followed_within_half_a_second(after: int) -> None:
    box = Box(100, 100)
    box.run(2.0)
    box.permits = after
    box.run(0.5)
    assert after * 0.8 <= box.estimator.limit(box.now) <= after * 1.25 + 5


def test_a_limit_on_the_floor_recovers() -> None:
    box = Box(0, 50)
    box.run(2.0)
    assert box.estimator.limit(box.now) <= 2
    box.permits = 60
    box.run(1.5)
    assert box.estimator.limit(box.now) >= 55


@pytest.mark.parametrize("lowest", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_limit_that_fell_by_tenths_recovers_from_wherever_that_ended(
    lowest: int, seed: int
) -> None:
    """Senders see a whole number: of 1.3 or 2.4 they can use no more than 1 or 2. That must count
    as used, or it would never grow again."""
    box = Box(60, 50, seed=seed)
    box.run(1.0)
    while box.estimator.limit(box.now) > lowest:
        box.estimator.lagged(0.2)
        box.run(0.01)
    box.run(1.5)
    assert box.estimator.limit(box.now) >= 55


def test_a_limit_that_is_not_used_does_not_grow_and_comes_down_to_what_was_measured() -> None:
    box = Box(100, 100)
    box.run(2.0)
    before = box.estimator.limit(box.now)
    box.run(3.0, demand=20)
    assert 95 <= box.estimator.limit(box.now) <= before


def test_a_late_loop_lowers_the_limit() -> None:
    box = Box(100, 100)
    box.run(1.0)
    before = box.estimator.limit(box.now)
    for _ in range(10):
        box.estimator.lagged(0.2)
        box.run(0.02)
    assert box.estimator.limit(box.now) < 0.6 * before


@given(
    st.lists(
        st.tuples(st.integers(-5, 300), st.integers(-5, 300), st.floats(-0.1, 1.0)), max_size=60
    )
)
def test_whatever_is_observed_the_limit_stays_in_its_bounds(
    samples: list[tuple[int, int, float]],
) -> None:
    estimator = LimitEstimator(5, 40, 0.0, EstimatorSettings(floor=2))
    now = 0.0
    for serving, waiting, elapsed in samples:
        now += elapsed  # the clock may be set back
        estimator.observe(serving, waiting, now)
        estimator.claimed(serving)
        estimator.ended()
        assert 2 <= estimator.limit(now) <= 40
        assert estimator.mean_service_seconds >= 0.0
