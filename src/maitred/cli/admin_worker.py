"""`maitred admin worker`: which workers serve which queues; taking them offline and back online.

An order reaches a worker in the answer to the long poll that it keeps at the roots of its queues.
Offline, the worker takes its offers back and finishes its tasks and queries. It keeps attending,
so that it can be put back online, and stays offline until then or until it is restarted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import print_unreachable, unreachable
from maitred.cli.admin_names import label, queue_id
from maitred.cli.admin_worker_ask import (
    SESSION_LETTERS,
    ServingWorker,
    ask,
    present,
    workers_named,
)
from maitred.cli.groups import HintingGroup
from maitred.cli.output import json_option, print_json, print_table
from maitred.client.answers import Silent, each
from maitred.errors import UnknownWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import WorkerRow
    from maitred.routing.names import QueueId

_Command = TypeVar("_Command", bound="Callable[..., Any]")
Order = Literal["offline", "online"]

QUEUES_SHOWN = 3
"""Queues of one worker in a table."""

UNBOUND = ("", "slots", "unused")
"""Reasons of a limit that restricts nothing."""

FAILED_SHOWN = 10
"""Failures per hundred queries, at the queue where the worker fails the most, from which on the
state says so; fewer are normal."""

LOOK_SECONDS = 0.5
"""Interval at which `--wait` asks for the worker's state."""

_namespace_option = click.option(
    "--namespace", metavar="NAME", help="Of the queues, if they are only names."
)


@click.group(cls=HintingGroup)
def worker() -> None:
    """Workers: list, take offline, put back online.

    A worker is named by its --name, or by the first eight letters of its session. The user needs
    the permission `read` in the namespaces of its queues, and `operate` for orders.
    """


@worker.command("list", epilog="Exit status: 0 if every queue has answered, 1 otherwise.")
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option(
    "--namespace",
    metavar="NAME",
    help="Of the queues, if they are only names; without any, only workers of its queues.",
)
@node_options
@json_option
def list_workers(
    queues: tuple[str, ...], namespace: str | None, node: AskedNode, *, as_json: bool
) -> None:
    """List the workers of some queues, or of all: their slots, how they are, what they serve.

    `limit` is how many a worker takes at a time, and why not more: docs/capacity.md has the words.
    """
    named = [queue_id(one, namespace) for one in queues]
    there = node.ask(lambda client: present(client, named, namespace))
    if as_json:
        print_json(
            {
                "workers": [_told(one) for one in there.workers],
                "unreachable": unreachable("queue", there.silent),
            }
        )
    elif there.workers:
        print_table([_row(one) for one in there.workers])
    else:
        where = f" for {', '.join(queues)}" if queues else ""
        if namespace and not queues:
            where = f" for queues of the namespace {namespace}"
        click.echo(f"No workers{where}. `maitred worker MODULE:APP` starts one.")
    print_unreachable(there.silent)
    if there.silent:
        sys.exit(1)


def _told(known: ServingWorker) -> dict[str, Any]:
    """Return the worker for JSON."""
    row = known.row
    return {
        "worker": row.worker,
        "session": known.session,
        "address": row.address or None,
        "slots": row.slots,
        "busy": row.busy,
        "state": row.state,
        "suspected": row.suspected,
        "good": row.good,
        "limit": row.limit,
        "limit_reason": row.limit_reason or None,
        "blocked": row.blocked,
        "heard_seconds_ago": row.heard_seconds,
        "queues": [label(queue) for queue in known.queues],
    }


def _state(row: WorkerRow) -> str:
    if row.suspected:
        return f"{row.state}, does not answer"
    failed = round(100 * (1.0 - row.good))
    state = f"{row.state}, fails {failed} %" if failed >= FAILED_SHOWN else row.state
    if row.blocked:
        times = "once" if row.blocked == 1 else f"{row.blocked:,} times"
        state = f"{state}, blocked {times}"
    return state


def _limit(row: WorkerRow) -> units.Shown | None:
    if row.limit is None:
        return None
    reason = "" if row.limit_reason in UNBOUND else f": {row.limit_reason}"
    return units.Shown(f"{row.limit:,}{reason}")


def _row(known: ServingWorker) -> dict[str, object]:
    row = known.row
    names = [label(queue) for queue in known.queues]
    more = f" and {len(names) - QUEUES_SHOWN} more" if len(names) > QUEUES_SHOWN else ""
    return {
        "worker": row.worker,
        "session": known.session[:SESSION_LETTERS],
        "state": _state(row),
        "slots": row.slots,
        "busy": row.busy,
        "limit": _limit(row),
        "heard": units.Shown(f"{units.duration(row.heard_seconds)} ago"),
        # The fingerprint is for programs: --json has it.
        "address": row.address.partition("#")[0] or "none: relayed",
        "queues": ", ".join(names[:QUEUES_SHOWN]) + more,
    }


