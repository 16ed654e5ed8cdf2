"""`maitred admin node`: takes a node of a cluster out of the ring, and puts it back.

A node that is drained hands its partitions over to the other nodes, and goes on running: it
forwards what clients still send to it. It stays out of the ring until it is put back or restarted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from maitred.cli.address import node_options
from maitred.cli.admin_cluster import describe_cluster
from maitred.cli.groups import HintingGroup
from maitred.cli.output import Progress, json_option, print_json
from maitred.errors import MaitredError, UnsafeMemberChange

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.cluster import NodeDrained

LOOK_SECONDS = 0.5
"""Interval at which the command asks how far the node is."""

LOOKS_AT_NOTHING = 2
"""How often in a row nothing must be left to hand over: a partition may be acquired between the
node's change of state and the moment when the node learns of it."""

EXIT_INTERRUPTED = 130


@click.group(cls=HintingGroup)
def node() -> None:
    """Nodes of a cluster: drain one, put it back.

    A node is named by its address, as `maitred admin cluster` prints it, by its identity, or by the
    beginning of one of them. The user needs the permission `operate` for every namespace (*).
    """


@node.command(
    epilog="Exit status: 0 if the node has handed over all partitions (with --no-wait: if it is "
    "draining), 130 after Ctrl-C, else 1 or 2."
)
@click.argument("name")
@click.option("--no-wait", is_flag=True, help="Do not wait until everything is handed over.")
@node_options
@json_option
def drain(name: str, node: AskedNode, *, no_wait: bool, as_json: bool) -> None:
    """Take the node NAME out of the ring, and wait until it has handed over its partitions.

    The other nodes take over its queues; no request fails. The node goes on running and forwards
    what clients still send to it, until it is stopped or put back with `undrain`. Stopping a node
    drains it as well, so this is for a node that is to stay up without work. The last active node
    cannot be drained.
    """
    drained = node.ask(lambda client: change(client, name, drain=True))
    left = True
    if not no_wait:
        try:
            left = node.ask(lambda client: _until_empty(client, drained.address, quiet=as_json))
        except KeyboardInterrupt:
            click.echo(
                f"\n{drained.address} stays out of the ring, and goes on handing over its "
                f"partitions.\n`maitred admin node undrain {drained.address}` puts it back.",
                err=True,
            )
            sys.exit(EXIT_INTERRUPTED)
    if as_json:
        print_json(_told(drained) | {"handed_over": None if no_wait else True, "present": left})
    elif no_wait:
        click.echo(f"{drained.address} is draining: it hands over its partitions.")
    elif left:
        click.echo(f"{drained.address} has handed over all its partitions, and forwards requests.")
    else:
        click.echo(f"{drained.address} has left the cluster.")


@node.command()
@click.argument("name")
@node_options
@json_option
def undrain(name: str, node: AskedNode, *, as_json: bool) -> None:
    """Put the node NAME back into the ring: it takes over its share of the partitions again."""
    changed = node.ask(lambda client: change(client, name, drain=False))
    if as_json:
        print_json(_told(changed))
    else:
        click.echo(f"{changed.address} is {changed.state} again: it takes over its partitions.")


async def change(client: AsyncClient, name: str, *, drain: bool) -> NodeDrained:
    """Ask any node to change the state of the node with this name."""
    from maitred.protocol.cluster import DrainNode

    return cast("NodeDrained", await client.request(DrainNode(0, 0, name, drain)))


async def _until_empty(client: AsyncClient, address: str, *, quiet: bool) -> bool:
    """Wait until the node has handed over its partitions; return False if it has left the cluster.
    A node that does not answer for a while does not end the wait."""
    import asyncio

    progress = Progress()
    total = empty = 0
    trouble = ""
    while empty < LOOKS_AT_NOTHING:
        await asyncio.sleep(LOOK_SECONDS if total or empty or trouble else 0)
        try:
            found = await describe_cluster(client)
        except MaitredError as problem:
            if not problem.transient:
                raise
            if trouble != problem.code:
                click.echo(f"{problem} [{problem.code}] Still trying.", err=True)
            trouble = problem.code
            continue
        row = next((row for row in found.members if row.address == address), None)
        if row is None:
            return False
        if row.state == "active":
            raise _put_back(address)
        empty = empty + 1 if row.held == 0 else 0
        total = max(total, row.held or 0)
        if row.held is not None and not quiet:
            _draw(progress, total, row.held, done=empty == LOOKS_AT_NOTHING)
    return True


def _draw(progress: Progress, total: int, left: int, *, done: bool) -> None:
    whole = max(total, 1)
    handed = whole if done else min(total - left, whole - 1)
    progress(handed, whole, f"{total - left:,} of {total:,} partitions handed over")


def _put_back(address: str) -> MaitredError:
    return UnsafeMemberChange(
        f"The node {address} was put back into the ring meanwhile.",
        remedy="Another operator did so, or the node was restarted. Look at it with `maitred admin "
        "cluster`.",
    )


def _told(changed: NodeDrained) -> dict[str, object]:
    return {"node": changed.address, "state": changed.state, "version": changed.version}
