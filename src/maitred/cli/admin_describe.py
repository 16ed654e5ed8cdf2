"""`maitred admin queue describe`: the state of a queue, in total and of each partition.

Two tables, because one would be wider than a terminal: the work, and the records in the store. A
partition that does not answer has a row as well.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import UNREACHABLE
from maitred.cli.admin_control import told_of_pause, told_of_settings
from maitred.cli.admin_names import label, queue_argument
from maitred.cli.admin_totals import DescribedQueue, describe_all
from maitred.cli.output import json_option, print_fact, print_json, print_table, row_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.cli.address import AskedNode
    from maitred.protocol.tasks import PartitionDescription, StoredAmount
    from maitred.routing.names import QueueId

NODE_LETTERS = 8
"""Letters of a node's identity that are shown if its address is not known."""

WORKERS_SHOWN = 20
"""The busiest; JSON has them all."""

_EPILOG = (
    "What is stored counts tasks that are not over, dead letters and, in bytes, results that are "
    "kept; it is about a second old.\n\n"
    "\b\nThe columns:\n"
    "  age              since when the first waiting task could be run\n"
    "  offers           free slots of workers that wait there for a task\n"
    "  wait p50, p99    from when a task could be run until a worker had it\n"
    "  range id         grows with each owner; a sequence number is 2^32 times that, plus a count\n"
    "  read level       highest sequence number that was read from the store or given out\n"
    "  ack level        everything up to this sequence number is over\n"
    "  to parent        tasks and offers that were passed on to the parent in the tree\n"
    "  at once          tasks that found a worker waiting\n"
    "  unwritten        tasks that were over before they had to be written\n"
    "\nExit status: 0 if every partition has answered, 1 otherwise."
)


@click.command(epilog=_EPILOG)
@queue_argument
@node_options
@json_option
def describe(queue: QueueId, node: AskedNode, *, as_json: bool) -> None:
    """Show the state of QUEUE, as in shop/thumbnails: in total, and each partition."""
    found = node.ask(lambda client: describe_all(client, queue))
    if as_json:
        print_json(_told(found))
    else:
        _print(found)
    if found.partitions.silent:
        sys.exit(1)


def _told(queue: DescribedQueue) -> dict[str, object]:
    from msgspec import to_builtins

    root, (found, silent) = queue.root, queue.partitions
    partitions = {
        at: _partition_told(one) | {"address": queue.addresses.get(one.node)}
        for at, one in found.items()
    } | {
        at: {"partition": at, "state": UNREACHABLE, "error": reason.told()}
        for at, reason in silent.items()
    }
    return {
        **queue.id._asdict(),
        "counts": _partition_told(root)["counts"],
        "namespace_queues": root.namespace_queues,
        "namespace_queues_max": root.namespace_queues_max,
        "served_seconds_ago": root.served_seconds_ago,
        "controls": to_builtins(root.controls),
        "settings": to_builtins(root.all_settings),
        "totals": queue.totals()._asdict(),
        "partitions": [one for _, one in sorted(partitions.items())],
        "workers": [worker._asdict() for worker in queue.workers()],
    }


def _partition_told(description: PartitionDescription) -> dict[str, Any]:
    """Return a partition for JSON, with names where the protocol has arrays."""
    from msgspec import to_builtins

    told: dict[str, Any] = to_builtins(description)
    told["counts"] = dict(zip(("read", "write", "version"), told["counts"], strict=True))
    names = ("worker", "running", "heard_seconds_ago")
    told["worker_details"] = [
        dict(zip(names, one, strict=True)) for one in description.worker_details
    ]
    return told


def _print(queue: DescribedQueue) -> None:
    _print_totals(queue)
    click.echo()
    print_table(_rows(queue, _where(queue) | _WORK))
    click.echo()
    print_table(_rows(queue, _RECORDS))
    for at, reason in queue.partitions.silent.items():
        click.echo(f"\npartition {at}: {reason}")
    seen = queue.workers()
    if seen:
        click.echo()
        print_table(
            [
                {
                    "worker": worker.worker,
                    "running": worker.running,
                    "heard": units.ago(worker.heard_seconds_ago),
                }
                for worker in seen[:WORKERS_SHOWN]
            ]
        )
    if len(seen) > WORKERS_SHOWN:
        click.echo(f"\n{WORKERS_SHOWN} of {len(seen):,} workers; --json has them all.", err=True)


