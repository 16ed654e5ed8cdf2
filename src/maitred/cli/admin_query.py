"""`maitred admin query`: list, show and cancel the queries of all gateways."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Literal

import click

from maitred.cli.address import node_options
from maitred.cli.admin_query_ask import (
    ALL,
    NO_GATEWAY,
    UNDER_WAY,
    GatewayAnswers,
    QueryId,
    ask,
    filter_options,
    query_filter,
    query_row,
)
from maitred.cli.admin_query_rows import WIDTHS, cells, line, print_query, told
from maitred.cli.groups import HintingGroup
from maitred.cli.output import counted, json_option, print_json, print_table
from maitred.cli.selection import check_selection, confirm, ids_arguments, yes_option
from maitred.errors import InvalidArgument, MaitredError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import QueryFilter, QueryRow

MOST = 50
"""Queries that are shown by default: two screens of a terminal."""

FOLLOW_SECONDS = 0.5
"""Interval at which `--follow` asks for changes: short enough for a person who watches."""

SKEW_SECONDS = 2.0
"""Changes of this many seconds before the newest are asked for again, since the clocks of gateways
may differ by as much."""


@click.group(cls=HintingGroup)
def query() -> None:
    """Queries: list, show, cancel.

    Every gateway has a table of the queries that it was asked, those under way and the last ones
    that are over. A query's id is GATEWAY/SEQUENCE. A user sees those of the namespaces in
    which the user has the permission `read`, their texts with `reveal`, and may cancel them with
    `operate`.
    """


@query.command(
    "list", epilog="Exit status: 0 if every gateway and every node has answered, 1 otherwise."
)
@filter_options
@click.option(
    "--most",
    type=click.IntRange(1, ALL),
    default=MOST,
    show_default=True,
    help="How many, the newest.",
)
@click.option("--follow", is_flag=True, help="Go on with whatever changes, until Ctrl-C.")
@node_options
@json_option
def list_queries(
    most: int, node: AskedNode, *, follow: bool, as_json: bool, **selection: str | None
) -> None:
    """List the queries of all gateways, the newest last."""
    which = query_filter(selection, most)
    if follow:
        try:
            node.ask(lambda client: _follow(client, which, as_json=as_json))
        except KeyboardInterrupt:
            return
    asked = node.ask(lambda client: ask(client, "list", which))
    if as_json:
        print_json({"queries": [told(row) for row in asked.rows], **asked.told()})
    elif asked.rows:
        now = time.time()
        print_table([cells(row, now) for row in asked.rows])
    else:
        _print_none(asked, which)
    asked.print_silent()
    if len(asked.rows) == most:
        click.echo(f"\nThe newest {most:,}; --most shows more.", err=True)
    if not asked.is_whole:
        sys.exit(1)


def _print_none(asked: GatewayAnswers, which: QueryFilter) -> None:
    from maitred.protocol.queries import QueryFilter

    gateways = counted(asked.gateways, "gateway")
    if not asked.gateways:
        click.echo(f"No queries yet. {NO_GATEWAY}")
    elif asked.silent == asked.gateways:
        click.echo("No gateway answered.")
    elif which == QueryFilter(most=which.most):
        click.echo(f"No queries yet, at {gateways}.")
    else:
        click.echo(f"No query matches, at {gateways}.")


async def _follow(client: AsyncClient, which: QueryFilter, *, as_json: bool) -> None:
    """Print the queries that match, and from then on every change."""
    import asyncio

    from msgspec.structs import replace

    if not as_json:
        click.secho(line((name, name) for name in WIDTHS), bold=True)
    seen: dict[QueryId, float] = {}
    trouble = ""
    asked = await ask(client, "list", which)
    while True:
        _print_changes(asked.rows, seen, as_json=as_json)
        newest = max(seen.values(), default=0.0)
        seen = {one: at for one, at in seen.items() if at >= newest - SKEW_SECONDS}
        await asyncio.sleep(FOLLOW_SECONDS)
        since = max(0.0, newest - SKEW_SECONDS)
        try:
            asked = await ask(client, "list", replace(which, changed_since=since, most=ALL))
        except MaitredError as problem:
            # The node is being restarted, say, which a person who watches wants to see as well.
            if trouble != problem.code:
                click.echo(f"{problem} [{problem.code}] Still trying.", err=True)
            trouble = problem.code
        else:
            trouble = ""


def _print_changes(rows: list[QueryRow], seen: dict[QueryId, float], *, as_json: bool) -> None:
    now = time.time()
    for row in sorted(rows, key=lambda row: row.changed_at):
        which = QueryId.of(row)
        if seen.get(which) != row.changed_at:
            seen[which] = row.changed_at
            click.echo(json.dumps(told(row)) if as_json else line(cells(row, now).items()))


@query.command()
@click.argument("id", metavar="ID")
@node_options
@json_option
def show(
    id: str,  # noqa: A002 - what users call it
    node: AskedNode,
    *,
    as_json: bool,
) -> None:
    """Show all that is known of one query.

    ID is GATEWAY/SEQUENCE, as `list` prints it, or only SEQUENCE if one gateway has such a query.
    """
    which = QueryId.parse(id)
    row = node.ask(lambda client: query_row(client, which))
    if as_json:
        print_json(told(row))
    else:
        print_query(row, time.time())


@query.command(epilog="Exit status: 0 if every query that was meant was cancelled, 1 otherwise.")
@ids_arguments("All that match the options, or simply all.")
@filter_options
@yes_option
@node_options
@json_option
def cancel(
    ids: tuple[str, ...],
    node: AskedNode,
    *,
    every: bool,
    yes: bool,
    as_json: bool,
    **selection: str | None,
) -> None:
    """Cancel queries: those that wait leave the queue, those that run are stopped.

    An async handler is cancelled; one in a thread is told, and its slot is free when it has ended.
    The caller gets the error `cancelled`.
    """
    lister = "maitred admin query list"
    check_selection(ids, every=every, what="queries to cancel", lister=lister)
    if not every and any(selection.values()):
        raise InvalidArgument(
            "Options that select queries go with --all, not with ids.", remedy="Leave one out."
        )
    if not every:
        meant = [QueryId.parse(one) for one in ids]
        rows, not_done = node.ask(lambda client: _cancel_some(client, meant))
        _report(rows, not_done, as_json=as_json)
        return
    which = query_filter(selection, ALL)
    if which.status and which.status not in UNDER_WAY:
        raise InvalidArgument(
            f"Queries that are {which.status!r} are over.",
            remedy=f"Cancel those that are {', '.join(UNDER_WAY)}.",
        )
    there = node.ask(lambda client: _under_way(client, which, "list"))
    there.print_silent()
    if there.rows and not yes:
        confirm("cancel", _queries(len(there.rows)))
    done = node.ask(lambda client: _under_way(client, which, "cancel")) if there.rows else there
    if not as_json and not done.gateways:
        click.echo(NO_GATEWAY, err=True)
    _report(done.rows, {}, as_json=as_json, asked=done)


async def _cancel_some(
    client: AsyncClient, ids: Sequence[QueryId]
) -> tuple[list[QueryRow], dict[str, str]]:
    """Return the queries that were cancelled, and for each other id why it was not."""
    rows: list[QueryRow] = []
    not_done: dict[str, str] = {}
    for which in dict.fromkeys(ids):
        try:
            # First the row: a number alone may mean queries of several gateways.
            row = await query_row(client, which)
            full = QueryId.of(row)
            if row.status in UNDER_WAY:
                asked = await ask(client, "cancel", full.filter())
                if asked.rows:
                    rows += asked.rows
                    continue
                row = await query_row(client, full)
            not_done[str(which)] = f"Query {full} is over: {row.status}."
        except MaitredError as problem:
            not_done[str(which)] = f"{problem} [{problem.code}]"
    return rows, not_done


async def _under_way(
    client: AsyncClient, which: QueryFilter, action: Literal["list", "cancel"]
) -> GatewayAnswers:
    """List or cancel the queries that match and are not over, by status, so that those that are
    over do not fill the answer.

    All statuses at once: a gateway whose queries were all cancelled may be gone the next moment.
    """
    import asyncio

    from msgspec.structs import replace

    statuses = (which.status,) if which.status else UNDER_WAY
    asked = await asyncio.gather(
        *(ask(client, action, replace(which, status=status)) for status in statuses)
    )
    rows = {QueryId.of(row): row for one in asked for row in one.rows}
    return asked[0]._replace(rows=list(rows.values()))


def _queries(count: int) -> str:
    return counted(count, "query", "queries")


def _report(
    rows: list[QueryRow],
    not_done: dict[str, str],
    *,
    as_json: bool,
    asked: GatewayAnswers | None = None,
) -> None:
    if as_json:
        print_json(
            {
                "cancelled": [told(row) for row in rows],
                "not_cancelled": not_done,
                **({} if asked is None else asked.told()),
            }
        )
    else:
        named = f": {QueryId.of(rows[0])}" if len(rows) == 1 else ""
        click.echo(f"{_queries(len(rows))} cancelled{named}.")
    for reason in not_done.values():
        click.echo(reason, err=True)
    if not_done or (asked is not None and not asked.is_whole):
        sys.exit(1)
