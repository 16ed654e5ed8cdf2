"""How a worker finds its limit: what docs/capacity.md says of the pictures, in numbers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from studies.limits import BEHAVIOURS, STEP_SECONDS, Behaviour, Track, draw, run
from tests.thorough import THOROUGH, first

if TYPE_CHECKING:
    from pathlib import Path

DROP, BURST, LATE, LIE, KNEE = BEHAVIOURS
SEEDS = first(1, (1, 2, 3))


def between(track: Track, start: float, end: float) -> list[int]:
    return track.limit[round(start / STEP_SECONDS) : round(end / STEP_SECONDS)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fifth_of_the_capacity_is_followed_and_so_is_its_return(seed: int) -> None:
    track = run(DROP, seed)
    assert all(490 <= limit <= 560 for limit in between(track, 0.2, 1.0))
    assert all(95 <= limit <= 120 for limit in between(track, 1.15, 2.5))
    assert all(490 <= limit <= 560 for limit in between(track, 2.8, 4.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_burst_after_a_quiet_time_finds_the_capacity(seed: int) -> None:
    track = run(BURST, seed)
    assert set(between(track, 0.0, 1.5)) == {650}
    assert all(290 <= limit <= 345 for limit in between(track, 1.6, 4.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_limit_on_the_floor_recovers(seed: int) -> None:
    track = run(LATE, seed)
    assert max(between(track, 3.5, 4.0)) <= 2
    assert all(95 <= limit <= 120 for limit in between(track, 5.5, 6.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lie_is_believed_up_to_what_is_used_and_forgotten_at_once(seed: int) -> None:
    track = run(LIE, seed)
    assert all(limit <= 560 for limit in between(track, 1.0, 2.5))
    assert all(290 <= limit <= 345 for limit in between(track, 2.65, 4.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_knee_is_found_and_found_again(seed: int) -> None:
    """A step that is tried may be twice the limit; most of the time it is not."""

    def usual(start: float, end: float) -> int:
        limits = sorted(between(track, start, end))
        return limits[len(limits) // 2]

    track = run(KNEE if THOROUGH else KNEE._replace(seconds=35.0), seed)
    assert 85 <= usual(3.0, 10.0) <= 150
    assert 40 <= usual(11.0, 20.0) <= 80
    assert 85 <= usual(28.0, 35.0) <= 150
    if not THOROUGH:
        return
    assert 16 <= usual(37.0, 45.0) <= 36
    assert 85 <= usual(53.0, 60.0) <= 150


def long_track(behaviour: Behaviour) -> Track:
    """As many points as a run of the behaviour has, by chance, since a run takes much longer."""
    count, random = round(behaviour.seconds / STEP_SECONDS), Random(1)

    def values() -> list[int]:
        return [random.randrange(behaviour.slots) for _ in range(count)]

    seconds = [step * STEP_SECONDS for step in range(count)]
    return Track(seconds, values(), values(), values(), values())


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "capacity.svg", long_track)
    assert 10_000 < (tmp_path / "capacity.svg").stat().st_size < 500_000
