"""`maitred admin query cancel`: some queries by their ids, or all that match."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, NamedTuple

import click
from msgspec.structs import replace

from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import connecting
from maitred.cli.admin_names import json_option
from maitred.cli.admin_query_ask import ALL, NO_GATEWAY, GatewayAnswers, ask, the_one
from maitred.cli.admin_query_names import UNDER_WAY, QueryId, filter_options, wanted
from maitred.cli.admin_query_rows import told
from maitred.cli.output import print_json
from maitred.errors import InvalidArgument, MaitredError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import QueryFilter, QueryRow


class CancelledQueries(NamedTuple):
    """The queries that were told to stop, and why the others were not."""

    rows: list[QueryRow]
    not_done: dict[str, str]
    """By id as it was typed: a sentence."""


@click.command(epilog="Exit status: 0 if every query that was meant was cancelled, 1 otherwise.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All that match the options, or simply all.")
@filter_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@timeout_option
@json_option
def cancel(
    ids: tuple[str, ...],
    url: str,
    timeout: float,
    *,
    every: bool,
    yes: bool,
    as_json: bool,
    **picked: str | None,
) -> None:
    """Cancel queries: those that wait leave the queue, those that run are stopped.

    An async handler is cancelled; one in a thread is told, and its slot is free when it has ended.
    Whoever asked gets the error `cancelled`.
    """
    if every == bool(ids):
        raise InvalidArgument(
            "Give either ids or --all." if every else "Nothing says which queries to cancel.",
            remedy="Give ids, as `maitred admin query list` prints them, or --all with options.",
        )
    if not every and any(picked.values()):
        raise InvalidArgument(
            "Options that pick queries go with --all, not with ids.", remedy="Leave one out."
        )
    if not every:
        _report(run(_some(url, timeout, [QueryId.parse(one) for one in ids])), as_json=as_json)
        return
    which = wanted(picked, ALL)
    if which.status and which.status not in UNDER_WAY:
        raise InvalidArgument(
            f"Queries that are {which.status!r} are over.",
            remedy=f"Cancel those that are {', '.join(UNDER_WAY)}.",
        )
    there = run(_under_way(url, timeout, which, "list"))
    there.complain()
    if there.rows and not yes:
        _confirm(len(there.rows))
    done = run(_under_way(url, timeout, which, "cancel")) if there.rows else there
    if not as_json and not done.gateways:
        click.echo(NO_GATEWAY, err=True)
    _report(CancelledQueries(done.rows, {}), as_json=as_json, asked=done)


async def _some(url: str, seconds: float, ids: Sequence[QueryId]) -> CancelledQueries:
    done = CancelledQueries([], {})
    async with connecting(url, seconds) as client:
        for which in dict.fromkeys(ids):
            try:
                await _one(client, which, done)
            except MaitredError as problem:
                done.not_done[str(which)] = f"{problem} [{problem.code}]"
    return done


async def _one(client: AsyncClient, which: QueryId, done: CancelledQueries) -> None:
    """Looked at first: a number alone may mean queries of several gateways."""
    row = await the_one(client, which)
    if row.status in UNDER_WAY:
        asked = await ask(client, "cancel", QueryId.of(row).filter())
        if asked.rows:
            done.rows.extend(asked.rows)
            return
        row = await the_one(client, QueryId.of(row))
    done.not_done[str(which)] = f"Query {QueryId.of(row)} is over: {row.status}."


async def _under_way(
    url: str, seconds: float, which: QueryFilter, action: Literal["list", "cancel"]
) -> GatewayAnswers:
    """Whatever matches and is not over yet, by status, so that those over do not fill the answer.

    All at once: a gateway whose queries were all cancelled may be gone in the next moment.
    """
    import asyncio

    statuses = (which.status,) if which.status else UNDER_WAY
    async with connecting(url, seconds) as client:
        asked = await asyncio.gather(
            *(ask(client, action, replace(which, status=status)) for status in statuses)
        )
    rows = {QueryId.of(row): row for one in asked for row in one.rows}
    return asked[0]._replace(rows=list(rows.values()))


def somebody_is_there() -> bool:
    """To answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def _confirm(count: int) -> None:
    """Ask; without a person to answer, refuse instead of waiting or guessing."""
    if not somebody_is_there():
        raise InvalidArgument(
            f"To cancel {_queries(count)} needs a yes, and there is nobody to ask.",
            remedy="Add --yes.",
        )
    click.confirm(f"Cancel {_queries(count)}?", abort=True, err=True)


def _queries(count: int) -> str:
    return f"{count:,} {'query' if count == 1 else 'queries'}"


def _report(done: CancelledQueries, *, as_json: bool, asked: GatewayAnswers | None = None) -> None:
    if as_json:
        print_json(
            {
                "cancelled": [told(row) for row in done.rows],
                "not_cancelled": done.not_done,
                **({} if asked is None else asked.told()),
            }
        )
    else:
        named = f": {QueryId.of(done.rows[0])}" if len(done.rows) == 1 else ""
        click.echo(f"{_queries(len(done.rows))} cancelled{named}.")
    for reason in done.not_done.values():
        click.echo(reason, err=True)
    if done.not_done or (asked is not None and not asked.is_whole):
        sys.exit(1)
