"""Workers that lie, fall silent, refuse or fail: what `adaptive` and `idle` promise, under seeds.

`make test` strikes one worker with each fault, the smallest and the largest in turn; `make studies`
strikes both, and also the measuring of workers under `idle`. More seeds:
`python -m studies.contest --faults --seeds 10`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from studies.contest import (
    FAULT_SCENARIOS,
    IDLE_PROMISES,
    PROMISES,
    SCENARIOS,
    ContestMeasures,
    ContestModel,
    ContestSettings,
    contest_study,
    promise,
    run_contest,
)
from studies.contest.faults import FAULTS, FaultMeasures, lie
from studies.queue_model import InvalidModelSetting
from tests.thorough import THOROUGH, first

from maitred.balancing.workers import LoadReport
from maitred.errors import UnknownAlgorithm

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST, LARGEST = 0, 2
"""The smallest is the fastest as well; the largest can do half of all."""

MEASURING = {"reports-stop", "reports-out-of-order", "clocks-differ", "floor", "one-permit"}
"""Faults of how workers measure themselves, which both policies leave to the same estimator."""
TESTED_BELOW = {"fast-errors", "callers-fault"}
"""Other tests strike the smallest worker, or all of them, with these, under both policies."""


def cases() -> Iterator[tuple[str, str, int, int]]:
    """Policy, fault, victim and seed of each run."""
    for first_number, policy, promises, seeds, left_out in (
        (0, "adaptive", PROMISES, (1, 3), TESTED_BELOW),
        (1, "idle", IDLE_PROMISES, (41, 42), TESTED_BELOW | MEASURING),
    ):
        for number, name in enumerate(promises, first_number):
            victims = zip((SMALLEST, LARGEST), seeds, strict=True)
            chosen = [(policy, name, *victim) for victim in victims]
            if FAULTS[name].everybody:
                del chosen[1]
            elif not THOROUGH:
                del chosen[number % 2]
            if THOROUGH or name not in left_out:
                yield from chosen


def run(fault: str, victim: int, seed: int, policy: str = "adaptive") -> ContestMeasures:
    # That of `floor` is the model of them all, but for who hangs or vanishes in the study.
    model = replace(SCENARIOS["floor"].model, fault=fault, policy=policy, victim=victim)
    return shared_run(model, seed)


@cache
def shared_run(model: ContestModel, seed: int) -> ContestMeasures:
    """A run that all tests share."""
    return run_contest(model, seed)


def seen(measures: ContestMeasures) -> FaultMeasures:
    assert measures.fault is not None
    return measures.fault


@pytest.mark.parametrize(("policy", "fault", "victim", "seed"), [*cases()])
def test_what_is_promised_is_kept(policy: str, fault: str, victim: int, seed: int) -> None:
    promised = promise(policy, fault)
    assert promised is not None
    measures = run(fault, victim, seed, policy)
    assert promised.broken(seen(measures)) == [], promised.why
    assert measures.lost == 0 or fault == "vanished", "nobody dies here"
    if policy == "idle" or FAULTS[fault].everybody or victim == LARGEST:
        return
    assert measures.worker_full == measures.gateway_refused == 0, (
        "seven tenths of the capacity fit into what the others can do: nobody is refused"
    )


def test_every_fault_has_a_scenario_and_a_promise() -> None:
    assert set(PROMISES) == set(FAULTS) - {"none"}
    assert set(FAULT_SCENARIOS) == set(FAULTS) - {"none", "hung", "vanished"}
    assert set(PROMISES) - set(IDLE_PROMISES) == {"reports-jump"}
    assert promise("two-phase", "floor") is None


def test_fast_errors_attract_a_policy_that_only_counts_and_not_ours() -> None:
    """The same worker under the seed's rule: the fault is one that can do harm."""
    settings = ContestSettings(scenarios=("fast-errors",), variant_seeds=1)
    study = contest_study(settings, lambda *_: None)
    theirs, *ours = (seen(cell.runs[0]) for cell in study.cells)
    assert [cell.policy for cell in study.cells] == ["two-phase", "adaptive", "idle"]
    assert theirs.share_last > 1.3 * theirs.share_before
    for one in ours:
        assert one.share_last < one.share_first < 0.25 * one.share_before
    said = study.findings()
    assert any("fast-errors, adaptive" in one and "kept 1 of 1" in one for one in said)
    assert any("fast-errors, idle" in one and "kept 1 of 1" in one for one in said)
    assert any("fast-errors, two-phase" in one and "kept" not in one for one in said)


