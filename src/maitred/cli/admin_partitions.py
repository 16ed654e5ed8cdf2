"""`maitred admin queue update-partitions`: changes a queue's partition counts by hand.

The node refuses counts that could strand tasks, unless with `--force`. The command prints what
happens next: that draining takes its time, and what to do when it is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import click

from maitred.cli.address import node_options
from maitred.cli.admin_names import label, queue_argument
from maitred.cli.output import json_option, print_json
from maitred.client.answers import ROOT, described
from maitred.errors import UnknownQueue
from maitred.routing.counts import PartitionCounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import Counts, Resized
    from maitred.routing.names import QueueId


class Change(NamedTuple):
    """The partition counts before and after a change."""

    before: Counts
    after: Counts


@click.command(
    "update-partitions",
    epilog="Growing is safe at once. To shrink, lower --write first, wait until `describe` shows "
    "the others as drained, then lower --read.",
)
@queue_argument
@click.option("--read", type=int, required=True, metavar="N", help="Partitions that workers read.")
@click.option(
    "--write", type=int, required=True, metavar="N", help="Those of them that take tasks."
)
@click.option(
    "--force", is_flag=True, help="Even if tasks may be left in partitions that no worker reads."
)
@node_options
@json_option
def update_partitions(
    queue: QueueId, read: int, write: int, node: AskedNode, *, force: bool, as_json: bool
) -> None:
    """Change the number of partitions of QUEUE."""
    PartitionCounts(read, write)  # raises for impossible counts before the node is asked
    change = node.ask(lambda client: _resize(client, queue, read, write, force=force))
    if as_json:
        print_json({"before": _told(change.before), "after": _told(change.after)})
        return
    click.echo(f"{label(queue)}: {_said(change.before)} -> {_said(change.after)}")
    for line in next_steps(queue, change):
        click.echo(line)


async def _resize(
    client: AsyncClient, queue: QueueId, read: int, write: int, *, force: bool
) -> Change:
    from maitred.protocol.tasks import Counts, Resize

    try:
        before = (await described(client, queue, ROOT)).counts
    except UnknownQueue:
        before = Counts(1, 1, 0)  # as every queue begins, unless its settings say otherwise
    answer = await client.request(Resize(*queue, ROOT, 0, read, write, force))
    return Change(before, cast("Resized", answer).counts)


def next_steps(queue: QueueId, change: Change) -> Iterator[str]:
    """Yield sentences about what happens next, and what is left to do."""
    before, after = change
    if (before.read, before.write) == (after.read, after.write):
        yield "Nothing changes: it is divided like this already."
        return
    if after.write > before.write:
        yield "Producers and workers hear of it with their next answer."
    if after.write < before.write and after.read > after.write:
        yield (
            f"{_partitions(after.write, after.read)} no new tasks any more; workers empty "
            f"{'it' if after.read - after.write == 1 else 'them'} now."
        )
        yield (
            "When `maitred admin queue describe` shows that as drained, and if scaling.adaptive is "
            "off:"
        )
        yield (
            f"  maitred admin queue update-partitions {label(queue)} "
            f"--read {after.write} --write {after.write}"
        )
    if after.read < before.read:
        gone = before.read - after.read
        yield (
            f"{gone} {'partition is' if gone == 1 else 'partitions are'} gone. If tasks were left "
            f"there, which only --force allows, they come back with --read {before.read}."
        )
    yield (
        "Where scaling.adaptive is on, as it is unless set, the root goes on by itself: it removes "
        "drained partitions and follows the load."
    )


def _partitions(first: int, end: int) -> str:
    if end - first == 1:
        return f"Partition {first} takes"
    return f"Partitions {first} to {end - 1} take"


def _said(counts: Counts) -> str:
    return f"{counts.read} to read, {counts.write} to write (version {counts.version})"


def _told(counts: Counts) -> dict[str, int]:
    return {"read": counts.read, "write": counts.write, "version": counts.version}
