"""The nodes of a simulated cluster, their database, and what goes wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from maitred.settings import ClusterSettings
from maitred.simulation.member_table import SimulatedMembers
from maitred.simulation.scenarios.chaos import now_and_then
from maitred.simulation.scenarios.cluster_checks import ClusterChecks
from maitred.simulation.scenarios.cluster_node import ClusterNode
from maitred.simulation.scenarios.cluster_trouble import ClusterTrouble
from maitred.simulation.store import DiskFaults, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.settings import Node
    from maitred.simulation.hosts import Host
    from maitred.simulation.scenarios.cluster_trouble import Troubles
    from maitred.simulation.scenarios.people import Guest, WorkerGuest
    from maitred.simulation.scenarios.record import ScenarioRecord
    from maitred.simulation.world import World

STORM_SECONDS: Final = 12.0
"""Some two leases: members are declared dead, come back, and are declared dead again."""
GAPS_SECONDS: Final = (0.3, 0.8, 2.0)
"""Mean times between two troubles, one of them for a run."""
CONVERGED_SECONDS: Final = 90.0
"""The longest time from the end of the storm until every node is active and all have the same view.
A join that was under way gives up after six leases, and is begun anew."""
SHARDS_MAX: Final = 3
NODES: Final = (3, 3, 4, 5, 7)
DENSITY: Final = 2.0
"""Cuts and half-open links are this many times as probable as drawn: the storm is short."""


class Fleet:
    """All nodes of one cluster."""

    def __init__(
        self, world: World, settings: Node, record: ScenarioRecord, troubles: Troubles
    ) -> None:
        self.world = world
        self.troubles = troubles
        self._random = random = world.random("fleet")
        if troubles.network_fails:
            world.network.faults = world.network.faults.denser(DENSITY)
        else:
            world.calm()
        faults = DiskFaults.drawn(random) if troubles.database_fails else None
        self.disk = SimulatedDisk(world.random("disk"), faults)
        self.disk.contents.signing_key()  # no failover loses what the first start ever has made
        self.members = SimulatedMembers("maitred", world.random("members"))
        settings = replace(
            settings,
            cluster=ClusterSettings(forward_seconds=random.choice((0.5, 3.0))),
            placement=random.choice(("wrap", "steady")),
            spread_batch=random.choice((0, 0, 2)),
        )
        self.nodes = [
            ClusterNode(
                world.host(f"node-{number}"),
                settings,
                record.log(),
                shards=random.randint(1, SHARDS_MAX),
                random=random,
                disk=self.disk,
                members=self.members,
            )
            for number in range(random.choice(NODES))
        ]
        late = 1 if len(self.nodes) > min(NODES) and troubles.nodes_leave else 0
        self.first = self.nodes[: len(self.nodes) - late]
        """The nodes that are started at the beginning."""
        self.checks = ClusterChecks(self.nodes, self.members)

    def seeds(self) -> list[Host]:
        """Draw the hosts of the nodes that a user is given the addresses of."""
        hosts = [node.host for node in self.first]
        if self._random.random() < 0.5:
            return hosts
        return self._random.sample(hosts, self._random.randint(1, 2))

    async def start(self) -> None:
        """Start the first nodes, and wait until they are a cluster."""
        for node in self.first:
            node.start()
        await self.checks.until_converged(CONVERGED_SECONDS)

    async def rage(
        self,
        record: ScenarioRecord,
        workers: Sequence[WorkerGuest],
        users: Sequence[Guest],
    ) -> None:
        """Cause trouble for a while, then end it all, start all nodes, and wait until they are a
        cluster again."""
        trouble = ClusterTrouble(
            world=self.world,
            troubles=self.troubles,
            nodes=self.nodes,
            workers=workers,
            users=users,
            disk=self.disk,
            members=self.members,
        )

        async def act() -> None:
            record.check()
            await trouble.act()

        gap = self._random.choice(GAPS_SECONDS)
        await now_and_then(self._random, gap, STORM_SECONDS, act)
        await trouble.over()
        for node in self.nodes:
            node.start()
        await self.checks.until_converged(CONVERGED_SECONDS)
        record.check()

    async def stop(self) -> None:
        """Stop all nodes in order, one after another; raise `Violation` for what they leave."""
        for node in self.nodes:
            node.check_errors()
        for node in self.nodes:
            await node.stop()
        self.checks.check_left()
