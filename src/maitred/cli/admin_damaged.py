"""`maitred admin queue damaged`: rows of the store that cannot be read and were set aside."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import click

from maitred.cli import admin_units as units
from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import ROOT, Silent, connecting, described, tell_unreachable, unreachable
from maitred.cli.admin_dead_actions import confirm
from maitred.cli.admin_names import (
    LetterId,
    check_selection,
    ids_arguments,
    json_option,
    label,
    queue_argument,
)
from maitred.cli.groups import HintingGroup
from maitred.cli.output import print_json, print_table, shortened
from maitred.errors import InvalidArgument, MaitredError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import DamagedRow, DamagedRowsFound, RowKind
    from maitred.routing.names import QueueId

PAGE = 200
"""Rows of one answer."""

KINDS = ("segment", "later", "dead", "result")

Action = Literal["list", "show", "retry", "drop"]

_EPILOG = "Exit status: 0 if it was done to every row that was meant, 1 otherwise."


class RowId(NamedTuple):
    """Which damaged row, in a queue: printed and typed as `partition/sequence/kind`."""

    partition: int
    first: int
    kind: RowKind

    def __str__(self) -> str:
        return f"{self.partition}/{self.first}/{self.kind}"

    @classmethod
    def of(cls, row: DamagedRow) -> RowId:
        return cls(row.partition, row.first, row.kind)

    @classmethod
    def parse(cls, text: str) -> RowId:
        place, _, kind = text.rpartition("/")
        if kind in KINDS:
            try:
                found = LetterId.parse(place)
            except InvalidArgument:
                pass
            else:
                return cls(found.partition, found.sequence, cast("RowKind", kind))
        raise InvalidArgument(
            f"{shortened(text)} is no damaged row's id.",
            remedy="An id is PARTITION/SEQUENCE/KIND, as `damaged list` prints them.",
        )


@click.group(cls=HintingGroup)
def damaged() -> None:
    """Damaged rows: list, show, export, retry, drop.

    A row of the store that cannot be read is set aside, so that the others go on: a segment (tasks
    that were written together), a task that waits for its time (later), a dead letter (dead) or a
    result. Its id is PARTITION/SEQUENCE/KIND.
    """


@damaged.command("list", epilog="Exit status: 0 if every partition has answered, 1 otherwise.")
@queue_argument
@url_option
@timeout_option
@json_option
def list_rows(queue: QueueId, url: str, timeout: float, *, as_json: bool) -> None:
    """List the damaged rows of QUEUE."""
    rows, silent = run(_list(url, timeout, queue))
    if as_json:
        print_json(
            {
                "rows": [_summary(row) for row in rows],
                "tasks": sum(row.tasks for row in rows),
                "unreachable": unreachable(silent),
            }
        )
    elif rows:
        now = time.time()
        print_table(
            [
                {
                    "id": str(RowId.of(row)),
                    "noticed": units.Shown(f"{units.duration(now - row.noticed_at)} ago"),
                    "tasks": row.tasks,
                    "body": units.size(row.body_bytes),
                    "reason": row.reason,
                }
                for row in rows
            ]
        )
    else:
        click.echo(f"{label(queue)} has no damaged rows.")
    tell_unreachable(silent)
    if silent:
        sys.exit(1)


async def _list(
    url: str, seconds: float, queue: QueueId
) -> tuple[list[DamagedRow], dict[int, Silent]]:
    """Return the damaged rows of all partitions that answer, removed ones too, and the problems of
    those that do not."""
    rows: list[DamagedRow] = []
    silent: dict[int, Silent] = {}
    async with connecting(url, seconds) as client:
        known = (await described(client, queue, ROOT)).counts.read
        partition = 0
        while True:
            try:
                rows += await _of_partition(client, queue, partition)
            except UnknownQueue:
                if partition >= known:
                    return rows, silent
            except MaitredError as problem:
                silent[partition] = Silent(problem)
                if partition >= known:
                    return rows, silent
            partition += 1


async def _of_partition(client: AsyncClient, queue: QueueId, partition: int) -> list[DamagedRow]:
    rows: list[DamagedRow] = []
    while True:
        after = [RowId.of(rows[-1])] if rows else []
        page = (await _ask(client, queue, partition, "list", after)).rows
        rows += page
        if len(page) < PAGE:
            return rows


async def _ask(
    client: AsyncClient,
    queue: QueueId,
    partition: int,
    action: Action,
    ids: Sequence[RowId],
    *,
    ignore_checksum: bool = False,
    body: bytes = b"",
) -> DamagedRowsFound:
    from maitred.protocol.tasks import DamagedRows

    rows = [(one.kind, one.first) for one in ids]
    message = DamagedRows(*queue, partition, 0, action, rows, PAGE, ignore_checksum, body)
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
@url_option
@timeout_option
def export(
    queue: QueueId,
    id: str,  # noqa: A002 - what users call it
    target: str,
    url: str,
    timeout: float,
) -> None:
    """Write the body of a damaged row of QUEUE to a file, to look at it or to mend it."""
    which = RowId.parse(id)
    row = run(_show(url, timeout, queue, which))
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


async def _show(url: str, seconds: float, queue: QueueId, which: RowId) -> DamagedRow:
    async with connecting(url, seconds) as client:
        found = await _ask(client, queue, which.partition, "show", [which])
    if not found.rows:
        raise InvalidArgument(
            f"{label(queue)} has no damaged row {which}.",
            remedy=f"`maitred admin queue damaged list {label(queue)}` shows those that it has.",
        )
    return found.rows[0]


@damaged.command()
@queue_argument
@click.argument("id", metavar="ID")
@url_option
@timeout_option
@json_option
def show(
    queue: QueueId,
    id: str,  # noqa: A002 - what users call it
    url: str,
    timeout: float,
    *,
    as_json: bool,
) -> None:
    """Show what is known of one damaged row of QUEUE."""
    row = run(_show(url, timeout, queue, RowId.parse(id)))
    if as_json:
        print_json(_summary(row))
        return
    click.secho(str(RowId.of(row)), bold=True)
    click.echo(f"reason      {row.reason}")
    click.echo(f"tasks       {row.tasks:,} that are not over, from {row.first} to {row.last}")
    click.echo(f"noticed     {units.duration(time.time() - row.noticed_at)} ago")
    click.echo(f"body        {units.size(row.body_bytes)}")


@damaged.command(epilog=_EPILOG)
@queue_argument
@ids_arguments("damaged rows")
@click.option("--from", "source", metavar="FILE", help="The body of the row, as it was mended.")
@click.option(
    "--ignore-checksum",
    is_flag=True,
    help="Bring back what can be decoded, though some of it may be other than it was.",
)
@url_option
@timeout_option
@json_option
def retry(
    queue: QueueId,
    source: str | None,
    *,
    ids: Sequence[str],
    ignore_checksum: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Bring damaged rows of QUEUE back that can be read by now: their tasks run."""
    body = b""
    if source is not None:
        if len(ids) != 1:
            raise InvalidArgument("--from FILE is for one row.", remedy="Give the row's id.")
        try:
            body = Path(source).read_bytes()
        except OSError as problem:
            raise InvalidArgument(f"{source} cannot be read: {problem.strerror}.") from None
    _act("retry", queue, ids=ids, ignore_checksum=ignore_checksum, body=body, **options)


