"""Capacity planning: against queueing theory, with faults, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from random import Random
from statistics import fmean, quantiles, stdev
from typing import TYPE_CHECKING

import pytest
from studies.queue_model.queueing import ErlangC, single_queue_waits
from tests.thorough import THOROUGH

from maitred.errors import InvalidArgument, UnknownAlgorithm
from maitred.simulation.capacity import (
    CapacitySettings,
    PlannedWorker,
    capacity_plan,
    planned_workers,
    service_times,
)
from maitred.simulation.capacity.measures import measures
from maitred.simulation.capacity.run import CapacityRun
from maitred.simulation.world import World

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = CapacitySettings(
    rate_per_second=20.0,
    service=service_times("exponential:0.1"),
    workers=planned_workers(2),
    slots=2,
    count=200,
)

BATCHES = 20
STUDENT_999 = 3.883
"""Student's t with 19 degrees of freedom: a right mean is farther off in one of 1,000 seeds."""
MESSAGES_SECONDS = 0.01
"""Most that messages and commits may add to the mean wait: a few of either, each below 4 ms."""


def silent(_done: int, _total: int, _what: str) -> None:
    pass


def played(settings: CapacitySettings) -> CapacityRun:
    with World(settings.seed) as world:
        run = CapacityRun(world, settings, lambda _done: None)
        world.run(run.run())
    return run


@pytest.mark.parametrize("work", ["tasks", "queries"])
def test_waits_and_busy_slots_are_those_of_theory(work: str) -> None:
    """Poisson arrivals, exponential service and one partition are the M/M/c queue."""
    settings = CapacitySettings(
        rate_per_second=2.8,
        service=service_times("exponential:1"),
        workers=planned_workers(2),
        slots=2,
        work=work,
        count=2_000 if THOROUGH else 800,
    )
    run = played(settings)
    waits = [job.started_at - job.arrived_at for job in run.jobs if job.started_at is not None]
    assert len(waits) == settings.count
    # The exact queue under the same arrivals: nothing but messages may come on top.
    ideal = single_queue_waits([(job.arrived_at, job.service_seconds) for job in run.jobs], 4)
    assert 0 < fmean(waits) - fmean(ideal) < MESSAGES_SECONDS
    # Waits that follow each other are alike; means of long batches are not.
    size = settings.count // BATCHES
    means = [fmean(waits[at : at + size]) for at in range(0, settings.count, size)]
    band = STUDENT_999 * stdev(means) / sqrt(BATCHES) + MESSAGES_SECONDS
    theory = ErlangC(2.8, 1.0, 4).mean_seconds
    assert fmean(waits) == pytest.approx(theory, abs=band)
    assert band < theory, "else the band would not tell it from no wait at all"
    found = measures(run)
    assert found.load == pytest.approx(0.7)
    # The sums of n gaps and of n service times each vary by 1 / sqrt(n).
    spread = sqrt(2 / found.measured)
    assert found.busy == pytest.approx(0.7, rel=3.3 * spread)


def test_a_plan_has_one_worker_fewer_and_one_more_under_the_same_arrivals() -> None:
    plan = capacity_plan(SETTINGS, silent)
    assert [run.workers for run in plan.runs.values()] == [1, 2, 3]
    fewer, asked, more = plan.runs.values()
    assert fewer.load == pytest.approx(1.0)
    assert asked.load == pytest.approx(0.5)
    assert fewer.waits
    assert asked.waits
    assert more.waits
    assert fewer.waits.p99 > asked.waits.p99 > more.waits.p99
    assert fewer.busy > asked.busy > more.busy
    assert all(run.done == run.measured == 180 for run in plan.runs.values())
    said = "\n".join(plan.findings())
    assert "the load is 100 % of what the workers can do, so waits grow" in said
    assert "a run of 200 tasks (seed 1) in 10 s; the first 20 fill the queue" in said
    document = json.loads(json.dumps(plan.as_json(), allow_nan=False))
    assert set(document) == {"settings", "runs", "findings"}
    assert document["settings"]["service"] == {"text": "exponential:0.1", "mean_seconds": 0.1}
    assert [run["simulated"] for run in document["runs"]] == [200, 200, 200]


