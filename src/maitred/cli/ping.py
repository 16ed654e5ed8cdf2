"""`maitred ping`: sends echoes to every shard, and prints the round-trip times.

An echo goes to a partition, as all requests do. So for each shard the command finds a queue whose
first partition lives there; the queue need not exist.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import click

from maitred.cli.address import node_options
from maitred.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient, NodeView

PAYLOAD = b"ping"
NAMES_PER_SHARD = 200
"""Names that are tried per shard. A shard that owns one in a thousand of all keys is missed by
200,000 names with a probability of e**-200."""


class PingTarget(NamedTuple):
    """A shard, and a queue that lives there."""

    node: str
    shard: int
    queue: str


class PingResult(NamedTuple):
    """The round-trip times of the echoes to one target, and the error that ended them."""

    target: PingTarget
    seconds: list[float]
    problem: str | None


@click.command(epilog="Exit status: 0 if every echo came back, 1 otherwise.")
@node_options
@click.option(
    "--count", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="Echoes each."
)
@click.option(
    "--namespace",
    default="ping",
    show_default=True,
    help="Where the user must have the permission `query`.",
)
@json_option
def ping(node: AskedNode, count: int, namespace: str, *, as_json: bool) -> None:
    """Send echoes to every shard and show the round-trip times in milliseconds."""
    found = node.ask(lambda client: _ping(client, node.seconds, count, namespace))
    if as_json:
        print_json([_row(one) | {"problem": one.problem} for one in found])
    else:
        print_table([_row(one) for one in found])
        for one in found:
            if one.problem:
                click.echo(f"\n{one.target.node}, shard {one.target.shard}: {one.problem}")
    if any(one.problem for one in found):
        sys.exit(1)


async def _ping(
    client: AsyncClient, seconds: float, count: int, namespace: str
) -> list[PingResult]:
    import asyncio

    await client.members_known(seconds)
    try:
        # An echo over the connection of another shard is forwarded, which is not to be measured.
        async with asyncio.timeout(seconds):
            await client.covered()
    except TimeoutError:
        pass  # shards that cannot be reached are reported below
    nodes = client.nodes()
    known = (
        targets_in_cluster(nodes, client.place, namespace)
        if client.clustered
        else targets(nodes, namespace, time.time())
    )
    found = [await _echo(client, target, namespace, count) for target in known]
    silent = [view for view in nodes if view.node is None]
    return found + [
        PingResult(PingTarget(view.address, -1, ""), [], view.problem or "It does not answer.")
        for view in silent
    ]


async def _echo(client: AsyncClient, target: PingTarget, namespace: str, count: int) -> PingResult:
    from maitred.errors import MaitredError

    taken: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        try:
            answer = await client.echo(namespace, target.queue, PAYLOAD)
        except MaitredError as problem:
            return PingResult(target, taken, f"{problem} [{problem.code}]")
        taken.append(time.perf_counter() - begun)
        if answer.shard != target.shard:
            return PingResult(target, taken, f"Shard {answer.shard} answered in its place.")
    return PingResult(target, taken, None)


def targets(nodes: Sequence[NodeView], namespace: str, now: float) -> Iterator[PingTarget]:
    """Yield a queue for every shard of every node that has answered, in their order."""
    from maitred.routing.gradual import GradualChange
    from maitred.routing.homes import Homes
    from maitred.routing.placement import place
    from maitred.routing.ring import HashRing

    ring = HashRing(view.address for view in nodes)
    known = {view.address: view for view in nodes if view.node is not None}
    wanted = [(view.address, shard) for view in known.values() for shard in range(view.shards)]
    homes = {
        view.address: Homes(
            view.shards, spread_batch=GradualChange.parse(_decoded(view.spread_batch), int)
        )
        for view in known.values()
    }
    if not homes:
        return
    any_homes = next(iter(homes.values()))  # the batch size is the same for all of them
    found: dict[tuple[str, int], str] = {}
    for number in range(NAMES_PER_SHARD * len(wanted)):
        if len(found) == len(wanted):
            break
        queue = f"ping-{number}"
        partition = (namespace, queue, 1, 0)
        home = any_homes.home(partition, now)
        node = place(ring, home.queue, 0, home.batch_size).node
        if node in homes:
            found.setdefault((node, homes[node].home(partition, now).shard), queue)
    for node, shard in wanted:
        if (node, shard) in found:
            yield PingTarget(node, shard, found[node, shard])


def targets_in_cluster(
    nodes: Sequence[NodeView],
    place: Callable[[tuple[str, str, int, int]], tuple[str, int, float]],
    namespace: str,
) -> Iterator[PingTarget]:
    """Yield a queue for every shard of every node that owns partitions, in their order."""
    wanted = [(view.address, shard) for view in nodes for shard in range(view.shards)]
    found: dict[tuple[str, int], str] = {}
    for number in range(NAMES_PER_SHARD * len(wanted)):
        if len(found) == len(wanted):
            break
        queue = f"ping-{number}"
        node, shard, _ = place((namespace, queue, 1, 0))
        found.setdefault((node, shard), queue)
    for node, shard in wanted:
        if (node, shard) in found:
            yield PingTarget(node, shard, found[node, shard])


def _decoded(text: str) -> object:
    from msgspec import json

    return json.decode(text)


def _row(one: PingResult) -> dict[str, object]:
    milliseconds = [1_000 * seconds for seconds in one.seconds]
    return {
        "shard": one.target.shard if one.target.shard >= 0 else None,
        "node": one.target.node,
        "echoes": len(milliseconds),
        "min ms": round(min(milliseconds), 3) if milliseconds else None,
        "p50 ms": round(median(milliseconds), 3) if milliseconds else None,
        "max ms": round(max(milliseconds), 3) if milliseconds else None,
    }
