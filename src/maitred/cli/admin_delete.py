"""`maitred admin queue delete`: a queue goes, with everything that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import ROOT, connecting
from maitred.cli.admin_dead_actions import somebody_is_there
from maitred.cli.admin_names import json_option, label, queue_argument
from maitred.cli.output import print_json
from maitred.errors import InvalidArgument

if TYPE_CHECKING:
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
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@timeout_option
@json_option
def delete(
    queue: QueueId,
    url: str,
    timeout: float,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete QUEUE, all of its partitions.

    It is refused if the queue has tasks, dead letters, workers or waiting queries; --force deletes
    them, too, and they cannot be brought back.
    """
    if not yes:
        _confirm(queue, force=force)
    found = run(_ask(url, timeout, queue, force=force))
    if as_json:
        print_json(
            {
                "partitions": found.partitions,
                "tasks": found.tasks,
                "dead": found.dead,
                "workers": found.workers,
            }
        )
    elif not found.partitions:
        click.echo(f"{label(queue)} does not exist; nothing was deleted.")
    else:
        click.echo(
            f"{label(queue)} is deleted: partitions {found.partitions:,}, tasks {found.tasks:,}, "
            f"dead letters {found.dead:,}."
        )
        if found.workers:
            click.echo(f"Workers that still serve it make it anew; there were {found.workers:,}.")


def _confirm(queue: QueueId, *, force: bool) -> None:
    if not somebody_is_there():
        raise InvalidArgument(
            f"To delete {label(queue)} needs a yes, and there is nobody to ask.",
            remedy="Add --yes.",
        )
    what = " with all its tasks and dead letters" if force else ""
    click.confirm(f"Delete {label(queue)}{what}? It cannot be brought back.", abort=True, err=True)


async def _ask(url: str, seconds: float, queue: QueueId, *, force: bool) -> DeletedQueue:
    from maitred.protocol.tasks import DeleteQueue

    async with connecting(url, seconds) as client:
        return cast("DeletedQueue", await client.request(DeleteQueue(*queue, ROOT, 0, force)))
