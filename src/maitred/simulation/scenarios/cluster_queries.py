"""Queries in whole clusters: each has exactly one answer, whichever nodes come, go and fail.

The kinds of trouble are those of `cluster.py`. In `calm`, in which nodes come, drain and go in
order, no query fails because of it: it is answered, or its time is over, or no worker was there
because all of them were drained at the time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.cluster_fleet import Fleet
from maitred.simulation.scenarios.cluster_trouble import Troubles
from maitred.simulation.scenarios.queries import (
    ANSWERED_SECONDS,
    NODE_AWAY,
    PAST_SECONDS,
    RECOVERY_SECONDS,
    QueryRunKind,
    node_settings,
)
from maitred.simulation.scenarios.queries_people import GatewayHost, QueryWorkerHost
from maitred.simulation.scenarios.queries_record import QueryPromise, QueryRecord
from maitred.simulation.scenarios.record import STAYED_BEHIND, until_nothing

if TYPE_CHECKING:
    from maitred.simulation.world import World

WORKERS: Final = 3
SLOTS: Final = 3
GATEWAYS: Final = 2
SETTLING_SECONDS: Final = 10.0
"""From the moment at which all nodes are a cluster again: workers and gateways have found the
owners of their queues, queries that were asked before have ended, and calls that the database did
not answer have failed (`COMMAND_SECONDS`) and are made again."""


@dataclass(frozen=True, slots=True)
class ClusterQueryKind:
    """Which faults a run of the scenario has."""

    troubles: Troubles
    relayed: bool = False
    """Whether gateways cannot connect to workers, so that nodes relay all queries."""

    def promise(self) -> QueryPromise:
        """Return what this kind of run guarantees."""
        troubles = self.troubles
        calm = troubles == Troubles(nodes_leave=True)
        outcomes = {"no-worker", "worker-lost"}  # all workers may be drained at the same time
        if not calm:
            outcomes |= {"connection-lost", "draining", "not-owner", "unknown-queue", *NODE_AWAY}
            outcomes |= {"cut-off", "store-unavailable", "store-full", "outcome-unknown"}
        silent = troubles.network_fails or troubles.paths_close or troubles.nodes_freeze
        return QueryPromise(
            in_order=False,
            order_slack_seconds=0.0,
            overtakers=0,
            stop_seconds=20.0 if silent else 3.0,  # until a peer notices the silence
            outcomes=frozenset(outcomes),
        )


STORM: Final = Troubles(
    nodes_leave=True,
    nodes_die=True,
    nodes_freeze=True,
    paths_close=True,
    database_fails=True,
    users_die=True,
    network_fails=True,
)

QUERY_KINDS: Final[dict[str, ClusterQueryKind]] = {
    "calm": ClusterQueryKind(Troubles(nodes_leave=True)),
    "crashes": ClusterQueryKind(Troubles(nodes_leave=True, nodes_die=True)),
    "frozen": ClusterQueryKind(Troubles(nodes_leave=True, nodes_freeze=True)),
    "cuts": ClusterQueryKind(Troubles(nodes_leave=True, paths_close=True)),
    "database": ClusterQueryKind(Troubles(nodes_leave=True, database_fails=True)),
    "storm": ClusterQueryKind(STORM),
    "relayed": ClusterQueryKind(Troubles(nodes_leave=True), relayed=True),
    "relayed-storm": ClusterQueryKind(STORM, relayed=True),
}


class ClusterQueries:
    """One run of the scenario of queries in a cluster."""

    def __init__(self, world: World, kind: ClusterQueryKind) -> None:
        self.world = world
        self.kind = kind
        self.record = record = QueryRecord(kind.promise())
        settings = node_settings(world.random("queries"), QueryRunKind())
        self.fleet = fleet = Fleet(world, settings, record, kind.troubles)
        self.workers = [
            QueryWorkerHost(world.host(f"worker-{number}"), fleet.seeds(), record, slots=SLOTS)
            for number in range(WORKERS)
        ]
        for worker in self.workers:
            worker.listens = not kind.relayed
        self.gateways = [
            GatewayHost(
                world.host(f"gateway-{number}"), fleet.seeds(), record, plain=False, hurries=False
            )
            for number in range(GATEWAYS)
        ]

    async def run(self) -> None:
        """Run the scenario from the start to the last check."""
        await self.fleet.start()
        for worker in self.workers:
            worker.start()
        await asyncio.sleep(1.0)  # the workers serve the queues, so they exist
        for gateway in self.gateways:
            gateway.start()
        await self.fleet.rage(self.record, self.workers, self.gateways)
        for gateway in self.gateways:
            gateway.calm_down()
        await asyncio.sleep(SETTLING_SECONDS)
        self.record.served.clear()
        await asyncio.sleep(ANSWERED_SECONDS)
        self.record.check()
        for gateway in self.gateways:
            if not any(name.startswith(gateway.host.name) for name in self.record.served):
                raise Violation(
                    f"It has been calm for a while, and {gateway.host.name} gets no answer."
                )
        async with asyncio.timeout(PAST_SECONDS + RECOVERY_SECONDS):
            for gateway in self.gateways:
                await gateway.ended()
        taken = "No caller asks any more, and slots are taken"
        await until_nothing(self._busy, taken, RECOVERY_SECONDS, every=0.5)
        self.fleet.checks.check_places()
        self._check_stories()
        for worker in self.workers:
            await worker.ended()
        self.record.check()
        await until_nothing(self._held, STAYED_BEHIND, RECOVERY_SECONDS)
        await self.fleet.stop()
        self.record.check()

    def _busy(self) -> list[tuple[str, int]]:
        return [
            (one.host.name, one.worker.statistics.busy)
            for one in self.workers
            if one.worker is not None and one.worker.statistics.busy
        ]

    def _check_stories(self) -> None:
        for story in self.record.stories:
            if story.outcome is None and story.cancelled_at is None:
                raise self.record.violation(story, "was never answered")
            if any(run.ended_at is None for run in story.runs):
                raise self.record.violation(story, "runs for ever")
        if not self.record.told["done"]:
            raise Violation("Nothing was ever answered.")

    def _held(self) -> list[object]:
        left = [one for node in self.fleet.nodes for one in node.held_by_shards()]
        for partitions in [one for node in self.fleet.nodes for one in node.partitions()]:
            permits = partitions.permits.statistics()
            if any(permits.values()):
                left.append(("permits", permits))
            for owned in partitions.owned.values():
                partition = owned.partition
                held = (
                    partition.offers.slots,
                    partition.tree.offers_away,
                    partition.allocator.lines.slots,
                    len(owned.asked),
                )
                if any(held):
                    left.append((owned.key.partition, held))
        return left


async def cluster_queries_of(kind: str, world: World) -> None:
    """Run the scenario with that kind of trouble."""
    await ClusterQueries(world, QUERY_KINDS[kind]).run()


async def cluster_queries(world: World) -> None:
    """Run the scenario of queries in clusters with a random kind of trouble."""
    drawn = world.random("kind").choice([*QUERY_KINDS, "storm", "crashes", "calm"])
    await cluster_queries_of(drawn, world)
