"""`maitred admin worker`: who serves which queues; taking workers offline and putting them back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from maitred.cli import admin_units as units
from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import connecting
from maitred.cli.admin_names import json_option, label, queue_id
from maitred.cli.admin_worker_ask import SESSION_LETTERS, Present, ServingWorker, present
from maitred.cli.admin_worker_orders import offline, online
from maitred.cli.groups import HintingGroup
from maitred.cli.output import print_json, print_table

if TYPE_CHECKING:
    from maitred.protocol.queries import WorkerRow
    from maitred.routing.names import QueueId

QUEUES_SHOWN = 3
"""Of one worker, in a table."""

UNBOUND = ("", "slots", "unused")
"""Reasons for a limit that holds nothing back."""

FAILED_SHOWN = 10
"""In a hundred queries, at the queue where it fails the most; fewer are everyday life."""


@click.group(cls=HintingGroup)
def worker() -> None:
    """Workers: list, take offline, put back online.

    A worker is named by its --name, or by the first eight letters of its session. The user needs
    the permission `admin` in the namespaces of its queues; without --queue, everywhere.
    """


worker.add_command(offline)
worker.add_command(online)


@worker.command("list", epilog="Exit status: 0 if every queue has answered, 1 otherwise.")
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option("--namespace", metavar="NAME", help="Of the queues, if they are only names.")
@url_option
@timeout_option
@json_option
def list_workers(
    queues: tuple[str, ...], namespace: str | None, url: str, timeout: float, *, as_json: bool
) -> None:
    """List the workers of some queues, or of all: their slots, how they are, what they serve.

    `limit` is how many a worker takes at a time, and why not more: docs/capacity.md has the words.
    """
    there = run(_ask(url, timeout, [queue_id(one, namespace) for one in queues]))
    if as_json:
        print_json(
            {
                "workers": [told(one) for one in there.workers],
                "unreachable": [
                    {"queue": queue, "error": silent.told()}
                    for queue, silent in there.silent.items()
                ],
            }
        )
    elif there.workers:
        print_table([_row(one) for one in there.workers])
    else:
        where = f" for {', '.join(queues)}" if queues else ""
        click.echo(f"No workers{where}. `maitred worker MODULE:APP` starts one.")
    for queue, reason in there.silent.items():
        click.echo(f"{queue}: {reason}", err=True)
    if there.silent:
        sys.exit(1)


async def _ask(url: str, seconds: float, queues: list[QueueId]) -> Present:
    async with connecting(url, seconds) as client:
        return await present(client, queues)


def told(known: ServingWorker) -> dict[str, Any]:
    """For JSON."""
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