@pytest.mark.parametrize("policy", ["adaptive", "idle"])
@pytest.mark.parametrize("seed", first(1, [51, 52]))
def test_errors_that_are_the_callers_fault_hold_nobody_back(policy: str, seed: int) -> None:
    """More is asked than can be done, so any slot that is kept back would be missed."""
    model = SCENARIOS["callers-fault"].model
    measures = run_contest(replace(model, policy=policy, load=1.8, phase_seconds=1.0), seed)
    assert seen(measures).during_share > 0.95


def test_who_boasts_takes_everything_from_a_policy_that_believes_it() -> None:
    theirs = seen(run("liar-huge", SMALLEST, 1, "two-phase"))
    ours = seen(run("liar-huge", SMALLEST, 1))
    assert theirs.share_last > 0.9
    assert theirs.during_share < 0.5
    assert ours.share_last < 1.5 * ours.share_before


@pytest.mark.parametrize("seed", first(1, [61, 62]))
def test_who_boasts_and_refuses_takes_nothing_from_others_when_they_are_nearly_full(
    seed: int,
) -> None:
    """More and more often it alone seems to have room: a hundred queries and more were refused
    until nothing was left of the budget for trying again, before its refusals counted."""
    model = replace(SCENARIOS["liar-huge"].model, policy="idle", load=0.95)
    measures = run_contest(model, seed)
    assert measures.worker_full == 0
    assert seen(measures).during_share > 0.97
    assert seen(measures).recovered_seconds < 0.5


def test_overload_is_no_worse_for_one_that_boasts() -> None:
    """Nobody else has room, so whatever is believed of it is tried at once."""
    model = SCENARIOS["liar-huge"].model
    measures = run_contest(replace(model, policy="adaptive", load=1.2, phase_seconds=1.0), 1)
    assert seen(measures).during_share > 0.93
    assert measures.timeouts == 0
    assert measures.worker_full < 0.01 * measures.gateway_refused


def test_a_fault_does_what_it_says() -> None:
    """Else the promises would be kept because nothing happens."""
    floor = seen(run("floor", SMALLEST, 1))
    assert floor.during_per_second < 500, "of about 1,250 before"
    refused = seen(run("all-refuse", SMALLEST, 1))
    assert refused.during_per_second < 50
    honest = LoadReport(7, 20, 11, 2, 0.05, 13, 1)
    assert lie(honest, 0).limit == 0
    assert lie(honest, -5) == LoadReport(7, -5, -5, -5, -5.0, -5, -5)
    assert lie(honest, 10**9).limit == 10**9


@pytest.mark.parametrize("fault", ["reports-stop", "reports-out-of-order", "clocks-differ"])
def test_a_run_with_a_fault_is_the_same_for_the_same_seed(fault: str) -> None:
    model = replace(SCENARIOS[fault].model, phase_seconds=0.2)
    assert run_contest(model, 7) == run_contest(model, 7)
    assert run_contest(model, 7) != run_contest(replace(model, fault="none"), 7)


def test_who_vanishes_from_the_whole_contest_is_not_judged_by_a_tenth_of_it() -> None:
    settings = ContestSettings(("vanished",), ("adaptive", "idle"), variant_seeds=1, stretch=0.1)
    assert not any("kept" in one for one in contest_study(settings, lambda *_: None).findings())


def test_victims_and_pools_that_cannot_be_are_refused() -> None:
    model = SCENARIOS["floor"].model
    for wrong in ({"victim": 3}, {"pools": ()}, {"pools": (20, 0)}):
        with pytest.raises(InvalidModelSetting):
            replace(model, **wrong)
    with pytest.raises(UnknownAlgorithm):
        replace(model, fault="liar")
