"""`python -m studies.placement`: where partitions live."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from maitred.cli.main import run_command
from studies.command import conduct, given, study_options
from studies.placement import PlacementSettings, draw, placement_study
from studies.placement.study import QUICK, with_clusters

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
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
@study_options
def placement(
    *,
    clusters: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    placements: tuple[str, ...],
    per_queue: int | None,
    output: Path,
    picture: str,
    quick: bool,
    as_json: bool,
) -> None:
    """Where partitions live: balance, and what moves when a host is lost or added."""
    changes = given(
        batch_sizes=batch_sizes or None,
        placements=placements or None,
        partitions_per_queue=per_queue,
    )
    if per_queue is not None:
        changes["gradual_batch_size"] = min(per_queue, PlacementSettings().gradual_batch_size)
    settings = with_clusters(
        replace(QUICK if quick else PlacementSettings(), **changes), list(clusters)
    )
    conduct(
        "placement",
        settings,
        placement_study,
        draw,
        output=output,
        picture=picture,
        as_json=as_json,
    )


if __name__ == "__main__":
    run_command(placement, "studies.placement")
