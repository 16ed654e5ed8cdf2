"""Whole clusters: real supervisors and shards on several hosts, one database, real users.

Each seed draws one of several kinds of trouble, since each kind has another promise to keep:

`calm`        nodes come, drain, go and are restarted one by one: no request of a user fails, and no
              task runs twice
`crashes`     shards, supervisors and whole nodes are killed, and come back
`frozen`      nodes, or single shards, stand still for a while, and go on as if nothing happened
`cuts`        nodes do not reach each other, the database, or some users, in one or both directions
`stranded`    a node and some workers are left alone, without the other nodes and the database, for
              longer than the node's lease
`database`    the database is slow, full or away, and fails over to a synchronous standby
`failover`    it fails over to an asynchronous standby, which loses the last commits
`storm`       all of this but the asynchronous failover, and the network's faults, workers that die,
              and clocks that jump

In all of them: every task that was acknowledged comes to one end once it is calm; no worker runs
more than it has slots; what ran twice at a time did so because its lease was over; all nodes get
the same view, and every shard holds long polls and tasks only of partitions that it owns by that
view; when it is calm, new tasks of every partition are done soon. Only in `failover` may a task be
lost, or two callers be told different ends: PostgreSQL had forgotten what it confirmed. What nodes
have in memory and what it has are the same again soon, without a restart.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.cluster_fleet import Fleet
from maitred.simulation.scenarios.cluster_people import ClusterProducer, Prober
from maitred.simulation.scenarios.cluster_trouble import Troubles
from maitred.simulation.scenarios.record import STAYED_BEHIND, until_nothing
from maitred.simulation.scenarios.tasks import LEASE_SECONDS, node_settings
from maitred.simulation.scenarios.tasks_end import TasksEnd
from maitred.simulation.scenarios.tasks_people import Admin, WorkerHost
from maitred.simulation.scenarios.tasks_record import Promise, TasksRecord

if TYPE_CHECKING:
    from maitred.simulation.world import World

RECOVERY_SECONDS: Final = 400.0
"""The longest time from the end of the storm until every task is over: leases end, and retries back
off."""
LAST_WISH_SECONDS: Final = 5.0
"""Time for the last request of the admin, which may revive dead letters."""
ONE_OWNER_SECONDS: Final = 3.0
"""The shortest time after which an attempt may be given out again: the next owner of a partition
waits this long (`recovery_seconds`) for workers that cannot reach it."""
WORKERS: Final = 3
SLOTS: Final = 2
PRODUCERS: Final = 2
PROBERS: Final = 2


@dataclass(frozen=True, slots=True)
class ClusterRunKind:
    """Which faults a run of the scenario has, and what it guarantees all the same."""

    troubles: Troubles
    exactly_once: bool = False
    errorless: bool = False
    one_owner: bool = False
    """Whether no two owners give out the same attempt within `ONE_OWNER_SECONDS`."""
    loses: bool = False
    """Whether the database may lose what it confirmed."""

    def promise(self) -> Promise:
        """Return what this kind of run guarantees."""
        return Promise(
            exactly_once=self.exactly_once,
            in_order=0,
            overlap_after_seconds=LEASE_SECONDS / 2,
            counts_runs=self.errorless,
            errorless=self.errorless,
            other_errors=frozenset({"unknown-queue", "unknown-task"} if self.loses else ()),
            one_owner_seconds=ONE_OWNER_SECONDS if self.one_owner else 0.0,
            ends_get_lost=self.database_away,
            loses=self.loses,
        )

    @property
    def database_away(self) -> bool:
        """Whether a shard may not reach the database for a while, so that what a worker has done is
        acknowledged while its result is in memory only."""
        troubles = self.troubles
        return troubles.database_fails or troubles.paths_close or troubles.nodes_strand

    @property
    def results_get_lost(self) -> bool:
        """Whether the result of a task that was over before it had to be stored may be lost: its
        owner cannot store it, or is replaced while it still runs. The shards of a supervisor that
        was killed run for a moment, and a frozen node runs again when it thaws."""
        return self.database_away or self.troubles.nodes_die or self.troubles.nodes_freeze


KINDS: Final[dict[str, ClusterRunKind]] = {
    "calm": ClusterRunKind(Troubles(nodes_leave=True), exactly_once=True, errorless=True),
    "crashes": ClusterRunKind(Troubles(nodes_leave=True, nodes_die=True), exactly_once=True),
    "frozen": ClusterRunKind(Troubles(nodes_freeze=True, nodes_leave=True), one_owner=True),
    "cuts": ClusterRunKind(Troubles(paths_close=True, nodes_leave=True), one_owner=True),
    "stranded": ClusterRunKind(Troubles(nodes_strand=True), one_owner=True),
    "database": ClusterRunKind(Troubles(database_fails=True, nodes_leave=True), one_owner=True),
    "failover": ClusterRunKind(Troubles(database_forgets=True, nodes_die=True), loses=True),
    "storm": ClusterRunKind(
        Troubles(
            nodes_leave=True,
            nodes_die=True,
            nodes_freeze=True,
            paths_close=True,
            database_fails=True,
            users_die=True,
            network_fails=True,
        ),
    ),
}


class ClusterRun:
    """One run of the scenario of clusters."""

    def __init__(self, world: World, kind: ClusterRunKind) -> None:
        self.world = world
        self.kind = kind
        self.record = record = TasksRecord(kind.promise())
        settings = node_settings(world.random("cluster"), world.random("idle"))
        self.fleet = fleet = Fleet(world, settings, record, kind.troubles)
        self.workers = [
            WorkerHost(world.host(f"worker-{number}"), fleet.seeds(), record, slots=SLOTS)
            for number in range(WORKERS)
        ]
        self.producers = [
            ClusterProducer(world.host(f"producer-{number}"), fleet.seeds(), record)
            for number in range(PRODUCERS)
        ]
        self.admin = Admin(world.host("admin"), fleet.seeds(), record)
        self.probers = [
            Prober(world.host(f"prober-{number}"), fleet.nodes[number].host, record)
            for number in range(PROBERS)
        ]
        self.end = TasksEnd(record, fleet.disk, fleet.nodes)

    async def run(self) -> None:
        """Run the scenario from the start to the last check."""
        await self.fleet.start()
        for worker in self.workers:
            worker.start()
        producing = [one.host.spawn(one.main(), name=one.host.name) for one in self.producers]
        admin = self.admin.host.spawn(self.admin.main(), name="admin")
        await self.fleet.rage(self.record, self.workers, self.producers)
        self.admin.is_calm = True
        for process in producing:
            await process.wait()
        await until_nothing(self.admin.paused, "Queues are still paused", RECOVERY_SECONDS)
        admin.kill()
        await asyncio.sleep(LAST_WISH_SECONDS)
        await self.end.until_over(RECOVERY_SECONDS)
        for prober in self.probers:
            await prober.host.spawn(prober.main(), name=prober.host.name).wait()
        self.fleet.checks.check_places()
        for worker in self.workers:
            await worker.ended()
        await self.end.until_over(RECOVERY_SECONDS)
        self._check_stories()
        await until_nothing(self.end.held, STAYED_BEHIND, 60.0)
        await self.fleet.stop()
        self.record.check()

    def _check_stories(self) -> None:
        self.record.check()
        if self.kind.loses:
            return
        acknowledged = self.end.check_stories(lost=self.kind.results_get_lost)
        if not acknowledged:
            raise Violation("Nothing was ever acknowledged.")


async def cluster_of(kind: str, world: World) -> None:
    """Run the scenario with that kind of trouble."""
    await ClusterRun(world, KINDS[kind]).run()


async def cluster(world: World) -> None:
    """Run the scenario of clusters with a random kind of trouble."""
    drawn = world.random("kind").choice([*KINDS, "storm", "crashes", "calm"])
    await cluster_of(drawn, world)
