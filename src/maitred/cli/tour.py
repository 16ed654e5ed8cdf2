"""`maitred tour`: what works today, in a minute, with numbers made on the spot."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import click

from maitred.balancing import ALGORITHMS
from maitred.cli.output import Progress, print_json, print_table
from maitred.cli.route import draw_tree
from maitred.routing import HashRing, QueueId, Route, place_all, routes

HOSTS = [f"node-{number}:7411" for number in range(1, 9)]
PARTITIONS = 64
BATCH_SIZE = 8
DEGREE = 3
TASKS = 500
SEEDS = (1, 2, 3)


Row = dict[str, object]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, without words.")
def tour(*, as_json: bool) -> None:
    """Where a queue lives, what a lost host moves, and which partition to pick."""
    if as_json:
        print_json(
            {
                "where_it_lives": [route._asdict() for route in _where_it_lives()],
                "what_moves": _what_moves(),
                "which_to_pick": _which_to_pick(),
            }
        )
        return
    _heading("1. Where work lives")
    click.echo(
        "A queue is split into partitions. Each one lives on one core (node/shard), which every\n"
        "client works out alone; what finds no partner there goes up the tree to its parent.\n"
    )
    for line in draw_tree(_where_it_lives(), DEGREE):
        click.echo(f"  {line}")
    _heading("2. What moves when a host is lost")
    click.echo(
        f"{len(HOSTS)} hosts, a queue of {PARTITIONS} partitions in batches of {BATCH_SIZE};"
        f" a host holds {100 / len(HOSTS):.1f} %.\n"
    )
    print_table(_what_moves())
    click.echo(
        "\nSpreading a batch keeps a queue's partitions apart. `wrap` is Temporal's rule, to the"
        "\nbit; `steady` spreads as well and moves far less."
    )
    _heading("3. Which partition to pick")
    click.echo(
        "A simulated queue with four partitions and eight workers: once evenly loaded, once with\n"
        "a backlog in one partition. Mean wait of a task, in milliseconds.\n"
    )
    rows = _which_to_pick()
    click.echo()
    print_table(rows)
    _what_to_try()


def _where_it_lives() -> list[Route]:
    ring = HashRing(HOSTS[:3])
    return routes(ring, QueueId("shop", "thumbnails", 1), 7, shards=4, degree=DEGREE)


def _what_moves() -> list[Row]:
    queue = QueueId("shop", "thumbnails", 1)
    rows: list[Row] = []
    for name, placement, batch_size in (
        ("basic", "wrap", 0),
        ("wrap", "wrap", BATCH_SIZE),
        ("steady", "steady", BATCH_SIZE),
    ):
        ring = HashRing(HOSTS)
        before = [one.node for one in place_all(ring, queue, PARTITIONS, batch_size, placement)]
        moved = 0
        for host in HOSTS:
            ring.remove(host)
            after = place_all(ring, queue, PARTITIONS, batch_size, placement)
            moved += sum(old != new.node for old, new in zip(before, after, strict=True))
            ring.add(host)
        rows.append(
            {
                "placement": name,
                "fullest host": max(before.count(host) for host in HOSTS),
                "moved %": 100 * moved / (PARTITIONS * len(HOSTS)),
            }
        )
    return rows


def _which_to_pick() -> list[Row]:
    from maitred.simulation.selection import ModelSettings, run_model

    even = ModelSettings(tasks=TASKS, listen_at_home=True)
    queues = {
        "stable": even,
        "backlog": replace(even, rate_per_second=80.0, initial_backlog=(0, 0, 0, TASKS)),
    }
    progress = Progress()
    total = len(queues) * len(ALGORITHMS) * len(SEEDS)
    ideal: Row = {"algorithm": "(one single queue)"}
    rows: list[Row] = [{"algorithm": name} for name in ALGORITHMS]
    done = 0
    for name, queue in queues.items():
        for algorithm, row in zip(ALGORITHMS, rows, strict=True):
            runs = []
            for seed in SEEDS:
                runs.append(run_model(replace(queue, algorithm=algorithm), seed))
                done += 1
                progress(done, total, f"{name}, {algorithm}")
            row[name] = 1_000 * fmean(run.waits.mean for run in runs)
            ideal[name] = 1_000 * fmean(run.ideal_waits.mean for run in runs)
    return [*rows, ideal]


def _what_to_try() -> None:
    _heading("Try")
    for line in (
        "maitred route --namespace shop --queue thumbnails --hosts a:1,b:2,c:3 --partitions 8",
        "maitred simulate capacity --rate 8 --service exponential:1 --workers 5 --slots 2",
        "maitred simulate soak          # the simulated world under many seeds",
    ):
        click.echo(f"  {line}")
    click.echo("\nThe command lies in .venv/bin. docs/architecture.md explains the rest.")


def _heading(text: str) -> None:
    click.secho(f"\n{text}\n", bold=True)
