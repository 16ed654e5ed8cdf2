"""`maitred admin queue watch`: queues in a table that is drawn again every second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from maitred.cli.address import node_options
from maitred.cli.admin_ask import print_unreachable
from maitred.cli.admin_list import all_queues, paged, queue_rows, queue_told
from maitred.cli.admin_names import label, queue_id
from maitred.cli.admin_totals import DescribedQueue, describe_all, describe_root
from maitred.cli.output import json_option, print_table
from maitred.cli.watching import watch
from maitred.client.answers import Answers, Silent, each

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.routing.names import QueueId

LIMIT = 20
"""Queues that are watched by default: a screen. Every second each of their roots is asked."""


class WatchedQueues(NamedTuple):
    """The queues at one moment."""

    queues: list[QueueId]
    described: Answers[QueueId, DescribedQueue]
    total: int
    """How many queues there are, watched or not."""

    def silent(self) -> dict[str, Silent]:
        """Return the queues that did not answer."""
        return {label(queue): reason for queue, reason in self.described.silent.items()}


@click.command(
    "watch",
    epilog="\b\nThe columns:\n"
    "  oldest           since when the first waiting task could be run\n"
    "  in/s, out/s      tasks that are added and finished, over the last seconds\n"
    "  offers           free slots of workers that wait there for a task\n"
    "\nWith --json each second is a line.",
)
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option("--namespace", metavar="NAME", help="Only queues of this namespace; or their own.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=LIMIT,
    show_default=True,
    help="Queues that are watched, by name, if none is named.",
)
@node_options
@json_option
def watch_queues(
    queues: tuple[str, ...], namespace: str | None, limit: int, node: AskedNode, *, as_json: bool
) -> None:
    """Watch queues: backlog, rates, slots, dead letters and pauses, until Ctrl-C.

    All partitions of a queue that is named are asked, otherwise only the roots.
    """
    named = [queue_id(one, namespace) for one in queues]

    async def ask(client: AsyncClient) -> WatchedQueues:
        if named:
            described = await each(named, lambda queue: describe_all(client, queue))
            return WatchedQueues(named, described, len(named))
        known, _, _ = await all_queues(client)
        page = paged((one for one in known if namespace in (None, one.namespace)), limit, None)
        described = await each(page.queues, lambda queue: describe_root(client, queue))
        return WatchedQueues(page.queues, described, page.total)

    watch(node, ask, _show, _told if as_json else None)


def _show(found: WatchedQueues) -> None:
    if not found.queues:
        click.echo("There are no queues here.")
        return
    print_table(queue_rows(found.queues, found.described))
    print_unreachable(found.silent())
    if found.total > len(found.queues):
        click.echo(
            f"\n{len(found.queues):,} of {found.total:,} queues; name those you want to see."
        )


def _told(found: WatchedQueues) -> dict[str, Any]:
    return {
        "queues": [queue_told(queue, found.described) for queue in found.queues],
        "total": found.total,
    }
