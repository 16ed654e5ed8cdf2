"""`maitred admin query`: which queries there are, and were a moment ago, at all gateways."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import connecting
from maitred.cli.admin_names import json_option
from maitred.cli.admin_query_ask import ALL, NO_GATEWAY, GatewayAnswers, ask, the_one
from maitred.cli.admin_query_cancel import cancel
from maitred.cli.admin_query_names import QueryId, filter_options, wanted
from maitred.cli.admin_query_rows import WIDTHS, cells, line, print_one, told
from maitred.cli.groups import HintingGroup
from maitred.cli.output import print_json, print_table

if TYPE_CHECKING:
    from maitred.protocol.queries import QueryFilter, QueryRow

MOST = 50
"""Queries that are shown unless told otherwise: two screens of a terminal."""

FOLLOW_SECONDS = 0.5
"""How often gateways are asked what has changed: soon enough for a person who watches."""

SKEW_SECONDS = 2.0
"""Clocks of gateways differ by this much, perhaps: so far back they are asked again."""


@click.group(cls=HintingGroup)
def query() -> None:
    """Queries: list, show, cancel.

    Every gateway has a table of the queries that it was asked, those under way and the last ones
    that are over. A query's id is GATEWAY/SEQUENCE. A user sees those of the namespaces in
    which he has the permission `admin`.
    """


query.add_command(cancel)


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
@url_option
@timeout_option
@json_option
def list_queries(
    most: int, url: str, timeout: float, *, follow: bool, as_json: bool, **picked: str | None
) -> None:
    """List the queries of all gateways, the newest last."""
    which = wanted(picked, most)
    if follow:
        try:
            run(_follow(url, timeout, which, as_json=as_json))
        except KeyboardInterrupt:
            return
    asked = run(_ask(url, timeout, which))
    if as_json:
        print_json({"queries": [told(row) for row in asked.rows], **asked.told()})
    elif asked.rows:
        now = time.time()
        print_table([cells(row, now) for row in asked.rows])
    else:
        _say_that_there_is_nothing(asked, which)
    asked.complain()
    if len(asked.rows) == most:
        click.echo(f"\nThe newest {most:,}; --most shows more.", err=True)
    if not asked.is_whole:
        sys.exit(1)


def _say_that_there_is_nothing(asked: GatewayAnswers, which: QueryFilter) -> None:
    from maitred.protocol.queries import QueryFilter

    if not asked.gateways:
        click.echo(f"No queries yet. {NO_GATEWAY}")
    elif asked.silent == asked.gateways:
        click.echo("No gateway answered.")
    elif which == QueryFilter(most=which.most):
        click.echo(f"No queries yet, at {_gateways(asked.gateways)}.")
    else:
        click.echo(f"No query matches, at {_gateways(asked.gateways)}.")


def _gateways(count: int) -> str:
    return f"{count:,} {'gateway' if count == 1 else 'gateways'}"


async def _ask(url: str, seconds: float, which: QueryFilter) -> GatewayAnswers:
    async with connecting(url, seconds) as client:
        return await ask(client, "list", which)


async def _follow(url: str, seconds: float, which: QueryFilter, *, as_json: bool) -> None:
    """Whatever is there, and from then on whatever changes."""
    import asyncio

    from msgspec.structs import replace

    from maitred.errors import MaitredError

    if not as_json:
        click.secho(line((name, name) for name in WIDTHS), bold=True)
    seen: dict[QueryId, float] = {}
    trouble = ""
    async with connecting(url, seconds) as client:
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
                # The node is being restarted, say: whoever watches wants to see that, too.
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
@url_option
@timeout_option
@json_option
def show(
    id: str,  # noqa: A002 - what users call it
    url: str,
    timeout: float,
    *,
    as_json: bool,
) -> None:
    """Show all that is known of one query.

    ID is GATEWAY/SEQUENCE, as `list` prints it, or only SEQUENCE if one gateway has such a query.
    """
    row = run(_show(url, timeout, QueryId.parse(id)))
    if as_json:
        print_json(told(row))
    else:
        print_one(row, time.time())


async def _show(url: str, seconds: float, which: QueryId) -> QueryRow:
    async with connecting(url, seconds) as client:
        return await the_one(client, which)
