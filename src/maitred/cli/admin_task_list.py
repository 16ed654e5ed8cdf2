"""`maitred admin task list`: the tasks of a queue, by state, with filters, page by page."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import print_unreachable, unreachable, with_suggestion
from maitred.cli.admin_names import label, queue_argument
from maitred.cli.admin_payload import WITHHELD, payload_of
from maitred.cli.admin_task_filters import filter_options
from maitred.cli.output import counted, cut, json_option, print_json, print_table
from maitred.errors import UnknownQueue, printable

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.cli.admin_task_filters import ChosenTasks
    from maitred.client.client import AsyncClient
    from maitred.client.task_lists import TaskPage
    from maitred.protocol.inspection import ListedTask
    from maitred.routing.names import QueueId

LIMIT = 50
"""Tasks of a page by default: a screen."""

SEARCH_SECONDS = 10.0
"""How long the search for a page may take, before the command prints what it has found."""

COLUMNS = 100
WORKER_COLUMNS = 16

STATES = ("running", "waiting", "delayed", "dead", "ended", "done", "cancelled", "expired")
OVER = ("dead", "done", "cancelled", "expired")


@click.command(
    "list",
    epilog="States: running (a worker has it), waiting (ready to run), delayed (not due yet; "
    "retries too), dead (attempts used up), ended (done, cancelled or expired). They come one "
    "after the other. Arguments and messages of errors are shown to users with the permission "
    "`reveal`. Exit status: 0 if every partition has answered, else 1.",
)
@queue_argument
@filter_options(STATES)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=LIMIT,
    show_default=True,
    help="How many, at most.",
)
@click.option("--after", metavar="CURSOR", help="The next page, as the one before says.")
@node_options
@json_option
def list_tasks(
    queue: QueueId,
    chosen: ChosenTasks,
    limit: int,
    after: str | None,
    node: AskedNode,
    *,
    as_json: bool,
) -> None:
    """List tasks of QUEUE: what runs, waits, failed, ended, and why.

    Running tasks come the longest first, delayed ones by their due times, ended ones the last
    first, waiting ones and dead letters by partition.
    """
    page = node.ask(lambda client: _search(client, queue, chosen, limit, after))
    if as_json:
        from maitred.client.task_rows import task_row

        print_json(
            {
                "tasks": [task_row(queue, one) for one in page.tasks],
                "cursor": page.cursor,
                "more": page.more,
                "looked_at": page.looked_at,
                "unreachable": unreachable("partition", page.silent),
            }
        )
    elif page.tasks:
        print_table(rows(page.tasks, time.time()))
    elif not page.silent and page.cursor is None:
        click.echo(f"{label(queue)} has no {'more ' if after else ''}such tasks.")
    print_unreachable(page.silent, "partition")
    if page.cursor is not None and not as_json:
        found = counted(len(page.tasks), "task")
        if page.more:
            click.echo(
                f"\nFound {found} among {page.looked_at:,} in {SEARCH_SECONDS:g} s. Search on: "
                f"--after {page.cursor}",
                err=True,
            )
        else:
            click.echo(f"\n{found}. The next page: --after {page.cursor}", err=True)
    if page.silent:
        sys.exit(1)


async def _search(
    client: AsyncClient, queue: QueueId, chosen: ChosenTasks, limit: int, after: str | None
) -> TaskPage:
    """Ask for pages until there are `limit` tasks, the list ends, or the time is over."""
    from maitred.client import task_lists
    from maitred.protocol.inspection import LISTED_MAX

    states = chosen.states or task_lists.EVERY_STATE
    found = task_lists.TaskPage([], after, more=True, silent={}, looked_at=0)
    until = time.monotonic() + SEARCH_SECONDS
    while True:
        most = min(limit - len(found.tasks), LISTED_MAX)
        try:
            page = await task_lists.list_tasks(
                client,
                queue,
                states,
                chosen.filter(),
                reveal=True,
                most=most,
                cursor=found.cursor,
                without=found.silent,
            )
        except UnknownQueue as problem:
            raise await with_suggestion(client, queue, problem) from None
        found = task_lists.TaskPage(
            found.tasks + page.tasks,
            page.cursor,
            page.cursor is not None and len(found.tasks) + len(page.tasks) < limit,
            found.silent | page.silent,
            found.looked_at + page.looked_at,
        )
        if not found.more or time.monotonic() >= until:
            return found


def rows(tasks: list[ListedTask], now: float) -> list[dict[str, object]]:
    """Return the rows of the table, which has at most `COLUMNS` columns."""
    made = [
        {
            "id": f"{one.partition}/{one.sequence}",
            "state": state_words(one),
            "when": when(one, now),
            "tries": one.attempts,
            "worker": cut(one.worker, WORKER_COLUMNS),
        }
        for one in tasks
    ]
    widths = {name: max(len(name), *(len(str(row[name])) for row in made)) for name in made[0]}
    left = COLUMNS - sum(widths.values()) - 2 * len(widths)
    return [
        {**row, "about": cut(about(one), max(left, len("about")))}
        for row, one in zip(made, tasks, strict=True)
    ]


def state_words(task: ListedTask) -> str:
    """Return the state, or that the task is being cancelled."""
    return "stopping" if task.cancelling and task.state not in OVER else task.state


def when(task: ListedTask, now: float) -> str:
    """Return since when the task is in its state, or when it is due."""
    if task.state == "delayed":
        return f"in {units.duration(task.due_at - now)}" if task.due_at > now else "due"
    if task.state in OVER:
        return str(units.ago(now - task.ended_at)) if task.ended_at else "-"
    since = task.started_at if task.state == "running" else task.due_at or task.added_at
    return f"for {units.duration(now - since)}" if since else "-"


def about(task: ListedTask) -> str:
    """Return what is most worth knowing: the error of a task that failed, else its arguments."""
    if task.error:
        return ": ".join(filter(None, (task.error, task.message)))
    return arguments_words(task)


def arguments_words(task: ListedTask, *, indented: bool = False) -> str:
    """Return the arguments as JSON, or why there are none."""
    if task.arguments is None:
        return WITHHELD.get(task.withheld, "")
    encoded = payload_of(task.arguments)
    if indented or encoded.encoding == "hex":
        return encoded.text()
    return printable(json.dumps(encoded.value, ensure_ascii=False))