class OrderedWorkers(NamedTuple):
    """The workers that got an order, their state afterwards, and the queues whose root did not
    answer."""

    workers: list[ServingWorker]
    states: dict[str, str]
    """The last state of each session; `gone` if the worker has ended."""
    silent: dict[str, Silent]


def _order_options(command: _Command) -> _Command:
    for decorate in (
        json_option,
        node_options,
        _namespace_option,
        click.option(
            "--queue",
            "queues",
            metavar="QUEUE",
            multiple=True,
            help="Look for it at this queue only; may be repeated.  [default: at all queues]",
        ),
        click.argument("name"),
    ):
        command = decorate(command)  # type: ignore[assignment]
    return command


@worker.command(epilog="Exit status: 0 if the worker was told (with --wait: is offline), else 1.")
@_order_options
@click.option("--wait", is_flag=True, help="Wait until nothing runs there any more.")
def offline(*, wait: bool, **options: Any) -> None:  # noqa: ANN401
    """Take the worker NAME offline: it gets no more work, and finishes what it has.

    Then it can be stopped, or put back with `maitred admin worker online`. If several workers have
    the name, all of them are meant; the first letters of a session say which.
    """
    _act("offline", wait=wait, **options)


@worker.command(epilog="Exit status: 0 if the worker was told, 1 otherwise.")
@_order_options
def online(**options: Any) -> None:  # noqa: ANN401
    """Put the worker NAME back: it offers its slots again, and serves what waits."""
    _act("online", wait=False, **options)


def _act(
    order: Order,
    *,
    name: str,
    queues: tuple[str, ...],
    namespace: str | None,
    node: AskedNode,
    wait: bool,
    as_json: bool,
) -> None:
    named = [queue_id(one, namespace) for one in queues]
    done = node.ask(lambda client: _give(client, order, name, named, wait=wait, quiet=as_json))
    if as_json:
        print_json(
            {
                "order": order,
                "workers": [
                    {
                        "worker": one.row.worker,
                        "session": one.session,
                        "state": done.states[one.session],
                        "queues": [label(queue) for queue in one.queues],
                    }
                    for one in done.workers
                ],
                "unreachable": unreachable("queue", done.silent),
            }
        )
    else:
        for one in done.workers:
            click.echo(_sentence(order, one, done.states[one.session]))
    print_unreachable(done.silent)
    if done.silent:
        sys.exit(1)


def _name(one: ServingWorker) -> str:
    return f"{one.row.worker} ({one.session[:SESSION_LETTERS]})"


def _sentence(order: Order, one: ServingWorker, state: str) -> str:
    if order == "online":
        return f"{_name(one)} was told to offer its {one.row.slots} slots again."
    if state == "gone":
        return f"{_name(one)} has ended."
    if state == "offline":
        return (
            f"{_name(one)} is offline: nothing runs there. "
            f"`maitred admin worker online {one.session[:SESSION_LETTERS]}` puts it back."
        )
    return (
        f"{_name(one)} takes no more work, and finishes what it has "
        f"({one.row.busy} of {one.row.slots} slots when it was heard of last)."
    )


async def _give(
    client: AsyncClient,
    order: Order,
    name: str,
    queues: list[QueueId],
    *,
    wait: bool,
    quiet: bool,
) -> OrderedWorkers:
    there = await present(client, queues)
    meant = workers_named(there, name)
    silent = dict(there.silent)
    states: dict[str, str] = {}
    for one in meant:
        answers = await each(
            one.queues,
            lambda queue, one=one: ask(client, queue, order, one.session),  # type: ignore[misc]
        )
        for rows in answers.found.values():
            states |= {row.session.hex(): row.state for row in rows}
        for queue, problem in answers.silent.items():
            if not isinstance(problem.error, UnknownWorker):  # it has ended in between
                silent[label(queue)] = problem
        states.setdefault(one.session, "gone")
    if wait:
        states |= await _until_offline(client, meant, quiet=quiet)
    return OrderedWorkers(meant, states, silent)


async def _until_offline(
    client: AsyncClient, workers: list[ServingWorker], *, quiet: bool
) -> dict[str, str]:
    """Wait until all of these workers are offline or gone, and return their states."""
    import asyncio

    said = ""
    while True:
        queues = list(dict.fromkeys(queue for one in workers for queue in one.queues))
        now = {one.session: one for one in (await present(client, queues)).workers}
        left = [now[one.session] for one in workers if one.session in now]
        busy = [one for one in left if one.row.state != "offline"]
        if not busy:
            return {one.session: "offline" if one.session in now else "gone" for one in workers}
        text = ", ".join(
            f"{one.row.worker} {'told' if one.row.state == 'online' else one.row.state}, "
            f"{one.row.busy} of {one.row.slots} slots busy"
            for one in busy
        )
        if text != said and not quiet:
            click.echo(text, err=True)
            said = text
        await asyncio.sleep(LOOK_SECONDS)
