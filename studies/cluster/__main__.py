"""`python -m studies.cluster`: how far a cluster scales."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from maitred.cli.main import run_command
from studies.cluster import QUICK, ClusterStudySettings, cluster_study, draw
from studies.cluster.settings import CHANGES, PARTS
from studies.command import conduct, given, study_options

if TYPE_CHECKING:
    from pathlib import Path

    from studies.cluster import ClusterStudy


@click.command()
@click.option("--nodes", "sizes", type=int, multiple=True, help="[repeatable; default: 3, 30, 300]")
@click.option("--partitions", type=int, help="Partitions of all queues.  [default: 100000]")
@click.option("--shards", type=int, help="Shards of a node.  [default: 8]")
@click.option("--runs", type=int, help="Runs times nodes of each size.  [default: 300]")
@click.option("--acquire-ms", type=float, multiple=True, help="[repeatable; default: 1, 5, 20]")
@click.option("--seconds", "steady_seconds", type=float, help="Virtual seconds without a change.")
@click.option(
    "--change",
    "changes",
    multiple=True,
    type=click.Choice(CHANGES),
    help="[repeatable; default: killed, joined, frozen, joined, drained]",
)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="[repeatable]")
@study_options
def cluster(
    *,
    sizes: tuple[int, ...],
    partitions: int | None,
    shards: int | None,
    runs: int | None,
    acquire_ms: tuple[float, ...],
    steady_seconds: float | None,
    changes: tuple[str, ...],
    parts: tuple[str, ...],
    output: Path,
    picture: str,
    quick: bool,
    as_json: bool,
) -> None:
    """How far a cluster scales: the load of membership, how long a view takes to be everywhere,
    what moves when a node is lost or added, and how long a takeover takes."""
    changed = given(
        sizes=sizes or None,
        partitions=partitions,
        shards=shards,
        runs=runs,
        acquire_ms=acquire_ms or None,
        steady_seconds=steady_seconds,
        changes=changes or None,
        parts=parts or None,
    )
    settings = replace(QUICK if quick else ClusterStudySettings(), **changed)
    conduct(
        "cluster",
        settings,
        cluster_study,
        draw,
        output=output,
        picture=picture,
        as_json=as_json,
        show=_show,
    )


def _show(study: ClusterStudy) -> None:
    click.echo(study.markdown())


if __name__ == "__main__":
    run_command(cluster, "studies.cluster")
