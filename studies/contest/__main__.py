"""`python -m studies.contest`: which worker gets the query."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from maitred.cli.main import run_command
from studies.command import conduct, given, study_options
from studies.contest import FAULT_SCENARIOS, ContestSettings, contest_study, draw

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.option("--scenario", "scenarios", multiple=True, help="Only these; else all.  [repeatable]")
@click.option(
    "--policy", "policies", multiple=True, help="Only these; else the scenario's.  [repeatable]"
)
@click.option("--seeds", type=int, help="Runs of each kind; the table shows their means.")
@click.option("--seed", type=int, help="The first of the seeds; alone, to replay one run.")
@click.option("--variant-seeds", type=int, help="The same, of all but the contest itself.")
@click.option("--faults", is_flag=True, help="Only workers that fail or lie, and what is promised.")
@click.option(
    "--stretch", type=float, help="Phases so many times as long; 6 is the contest to the second."
)
@study_options
def contest(
    *,
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: int | None,
    seed: int | None,
    variant_seeds: int | None,
    faults: bool,
    stretch: float | None,
    output: Path,
    picture: str,
    quick: bool,
    as_json: bool,
) -> None:
    """Which worker gets the query: the contest of adaptive load balancing, simulated.

    Three workers whose true capacity changes under 1,024 connections, and variants: overload, a
    worker that hangs, vanishes or lies, several gateways. Each policy against the best possible.
    """
    if seed is not None and seeds is None:
        seeds = 1
    changes = given(
        scenarios=scenarios + (FAULT_SCENARIOS if faults else ()) or None,
        policies=policies or None,
        seeds=seeds,
        first_seed=seed,
        variant_seeds=seeds if variant_seeds is None else variant_seeds,
        stretch=stretch,
    )
    settings = replace(ContestSettings.quick() if quick else ContestSettings(), **changes)
    conduct(
        "contest", settings, contest_study, draw, output=output, picture=picture, as_json=as_json
    )


if __name__ == "__main__":
    run_command(contest, "studies.contest")
