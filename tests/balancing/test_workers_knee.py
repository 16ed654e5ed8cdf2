"""The limit of a back end that tells nothing, before a model of one: M/M/c, and worse.

No constant of the search was chosen with the seeds that are used here. The bounds of how long
something may take are about the worst of forty seeds, which are others again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

import pytest
from tests.thorough import first

from maitred.balancing.workers import KneeProber, KneeSettings
from maitred.balancing.workers.knee_alarm import ALARM, ALARM_MAX, FallAlarm
from maitred.balancing.workers.knee_evidence import VOTE_MOST, Evidence, Pair, Window

MEAN_SECONDS = 0.04
REFUSED_SECONDS = 0.001
LOOK_SECONDS = 0.05
SEEDS = first(2, range(3006, 3000, -1))
SMALL = 8
SMALL_MEAN_SECONDS = 0.1
"""A small back end answers 80 a second."""


class Hidden:
    """Serves so many at a time, and tells nobody; kept as full as its limit allows."""

    def __init__(
        self,
        permits: int,
        seed: int,
        *,
        first: int = 16,
        ceiling: int = 10_000,
        pool: int = 10**9,
        failing: float = 0.0,
    ) -> None:
        self.permits = permits
        self.prober = KneeProber(0.0, KneeSettings(first=first, ceiling=ceiling))
        self.random = Random(seed)
        self.mean = MEAN_SECONDS
        self.now = 0.0
        self.pool = pool
        """What comes while so many are served or wait is refused, fast."""
        self.failing = failing
        """The share of those that come that fail, as fast."""
        self.stalled_until = 0.0
        """What is begun before this does not end earlier."""
        self._ends: list[tuple[float, bool]] = []
        self._serving = self._waiting = self._refused = 0

    def service_seconds(self) -> float:
        return self.random.expovariate(1.0 / self.mean)

    def run(self, seconds: float, demand: int = 10**9) -> float:
        """How much of what it could serve was served: the share of its throughput."""
        end, served, prober = self.now + seconds, 0.0, self.prober
        while True:
            while self._serving + self._waiting + self._refused < min(prober.limit, demand):
                prober.started()
                full = self._serving + self._waiting >= self.pool
                if full or (self.failing and self.random.random() < self.failing):
                    self._refused += 1
                    heappush(self._ends, (self.now + REFUSED_SECONDS, False))
                else:
                    self._waiting += 1
            while self._waiting and self._serving < self.permits:
                self._waiting -= 1
                self._serving += 1
                at = max(self.now + self.service_seconds(), self.stalled_until)
                heappush(self._ends, (at, True))
            moment = min(self._ends[0][0], end)
            served += self._serving * (moment - self.now)
            self.now = moment
            if moment == end:
                return served / seconds / self.permits
            _, good = heappop(self._ends)
            if good:
                self._serving -= 1
            else:
                self._refused -= 1
            prober.ended(moment, good=good)

    def follows(self, least: float, most: float, seconds: float) -> bool:
        """Whether the limit gets there in that time, and stays there for a second."""
        until, since = self.now + seconds, self.now
        while self.now < since + 1.0:
            self.run(LOOK_SECONDS)
            if not least <= self.prober.knee <= most:
                since = self.now
                if since >= until:
                    return False
        return True


def small(seed: int) -> Hidden:
    back_end = Hidden(SMALL, seed, first=SMALL)
    back_end.mean = SMALL_MEAN_SECONDS
    back_end.run(30.0)
    return back_end


def settled(permits: int, seed: int, seconds: float = 4.0) -> Hidden:
    back_end = Hidden(permits, seed)
    back_end.run(seconds)
    return back_end


@pytest.mark.parametrize(("permits", "first"), [(20, 4), (60, 16), (40, 300)])
def test_the_knee_is_found_without_a_word_from_the_back_end(permits: int, first: int) -> None:
    back_end = Hidden(permits, seed=3007, first=first)
    back_end.run(30.0)
    knees = []
    for _ in range(10):
        assert back_end.run(2.0) > 0.85
        knees.append(back_end.prober.knee)
    assert 0.85 * permits <= sum(knees) / len(knees) <= 1.6 * permits


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_not_chased_and_throughput_is_not_lost(seed: int) -> None:
    """99 % mostly, and 95 % with the worst of a hundred seeds."""
    back_end = settled(100, seed)
    assert back_end.run(10.0) >= 0.95
    assert 90 <= back_end.prober.knee <= 125


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_capacity_is_followed_within_a_second_and_its_return_soon(seed: int) -> None:
    back_end = settled(100, seed)
    back_end.permits = 50
    assert back_end.follows(40, 72, seconds=1.0)
    back_end.run(2.0)
    back_end.permits = 100
    assert back_end.follows(85, 160, seconds=4.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fifth_of_the_capacity_is_followed_within_half_a_second(seed: int) -> None:
    back_end = settled(100, seed)
    back_end.permits = 20
    assert back_end.follows(15, 32, seconds=0.5)
    back_end.permits = 100
    assert back_end.follows(85, 160, seconds=6.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_back_end_that_shrinks_and_its_return(seed: int) -> None:
    """Half of it answers 40 a second, and an eighth 10: some dozens of answers are needed."""
    back_end = small(seed)
    back_end.permits = 4
    assert back_end.follows(3, 7, seconds=4.5)
    back_end.run(10.0)
    back_end.permits = SMALL
    assert back_end.follows(6, 16, seconds=13.5)
    back_end.run(10.0)
    back_end.permits = 1
    assert back_end.follows(1, 3, seconds=6.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_back_end_is_used(seed: int) -> None:
    """Trying less costs throughput, so it is rare; the knee is known to a third or so."""
    back_end = small(seed)
    assert back_end.run(60.0) >= 0.95
    assert 6 <= back_end.prober.knee <= 14


@pytest.mark.parametrize("seed", SEEDS)
def test_who_only_gets_slower_keeps_its_limit(seed: int) -> None:
    """The same fall, seen from outside. The trial costs half of the throughput while it lasts, and
    so does the next step down."""
    back_end = settled(100, seed)
    back_end.mean = 2 * MEAN_SECONDS
    assert back_end.run(5.0) >= 0.87
    assert back_end.follows(85, 160, seconds=1.0)
    assert back_end.run(10.0) >= 0.97


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_one_that_only_gets_slower_is_not_driven_to_the_floor(seed: int) -> None:
    back_end = small(seed)
    for slower in (2.0, 4.0, 1.0, 3.0):
        back_end.mean = slower * SMALL_MEAN_SECONDS
        back_end.run(5.0)
        assert back_end.run(20.0) >= 0.75


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pause_is_no_fall(seed: int) -> None:
    back_end = settled(100, seed)
    for _ in range(5):
        before = back_end.prober.knee
        back_end.stalled_until = back_end.now + 1.0
        back_end.run(1.3)
        assert back_end.prober.knee >= 0.9 * before
        back_end.run(1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_less_demand_is_no_fall(seed: int) -> None:
    """Even if it becomes less in the middle of a window."""
    back_end = settled(100, seed, seconds=8.0)
    before = back_end.prober.knee
    for demand in (10, 70, 30, 5, 80):
        back_end.run(1.0, demand=demand)
        assert back_end.prober.knee == before


def test_a_knee_that_is_not_tested_stays() -> None:
    back_end = Hidden(50, seed=3003)
    back_end.run(20.0, demand=5)
    assert back_end.prober.knee == 16


def test_batches_are_no_falls() -> None:
    """A back end that takes whatever is there, and answers it together."""
    prober, now, lowest = KneeProber(0.0, KneeSettings(first=50, ceiling=50)), 0.0, 50
    for _ in range(2_000):
        batch = prober.limit
        for _ in range(batch):
            prober.started()
        now += 0.05
        for _ in range(batch):
            prober.ended(now)
        lowest = min(lowest, prober.knee)
    assert lowest == 50


# Errors


def test_errors_are_no_throughput() -> None:
    prober = KneeProber(0.0, KneeSettings(first=10))
    now = 0.0
    for _ in range(5_000):
        for _ in range(prober.limit):
            prober.started()
        for _ in range(prober.limit):
            now += 0.0001
            prober.ended(now, good=False)
    assert prober.knee <= 10
    assert "KneeProber" in repr(prober)


@pytest.mark.parametrize("seed", first(1, range(3001, 3004)))
def test_a_back_end_that_refuses_fast_is_not_asked_for_more(seed: int) -> None:
    """A pool of 30 of which 20 are served at a time; whatever is beyond gets an error at once."""
    back_end = Hidden(20, seed, pool=30)
    highest = 0
    for _ in range(100):
        back_end.run(0.1)
        highest = max(highest, back_end.prober.knee)
    assert highest <= 60
    assert back_end.prober.knee <= 40


@pytest.mark.parametrize("seed", first(1, range(3001, 3004)))
def test_errors_that_come_and_go_raise_nothing(seed: int) -> None:
    back_end = settled(40, seed)
    highest = 0
    for _ in range(5):
        back_end.failing = 1.0
        back_end.run(0.3)
        back_end.failing = 0.0
        back_end.run(0.7)
        highest = max(highest, back_end.prober.knee)
    assert highest <= 80


# The floor and the ceiling


@pytest.mark.parametrize("seed", first(1, range(3001, 3004)))
def test_a_limit_at_the_floor_recovers(seed: int) -> None:
    back_end = settled(50, seed)
    back_end.permits = 1
    assert back_end.follows(1, 5, seconds=10.0)
    back_end.run(5.0)
    back_end.permits = 50
    assert back_end.follows(40, 75, seconds=20.0)


@pytest.mark.parametrize("seed", first(1, range(3001, 3004)))
def test_from_one_it_goes_up(seed: int) -> None:
    back_end = Hidden(50, seed, first=1)
    assert back_end.follows(40, 80, seconds=15.0)


def test_at_its_ceiling_it_is_used_all_the_same() -> None:
    back_end = Hidden(100, seed=3001, first=50, ceiling=50)
    assert back_end.run(30.0) >= 0.96 * 0.5
    assert back_end.prober.knee == 50


def test_what_senders_count_uses_a_limit_as_well() -> None:
    """Half of them are always under way: at the back end there are never more than half."""
    prober, now = KneeProber(0.0, KneeSettings(first=16, ceiling=200)), 0.0
    for _ in range(200):
        for _ in range(prober.limit // 2):
            prober.started()
        prober.claimed(prober.limit)
        now += 0.01
        for _ in range(prober.limit // 2):
            prober.ended(now)
    assert prober.knee > 16


# The evidence by itself


def pair(low: int, high: int, knee: int, *, up: bool = True, ends: int = 200) -> Pair:
    """What two windows of a back end that is as fast as can be would say."""
    slow, fast = min(low, knee), min(high, knee)
    return Pair(Window(low, ends, ends / slow), Window(high, ends, ends / fast), up=up)


def test_one_pair_tells_where_the_knee_may_be() -> None:
    evidence = Evidence()
    assert evidence.knees() is None
    evidence.add(pair(10, 20, 14))
    knees = evidence.knees()
    assert knees is not None
    assert 10 < knees.least < knees.likely < knees.cautious < 20
    assert knees.likely == pytest.approx(14, rel=0.06)


def test_where_nothing_was_tried_nothing_is_known() -> None:
    evidence = Evidence()
    evidence.add(pair(10, 20, 5))
    below = evidence.knees()
    assert below is not None
    assert (below.least, below.likely) == (0.0, 10.0)
    evidence.clear()
    evidence.add(pair(10, 20, 50))
    above = evidence.knees()
    assert above is not None
    assert above.likely == above.cautious == 20.0


def test_a_back_end_that_gets_slower_changes_no_evidence() -> None:
    evidence = Evidence()
    evidence.add(pair(10, 20, 14))
    before = evidence.knees()
    low, high, up = pair(10, 20, 14)
    evidence.add(
        Pair(low._replace(seconds=9 * low.seconds), high._replace(seconds=9 * high.seconds), up)
    )
    after = evidence.knees()
    assert before is not None
    assert after is not None
    assert after.likely == before.likely
    assert after.cautious - after.least < before.cautious - before.least


def test_a_knee_that_moved_makes_the_older_pairs_forgotten() -> None:
    evidence = Evidence()
    for _ in range(30):
        evidence.add(pair(10, 20, 10))
    evidence.add(pair(5, 10, 10, up=False))
    evidence.add(pair(10, 20, 20))
    knees = evidence.knees()
    assert knees is not None
    assert knees.likely == 20.0


def test_one_window_full_of_errors_does_not_outvote_the_others() -> None:
    evidence = Evidence()
    for _ in range(5):
        evidence.add(pair(10, 20, 10, ends=50))
    assert max(pair(10, 20, 20, ends=10**6).votes([10.0, 20.0], 1.0)) == 0.0
    assert min(pair(10, 20, 20, ends=10**6).votes([10.0, 20.0], 1.0)) == -VOTE_MOST


# The alarm by itself


def rounds(alarm: FallAlarm, rate: float, ends: int, now: float) -> bool:
    """So many ends, at an even pace; whether there was an alarm."""
    return any(alarm.ended(now + n / rate, 20, 20, 1.0, good=True) for n in range(1, ends + 1))


def test_an_alarm_for_nothing_makes_the_next_one_harder() -> None:
    alarm = FallAlarm(0.0)
    assert not rounds(alarm, 1.0, 100, 0.0)  # nobody knows what is usual
    needed = []
    for _ in range(5):
        alarm.forget()
        alarm.learn(100.0, 1.0, 20.0, 20)
        needed.append(next(n for n in range(20, 2_000, 20) if rounds_anew(alarm, n)))
        alarm.judged(right=False)
    assert needed == sorted(needed)
    assert needed[0] < needed[-1] <= 500
    assert ALARM < ALARM_MAX
    alarm.judged(right=True)
    assert rounds_anew(alarm, needed[0])


def rounds_anew(alarm: FallAlarm, ends: int) -> bool:
    alarm.restart(200.0)
    return rounds(alarm, 50.0, ends, 200.0)
