"""A query as a line of a table, as the lines of `show`, and as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from maitred.cli import admin_units as units
from maitred.cli.admin_query_ask import QueryId
from maitred.cli.output import cut, print_fact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.protocol.queries import QueryRow

QUERY_LETTERS = 32
"""Letters of a query's text in a table; `show` has all that the gateway kept."""

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
"""Widths of the columns while rows arrive one by one, when those of later rows are unknown."""

_TO_THE_RIGHT = ("waited", "ran", "bytes")


def cells(row: QueryRow, now: float) -> dict[str, object]:
    """Return a row of the table."""
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
    """Seconds that the query waited for a worker, until now if it still does."""
    return max(0.0, (row.sent_at or row.returned_at or now) - row.received_at)


def ran_seconds(row: QueryRow, now: float) -> float:
    """Seconds that the query ran at its last worker; 0 if it never reached one."""
    return max(0.0, (row.returned_at or now) - row.sent_at) if row.sent_at else 0.0


def line(values: Iterable[tuple[str, object]]) -> str:
    """Return a line with columns of fixed widths."""
    parts = []
    for column, value in values:
        text, width = "-" if value is None else str(value), WIDTHS[column]
        parts.append(text.rjust(width) if column in _TO_THE_RIGHT else text.ljust(width))
    return "  ".join(parts).rstrip()


def told(row: QueryRow) -> dict[str, Any]:
    """Return the row for JSON: as the gateway has it, with the id as it is typed."""
    from msgspec import to_builtins

    found: dict[str, Any] = to_builtins(row)
    return {"id": str(QueryId.of(row)), **found}


def print_query(row: QueryRow, now: float) -> None:
    """Print all that is known of a query, for people."""
    ran = f", ran {units.duration(ran_seconds(row, now))}" if row.sent_at else ""
    relayed = ", relayed by the node" if row.relayed else ""
    click.secho(str(QueryId.of(row)), bold=True)
    print_fact("status", row.status)
    print_fact("queue", f"{row.namespace}/{row.queue}, priority {row.priority}")
    print_fact("user", cut(row.user, 200) or "-")
    print_fact("came by", cut(row.connection, 200) or "-")
    print_fact("worker", f"{cut(row.worker, 200) or '-'}{relayed}")
    print_fact("attempts", row.attempts)
    print_fact("received", _moment(row.received_at))
    waited = units.duration(waited_seconds(row, now))
    print_fact("sent", f"{_moment(row.sent_at)}, waited {waited}")
    print_fact("returned", f"{_moment(row.returned_at)}{ran}")
    print_fact("bytes", f"{row.bytes_in:,} in, {row.bytes_out:,} out")
    if row.error:
        print_fact("error", cut(row.error, 10_000))
    click.echo()
    click.echo(cut(row.query, 100_000) or "(its text is not kept)")


def _moment(seconds: float) -> str:
    from maitred.routing.gradual import format_time

    return format_time(seconds) if seconds else "not yet"
