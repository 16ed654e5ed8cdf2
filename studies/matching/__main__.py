"""`python -m studies.matching`: how tasks find workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from maitred.cli.main import run_command
from studies.command import conduct, given, study_options
from studies.matching import MatchingSettings, draw, matching_study

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    help="Only these, and no sweep; else all.  [repeatable]",
)
@click.option("--tasks", type=int, help="Tasks of a run.  [default: the scenario's]")
@click.option("--seeds", type=int, help="Runs of each kind; the table shows their means.")
@click.option("--seed", type=int, help="The first of the seeds; alone, to replay one run.")
@click.option("--sweep/--no-sweep", default=None, help="Whether to vary limits and waits, too.")
@study_options
def matching(
    *,
    scenarios: tuple[str, ...],
    tasks: int | None,
    seeds: int | None,
    seed: int | None,
    sweep: bool | None,
    output: Path,
    picture: str,
    quick: bool,
    as_json: bool,
) -> None:
    """How tasks find workers: the scenarios of Cadence's simulation on the real partitions.

    Prints its measures: latency, polls with and without a task, forwards, writes to the store,
    matches before and after writing. Fails if a task is lost or done twice, or if an offer waits
    longer than the stated bound while a task waits elsewhere.
    """
    changes = given(
        scenarios=scenarios or None,
        tasks=tasks,
        seeds=seeds if seeds is not None or seed is None else 1,
        first_seed=seed,
        sweep=sweep if sweep is not None or not scenarios else False,
    )
    settings = replace(MatchingSettings.quick() if quick else MatchingSettings(), **changes)
    conduct(
        "matching", settings, matching_study, draw, output=output, picture=picture, as_json=as_json
    )


if __name__ == "__main__":
    run_command(matching, "studies.matching")