def _print_totals(queue: DescribedQueue) -> None:
    summed, root = queue.totals(), queue.root
    counts, limit = root.counts, root.rate_limit_per_second
    click.secho(label(queue.id), bold=True)
    print_fact(
        "partitions",
        f"{counts.read} to read, {counts.write} to write (version {counts.version})",
    )
    if root.controls.pause is not None:
        print_fact("paused", told_of_pause(root), "yellow")
    oldest = f", the oldest for {units.duration(summed.oldest_seconds)}" if summed.backlog else ""
    print_fact("backlog", f"{summed.backlog:,} waiting{oldest}; {summed.later:,} later")
    limited = "" if limit is None else f"; limited to {units.rate(limit)}/s"
    print_fact(
        "rates",
        f"{units.rate(summed.added_per_second)}/s in, "
        f"{units.rate(summed.finished_per_second)}/s out{limited}",
    )
    print_fact(
        "workers",
        f"{summed.workers:,}, with {summed.running:,} tasks running and {summed.offers:,} free "
        "slots waiting",
    )
    print_fact("dead", f"{summed.dead:,}")
    if summed.damaged_rows:
        print_fact(
            "damaged",
            f"{summed.damaged_rows:,} rows with {summed.damaged_tasks:,} tasks: "
            f"maitred admin queue damaged list {label(queue.id)}",
            "red",
        )
    if not summed.workers and root.served_seconds_ago is None:
        print_fact(
            "served", "never in the last day; tasks are taken in unchecked, and wait", "yellow"
        )
    elif not summed.workers and root.served_seconds_ago:
        print_fact("served", f"{units.ago(root.served_seconds_ago)}, by a worker")
    print_fact(
        "queues", f"{root.namespace_queues:,} of {root.namespace_queues_max:,} in the namespace"
    )
    if summed.unproven:
        print_fact(
            "unproven",
            f"{summed.unproven:,} ends and heartbeats refused: the caller did not have the task",
            "yellow",
        )
    if summed.not_kept:
        print_fact(
            "not kept",
            f"{summed.not_kept:,} results and error texts: no room within the quotas",
            "yellow",
        )
    for name, said in told_of_settings(root.all_settings):
        print_fact("setting", f"{name} = {said}")
    if root.controls.version:
        print_fact("controls", f"version {root.controls.version}")
    print_fact("stored", _stored(root.queue_stored))
    print_fact("namespace", _stored(root.namespace_stored))
    if summed.unreachable:
        print_fact(
            "",
            f"without the {summed.unreachable} of {counts.read} partitions that did not answer",
            "red",
        )


def _stored(amount: StoredAmount) -> str:
    """Return use and quota, as in "12 of 1,000 tasks, 3.4 KiB of 16 GiB"."""
    tasks = "" if amount.most_tasks is None else f" of {amount.most_tasks:,}"
    size = "" if amount.most_bytes is None else f" of {units.size(amount.most_bytes)}"
    return f"{amount.tasks:,}{tasks} tasks, {units.size(amount.bytes)}{size} stored"


def _rows(
    queue: DescribedQueue, columns: dict[str, Callable[[PartitionDescription], object]]
) -> list[dict[str, object]]:
    """Return a row for each partition; one that did not answer has empty cells."""
    found, silent = queue.partitions
    empty: dict[str, object] = {name: UNREACHABLE if name == "state" else None for name in columns}
    return [
        {"partition": at, **(row_of(columns, found[at]) if at in found else empty)}
        for at in range(len(found) + len(silent))
    ]


def _where(queue: DescribedQueue) -> dict[str, Callable[[PartitionDescription], object]]:
    """Return the column that names the node of a partition, if there is more than one node."""
    nodes = {one.node for one in queue.partitions.found.values()}
    if len(nodes) <= 1 and len(queue.addresses) <= 1:
        return {}
    return {"node": lambda one: queue.addresses.get(one.node, one.node[:NODE_LETTERS])}


def _share(part: int, whole: int) -> units.Shown | None:
    return units.Shown(f"{part / whole:.0%}") if whole else None


_WORK: dict[str, Callable[[PartitionDescription], object]] = {
    "shard": lambda one: one.shard,
    "state": lambda one: one.state + (", paused" if one.controls.pause is not None else ""),
    "backlog": lambda one: units.count(one.backlog),
    "age": lambda one: units.duration(one.backlog_age_seconds),
    "in/s": lambda one: units.rate(one.added_per_second),
    "out/s": lambda one: units.rate(one.finished_per_second),
    "running": lambda one: units.count(one.running),
    "offers": lambda one: units.count(one.offers),
    "wait p50": lambda one: units.duration(one.wait_p50_seconds),
    "wait p99": lambda one: units.duration(one.wait_p99_seconds),
}

_RECORDS: dict[str, Callable[[PartitionDescription], object]] = {
    "range id": lambda one: one.range_id,
    "read level": lambda one: one.read_level,
    "ack level": lambda one: one.ack_level,
    "later": lambda one: units.count(one.later),
    "dead": lambda one: units.count(one.dead),
    "lost": lambda one: units.count(one.lost),
    "to parent": lambda one: units.Shown(
        f"{units.count(one.forwarded_tasks)}/{units.count(one.forwarded_offers)}"
    ),
    "at once": lambda one: _share(one.matched_at_once, one.added),
    "unwritten": lambda one: _share(one.never_written, one.added),
}
