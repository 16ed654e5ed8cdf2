"""A query as a line of a table, as the lines of `show`, and as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from maitred.cli import admin_units as units
from maitred.cli.admin_query_names import QueryId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.protocol.queries import QueryRow

QUERY_LETTERS = 32
"""Of a query's text, in a table; `show` has all that the gateway kept."""

ERROR_LETTERS = 48

WIDTHS = {
    "id": 14,
    "user": 8,
    "queue": 25,
    "query": QUERY_LETTERS,
    "status": 9,
    "worker": 14,
    "received": 8,
    "waited": 7,
    "ran": 7,
    "bytes": 8,
    "error": 0,
}
"""Of columns, when rows come one by one and nobody knows how wide the next will be."""

_TO_THE_RIGHT = ("waited", "ran", "bytes")


def cut(text: str, most: int) -> str:
    """One line, no longer than that, with nothing in it that would move the cursor."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words if len(words) <= most else words[: most - 3] + "..."


def cells(row: QueryRow, now: float) -> dict[str, object]:
    """A row of the table."""
    return {
        "id": str(QueryId.of(row)),
        "user": cut(row.user, 40) or "-",
        "queue": f"{row.namespace}/{row.queue}",
        "query": cut(row.query, QUERY_LETTERS) or "-",
        "status": row.status,
        "worker": (cut(row.worker, 40) or "-") + (" (relayed)" if row.relayed else ""),
        "received": time.strftime("%H:%M:%S", time.localtime(row.received_at)),
        "waited": units.duration(waited_seconds(row, now)),
        "ran": None if not row.sent_at else units.duration(ran_seconds(row, now)),
        "bytes": units.size(row.bytes_out) if row.bytes_out else None,
        "error": cut(row.error, ERROR_LETTERS),
    }


def waited_seconds(row: QueryRow, now: float) -> float:
    """For a worker, until now if it still waits."""
    return max(0.0, (row.sent_at or row.returned_at or now) - row.received_at)


def ran_seconds(row: QueryRow, now: float) -> float:
    """At its last worker; 0 if it never got to one."""
    return max(0.0, (row.returned_at or now) - row.sent_at) if row.sent_at else 0.0


def line(values: Iterable[tuple[str, object]]) -> str:
    """A line with columns of fixed widths."""
    parts = []
    for column, value in values:
        text, width = "-" if value is None else str(value), WIDTHS[column]
        parts.append(text.rjust(width) if column in _TO_THE_RIGHT else text.ljust(width))
    return "  ".join(parts).rstrip()


def told(row: QueryRow) -> dict[str, Any]:
    """For JSON: as the gateway has it, with the id as it is typed."""
    from msgspec import to_builtins

    found: dict[str, Any] = to_builtins(row)
    return {"id": str(QueryId.of(row)), **found}


def print_one(row: QueryRow, now: float) -> None:
    """All that is known, for people."""
    click.secho(str(QueryId.of(row)), bold=True)
    relayed = ", relayed by the node" if row.relayed else ""
    click.echo(f"status      {row.status}")
    click.echo(f"queue       {row.namespace}/{row.queue}, priority {row.priority}")
    click.echo(f"user        {cut(row.user, 200) or '-'}")
    click.echo(f"came by     {cut(row.connection, 200) or '-'}")
    click.echo(f"worker      {cut(row.worker, 200) or '-'}{relayed}")
    click.echo(f"attempts    {row.attempts}")
    click.echo(f"received    {_moment(row.received_at)}")
    click.echo(f"sent        {_moment(row.sent_at)}, waited {_span(waited_seconds(row, now))}")
    if row.sent_at:
        click.echo(f"returned    {_moment(row.returned_at)}, ran {_span(ran_seconds(row, now))}")
    else:
        click.echo(f"returned    {_moment(row.returned_at)}")
    click.echo(f"bytes       {row.bytes_in:,} in, {row.bytes_out:,} out")
    if row.error:
        click.echo(f"error       {cut(row.error, 10_000)}")
    click.echo()
    click.echo(cut(row.query, 100_000) or "(its text is not kept)")


def _span(seconds: float) -> str:
    return str(units.duration(seconds))


def _moment(seconds: float) -> str:
    from maitred.routing.gradual import format_time

    return format_time(seconds) if seconds else "not yet"
