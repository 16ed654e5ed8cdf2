"""`maitred admin problems`: what is wrong with the queues, why, and what helps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from maitred.cli.address import node_options
from maitred.cli.admin_task_show import wrapped
from maitred.cli.output import LABEL_COLUMNS, counted, json_option, print_json
from maitred.client.answers import Silent

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.client.queue_problems import FoundProblems, QueueProblem

_EPILOG = (
    "\b\nThe problems:\n"
    "  unserved    tasks wait, and no worker serves the queue\n"
    "  failing     there are dead letters: tasks that have used up their attempts\n"
    "  retrying    a fifth of the attempts fail, and retries wait\n"
    "  behind      a task waits for a minute, or will at the present speed\n"
    "  paused      an operator has paused the queue\n"
    "\nOf more than 500 queues those are looked at that have the most to do. Exit status: 0 if "
    "nothing is wrong and every shard has answered, else 1."
)


@click.command(epilog=_EPILOG)
@node_options
@click.option("--namespace", default="", metavar="NAME", help="Only the queues of this namespace.")
@json_option
def problems(node: AskedNode, namespace: str, *, as_json: bool) -> None:
    """Show what is wrong with queues, why, and what helps."""
    if namespace:
        from maitred.routing.names import check_name

        check_name("namespace", namespace)
    found = node.ask(lambda client: _find(client, namespace))
    silent = {_part(one.address, one.shard): Silent(one.error) for one in found.unreachable}
    if as_json:
        from msgspec import to_builtins

        print_json(
            {
                "problems": to_builtins(found.problems),
                "looked_at": found.looked_at,
                "total": found.total,
                "unreachable": [
                    {"part": part, "error": one.told()} for part, one in silent.items()
                ],
            }
        )
    else:
        _print(found)
        for part, one in silent.items():
            click.echo(f"{part}: {one}", err=True)
    if found.problems or silent:
        sys.exit(1)


async def _find(client: AsyncClient, namespace: str) -> FoundProblems:
    from maitred.client.queue_problems import ProblemFinder
    from maitred.client.queue_states import QueuePages
    from maitred.errors import UnknownChoice

    pages = QueuePages(client)
    found = await ProblemFinder(client, pages).find(namespace)
    if namespace and not found.looked_at and not found.unreachable:
        # Of a misspelt namespace it would say that nothing is wrong.
        known = await pages.namespaces()
        raise UnknownChoice.named("namespace with queues", namespace, known)
    return found


def _part(address: str, shard: int | None) -> str:
    return address if shard is None else f"{address}, shard {shard}"


def _print(found: FoundProblems) -> None:
    for one in found.problems:
        _print_problem(one)
    looked_at = counted(found.looked_at, "queue")
    if found.looked_at < found.total:
        looked_at = f"the {looked_at} with the most to do, of {found.total:,}"
    told = counted(len(found.problems), "problem") if found.problems else "Nothing is wrong"
    click.echo(f"{told}: looked at {looked_at}.")


def _print_problem(problem: QueueProblem) -> None:
    color = "yellow" if problem.kind == "paused" else "red"
    click.secho(f"{problem.namespace}/{problem.queue}", bold=True)
    for name, text in (
        (problem.kind, problem.what),
        ("why", problem.why),
        ("next", problem.remedy),
    ):
        if text:
            head = f"{name:<{LABEL_COLUMNS}}"
            click.secho(wrapped(head, text), fg=color if name == problem.kind else None)
    click.echo()
