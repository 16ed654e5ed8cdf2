"""When a worker is held back for its failures, and how it comes back."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from maitred.balancing.workers.health import (
    NOTABLE,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    TELL_SECONDS,
    Health,
    pause_seconds,
    standing,
)


def failing(times: int, best: float = 1.0) -> Health:
    health = Health()
    health.compare(best, 0.0)
    for _ in range(times):
        health.failed(0.0)
    return health


def test_eighteen_failures_are_enough_if_others_fail_nothing() -> None:
    assert not failing(17).sick
    assert failing(18).sick


@pytest.mark.parametrize("best", [0.0, 0.3])
def test_whoever_is_alone_or_no_worse_is_never_held_back(best: float) -> None:
    health = failing(1_000, best)
    assert not health.sick
    assert health.room(1_000, 0.0) == inf


def test_one_at_a_time_after_pauses_that_double() -> None:
    health = failing(18)
    now = 0.0
    pauses = []
    for _ in range(8):
        assert health.room(0, now) == 0
        pauses.append(health.paused_until - now)
        now = health.paused_until
        assert (health.room(0, now), health.room(1, now)) == (1, 0)
        health.failed(now)
    first = PAUSE_SECONDS
    assert pauses == pytest.approx(
        [first, 2 * first, 4 * first, 8 * first, 16 * first, *[PAUSE_SECONDS_MAX] * 3]
    )


def test_those_that_fail_during_a_pause_were_begun_before_it() -> None:
    health = failing(18)
    until = health.paused_until
    for _ in range(60):
        health.failed(until / 2)
    assert health.paused_until == until


def test_every_good_answer_makes_room_for_one_more_until_it_is_well() -> None:
    health = failing(300)
    now = health.paused_until
    rounds = 0
    while health.sick:
        rounds += 1
        for _ in range(int(health.room(0, now))):
            health.done(0.05, now)
    assert rounds <= 7, "of 1, 2, 4, ..., which takes a third of a second here"
    assert health.room(1_000, now) == inf


def test_a_failure_on_the_way_back_begins_again() -> None:
    health = failing(300)
    now = health.paused_until
    for _ in range(10):
        health.done(0.02, now)
    assert health.room(0, now) == 11
    health.failed(now)
    assert health.room(0, now) == 0
    assert health.paused_until == pytest.approx(now + 0.02), "as long as a good one takes"
    assert health.room(0, now + 0.03) == 1


def test_it_is_well_as_soon_as_the_others_are_no_better() -> None:
    health = failing(50)
    verdicts = [health.sick]
    for best in (0.5, 0.6, 1.0, 0.6):
        health.compare(best, 0.0)
        verdicts.append(health.sick)
    assert verdicts == [True, False, False, True, True], "in between it stays what it was"


def test_standings() -> None:
    assert [standing(good, 1.0) for good in (0.9, 0.75, 0.6)] == [0, 1, 2]
    assert standing(0.0, 0.15) == 0
    assert pause_seconds(0.0, 0) == PAUSE_SECONDS
    assert pause_seconds(20.0, 5) == PAUSE_SECONDS_MAX


@pytest.mark.parametrize("failed_share", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("workers", [2, 20])
def test_what_fails_everywhere_holds_hardly_anybody_back(failed_share: float, workers: int) -> None:
    """They know of each other what they told last, as a root does."""
    random = Random(f"health {failed_share} {workers}")
    all_of_them = [Health() for _ in range(workers)]
    held_back = 0
    for step in range(40_000):
        now = 0.001 * step
        health = random.choice(all_of_them)
        if random.random() < failed_share:
            health.failed(now)
        else:
            health.done(0.05, now)
        held_back += health.sick
        if health.tell_at <= now:
            health.tell(now)
            for one in all_of_them:
                one.compare(max(other.told for other in all_of_them if other is not one), now)
    assert held_back <= 400, "one answer in a hundred, most of them while the errors begin"


def test_what_is_told_and_when() -> None:
    health = Health()
    health.tell(10.0)
    assert health.tell_at == inf
    while health.good > 1.0 - NOTABLE:
        assert health.tell_at == inf
        health.failed(10.0)
    assert health.tell_at == 10.0 + TELL_SECONDS
    assert health.tell(11.0) == health.good
    assert health.tell_at == inf
