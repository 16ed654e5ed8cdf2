"""Whole runs: nothing is lost, and where theory knows the answer the model gives it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some
from studies.queue_model import (
    InvalidModelSetting,
    ModelSettings,
    check_random_model,
    random_settings,
    run_model,
)
from studies.queue_model.model import Model, draw_tasks
from studies.queue_model.partition import Partition
from tests.thorough import THOROUGH, first

from maitred.balancing import ALGORITHMS
from maitred.errors import MaitredError, UnknownAlgorithm
from maitred.simulation.errors import TooMuchTime, Violation
from maitred.simulation.loop import SimulatedLoop

SMALL = ModelSettings(tasks=200, tasks_after_max=100)


@settings(max_examples=150 if THOROUGH else 50)
@given(some.integers(0, 2**32))
@example(501152)  # polls that ended within a rounding error of each other
@example(91831384)  # a head that was refused while it wanted a token
def test_nothing_is_lost_in_random_queues(seed: int) -> None:
    measures = check_random_model(seed)
    model = random_settings(seed)
    assert measures.tasks == model.tasks + sum(model.initial_backlog)
    assert 0 <= measures.avoidable_idle <= measures.idle_while_waiting <= 1 + 1e-9
    assert sum(measures.waiting) == pytest.approx(1.0) or not any(measures.waiting)
    # Every task is counted once: stored when it arrived, there from the start, or neither.
    assert measures.arrivals == model.tasks
    assert measures.stored + measures.sync_matches == measures.tasks - sum(model.initial_backlog)
    waits = measures.waits
    assert 0 <= waits.p50 <= waits.p99 <= waits.max
    assert max(waits.mean, waits.max) <= measures.span_seconds + 1e-9
    if not model.forwarding:
        assert not measures.poll_forwards
        assert not measures.task_forwards


@settings(max_examples=40)
@given(
    seed=some.integers(0, 2**32),
    algorithm=some.sampled_from(ALGORITHMS),
    partitions=some.integers(1, 9),
    pollers=some.integers(1, 9),
    degree=some.integers(1, 4),
    network=some.floats(0, 0.05),
    listen_at_home=some.booleans(),
)
def test_nothing_is_lost_whatever_the_shape(
    seed: int,
    algorithm: str,
    partitions: int,
    pollers: int,
    degree: int,
    network: float,
    listen_at_home: bool,
) -> None:
    run_model(
        replace(
            SMALL,
            tasks=60,
            tasks_after_max=30,
            algorithm=algorithm,
            read_partitions=partitions,
            write_partitions=(partitions + 1) // 2,
            pollers=pollers,
            degree=degree,
            network_seconds=network,
            listen_at_home=listen_at_home,
        ),
        seed,
    )


def test_one_partition_without_latency_is_the_single_queue() -> None:
    perfect = replace(
        SMALL,
        tasks=2_000,
        read_partitions=1,
        write_partitions=1,
        network_seconds=0.0,
        store_write_seconds=0.0,
    )
    for seed in first(1, range(3)):
        measures = run_model(perfect, seed)
        assert measures.avoidable_idle == pytest.approx(0.0, abs=1e-12)
        # New tasks may overtake stored ones, which changes who waits, and by chance how long.
        assert measures.waits.mean == pytest.approx(measures.ideal_waits.mean, rel=0.1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("listen_at_home", [False, True])
def test_nothing_beats_the_single_queue(algorithm: str, listen_at_home: bool) -> None:
    model = replace(SMALL, algorithm=algorithm, listen_at_home=listen_at_home)
    runs = [run_model(model, seed) for seed in first(4, range(8))]
    # In one run a short task may by luck overtake a long one; not on average, and the way from
    # the producer to the partition and on to the poller comes on top.
    network = 2 * model.network_seconds
    assert fmean(run.waits.mean - run.ideal_waits.mean for run in runs) > network
    for run in runs:
        assert run.waits.mean >= network - 1e-9


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    assert run_model(SMALL, 1) == run_model(SMALL, 1)
    assert run_model(SMALL, 1) != run_model(SMALL, 2)


def test_every_algorithm_meets_the_same_tasks() -> None:
    ideals = {
        run_model(replace(SMALL, algorithm=name, listen_at_home=True), 3).ideal_waits
        for name in ALGORITHMS
    }
    assert len(ideals) == 1


def test_constant_service_is_constant() -> None:
    import random

    _, arrivals = draw_tasks(replace(SMALL, service="constant"), random.Random(1))
    assert {task.service_seconds for task in arrivals} == {SMALL.service_seconds}


def test_phases_change_the_rate() -> None:
    import random

    _, arrivals = draw_tasks(
        replace(SMALL, tasks=4_000, phases=((0.5, 4.0), (0.5, 1.0))), random.Random(1)
    )
    first = arrivals[1_999].arrived_at
    second = arrivals[-1].arrived_at - first
    assert second / first == pytest.approx(4.0, rel=0.15)


def test_every_task_is_counted_once() -> None:
    measures = run_model(replace(SMALL, initial_backlog=(5, 0, 0, 30), tasks_after_max=0), 1)
    assert measures.tasks == 235
    assert sum(measures.writes.counts) == 200
    assert measures.sync_matches + measures.stored + 35 == 235


# A model that cannot fail proves nothing: break it, and the run has to say so.


def test_a_lost_task_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "_written", lambda _self, _task: None)
    with pytest.raises(TooMuchTime):
        run_model(replace(SMALL, run_seconds_max=10_000.0), 1)


def test_a_task_given_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Partition._written

    def twice(self: Partition, task: object) -> None:
        written(self, task)  # type: ignore[arg-type]
        written(self, task)  # type: ignore[arg-type]

    monkeypatch.setattr(Partition, "_written", twice)
    with pytest.raises(Violation, match="given to two polls"):
        run_model(SMALL, 1)


def test_a_leaked_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "_poll_token_back", lambda _self: None)
    with pytest.raises(Violation, match="poll tokens out"):
        run_model(SMALL, 1)


def test_a_run_that_has_not_ended_has_no_measures() -> None:
    loop = SimulatedLoop()
    model = Model(loop, SMALL, 1, lambda: None)
    with pytest.raises(Violation, match="before every task was started"):
        model.measures()
    with pytest.raises(Violation, match="was lost"):
        model.check()
    loop.close()


@pytest.mark.parametrize(
    "bad",
    [
        {"read_partitions": 0},
        {"read_partitions": 2, "write_partitions": 3},
        {"pollers": 0},
        {"pollers": 1.5},
        {"worker_clients": 0},
        {"producer_clients": 0},
        {"tasks": 0},
        {"tasks": 10**9},
        {"tasks_after_max": -1},
        {"rate_per_second": 0},
        {"rate_per_second": float("inf")},
        {"rate_per_second": float("nan")},
        {"service_seconds": -1},
        {"network_seconds": -0.1},
        {"network_seconds": "1"},
        {"degree": 0},
        {"backlog_forward_seconds": 0},
        {"poll_timeout_seconds": 0},
        {"poll_timeout_seconds": 0.099},
        {"poll_timeout_seconds": 1e-300, "network_seconds": 0.0},
        {"poll_timeout_seconds": float("nan")},
        {"forward_polls_max": 0},
        {"hint_backlog_max": -1},
        {"initial_backlog": (1, 1, 1, 1, 1)},
        {"initial_backlog": (-1,)},
        {"phases": ()},
        {"phases": ((0.5, 1.0),)},
        {"phases": ((1.0, 0.0),)},
        {"phases": ((0.0, 1.0), (1.0, 1.0))},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidModelSetting) as caught:
        ModelSettings(**bad)  # type: ignore[arg-type]
    assert caught.value.code == "invalid-model-setting"


@pytest.mark.parametrize("bad", [{"algorithm": "best"}, {"service": "gaussian"}])
def test_unknown_names_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(UnknownAlgorithm):
        ModelSettings(**bad)  # type: ignore[arg-type]


def test_a_failing_seed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Violation("Something was lost.")

    monkeypatch.setattr("studies.queue_model.checking.run_model", fail)
    with pytest.raises(MaitredError, match="Seed 17: Something was lost"):
        check_random_model(17)


# The claims, where they hold. Fixed seeds; the margins are those of the study, halved and more.


def mean_wait(**changes: object) -> float:
    return mean_wait_of(replace(ModelSettings(tasks=800), **changes))  # type: ignore[arg-type]


@cache
def mean_wait_of(model: ModelSettings) -> float:
    """Of runs that all tests share."""
    return fmean(run_model(model, seed).waits.mean for seed in first(1, (1, 2, 3)))


def test_weighted_is_round_robin_when_stable() -> None:
    for forwarding in (False, True):
        changes: dict[str, object] = {"forwarding": forwarding}
        assert mean_wait(algorithm="weighted", **changes) == mean_wait(
            algorithm="round-robin", **changes
        )


def test_weighted_drains_a_skewed_backlog_best() -> None:
    backlog: dict[str, object] = {"rate_per_second": 80.0, "initial_backlog": (0, 0, 0, 800)}
    weighted = mean_wait(algorithm="weighted", **backlog)
    for other in ("random", "round-robin", "fewest-polls"):
        assert weighted < 0.75 * mean_wait(algorithm=other, **backlog)


def test_the_tree_saves_random_selection() -> None:
    assert mean_wait(algorithm="random") < 0.5 * mean_wait(algorithm="random", forwarding=False)


def test_the_tree_costs_round_robin() -> None:
    assert mean_wait() > 1.2 * mean_wait(forwarding=False)


def test_listening_at_home_helps_when_stable() -> None:
    for name in ("random", "round-robin", "fewest-polls"):
        assert mean_wait(algorithm=name, listen_at_home=True) < mean_wait(algorithm=name)


def test_more_partitions_than_pollers_need_the_tree() -> None:
    few: dict[str, object] = {
        "algorithm": "fewest-polls",
        "read_partitions": 8,
        "write_partitions": 8,
        "pollers": 4,
        "rate_per_second": 40.0,
    }
    assert mean_wait(**few) < 0.2 * mean_wait(**few, forwarding=False)
