"""`maitred route`: where each partition of a queue lives, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from maitred.cli.output import json_option, print_json, print_table, shortened
from maitred.errors import InvalidGradualChange, InvalidPartition, NoHosts
from maitred.routing import (
    PLACEMENTS,
    Flip,
    GradualChange,
    HashRing,
    QueueId,
    Route,
    children,
    depth,
    flips,
    format_time,
    routes,
)
from maitred.routing.ring import REPLICA_POINTS
from maitred.routing.tokens import IGNORE_MSB
from maitred.routing.tree import DEGREE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.routing.routes import RouteOptions

DRAWN_DEPTH_MAX = 30
"""Depth of the deepest tree that is drawn; a deeper one is wider than any terminal."""


@click.command(
    epilog="A gradual change instead of a batch size: "
    '--batch-size \'{"old": 0, "new": 8, "start": "2026-11-15T20:00:00Z", '
    '"end": "2026-11-15T22:00:00Z"}\'. Times are RFC 3339 or unix seconds.'
)
@click.option("--namespace", required=True, help="The queue's namespace.")
@click.option("--queue", required=True, help="The queue's name.")
@click.option("--type", "queue_type", type=int, default=1, show_default=True, help="Its type.")
@click.option("--hosts", required=True, help="The cluster's hosts, as in a:1,b:2.")
@click.option("--partitions", type=int, default=4, show_default=True, help="How many it has.")
@click.option(
    "--batch-size",
    default="0",
    show_default=True,
    help="Partitions kept on different hosts; 0 is basic routing; or a gradual change (below).",
)
@click.option(
    "--placement",
    default="wrap",
    show_default=True,
    shell_complete=lambda _c, _p, given: [name for name in PLACEMENTS if name.startswith(given)],
    help="How batches are spread: wrap as Temporal does, or steady, which moves less.",
)
@click.option(
    "--replica-points",
    type=int,
    default=REPLICA_POINTS,
    show_default=True,
    help="Points of a host on the ring.",
)
@click.option("--shards", type=int, default=1, show_default=True, help="Shards of a node.")
@click.option(
    "--ignore-msb", type=int, default=IGNORE_MSB, show_default=True, help="Bits of a token to skip."
)
@click.option(
    "--degree", type=int, default=DEGREE, show_default=True, help="Children of a partition."
)
@json_option
def route(
    namespace: str,
    queue: str,
    queue_type: int,
    hosts: str,
    partitions: int,
    batch_size: str,
    placement: str,
    replica_points: int,
    shards: int,
    ignore_msb: int,
    degree: int,
    *,
    as_json: bool,
) -> None:
    """Show where each partition of a queue lives: its node, its shard, its parent in the tree."""
    if not hosts.strip():
        raise NoHosts("No hosts are given, so no partition has a node.", remedy="--hosts a:1,b:2")
    ring = HashRing([host.strip() for host in hosts.split(",")], replica_points=replica_points)
    of = QueueId(namespace, queue, queue_type)
    change = parse_batch_size(batch_size)
    options: RouteOptions = {
        "placement": placement,
        "shards": shards,
        "ignore_msb": ignore_msb,
        "degree": degree,
    }
    if change.old == change.new:
        found = routes(ring, of, partitions, batch_size=change.new, **options)
        _print_routes(found, degree, as_json=as_json)
    else:
        _print_flips(flips(ring, of, partitions, change, **options), as_json=as_json)


def parse_batch_size(text: str) -> GradualChange[int]:
    """Return the change that a number, or a gradual change in JSON, stands for."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # also numbers too long and brackets too deep
        given = text
    if not isinstance(given, int | dict):
        raise InvalidGradualChange(
            f"The batch size {shortened(text)} is neither a number nor a gradual change.",
            remedy='Give 8, or {"old": 0, "new": 8, "start": ..., "end": ...}.',
        )
    return GradualChange.parse(given, _whole_number)


def _whole_number(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidPartition(f"The batch size {given!r} is not a whole number.")
    return given


def _print_routes(found: list[Route], degree: int, *, as_json: bool) -> None:
    rows = [one._asdict() for one in found]
    if as_json:
        print_json(rows)
        return
    print_table(rows)
    click.echo()
    for line in draw_tree(found, degree):
        click.echo(line)


def _print_flips(found: list[Flip], *, as_json: bool) -> None:
    moments = [None if flip.flips_at is None else format_time(flip.flips_at) for flip in found]
    if as_json:
        print_json(
            [
                {
                    "partition": flip.before.partition,
                    "name": flip.before.name,
                    "before": flip.before._asdict(),
                    "after": flip.after._asdict(),
                    "flips_at": moment,
                }
                for flip, moment in zip(found, moments, strict=True)
            ]
        )
        return
    rows = [
        {
            "partition": flip.before.partition,
            "name": flip.before.name,
            "before": f"{flip.before.node}/{flip.before.shard}",
            "after": f"{flip.after.node}/{flip.after.shard}",
            "flips at": moment,
            "moves": "yes" if flip.before.node != flip.after.node else "no",
        }
        for flip, moment in zip(found, moments, strict=True)
    ]
    print_table(rows)
    moving = sum(row["moves"] == "yes" for row in rows)
    click.echo(
        f"\n{moving} of {len(rows)} partitions move to another node, each at its own moment."
    )


def draw_tree(found: list[Route], degree: int) -> Iterator[str]:
    """Yield the lines of a tree of the partitions, each with its node and shard."""
    deepest = depth(len(found) - 1, degree)
    if deepest > DRAWN_DEPTH_MAX:
        yield f"(a tree of depth {deepest}, too deep to draw)"
        return
    # (partition, what stands before it, what stands before its children), the next one last
    pending = [(0, "", "")]
    while pending:
        partition, lead, below = pending.pop()
        one = found[partition]
        label = one.name if partition == 0 else str(partition)
        yield f"{lead}{label}  {one.node}/{one.shard}"
        inside = children(partition, len(found), degree)
        for child in reversed(inside):
            last = child == inside[-1]
            pending.append(
                (child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
            )
