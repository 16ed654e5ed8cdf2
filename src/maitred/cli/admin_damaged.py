"""`maitred admin queue damaged`: rows of the store that cannot be read and were set aside."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import print_unreachable, unreachable
from maitred.cli.admin_names import RowId, label, queue_argument
from maitred.cli.groups import HintingGroup
from maitred.cli.output import json_option, print_fact, print_json, print_table
from maitred.cli.selection import check_selection, confirm, ids_arguments, yes_option
from maitred.client.answers import each_partition
from maitred.errors import InvalidArgument, PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.cli.address import AskedNode
    from maitred.client.answers import Answers
    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import DamagedRow, DamagedRowsFound
    from maitred.routing.names import QueueId

PAGE = 200
"""Rows of one answer."""

_EPILOG = "Exit status: 0 if it was done to every row that was meant, 1 otherwise."


@click.group(cls=HintingGroup)
def damaged() -> None:
    """Damaged rows: list, show, export, retry, drop.

    A row of the store that cannot be read is set aside, so that the others go on: a segment (tasks
    that were written together), a task that waits for its time (later), a dead letter (dead) or a
    result. Its id is PARTITION/SEQUENCE/KIND.
    """


@damaged.command("list", epilog="Exit status: 0 if every partition has answered, 1 otherwise.")
@queue_argument
@node_options
@json_option
def list_rows(queue: QueueId, node: AskedNode, *, as_json: bool) -> None:
    """List the damaged rows of QUEUE."""
    found, silent = node.ask(lambda client: _list(client, queue))
    rows = [row for one in found.values() for row in one]
    if as_json:
        print_json(
            {
                "rows": [_summary(row) for row in rows],
                "tasks": sum(row.tasks for row in rows),
                "unreachable": unreachable("partition", silent),
            }
        )
    elif rows:
        now = time.time()
        print_table(
            [
                {
                    "id": str(RowId.of(row)),
                    "noticed": units.ago(now - row.noticed_at),
                    "tasks": row.tasks,
                    "body": units.size(row.body_bytes),
                    "reason": row.reason,
                }
                for row in rows
            ]
        )
    else:
        click.echo(f"{label(queue)} has no damaged rows.")
    print_unreachable(silent, "partition")
    if silent:
        sys.exit(1)


async def _list(client: AsyncClient, queue: QueueId) -> Answers[int, list[DamagedRow]]:
    """Ask every partition for its damaged rows, page by page."""

    async def of_partition(partition: int) -> list[DamagedRow]:
        rows: list[DamagedRow] = []
        while True:
            after = [RowId.of(rows[-1])] if rows else []
            page = (await _ask(client, queue, partition, "list", after)).rows
            rows += page
            if len(page) < PAGE:
                return rows

    return await each_partition(client, queue, of_partition)


async def _ask(
    client: AsyncClient,
    queue: QueueId,
    partition: int,
    action: Literal["list", "show", "retry", "drop"],
    ids: Sequence[RowId],
    *,
    ignore_checksum: bool = False,
    body: bytes = b"",
    reveal: bool = False,
) -> DamagedRowsFound:
    from maitred.protocol.tasks import DamagedRows

    rows = [(one.kind, one.first) for one in ids]
    message = DamagedRows(*queue, partition, 0, action, rows, PAGE, ignore_checksum, body, reveal)
    return cast("DamagedRowsFound", await client.request(message))


@damaged.command()
@queue_argument
@click.argument("id", metavar="ID")
@click.option(
    "--to",
    "target",
    metavar="FILE",
    required=True,
    help="A new file for the row's body, as it was found.",
)
@node_options
def export(
    queue: QueueId,
    id: str,  # noqa: A002 - what users call it
    target: str,
    node: AskedNode,
) -> None:
    """Write the body of a damaged row of QUEUE to a file, to look at it or to mend it.

    A body has whole tasks, with the arguments that their handlers hide: it takes the permission
    `admin`, and the audit log records it.
    """
    which = RowId.parse(id)
    row = _row(node, queue, which, reveal=True)
    if not row.body and row.body_bytes:
        raise PermissionDenied(
            f"To export {which}, a user needs the permission 'admin'.",
            remedy="Ask a user who has it to export the row.",
        )
    if not row.body:
        raise InvalidArgument(
            f"There is nothing to export of {which}: the store cannot read it.",
            remedy="A backup may have it: `maitred admin restore`.",
        )
    try:
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as problem:
        raise InvalidArgument(f"{target} cannot be made: {problem.strerror}.") from None
    with os.fdopen(opened, "wb") as file:
        file.write(row.body)
    click.echo(f"{units.size(len(row.body))} of {which} written to {target}.")


def _row(node: AskedNode, queue: QueueId, which: RowId, *, reveal: bool = False) -> DamagedRow:
    found = node.ask(
        lambda client: _ask(client, queue, which.partition, "show", [which], reveal=reveal)
    )
    if not found.rows:
        raise InvalidArgument(
            f"{label(queue)} has no damaged row {which}.",
            remedy=f"`maitred admin queue damaged list {label(queue)}` shows those that it has.",
        )
    return found.rows[0]


@damaged.command()
@queue_argument
@click.argument("id", metavar="ID")
@node_options
@json_option
def show(
    queue: QueueId,
    id: str,  # noqa: A002 - what users call it
    node: AskedNode,
    *,
    as_json: bool,
) -> None:
    """Show what is known of one damaged row of QUEUE."""
    row = _row(node, queue, RowId.parse(id))
    if as_json:
        print_json(_summary(row))
        return
    click.secho(str(RowId.of(row)), bold=True)
    print_fact("reason", row.reason)
    print_fact("tasks", f"{row.tasks:,} that are not over, from {row.first} to {row.last}")
    print_fact("noticed", units.ago(time.time() - row.noticed_at))
    print_fact("body", units.size(row.body_bytes))


@damaged.command(epilog=_EPILOG)
@queue_argument
@ids_arguments("All damaged rows of the queue.")
@click.option("--from", "source", metavar="FILE", help="The body of the row, as it was mended.")
@click.option(
    "--ignore-checksum",
    is_flag=True,
    help="Bring back what can be decoded, though some of it may be other than it was.",
)
@node_options
@json_option
def retry(queue: QueueId, source: str | None, *, ids: Sequence[str], **options: Any) -> None:  # noqa: ANN401
    """Bring damaged rows of QUEUE back that can be read by now: their tasks run."""
    body = b""
    if source is not None:
        if len(ids) != 1:
            raise InvalidArgument("--from FILE is for one row.", remedy="Give the row's id.")
        try:
            body = Path(source).read_bytes()
        except OSError as problem:
            raise InvalidArgument(f"{source} cannot be read: {problem.strerror}.") from None
    _act("retry", queue, ids=ids, body=body, **options)


@damaged.command(epilog=_EPILOG)
@queue_argument
@ids_arguments("All damaged rows of the queue.")
@yes_option
@node_options
@json_option
def drop(queue: QueueId, *, yes: bool, ids: Sequence[str], **options: Any) -> None:  # noqa: ANN401
    """Drop damaged rows of QUEUE, for good: the loss is accepted."""
    if not yes:
        which = f"{len(set(ids)):,}" if ids else "all"
        confirm("drop", f"{which} damaged rows of {label(queue)}", "They cannot be brought back.")
    _act("drop", queue, ids=ids, **options)


def _act(
    action: Literal["retry", "drop"],
    queue: QueueId,
    *,
    ids: Sequence[str],
    every: bool,
    node: AskedNode,
    as_json: bool,
    ignore_checksum: bool = False,
    body: bytes = b"",
) -> None:
    check_selection(ids, every=every, what=f"rows to {action}", lister="damaged list")
    meant = [RowId.parse(one) for one in ids]

    async def change(client: AsyncClient) -> dict[RowId, DamagedRow]:
        """Return the rows that exist; one that still cannot be read has a reason."""
        if not meant:
            found, silent = await _list(client, queue)
            for problem in silent.values():
                raise problem.error
            meant.extend(RowId.of(row) for rows in found.values() for row in rows)
        answered: dict[RowId, DamagedRow] = {}
        for partition in sorted({one.partition for one in meant}):
            here = [one for one in meant if one.partition == partition]
            for begin in range(0, len(here), PAGE):
                page = here[begin : begin + PAGE]
                answer = await _ask(
                    client,
                    queue,
                    partition,
                    action,
                    page,
                    ignore_checksum=ignore_checksum,
                    body=body,
                )
                answered |= {RowId.of(row): row for row in answer.rows}
        return answered

    answered = node.ask(change)
    done = [row for row in answered.values() if not row.reason]
    refused = [row for row in answered.values() if row.reason]
    missing = sorted(set(meant) - answered.keys())
    if as_json:
        print_json(
            {
                "action": action,
                "done": [_summary(row) for row in done],
                "refused": [_summary(row) for row in refused],
                "missing": [str(one) for one in missing],
            }
        )
    else:
        tasks = sum(row.tasks for row in done)
        what = "brought back" if action == "retry" else "dropped"
        click.echo(f"{len(done):,} damaged rows of {label(queue)}: {what}, with {tasks:,} tasks.")
    for row in refused:
        click.echo(f"{RowId.of(row)} still cannot be read: {row.reason}", err=True)
    for one in missing:
        click.echo(f"There is no damaged row {one}.", err=True)
    if refused or missing:
        sys.exit(1)


def _summary(row: DamagedRow) -> dict[str, object]:
    from msgspec.structs import asdict

    summary = asdict(row)
    del summary["body"]
    return {"id": str(RowId.of(row)), **summary}
