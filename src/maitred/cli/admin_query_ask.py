"""Asking all gateways for their queries.

Each gateway has a table of its own, and keeps a request open at shard 0 of its nodes. Whoever wants
to know asks there; the shard asks the gateways, and waits a second for those that do not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import click

from maitred.cli.admin_ask import Silent, each
from maitred.cli.admin_query_names import QueryId
from maitred.errors import InvalidArgument, UnknownQuery

if TYPE_CHECKING:
    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import QueriesFound, QueryFilter, QueryRow

ALL = 10_000
"""Rows of one answer, at most."""


class GatewayAnswers(NamedTuple):
    """What the gateways said."""

    rows: list[QueryRow]
    """In the order in which they were received."""
    gateways: int
    silent: int
    """Gateways that were asked and did not answer in time."""
    silent_nodes: dict[str, Silent]

    @property
    def is_whole(self) -> bool:
        return not self.silent and not self.silent_nodes

    def told(self) -> dict[str, object]:
        """What JSON says besides the rows."""
        return {
            "gateways": self.gateways,
            "silent": self.silent,
            "unreachable": [
                {"node": node, "error": silent.told()} for node, silent in self.silent_nodes.items()
            ],
        }

    def complain(self) -> None:
        """About whoever is missing, on standard error."""
        for node, reason in self.silent_nodes.items():
            click.echo(f"{node}: {reason}", err=True)
        if self.silent:
            click.echo(
                f"{self.silent} of {self.gateways} gateways did not answer: their queries are "
                "missing here.",
                err=True,
            )


async def ask(
    client: AsyncClient, action: Literal["list", "cancel"], which: QueryFilter
) -> GatewayAnswers:
    """Every node is asked; a gateway that several of them know counts once in the rows."""
    from maitred.protocol.queries import Queries

    nodes = [view.address for view in client.nodes()]
    answers = await each(
        nodes, lambda node: client.request(Queries(0, 0, action, which), node=node)
    )
    silent = {
        node: answer
        for node, answer in zip(nodes, answers, strict=True)
        if isinstance(answer, Silent)
    }
    if len(silent) == len(nodes):
        raise next(iter(silent.values())).error
    found = [cast("QueriesFound", one) for one in answers if not isinstance(one, Silent)]
    rows = {QueryId.of(row): row for one in found for row in one.rows}
    ordered = sorted(rows.values(), key=lambda row: (row.received_at, row.gateway, row.sequence))
    return GatewayAnswers(
        ordered[-which.most :],
        sum(one.gateways for one in found),
        sum(one.silent for one in found),
        silent,
    )


async def the_one(client: AsyncClient, which: QueryId) -> QueryRow:
    """The row of a query that somebody named; raises if there is none, or more than one."""
    asked = await ask(client, "list", which.filter())
    if len(asked.rows) == 1:
        return asked.rows[0]
    if asked.rows:
        ids = ", ".join(str(QueryId.of(row)) for row in asked.rows)
        raise InvalidArgument(
            f"Several gateways have a query {which}: {ids}.", remedy="Say which of them you mean."
        )
    if not asked.gateways:
        raise UnknownQuery(f"There is no query {which}.", remedy=NO_GATEWAY)
    if asked.silent:
        remedy = f"{asked.silent} of {asked.gateways} gateways did not answer; try again."
    else:
        remedy = "`maitred admin query list` shows those that the gateways remember."
    raise UnknownQuery(f"There is no query {which}.", remedy=remedy)


NO_GATEWAY = (
    "No gateway was asked anything yet. `maitred up` starts one, `maitred gateway` another, and "
    "every client that asks queries is one."
)
