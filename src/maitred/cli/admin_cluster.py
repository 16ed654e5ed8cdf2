"""`maitred admin cluster`: the members of a cluster; below it, the making of its certificates."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_cluster_tls import init_tls
from maitred.cli.groups import HintingGroup
from maitred.cli.output import json_option, print_fact, print_json, print_table, row_of
from maitred.cli.status import duration
from maitred.cli.watching import watch, watch_option
from maitred.errors import InvalidArgument
from maitred.membership.clock_watch import CLOCK_WARNING_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.cluster import ClusterDescription, MemberRow

LATE_SHARE = 0.5
"""A heartbeat is late when it is older than this share of the time that one counts: others vote
against the member when it is older than all of that time."""

_EPILOG = (
    "\b\nThe columns:\n"
    "  since            how long the member is in its state\n"
    "  protocol         the newest version that the node speaks\n"
    "  partitions       of the store, that the ring gives to the node\n"
    "  load             at the last heartbeat: 1 is a full core\n"
    "  heartbeat        how long ago, by the database's clock\n"
    "  clock            ok, or how far it is ahead of or behind the database's\n"
    "\nExit status: 0 if the membership table can be read and every heartbeat is recent, else 1."
)


@click.group(cls=HintingGroup, invoke_without_command=True, epilog=_EPILOG)
@watch_option
@node_options
@json_option
@click.pass_context
def cluster(context: click.Context, node: AskedNode, *, watch: bool, as_json: bool) -> None:
    """Show the nodes of a cluster: their state, load, partitions and heartbeats.

    Nodes that share a PostgreSQL store are a cluster; any one of them answers. A node that left or
    was declared dead is shown for a day, unless it was started again. The user needs the permission
    `read` for every namespace (*).
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if watch:
        _watch(node, as_json=as_json)
        return
    found = node.ask(describe_cluster)
    if as_json:
        print_json(told(found))
    else:
        _print(found)
    if found.problem or any(_is_late(row, found) for row in found.members):
        sys.exit(1)


cluster.add_command(init_tls)


def _watch(node: AskedNode, *, as_json: bool) -> None:
    watch(node, describe_cluster, _print, told if as_json else None)


def _refuse_options(context: click.Context) -> None:
    """Raise `InvalidArgument` if options of the table stand before another command."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is ParameterSource.COMMANDLINE:
            raise InvalidArgument(
                f"{parameter.opts[0]} stands before {context.invoked_subcommand!r}, where it has "
                "no effect.",
                remedy="Leave it out, or put it after the command if that has such an option.",
            )


async def describe_cluster(client: AsyncClient) -> ClusterDescription:
    """Ask any node for the members of its cluster."""
    from maitred.protocol.cluster import DescribeCluster

    return cast("ClusterDescription", await client.request(DescribeCluster(0, 0)))


def told(found: ClusterDescription) -> dict[str, Any]:
    """Return the cluster for JSON, with names where the protocol has arrays."""
    from msgspec import structs

    return {
        "cluster": found.cluster,
        "version": found.version,
        "protocol": found.protocol or None,
        "lease_seconds": found.lease_seconds,
        "problem": found.problem or None,
        "members": [{**structs.asdict(row), "late": _is_late(row, found)} for row in found.members],
        "warnings": list(warnings(found)),
    }


def _print(found: ClusterDescription) -> None:
    now = time.time()
    print_table([row_of(_COLUMNS, row) | {"since": _age(row, now)} for row in found.members])
    click.echo()
    print_fact("cluster", found.cluster)
    print_fact("view", f"version {found.version}" if found.version else "none yet: joining")
    print_fact("protocol", found.protocol or "none that all nodes speak")
    for line in warnings(found):
        click.secho(f"\n{line}", fg="red", err=True)


def warnings(found: ClusterDescription) -> Iterator[str]:
    """Yield sentences about what an operator should look at."""
    if found.problem:
        yield (
            f"The membership table cannot be read: {found.problem} These are the nodes of the last "
            "view. The nodes serve on; none is admitted or declared dead meanwhile."
        )
    for row in found.members:
        if _is_late(row, found) and row.beat_seconds_ago is not None:
            yield (
                f"{row.address} sent its last heartbeat {units.duration(row.beat_seconds_ago)} "
                f"ago. After {found.lease_seconds:g} s the others vote on whether it is dead."
            )
    for row in found.members:
        if _is_apart(row):
            yield (
                f"The clock of {row.address} is {_clock(row)}{' of' * _is_ahead(row)} the "
                "database's. Synchronise the clocks of all machines."
            )
    releases = sorted({row.release for row in found.members if row.release and _lives(row)})
    if len(releases) > 1:
        yield (
            f"The nodes run different releases: {', '.join(releases)}. That is meant for the time "
            "of an upgrade."
        )
    if found.members and not found.protocol:
        yield "No version of the protocol is spoken by all nodes, so some cannot work together."
    if found.members and not any(row.state == "active" for row in found.members):
        yield "No node is active: the cluster serves nothing."


def _is_late(row: MemberRow, found: ClusterDescription) -> bool:
    return (
        _lives(row)
        and row.beat_seconds_ago is not None
        and found.lease_seconds > 0
        and row.beat_seconds_ago > LATE_SHARE * found.lease_seconds
    )


def _is_apart(row: MemberRow) -> bool:
    ahead = row.clock_ahead_seconds
    return _lives(row) and ahead is not None and abs(ahead) >= CLOCK_WARNING_SECONDS


def _is_ahead(row: MemberRow) -> bool:
    return row.clock_ahead_seconds is not None and row.clock_ahead_seconds > 0


def _clock(row: MemberRow) -> str | None:
    ahead = row.clock_ahead_seconds
    if ahead is None or not _lives(row):
        return None
    if not _is_apart(row):
        return "ok"
    return f"{units.duration(abs(ahead))} {'ahead' if _is_ahead(row) else 'behind'}"


def _lives(row: MemberRow) -> bool:
    return row.state != "dead"


def _age(row: MemberRow, now: float) -> str | None:
    # The database's clock and this machine's may differ by more than the member's age.
    return duration(max(0.0, now - row.since)) if row.since else None


def _partitions(row: MemberRow) -> object:
    if row.held is None:
        return None if row.partitions is None else units.Shown(f"{row.partitions:,}")
    return units.Shown(f"{row.held:,} to hand over" if row.held else "handed over")


_COLUMNS: dict[str, Callable[[MemberRow], object]] = {
    "node": lambda row: row.address,
    "state": lambda row: row.state,
    "since": lambda row: row.since,
    "release": lambda row: row.release or None,
    "protocol": lambda row: row.protocol or None,
    "shards": lambda row: row.shards,
    "partitions": _partitions,
    "load": lambda row: row.load,
    "heartbeat": lambda row: (
        None if row.beat_seconds_ago is None else units.ago(row.beat_seconds_ago)
    ),
    "clock": _clock,
}