@damaged.command(epilog=_EPILOG)
@queue_argument
@ids_arguments("damaged rows")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@timeout_option
@json_option
def drop(
    queue: QueueId,
    *,
    yes: bool,
    ids: Sequence[str],
    **options: Any,  # noqa: ANN401
) -> None:
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
    url: str,
    timeout: float,
    as_json: bool,
    ignore_checksum: bool = False,
    body: bytes = b"",
) -> None:
    check_selection(ids, every=every, what=f"rows to {action}", lister="damaged list")
    meant = [RowId.parse(one) for one in ids]
    done, refused, missing = run(
        _do(url, timeout, queue, action, meant, ignore_checksum=ignore_checksum, body=body)
    )
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


async def _do(
    url: str,
    seconds: float,
    queue: QueueId,
    action: Literal["retry", "drop"],
    meant: list[RowId],
    *,
    ignore_checksum: bool,
    body: bytes,
) -> tuple[list[DamagedRow], list[DamagedRow], list[RowId]]:
    """Return the rows that the action changed, those that still cannot be read, and the ids of
    those that do not exist."""
    if not meant:
        rows, silent = await _list(url, seconds, queue)
        for problem in silent.values():
            raise problem.error
        meant = [RowId.of(row) for row in rows]
    answered: dict[RowId, DamagedRow] = {}
    async with connecting(url, seconds) as client:
        for partition in sorted({one.partition for one in meant}):
            ids = [one for one in meant if one.partition == partition]
            for begin in range(0, len(ids), PAGE):
                found = await _ask(
                    client,
                    queue,
                    partition,
                    action,
                    ids[begin : begin + PAGE],
                    ignore_checksum=ignore_checksum,
                    body=body,
                )
                answered |= {RowId.of(row): row for row in found.rows}
    done = [row for row in answered.values() if not row.reason]
    refused = [row for row in answered.values() if row.reason]
    return done, refused, sorted(set(meant) - answered.keys())


def _summary(row: DamagedRow) -> dict[str, object]:
    return {
        "id": str(RowId.of(row)),
        "partition": row.partition,
        "kind": row.kind,
        "first": row.first,
        "last": row.last,
        "tasks": row.tasks,
        "noticed_at": row.noticed_at,
        "reason": row.reason,
        "body_bytes": row.body_bytes,
    }
