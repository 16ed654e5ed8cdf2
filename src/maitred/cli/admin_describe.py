"""`maitred admin queue describe`: how a queue is, all of it and each of its partitions.

Two tables, because one would be wider than a terminal: how work goes, and what the partition has
written down. A partition that does not answer is a row as well.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from maitred.cli import admin_units as units
from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import (
    UNREACHABLE,
    Silent,
    all_described,
    connecting,
    plain,
)
from maitred.cli.admin_names import json_option, label, queue_argument
from maitred.cli.admin_totals import totals, workers
from maitred.cli.output import print_json, print_table

if TYPE_CHECKING:
    from maitred.protocol.tasks import PartitionDescription, StoredAmount
    from maitred.routing.names import QueueId

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


class DescribedQueue(NamedTuple):
    """A queue with all partitions that there are to read."""

    id: QueueId
    root: PartitionDescription
    found: list[PartitionDescription | Silent]


@click.command(epilog=_EPILOG)
@queue_argument
@url_option
@timeout_option
@json_option
def describe(queue: QueueId, url: str, timeout: float, *, as_json: bool) -> None:
    """Show how QUEUE is, as in shop/thumbnails: in all, and each partition."""
    found = run(_ask(url, timeout, queue))
    if as_json:
        print_json(_told(found))
    else:
        _print(found)
    if any(isinstance(one, Silent) for one in found.found):
        sys.exit(1)


async def _ask(url: str, seconds: float, queue: QueueId) -> DescribedQueue:
    async with connecting(url, seconds) as client:
        return DescribedQueue(queue, *await all_described(client, queue))


def _told(queue: DescribedQueue) -> dict[str, object]:
    root = plain(queue.root)
    return {
        "namespace": queue.id.namespace,
        "queue": queue.id.queue,
        "type": queue.id.type,
        "counts": root["counts"],
        "namespace_queues": queue.root.namespace_queues,
        "namespace_queues_max": queue.root.namespace_queues_max,
        "served_seconds_ago": queue.root.served_seconds_ago,
        "totals": totals(queue.found)._asdict(),
        "partitions": [
            {"partition": at, "state": UNREACHABLE, "error": one.told()}
            if isinstance(one, Silent)
            else plain(one)
            for at, one in enumerate(queue.found)
        ],
        "workers": [worker._asdict() for worker in workers(queue.found)],
    }


def _print(queue: DescribedQueue) -> None:
    _print_totals(queue)
    click.echo()
    print_table([_work(at, one) for at, one in enumerate(queue.found)])
    click.echo()
    print_table([_records(at, one) for at, one in enumerate(queue.found)])
    for at, one in enumerate(queue.found):
        if isinstance(one, Silent):
            click.echo(f"\npartition {at}: {one}")
    seen = workers(queue.found)
    if seen:
        click.echo()
        print_table(
            [
                {
                    "worker": worker.worker,
                    "running": worker.running,
                    "heard": None
                    if worker.heard_seconds_ago is None
                    else units.Shown(f"{units.duration(worker.heard_seconds_ago)} ago"),
                }
                for worker in seen[:WORKERS_SHOWN]
            ]
        )
    if len(seen) > WORKERS_SHOWN:
        click.echo(f"\n{WORKERS_SHOWN} of {len(seen):,} workers; --json has them all.", err=True)


def _print_totals(queue: DescribedQueue) -> None:
    summed, counts = totals(queue.found), queue.root.counts
    click.secho(label(queue.id), bold=True)
    click.echo(
        f"partitions  {counts.read} to read, {counts.write} to write (version {counts.version})"
    )
    oldest = f", the oldest for {units.duration(summed.oldest_seconds)}" if summed.backlog else ""
    click.echo(f"backlog     {summed.backlog:,} waiting{oldest}; {summed.later:,} later")
    click.echo(
        f"rates       {units.rate(summed.added_per_second)}/s in, "
        f"{units.rate(summed.finished_per_second)}/s out"
        + (
            f"; limited to {units.rate(queue.root.rate_limit_per_second)}/s"
            if queue.root.rate_limit_per_second is not None
            else ""
        )
    )
    click.echo(
        f"workers     {summed.workers:,}, with {summed.running:,} tasks running and "
        f"{summed.offers:,} free slots waiting"
    )
    click.echo(f"dead        {summed.dead:,}")
    if summed.damaged_rows:
        click.secho(
            f"damaged     {summed.damaged_rows:,} rows with {summed.damaged_tasks:,} tasks: "
            f"maitred admin queue damaged list {label(queue.id)}",
            fg="red",
        )
    root = queue.root
    if not summed.workers and root.served_seconds_ago is None:
        click.secho(
            "served      never in the last day; tasks are taken in unchecked, and wait", fg="yellow"
        )
    elif not summed.workers and root.served_seconds_ago:
        click.echo(f"served      {units.duration(root.served_seconds_ago)} ago, by a worker")
    click.echo(
        f"queues      {root.namespace_queues:,} of {root.namespace_queues_max:,} in the namespace"
    )
    if summed.unproven:
        click.secho(
            f"unproven    {summed.unproven:,} ends and heartbeats refused: the caller did not have "
            "the task",
            fg="yellow",
        )
    if summed.not_kept:
        click.secho(
            f"not kept    {summed.not_kept:,} results and error texts: no room within the quotas",
            fg="yellow",
        )
    click.echo(f"stored      {_stored(queue.root.queue_stored)}")
    click.echo(f"namespace   {_stored(queue.root.namespace_stored)}")
    if summed.unreachable:
        click.secho(
            f"            without the {summed.unreachable} of {len(queue.found)} partitions that "
            "did not answer",
            fg="red",
        )


def _stored(amount: StoredAmount) -> str:
    """Use and quota, as in "12 of 1,000 tasks, 3.4 KiB of 16 GiB"."""
    tasks = "" if amount.most_tasks is None else f" of {amount.most_tasks:,}"
    size = "" if amount.most_bytes is None else f" of {units.size(amount.most_bytes)}"
    return f"{amount.tasks:,}{tasks} tasks, {units.size(amount.bytes)}{size} stored"


def _work(at: int, one: PartitionDescription | Silent) -> dict[str, object]:
    if isinstance(one, Silent):
        return dict.fromkeys(_WORK) | {"partition": at, "state": UNREACHABLE}
    values = (
        at,
        one.shard,
        one.state,
        units.count(one.backlog),
        units.duration(one.backlog_age_seconds),
        units.rate(one.added_per_second),
        units.rate(one.finished_per_second),
        units.count(one.running),
        units.count(one.offers),
        units.duration(one.wait_p50_seconds),
        units.duration(one.wait_p99_seconds),
    )
    return dict(zip(_WORK, values, strict=True))


_WORK = (
    "partition",
    "shard",
    "state",
    "backlog",
    "age",
    "in/s",
    "out/s",
    "running",
    "offers",
    "wait p50",
    "wait p99",
)


def _records(at: int, one: PartitionDescription | Silent) -> dict[str, object]:
    if isinstance(one, Silent):
        return dict.fromkeys(_RECORDS) | {"partition": at}
    values = (
        at,
        one.range_id,
        one.read_level,
        one.ack_level,
        units.count(one.later),
        units.count(one.dead),
        units.count(one.lost),
        units.Shown(f"{units.count(one.forwarded_tasks)}/{units.count(one.forwarded_offers)}"),
        _share(one.matched_at_once, one.added),
        _share(one.never_written, one.added),
    )
    return dict(zip(_RECORDS, values, strict=True))


_RECORDS = (
    "partition",
    "range id",
    "read level",
    "ack level",
    "later",
    "dead",
    "lost",
    "to parent",
    "at once",
    "unwritten",
)


def _share(part: int, whole: int) -> units.Shown | None:
    return units.Shown(f"{part / whole:.0%}") if whole else None
