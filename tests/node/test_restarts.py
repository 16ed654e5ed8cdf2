"""When a shard that died is started again, and when not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.node.restarts import GiveUp, RestartPolicy
from maitred.settings import Restarts

SETTINGS = Restarts(first_seconds=0.1, longest_seconds=1.0, give_up_after=6, window_seconds=60.0)

restarts = st.builds(
    lambda first, factor, deaths, window: Restarts(
        first_seconds=first,
        longest_seconds=first * factor,
        give_up_after=deaths,
        window_seconds=window,
    ),
    st.floats(0.001, 100.0),
    st.floats(1.0, 1_000.0),
    st.integers(1, 100),
    st.floats(0.01, 1_000.0),
)
lives = st.lists(st.floats(0, 2_000.0), min_size=1, max_size=60)


def test_pauses_double_until_the_longest_and_then_it_is_given_up() -> None:
    policy = RestartPolicy(SETTINGS, now=0.0)
    now, pauses = 0.0, []
    for _ in range(5):
        decision = policy.died(now)
        assert isinstance(decision, float)
        pauses.append(decision - now)
        now = decision
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert policy.died(now) == GiveUp("it died 6 times within moments of running")


def test_the_reason_says_how_long_it_ran() -> None:
    policy = RestartPolicy(Restarts(give_up_after=2), now=0.0)
    decision = policy.died(5.0)
    assert isinstance(decision, float)
    assert policy.died(decision + 3.0) == GiveUp("it died 2 times within 3.0 s of running")


def test_a_clock_that_stands_still_or_goes_back_does_no_harm() -> None:
    policy = RestartPolicy(Restarts(give_up_after=3), now=100.0)
    assert isinstance(policy.died(100.0), float)
    assert isinstance(policy.died(99.0), float)
    assert isinstance(policy.died(99.0), GiveUp)


@given(restarts)
def test_a_shard_that_dies_at_once_is_given_up_after_exactly_so_many(settings: Restarts) -> None:
    """However long its pauses are, also if they are longer than the window."""
    policy = RestartPolicy(settings, now=0.0)
    now = 0.0
    for _ in range(settings.give_up_after - 1):
        decision = policy.died(now)
        assert isinstance(decision, float)
        now = decision
    assert isinstance(policy.died(now), GiveUp)


@given(restarts, lives)
def test_given_up_exactly_when_so_many_deaths_fit_into_a_window(
    settings: Restarts, lived: list[float]
) -> None:
    """The model: ages at death on a clock that only runs while the shard does."""
    policy = RestartPolicy(settings, now=0.0)
    started, age = 0.0, 0.0
    deaths: list[float] = []
    for seconds in lived:
        now = started + seconds
        age += now - started  # what the policy can see, rounding and all
        deaths.append(age)
        recent = [death for death in deaths if age - death < settings.window_seconds]
        decision = policy.died(now)
        if len(recent) >= settings.give_up_after:
            assert isinstance(decision, GiveUp)
            return
        assert isinstance(decision, float)
        pause = min(settings.longest_seconds, settings.first_seconds * 2 ** (len(recent) - 1))
        assert decision == now + pause
        started = decision


@given(restarts.filter(lambda settings: settings.give_up_after > 1), st.integers(0, 20))
def test_who_lived_for_a_window_starts_from_nothing(settings: Restarts, before: int) -> None:
    policy = RestartPolicy(settings, now=0.0)
    now = 0.0
    for _ in range(min(before, settings.give_up_after - 1)):
        decision = policy.died(now)
        assert isinstance(decision, float)
        now = decision
    now += settings.window_seconds * 1.001 + 0.001
    assert policy.died(now) == now + settings.first_seconds
