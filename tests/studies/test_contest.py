"""The contest, small: the model against known numbers, the goals, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from studies.contest import (
    PHASES,
    POLICIES,
    SCENARIOS,
    Ability,
    ContestModel,
    ContestSettings,
    best_per_second,
    contest_study,
    draw,
    run_contest,
)
from studies.contest.phases import capacity_per_second
from studies.queue_model import InvalidModelSetting
from tests.thorough import first

from maitred.errors import UnknownAlgorithm

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

SHORT = ContestModel(phases=PHASES[2:3], phase_seconds=1.0, warm_seconds=0.3)
"""A phase in which the pools say little about the permits."""
SMALL = ContestModel(
    phases=((Ability(12, 4.0), Ability(30, 6.0), Ability(40, 5.0)),),
    phase_seconds=1.0,
    connections=80,
    warm_seconds=0.1,
)
"""A tenth of the contest with a tenth of its times."""


def test_the_bound_is_the_contests() -> None:
    bounds = [best_per_second(phase, 1_024, 0.001) for phase in PHASES]
    assert sum(bounds) / len(bounds) == pytest.approx(22_081, rel=2e-4)
    assert all(sum(ability.permits for ability in phase) == 1_024 for phase in PHASES)
    assert ContestModel().bound_per_second == pytest.approx(sum(bounds) / len(bounds))


def test_the_bound_fills_the_fastest_first() -> None:
    abilities = (Ability(10, 100.0), Ability(10, 10.0))
    fast = abilities[1]
    assert best_per_second(abilities, 5, 0.0) == pytest.approx(5 / fast.mean_seconds)
    assert best_per_second(abilities, 1_000, 0.0) == pytest.approx(capacity_per_second(abilities))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_the_same_for_the_same_seed(policy: str) -> None:
    model = replace(SMALL, policy=policy, phase_seconds=0.05, warm_seconds=0.01)
    assert run_contest(model, 7) == run_contest(model, 7)
    assert run_contest(model, 7) != run_contest(model, 8)


def test_ours_come_near_the_bound_and_fail_nobody() -> None:
    seed = run_contest(replace(SHORT, policy="two-phase"), 1)
    for policy in first(1, ("adaptive", "idle")):
        run = run_contest(replace(SHORT, policy=policy), 1)
        assert run.share_of_bound > 0.98, policy
        assert run.failures == 0
        assert run.share_of_bound > seed.share_of_bound


def test_fast_refusals_make_a_black_hole_of_least_active_and_not_of_ours() -> None:
    crowd = replace(SHORT, connections=1_250, phase_seconds=0.06, warm_seconds=0.01)
    assert run_contest(replace(crowd, policy="least-active"), 1).worker_full > 1_000
    assert run_contest(replace(crowd, policy="adaptive"), 1).worker_full == 0


def test_overload_is_refused_and_the_rest_is_served_as_fast_as_ever() -> None:
    steady = replace(SMALL, phase_seconds=0.6)
    normal = run_contest(replace(steady, load=0.7), 1)
    over = run_contest(replace(steady, load=1.2), 1)
    assert normal.failures == 0
    assert over.share_of_bound > 0.97
    assert over.gateway_refused > 500
    assert over.timeouts == over.worker_full == 0
    assert over.p99_ms < normal.p99_ms + 25, "the line adds its 20 ms at most, and a little chance"


def test_low_priority_is_refused_first() -> None:
    run = run_contest(replace(SMALL, load=1.2, high_share=0.3, phase_seconds=0.5), 1)
    assert run.high_share_done > 0.95
    assert run.low_share_done < 0.85


def test_a_cut_of_the_capacity_is_followed() -> None:
    scenario = SCENARIOS["drop"].model
    cut = replace(scenario, policy="adaptive", phases=scenario.phases[:2], phase_seconds=0.7)
    run = run_contest(cut, 1)
    assert run.followed_seconds < 0.5
    assert run.failures == 0


@pytest.mark.parametrize("fault", ["hung", "vanished"])
def test_a_worker_that_hangs_or_vanishes_costs_what_it_had(fault: str) -> None:
    model = replace(SMALL, phase_seconds=3.6, load=0.3, fault=fault)
    run = run_contest(model, 1)
    assert 0 < run.failures < 60
    assert run.share_of_bound > 0.98
    assert run.gateway_refused == 0


@pytest.mark.parametrize("gateways", first(1, [8, 2]))
def test_several_gateways_share_the_workers(gateways: int) -> None:
    run = run_contest(replace(SHORT, gateways=gateways, policy="adaptive"), 1)
    assert run.share_of_bound > 0.97
    assert run.failures == 0


def test_queues_without_end_inside_the_workers_are_not_used_by_ours() -> None:
    crowd = replace(SMALL, bounded=False, load=1.2, phase_seconds=0.4)
    ours = run_contest(replace(crowd, policy="adaptive"), 1)
    theirs = run_contest(replace(crowd, policy="two-phase"), 1)
    assert ours.p99_ms < theirs.p99_ms


@pytest.mark.parametrize(
    "wrong",
    [
        {"connections": 0},
        {"gateways": 101},
        {"phase_seconds": 0.0},
        {"warm_seconds": 60.0},
        {"load": float("nan")},
        {"rate_per_second": 0.0},
        {"phases": ()},
    ],
)
def test_models_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidModelSetting):
        replace(ContestModel(), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"policy": "adaptiv"}, {"fault": "hang"}])
def test_names_that_are_not_known_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UnknownAlgorithm):
        replace(ContestModel(), **wrong)  # type: ignore[arg-type]


def test_the_study_says_which_goals_were_met(sketched: Callable[[str], list[Figure]]) -> None:
    settings = ContestSettings(policies=("two-phase", "adaptive"), seeds=1, variant_seeds=1)
    study = contest_study(replace(settings, stretch=0.01), lambda *_: None)
    assert len(study.table()) == 2 * len(SCENARIOS)
    said = " ".join(study.findings())
    for words in ("two-phase rule", "goal: 99.5 and none", "1.2 of the capacity", "eight"):
        assert words in said
    figures = sketched("studies.contest.picture")
    draw(study, Path("contest.svg"))
    assert all(axes.has_data() for axes in figures[0].axes)
