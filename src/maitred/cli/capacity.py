"""`maitred simulate capacity`: how many workers a queue needs."""

from __future__ import annotations

from pathlib import Path

import click

from maitred.cli.output import CannotWrite, Progress, json_option, print_json, print_table
from maitred.errors import InvalidArgument

FORMATS = (".svg", ".png")


@click.command(short_help="How many workers a queue needs.")
@click.option("--rate", type=float, required=True, help="Tasks or queries a second.")
@click.option(
    "--service",
    required=True,
    metavar="TIMES",
    help="How long each takes, in seconds: exponential:MEAN, constant:SECONDS, "
    "uniform:SHORTEST:LONGEST, lognormal:MEDIAN:P99, or csv:FILE[:COLUMN] with measured times.",
)
@click.option("--workers", type=int, required=True, help="Workers.")
@click.option("--slots", type=int, help="Slots of each.  [default: a worker's own default]")
@click.option("--work", default="tasks", show_default=True, help="tasks or queries.")
@click.option(
    "--partitions", type=int, default=1, show_default=True, help="Partitions of the queue."
)
@click.option(
    "--policy",
    default="idle",
    show_default=True,
    help="How the worker of a query is chosen: the queue's setting queries.policy.",
)
@click.option("--deadline", type=float, help="Seconds that callers of queries wait.  [default: 30]")
@click.option(
    "--lose",
    "lost",
    multiple=True,
    metavar="WORKER:SECONDS",
    help="Kill a worker some seconds after the first arrival.  [repeatable]",
)
@click.option(
    "--slow",
    multiple=True,
    metavar="WORKER:TIMES",
    help="Make service times longer on a worker, by a factor.  [repeatable]",
)
@click.option(
    "--count", type=int, default=2_000, show_default=True, help="Tasks or queries of each run."
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of arrivals and service times."
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the waits to this file, .svg or .png.",
)
@json_option
def capacity(
    *,
    rate: float,
    service: str,
    workers: int,
    slots: int | None,
    work: str,
    partitions: int,
    policy: str,
    deadline: float | None,
    lost: tuple[str, ...],
    slow: tuple[str, ...],
    count: int,
    seed: int,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Estimate how many workers a queue needs: waits, busy slots and refusals, also with one worker
    more and with one fewer.

    Runs a real node, real workers and a real client in virtual time. Arrivals are Poisson, and the
    same in every row.
    """
    from maitred.settings import WorkerSettings
    from maitred.simulation.capacity import (
        CapacitySettings,
        capacity_plan,
        draw,
        planned_workers,
        service_times,
    )
    from maitred.simulation.capacity.settings import DEADLINE_SECONDS

    settings = CapacitySettings(
        rate_per_second=rate,
        service=service_times(service),
        workers=planned_workers(workers, lost, slow),
        slots=WorkerSettings().slots if slots is None else slots,
        work=work,
        partitions=partitions,
        policy=policy,
        deadline_seconds=DEADLINE_SECONDS if deadline is None else deadline,
        count=count,
        seed=seed,
    )
    if picture is not None:
        _check_picture(picture)
    plan = capacity_plan(settings, Progress())
    if picture is not None:
        try:
            draw(plan, picture)
        except OSError as problem:
            raise CannotWrite(
                f"Cannot write {picture}: {problem.strerror}.",
                remedy="Name another file with --picture.",
            ) from None
    if as_json:
        print_json(plan.as_json())
        return
    print_table(plan.table())
    click.echo()
    for sentence in plan.findings():
        click.echo(f"- {sentence}")


def _check_picture(path: Path) -> None:
    """Raise before the runs, rather than after them, if the picture cannot be drawn."""
    from maitred.simulation.pictures import check_available

    if path.suffix not in FORMATS:
        raise InvalidArgument(
            f"Cannot draw a picture to {str(path)!r}.",
            remedy="Let the name of the file end with .svg or .png.",
        )
    check_available()