def test_one_worker_alone_has_no_fewer() -> None:
    plan = capacity_plan(replace(SETTINGS, workers=planned_workers(1), slots=4, count=100), silent)
    assert list(plan.runs) == ["as asked", "one more"]
    assert plan.findings()[0].startswith("1 worker, as asked: 99 % begin within ")


def test_the_same_seed_gives_the_same_plan_and_another_another() -> None:
    small = replace(SETTINGS, workers=planned_workers(1), count=100)
    plan = capacity_plan(small, silent)
    assert plan.as_json() == capacity_plan(small, silent).as_json()
    assert plan.runs["as asked"] != measures(played(replace(small, seed=2)))


def test_progress_counts_every_task_of_every_run() -> None:
    told: list[tuple[int, int, str]] = []
    settings = replace(SETTINGS, workers=planned_workers(1), count=150)
    capacity_plan(settings, lambda *step: told.append(step))
    assert [done for done, _, _ in told] == [0, 100, 150, 150, 250, 300]
    assert {total for _, total, _ in told} == {300}
    assert told[-1][2] == "2 workers, one more"


# Faults and refusals


def test_tasks_of_a_lost_worker_are_done_by_the_others() -> None:
    settings = replace(SETTINGS, workers=planned_workers(2, lost=("2:5",)))
    found = measures(played(settings))
    assert found.done == found.measured
    assert found.load == pytest.approx(0.5)
    assert found.load_left == pytest.approx(1.0)
    assert found.totals
    assert found.totals.longest > 8.0, "what it ran was begun again when its lease was over"


def test_when_every_worker_is_lost_tasks_stay_and_queries_are_refused() -> None:
    lost = replace(SETTINGS, workers=planned_workers(1, lost=("1:5",)), slots=4)
    tasks = capacity_plan(lost, silent)
    alone = tasks.runs["as asked"]
    assert alone.unfinished == alone.measured - alone.done > 50
    assert alone.load_left is None
    assert alone.busy < 1
    assert "1 worker, as asked: every worker is lost." in tasks.findings()
    assert any("were never done" in sentence for sentence in tasks.findings())
    json.dumps(tasks.as_json(), allow_nan=False)
    queries = measures(played(replace(lost, work="queries")))
    assert queries.unfinished == 0
    assert set(queries.refused) == {"no-worker", "worker-lost"}
    assert queries.done + sum(queries.refused.values()) == queries.measured


def test_a_slow_worker_takes_longer() -> None:
    settings = replace(SETTINGS, workers=planned_workers(2, slow=("1:5",)))
    assert settings.load == pytest.approx(2.0 / 2.4)
    run = played(settings)
    for service in run.services:
        assert service.ended_at is not None
    means = [
        fmean(one.ended_at - one.began_at for one in run.services if one.worker == worker)  # type: ignore[operator]
        for worker in (0, 1)
    ]
    assert means[0] > 3 * means[1]


def test_a_policy_that_sheds_refuses_rather_than_lets_wait() -> None:
    over = replace(SETTINGS, work="queries", workers=planned_workers(1), rate_per_second=40.0)
    shed = capacity_plan(replace(over, policy="adaptive"), silent)
    run = shed.runs["as asked"]
    assert run.refused["overloaded"] > 0.3 * run.measured
    assert run.waits
    assert run.waits.p99 < 0.2
    assert shed.findings()[0].endswith("can do, so queries are refused.")
    waiting = measures(played(over))
    assert not waiting.refused
    assert waiting.waits
    assert waiting.waits.p99 > 1.0


def test_a_deadline_refuses_what_waits_longer() -> None:
    over = replace(SETTINGS, work="queries", workers=planned_workers(1), rate_per_second=40.0)
    found = measures(played(replace(over, deadline_seconds=0.5)))
    assert found.refused["deadline-exceeded"] > 20
    assert found.totals
    assert found.totals.longest <= 0.51


def test_the_worker_that_a_plan_lacks_is_healthy() -> None:
    settings = replace(SETTINGS, workers=planned_workers(3, lost=("3:1",), slow=("1:2",)))
    fewer = settings.with_fewer()
    assert fewer
    assert fewer.workers == (PlannedWorker(slowness=2.0), PlannedWorker(lost_after_seconds=1.0))
    last = replace(settings, workers=planned_workers(2, slow=("1:2", "2:3"))).with_fewer()
    assert last
    assert last.workers == (PlannedWorker(slowness=2.0),)


