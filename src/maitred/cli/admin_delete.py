"""`maitred admin queue delete`: deletes a queue and everything in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from maitred.cli.address import node_options
from maitred.cli.admin_names import label, queue_argument
from maitred.cli.output import json_option, print_json
from maitred.cli.selection import confirm, yes_option
from maitred.client.answers import ROOT

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.protocol.tasks import DeletedQueue
    from maitred.routing.names import QueueId


@click.command(
    epilog="Results of tasks that are over go with the queue. Its name can be used again at once; "
    "workers that still serve it make it anew. A queue that does not exist is no error."
)
@queue_argument
@click.option(
    "--force",
    is_flag=True,
    help="Even if it has tasks or dead letters, or workers and queries that wait at it.",
)
@yes_option
@node_options
@json_option
def delete(queue: QueueId, node: AskedNode, *, force: bool, yes: bool, as_json: bool) -> None:
    """Delete QUEUE, all of its partitions.

    It is refused if the queue has tasks, dead letters, workers or waiting queries; --force deletes
    them, too, and they cannot be brought back.
    """
    from msgspec.structs import asdict

    from maitred.protocol.tasks import DeleteQueue

    if not yes:
        what = " with all its tasks and dead letters" if force else ""
        confirm("delete", f"{label(queue)}{what}", "It cannot be brought back.")
    message = DeleteQueue(*queue, ROOT, 0, force)
    found = cast("DeletedQueue", node.ask(lambda client: client.request(message)))
    if as_json:
        print_json(asdict(found))
    elif not found.partitions:
        click.echo(f"{label(queue)} does not exist; nothing was deleted.")
    else:
        click.echo(
            f"{label(queue)} is deleted: partitions {found.partitions:,}, tasks {found.tasks:,}, "
            f"dead letters {found.dead:,}."
        )
        if found.workers:
            click.echo(f"Workers that still serve it make it anew; there were {found.workers:,}.")
