"""Naming, selecting and asking for queries.

Each gateway numbers its queries and has a table of them, so a query is `gateway/sequence`; the
number alone will do if only one gateway has such a query. Each gateway keeps a long poll at shard 0
of one member of the cluster, or of each node of its address. A command asks every node; shard 0
passes the request on to its gateways, and waits a second for those that do not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import click

from maitred.cli.admin_ask import print_unreachable, unreachable
from maitred.cli.admin_names import sequence_number
from maitred.cli.output import shortened
from maitred.client.answers import Silent, each_node
from maitred.errors import InvalidArgument, UnknownQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import QueriesFound, QueryFilter, QueryRow

_Command = TypeVar("_Command", bound="Callable[..., Any]")

ALL = 10_000
"""Rows of one answer, at most."""

NO_GATEWAY = (
    "No gateway was asked anything yet. `maitred up` starts one, `maitred gateway` another, and "
    "every client that asks queries is one."
)

STATUSES = (
    "waiting",
    "connecting",
    "running",
    "streaming",
    "done",
    "failed",
    "cancelled",
    "refused",
    "lost",
    "late",
)
UNDER_WAY = STATUSES[:4]
"""The statuses in which a query can be cancelled."""


class QueryId(NamedTuple):
    """The id of a query, printed and typed as `gateway/sequence`."""

    gateway: str
    """Empty if only the number was typed."""
    sequence: int

    def __str__(self) -> str:
        return f"{self.gateway}/{self.sequence}" if self.gateway else str(self.sequence)

    @classmethod
    def of(cls, row: QueryRow) -> QueryId:
        return cls(row.gateway, row.sequence)

    @classmethod
    def parse(cls, text: str) -> QueryId:
        gateway, slash, number = text.rpartition("/")
        sequence = sequence_number(number)
        if sequence is not None and bool(slash) == bool(gateway):
            return cls(gateway, sequence)
        raise InvalidArgument(
            f"{shortened(text)} is no query's id.",
            remedy="An id is GATEWAY/SEQUENCE, as `maitred admin query list` prints them.",
        )

    def filter(self) -> QueryFilter:
        """Return the filter that finds the query."""
        from maitred.protocol.queries import QueryFilter

        return QueryFilter(gateway=self.gateway, sequence=self.sequence)


def filter_options(command: _Command) -> _Command:
    """The options that select queries, the same for all commands."""
    for decorate in (
        click.option("--gateway", default="", metavar="ID", help="Only of this gateway."),
        click.option("--worker", default="", metavar="NAME", help="Only those of this worker."),
        click.option("--status", type=click.Choice(STATUSES), help="Only those of this status."),
        click.option("--user", default="", metavar="NAME", help="Only those of this user."),
        click.option("--queue", default="", metavar="NAME", help="Only for this queue."),
        click.option("--namespace", default="", metavar="NAME", help="Only of this namespace."),
    ):
        command = decorate(command)
    return command


def query_filter(options: dict[str, Any], most: int) -> QueryFilter:
    """Return the filter of `filter_options`; a queue may be typed with its namespace."""
    from maitred.protocol.queries import QueryFilter

    given: dict[str, Any] = {name: value or "" for name, value in options.items()}
    if not given["namespace"] and "/" in given["queue"]:
        given["namespace"], _, given["queue"] = given["queue"].partition("/")
    return QueryFilter(**given, most=most)


class GatewayAnswers(NamedTuple):
    """The queries of all gateways, and the gateways and nodes that did not answer."""

    rows: list[QueryRow]
    """In the order in which the queries were received."""
    gateways: int
    silent: int
    """Gateways that were asked and did not answer in time."""
    silent_nodes: dict[str, Silent]

    @property
    def is_whole(self) -> bool:
        return not self.silent and not self.silent_nodes

    def told(self) -> dict[str, object]:
        """Return what JSON has besides the rows."""
        return {
            "gateways": self.gateways,
            "silent": self.silent,
            "unreachable": unreachable("node", self.silent_nodes),
        }

    def print_silent(self) -> None:
        """Print the nodes and gateways that did not answer, on standard error."""
        print_unreachable(self.silent_nodes)
        if self.silent:
            click.echo(
                f"{self.silent} of {self.gateways} gateways did not answer: their queries are "
                "missing here.",
                err=True,
            )


async def ask(
    client: AsyncClient, action: Literal["list", "cancel"], which: QueryFilter
) -> GatewayAnswers:
    """Ask every node; a gateway that several of them know counts once in the rows."""
    from maitred.protocol.queries import Queries

    answers = await each_node(client, Queries(0, 0, action, which))
    found = [cast("QueriesFound", one) for one in answers.found.values()]
    rows = {QueryId.of(row): row for one in found for row in one.rows}
    ordered = sorted(rows.values(), key=lambda row: (row.received_at, row.gateway, row.sequence))
    return GatewayAnswers(
        ordered[-which.most :],
        sum(one.gateways for one in found),
        sum(one.silent for one in found),
        answers.silent,
    )


async def query_row(client: AsyncClient, which: QueryId) -> QueryRow:
    """Return the row of a query; raise if there is none, or more than one."""
    asked = await ask(client, "list", which.filter())
    if len(asked.rows) == 1:
        return asked.rows[0]
    if asked.rows:
        ids = ", ".join(str(QueryId.of(row)) for row in asked.rows)
        raise InvalidArgument(
            f"Several gateways have a query {which}: {ids}.", remedy="Say which of them you mean."
        )
    if not asked.gateways:
        remedy = NO_GATEWAY
    elif asked.silent:
        remedy = f"{asked.silent} of {asked.gateways} gateways did not answer; try again."
    else:
        remedy = "`maitred admin query list` shows those that the gateways remember."
    raise UnknownQuery(f"There is no query {which}.", remedy=remedy)
