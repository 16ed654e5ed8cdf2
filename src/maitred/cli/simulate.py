"""`maitred simulate`: capacity planning and soak runs in the simulated world."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from maitred.cli.capacity import capacity
from maitred.cli.groups import HintingGroup
from maitred.cli.output import Progress, json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.simulation.soak import RunOutcome

EXIT_FAILED = 1

SEEDS = 100
SEEDS_MAX = 10**12
"""More than a person can wait for; a number with too many zeros gets an error that says so."""

PROCESSES_MAX = 256
"""Most processes: each takes 40 MB, and more of them than cores are no faster."""


def _from(where: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion for a collection of names, which is imported when it is needed."""

    def complete(_context: click.Context, _parameter: click.Parameter, given: str) -> list[str]:
        module, _, attribute = where.partition(":")
        names = getattr(import_module(module), attribute)
        return [name for name in names if name.startswith(given)]

    return complete


@click.group(cls=HintingGroup)
def simulate() -> None:
    """Capacity planning and soak runs in a simulated world: virtual time, seeded, reproducible."""


simulate.add_command(capacity)


@simulate.command(short_help="Scenarios under many seeds, failures replayed.")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    shell_complete=_from("maitred.simulation.scenarios:SCENARIOS"),
    help="Only these; else all.  [repeatable]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, SEEDS_MAX),
    help=f"How many seeds.  [default: {SEEDS}]",
)
@click.option(
    "--first",
    type=click.IntRange(0, SEEDS_MAX),
    default=0,
    show_default=True,
    help="The first of the seeds.",
)
@click.option("--seed", type=click.IntRange(min=0), help="One seed alone, to replay it.")
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    help="Processes at once.  [default: one a usable core]",
)
@json_option
def soak(
    names: tuple[str, ...],
    seeds: int | None,
    first: int,
    seed: int | None,
    processes: int | None,
    *,
    as_json: bool,
) -> None:
    """Run scenarios under many seeds; a failure is printed with the command that replays it."""
    from dataclasses import asdict

    from maitred.simulation.scenarios import SCENARIOS
    from maitred.simulation.soak import scenario_named
    from maitred.simulation.soak import soak as run_soak

    chosen = {name: scenario_named(name, SCENARIOS) for name in names} or dict(SCENARIOS)
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed is one seed, --seeds are many: give one of them.")
    wanted = range(first, first + (seeds or SEEDS)) if seed is None else range(seed, seed + 1)
    progress = Progress()
    total = len(wanted) * len(chosen)
    outcomes: list[RunOutcome] = []
    done = 0

    def seen(outcome: RunOutcome) -> None:
        nonlocal done
        done += 1
        if as_json or seed is not None:
            outcomes.append(outcome)
        elif not outcome.ok:
            click.echo(f"\n{outcome}", err=True)
        progress(done, total, f"{outcome.scenario}, seed {outcome.seed}")

    workers = processes or (1 if total < 20 else _usable_cores())
    report = run_soak(chosen, wanted, seen, workers=workers)
    if as_json:
        print_json([asdict(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            click.echo(outcome)
        click.echo(report.summary)
    if not report.ok:
        sys.exit(EXIT_FAILED)


def _usable_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # only Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1
