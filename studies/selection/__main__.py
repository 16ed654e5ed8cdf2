"""`python -m studies.selection`: which partition to pick."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from maitred.cli.main import run_command
from studies.command import conduct, given, study_options
from studies.selection import SelectionSettings, draw, selection_study

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.option("--scenario", "scenarios", multiple=True, help="Only these; else all.  [repeatable]")
@click.option(
    "--algorithm", "algorithms", multiple=True, help="Only these; else all.  [repeatable]"
)
@click.option("--forwarding", default="both", show_default=True, help="The tree: on, off or both.")
@click.option("--partitions", type=int, help="Partitions of the queue.  [default: the scenario's]")
@click.option("--pollers", type=int, help="Workers' free slots.  [default: the scenario's]")
@click.option("--rate", type=float, help="Tasks a second.  [default: the scenario's]")
@click.option("--service", type=float, help="Mean seconds of work of a task.")
@click.option("--tasks", type=int, help="Tasks of a run.")
@click.option("--seeds", type=int, help="Runs of each kind; the table shows their means.")
@study_options
def selection(
    *,
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
    quick: bool,
    as_json: bool,
) -> None:
    """Which partition to pick: every algorithm, with and without the forwarding tree.

    Shows how evenly partitions are picked, how long pollers idle while tasks wait, how long tasks
    wait, what is forwarded and what goes to the backlog, beside the ideal of one single queue.
    """
    changes = given(
        scenarios=scenarios or None,
        algorithms=algorithms or None,
        forwarding=forwarding,
        partitions=partitions,
        pollers=pollers,
        rate_per_second=rate,
        service_seconds=service,
        tasks=tasks,
        seeds=seeds,
    )
    settings = replace(SelectionSettings.quick() if quick else SelectionSettings(), **changes)
    conduct(
        "selection",
        settings,
        selection_study,
        draw,
        output=output,
        picture=picture,
        as_json=as_json,
    )


if __name__ == "__main__":
    run_command(selection, "studies.selection")