# Service times


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("constant:0.25", 0.25),
        ("exponential:0.25", 0.25),
        ("uniform:0.1:0.4", 0.25),
        ("lognormal:0.2:1", 0.2541),
    ],
)
def test_distributions_have_their_mean(text: str, mean: float) -> None:
    times = service_times(text)
    assert times.mean_seconds == pytest.approx(mean, rel=1e-3)
    random = Random(1)
    sample = [times.draw(random) for _ in range(10_000)]
    assert fmean(sample) == pytest.approx(mean, abs=3.3 * stdev(sample) / 100)


def test_a_lognormal_has_its_median_and_p99() -> None:
    random, times = Random(1), service_times("lognormal:0.2:1")
    hundredths = quantiles([times.draw(random) for _ in range(20_000)], n=100)
    assert hundredths[49] == pytest.approx(0.2, rel=0.03)
    assert hundredths[98] == pytest.approx(1.0, rel=0.08)


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ("0.1\n0.3\n", ""),
        ("seconds\n0.1\n\n0.3\n", ""),
        ("\ufeffname,seconds\na,0.1\nb,0.3\n", ":seconds"),
    ],
)
def test_measured_times_are_drawn_from_a_file(content: str, column: str, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(content, encoding="utf-8")
    times = service_times(f"csv:{path}{column}")
    assert times.mean_seconds == pytest.approx(0.2)
    random = Random(1)
    assert {times.draw(random) for _ in range(50)} == {0.1, 0.3}


@pytest.mark.parametrize(
    ("content", "column", "said"),
    [
        (None, "", "Cannot read the service times"),
        ("", "", "has no service times"),
        ("seconds\n", "", "has no service times"),
        ("seconds\n0.1\n-1\n", "", "Row 3 of .* has '-1'"),
        ("0.1\nnan\n", "", "Row 2 of .* has 'nan'"),
        ("0.1\nfast\n", "", "Row 2 of .* has 'fast'"),
        ("a,b\n1,2\n3\n", ":b", "Row 3 of .* has ''"),
        ("a,b\n1,2\n", ":c", "has no column 'c'"),
        ("a\n99999\n", "", "Row 2 of .* has '99999'"),
    ],
)
def test_files_without_times_are_refused(
    content: str | None, column: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "times.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidArgument, match=said):
        service_times(f"csv:{path}{column}")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="is no CSV file"):
        service_times(f"csv:{tmp_path / 'times.csv'}")


@pytest.mark.parametrize(
    "text",
    [
        "exponential",
        "exponential:0",
        "exponential:-1",
        "exponential:nan",
        "exponential:1:2",
        "constant:x",
        "uniform:2:1",
        "lognormal:1:1",
        "constant:99999",
    ],
)
def test_distributions_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="does not say service times") as caught:
        service_times(text)
    assert caught.value.remedy
    assert text.partition(":")[0] in caught.value.remedy


def test_an_unknown_distribution_is_told_the_nearest() -> None:
    with pytest.raises(UnknownAlgorithm, match="Did you mean 'exponential'"):
        service_times("exponentail:1")


# Settings


@pytest.mark.parametrize(
    "bad",
    [
        {"rate_per_second": 0.0},
        {"rate_per_second": float("nan")},
        {"rate_per_second": 0.001},
        {"workers": ()},
        {"slots": 0},
        {"partitions": 0},
        {"partitions": 2_000},
        {"count": 99},
        {"count": 1_000_000},
        {"seed": -1},
        {"deadline_seconds": 0.0},
        {"work": "jobs"},
        {"policy": "adaptiv"},
        {"policy": "adaptive"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        replace(SETTINGS, **bad)  # type: ignore[arg-type]
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("lost", "slow"),
    [
        ("1", "1:2"),
        ("x:1", "1:2"),
        ("3:1", "1:2"),
        ("1:-1", "1:2"),
        ("1:1", "1:0.5"),
        ("1:1", "0:2"),
    ],
)
def test_faults_that_make_no_sense_are_refused(lost: str, slow: str) -> None:
    with pytest.raises(InvalidArgument):
        planned_workers(2, (lost,), (slow,))
