"""`maitred simulate`: studies and soak runs in the simulated world."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from maitred.cli.groups import HintingGroup
from maitred.cli.output import Progress, print_json, print_table
from maitred.errors import MaitredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.simulation.soak import Outcome

EXIT_FAILED = 1

SEEDS = 100
SEEDS_MAX = 10**12
"""More than anybody can wait for; it keeps a slip of the finger from becoming an odd error."""

PROCESSES_MAX = 256
"""A process is 40 MB; more of them than cores are no faster."""


def _from(where: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Shell completion from a collection of names that is imported only then."""

    def complete(_context: click.Context, _parameter: click.Parameter, given: str) -> list[str]:
        module, _, attribute = where.partition(":")
        names = getattr(import_module(module), attribute)
        return [name for name in names if name.startswith(given)]

    return complete


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
_quick = click.option("--quick", is_flag=True, help="A few seconds: enough to see the shape.")
_output = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder for the JSON file and the picture.",
)
_picture = click.option(
    "--picture",
    type=click.Choice(["svg", "png", "none"]),
    default="svg",
    show_default=True,
    help="Format of the picture.",
)


@click.group(cls=HintingGroup)
def simulate() -> None:
    """Studies and soak runs in a simulated world: virtual time, seeded, reproducible."""


@simulate.command(short_help="Which partition to pick: the algorithms compared.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    shell_complete=_from("maitred.simulation.selection.study:SCENARIOS"),
    help="Only these; else all.  [repeatable]",
)
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    shell_complete=_from("maitred.balancing:ALGORITHMS"),
    help="Only these; else all.  [repeatable]",
)
@click.option(
    "--forwarding",
    default="both",
    show_default=True,
    shell_complete=_from("maitred.simulation.selection.study:FORWARDING"),
    help="The tree: on, off or both.",
)
@click.option("--partitions", type=int, help="Partitions of the queue.  [default: the scenario's]")
@click.option("--pollers", type=int, help="Workers' free slots.  [default: the scenario's]")
@click.option("--rate", type=float, help="Tasks a second.  [default: the scenario's]")
@click.option("--service", type=float, help="Mean seconds of work of a task.")
@click.option("--tasks", type=int, help="Tasks of a run.")
@click.option("--seeds", type=int, help="Runs of each kind; the table shows their means.")
@_quick
@_output
@_picture
@_as_json
def selection(
    scenarios: tuple[str, ...],
    algorithms: tuple[str, ...],
    forwarding: str,
    partitions: int | None,
    pollers: int | None,
    rate: float | None,
    service: float | None,
    tasks: int | None,
    seeds: int | None,
    output: Path,
    picture: str,
    *,
    quick: bool,
    as_json: bool,
) -> None:
    """Which partition to pick: every algorithm, with and without the forwarding tree.

    Shows how evenly partitions are picked, how long pollers idle while tasks wait, how long tasks
    wait, what is forwarded and what goes to the backlog, beside the ideal of one single queue.
    """
    from dataclasses import replace

    from maitred.simulation.selection import SelectionSettings, draw, selection_study

    given = {
        "scenarios": scenarios or None,
        "algorithms": algorithms or None,
        "forwarding": forwarding,
        "partitions": partitions,
        "pollers": pollers,
        "rate_per_second": rate,
        "service_seconds": service,
        "tasks": tasks,
        "seeds": seeds,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings = replace(SelectionSettings.quick() if quick else SelectionSettings(), **changes)
    _check_picture(picture)
    study = selection_study(settings, Progress())
    _report("selection", study, draw, output, picture, as_json=as_json)


@simulate.command(short_help="How tasks find workers: Cadence's scenarios on our partitions.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    shell_complete=_from("maitred.simulation.matching:SCENARIOS"),
    help="Only these, and no sweep; else all.  [repeatable]",
)
@click.option("--tasks", type=int, help="Tasks of a run.  [default: the scenario's]")
@click.option("--seeds", type=int, help="Runs of each kind; the table shows their means.")
@click.option("--seed", type=int, help="The first of the seeds; alone, to replay one run.")
@click.option("--sweep/--no-sweep", default=None, help="Whether to vary limits and waits, too.")
@_quick
@_output
@_picture
@_as_json
def matching(
    scenarios: tuple[str, ...],
    tasks: int | None,
    seeds: int | None,
    seed: int | None,
    output: Path,
    picture: str,
    *,
    sweep: bool | None,
    quick: bool,
    as_json: bool,
) -> None:
    """How tasks find workers: the scenarios of Cadence's simulation on the real partitions.

    Prints its measures: latency, polls with and without a task, forwards, writes to the store,
    matches before and after writing. Fails if a task is lost or done twice, or if an offer waits
    longer than the stated bound while a task waits elsewhere.
    """
    from dataclasses import replace

    from maitred.simulation.matching import MatchingSettings, draw, matching_study

    given = {
        "scenarios": scenarios or None,
        "tasks": tasks,
        "seeds": seeds if seeds is not None or seed is None else 1,
        "first_seed": seed,
        "sweep": sweep if sweep is not None or not scenarios else False,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings = replace(MatchingSettings.quick() if quick else MatchingSettings(), **changes)
    _check_picture(picture)
    study = matching_study(settings, Progress())
    _report("matching", study, draw, output, picture, as_json=as_json)


@simulate.command(short_help="Which worker gets the query: the policies compared.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    shell_complete=_from("maitred.simulation.contest:SCENARIOS"),
    help="Only these; else all.  [repeatable]",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    shell_complete=_from("maitred.simulation.contest:POLICIES"),
    help="Only these; else the scenario's.  [repeatable]",
)
@click.option("--seeds", type=int, help="Runs of each kind; the table shows their means.")
@click.option("--seed", type=int, help="The first of the seeds; alone, to replay one run.")
@click.option("--variant-seeds", type=int, help="The same, of all but the contest itself.")
@click.option("--faults", is_flag=True, help="Only workers that fail or lie, and what is promised.")
@click.option(
    "--stretch", type=float, help="Phases so many times as long; 6 is the contest to the second."
)
@_quick
@_output
@_picture
@_as_json
def contest(
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: int | None,
    seed: int | None,
    variant_seeds: int | None,
    stretch: float | None,
    output: Path,
    picture: str,
    *,
    faults: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Which worker gets the query: the contest of adaptive load balancing, simulated.

    Three workers whose true capacity changes under 1,024 connections, and variants: overload, a
    worker that hangs, vanishes or lies, several gateways. Each policy against the best possible.
    """
    from dataclasses import replace

    from maitred.simulation.contest import FAULT_SCENARIOS, ContestSettings, contest_study, draw

    if seed is not None and seeds is None:
        seeds = 1
    given = {
        "scenarios": scenarios + (FAULT_SCENARIOS if faults else ()) or None,
        "policies": policies or None,
        "seeds": seeds,
        "first_seed": seed,
        "variant_seeds": seeds if variant_seeds is None else variant_seeds,
        "stretch": stretch,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings = replace(ContestSettings.quick() if quick else ContestSettings(), **changes)
    _check_picture(picture)
    study = contest_study(settings, Progress())
    _report("contest", study, draw, output, picture, as_json=as_json)


@simulate.command(short_help="Where partitions live: balance and movement.")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="HOSTS:PARTITIONS[:CHANGES]",
    help="A cluster, and how many hosts it loses and gains.  [repeatable; default: 1000:100000:2 "
    "and 8:384:8]",
)
@click.option("--batch-size", "batch_sizes", type=int, multiple=True, help="[repeatable]")
@click.option("--placement", "placements", multiple=True, help="[repeatable]")
@click.option("--per-queue", type=int, help="Partitions of a queue.")
@_quick
@_output
@_picture
@_as_json
def placement(
    clusters: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    placements: tuple[str, ...],
    per_queue: int | None,
    output: Path,
    picture: str,
    *,
    quick: bool,
    as_json: bool,
) -> None:
    """Where partitions live: balance, and what moves when a host is lost or added."""
    from dataclasses import replace

    from maitred.simulation.placement import PlacementSettings, draw, placement_study
    from maitred.simulation.placement.study import QUICK, with_clusters

    given = {
        "batch_sizes": batch_sizes or None,
        "placements": placements or None,
        "partitions_per_queue": per_queue,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if per_queue is not None:
        changes["gradual_batch_size"] = min(per_queue, PlacementSettings().gradual_batch_size)
    settings = with_clusters(
        replace(QUICK if quick else PlacementSettings(), **changes), list(clusters)
    )
    _check_picture(picture)
    study = placement_study(settings, Progress())
    _report("placement", study, draw, output, picture, as_json=as_json)


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
@_as_json
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
    outcomes: list[Outcome] = []
    done = 0

    def seen(outcome: Outcome) -> None:
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


def _check_picture(picture: str) -> None:
    from maitred.simulation.pictures import check_available

    if picture != "none":
        check_available()


def _usable_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # only Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class Study(Protocol):
    """What every study can say about itself."""

    def table(self) -> list[dict[str, object]]: ...
    def findings(self) -> list[str]: ...
    def as_json(self) -> dict[str, object]: ...


class CannotWrite(MaitredError):
    """The results could not be written where they should go."""

    code = "cannot-write"


AnyStudy = TypeVar("AnyStudy", bound=Study)


def _report(
    name: str,
    study: AnyStudy,
    draw: Callable[[AnyStudy, Path], None],
    output: Path,
    picture: str,
    *,
    as_json: bool,
) -> None:
    written = [output / f"{name}.json"]
    try:
        output.mkdir(parents=True, exist_ok=True)
        written[0].write_text(json.dumps(study.as_json(), indent=1) + "\n")
        if picture != "none":
            written.append(output / f"{name}.{picture}")
            draw(study, written[1])
    except OSError as problem:
        raise CannotWrite(
            f"Cannot write to {problem.filename or output}: {problem.strerror}.",
            remedy="Name another folder with --output.",
        ) from None
    if as_json:
        print_json(study.as_json())
    else:
        print_table(study.table())
        click.echo()
        for sentence in study.findings():
            click.echo(f"- {sentence}")
    click.echo(f"\nWritten: {', '.join(map(str, written))}", err=True)
