"""`maitred admin queue purge`: drops the tasks that wait, without deleting the queue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from maitred.cli.address import node_options
from maitred.cli.admin_ask import print_unreachable, unreachable
from maitred.cli.admin_control import reason_option
from maitred.cli.admin_names import label, queue_argument
from maitred.cli.admin_totals import describe_root
from maitred.cli.output import counted, json_option, print_json
from maitred.cli.selection import confirm, yes_option
from maitred.client.answers import ROOT, Silent, each_partition
from maitred.errors import InvalidArgument, MaitredError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import Purged
    from maitred.routing.names import QueueId

STATES = ("waiting", "delayed", "dead")
_NOUNS = {"waiting": "waiting task", "delayed": "delayed task", "dead": "dead letter"}


class PurgeResult(NamedTuple):
    """How many tasks of each state were dropped or counted, and the partitions that failed."""

    tasks: dict[str, int]
    silent: dict[int, Silent]


def _check_age(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    from maitred.protocol.tasks import NEVER

    if not seconds <= NEVER:  # also nan, which click lets pass
        raise InvalidArgument(
            f"--older-than cannot be {seconds:g}.", remedy=f"Give 0 to {NEVER:,.0f} seconds."
        )
    return seconds


@click.command(
    epilog="Running tasks are not touched, and tasks that are added meanwhile stay. Callers that "
    "wait for the result of a purged task get the error `task-purged`. A purge can be interrupted "
    "and repeated. Exit status: 0 if every partition has answered, else 1."
)
@queue_argument
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Which ones; repeatable.  [default: waiting and delayed]",
)
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=0.0,
    callback=_check_age,
    metavar="SECONDS",
    help="Only tasks that were added (or died) so long ago; not delayed ones.",
)
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@reason_option
@yes_option
@node_options
@json_option
def purge(
    queue: QueueId,
    states: tuple[str, ...],
    older_than: float,
    node: AskedNode,
    reason: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Drop the tasks of QUEUE that wait; the queue stays.

    Waiting tasks are ready to run, delayed ones are not due yet; retries are among them. Dead
    letters are dropped only with --state dead.
    """
    chosen = chosen_states(states, older_than)
    if not dry_run and not yes:
        what = " and ".join(f"{_NOUNS[state]}s" for state in chosen)
        confirm("purge", f"the {what} of {label(queue)}", "They cannot be brought back.")
    told = None if as_json else lambda text: click.echo(text, err=True)
    found = PurgeResult({}, {})
    try:
        node.ask(
            lambda client: purge_all(
                client, queue, chosen, older_than, found, reason=reason, dry_run=dry_run, tell=told
            )
        )
    except KeyboardInterrupt:
        if found.tasks and not dry_run:
            click.echo(
                f"{label(queue)}: {_numbers(found)} dropped, and those of requests in flight.",
                err=True,
            )
        raise
    if as_json:
        silent = unreachable("partition", found.silent)
        print_json({"dry_run": dry_run, "tasks": found.tasks, "unreachable": silent})
    else:
        click.echo(f"{label(queue)}: {_numbers(found)}{' to drop' if dry_run else ' dropped'}.")
        print_unreachable(found.silent, "partition")
    if found.silent:
        sys.exit(1)


def _numbers(found: PurgeResult) -> str:
    return ", ".join(counted(number, _NOUNS[one]) for one, number in found.tasks.items())


def chosen_states(states: Sequence[str], older_than: float) -> list[str]:
    """Return the states to purge; raise `InvalidArgument` if they have no age."""
    if not states:
        return ["waiting"] if older_than else ["waiting", "delayed"]
    if older_than and "delayed" in states:
        raise InvalidArgument(
            "--older-than does not go with delayed tasks.",
            remedy="Purge them without it, or leave them out.",
        )
    return list(dict.fromkeys(states))


async def purge_all(
    client: AsyncClient,
    queue: QueueId,
    states: Sequence[str],
    older_than: float,
    found: PurgeResult,
    *,
    reason: str,
    dry_run: bool,
    tell: Callable[[str], None] | None,
) -> None:
    """Purge all partitions, and tell the progress each time a request has worked for a second. What
    is done is added to `found`, which tells it also if the purge is interrupted."""
    from maitred.protocol.tasks import PurgeTasks

    await describe_root(client, queue)  # it names the nearest one if there is no such queue
    found.tasks.update(dict.fromkeys(states, 0))
    for state in states:

        async def one(partition: int, state: str = state) -> None:
            message = PurgeTasks(*queue, partition, 0, state, older_than, dry_run, reason=reason)  # type: ignore[arg-type]
            while True:
                answer = cast("Purged", await client.request(message))
                found.tasks[state] += answer.tasks
                if answer.is_complete:
                    return
                if tell is not None:
                    tell(f"{counted(found.tasks[state], _NOUNS[state])} so far")
                message.until, message.cursor = answer.until, answer.cursor

        try:
            answers = await each_partition(client, queue, one)
        except MaitredError as problem:  # the node has left since the last answer
            found.silent[ROOT] = Silent(problem)
            return
        found.silent.update(answers.silent)
