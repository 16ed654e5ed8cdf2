"""Real shards that keep tasks, real producers and workers: nothing acknowledged is ever lost.

Each seed draws one of several kinds of trouble, since each kind has another promise to keep:

`calm`          nothing goes wrong, but partitions come and go and workers are drained
`order`         the same with one worker that has one slot: first in, first out, in the root and
                its children at least, and in all partitions if they pass no tasks on
`producers`     only the producers' connections are cut
`crashes`       only shards die, or the node comes back with another number of them
`forgery`       the same, and a worker ends, gives back and claims attempts that it was never given
`disk`          only the disk is slow, down, full, or silent about what it wrote
`storm`         all of this, and the network's faults, and workers that die or are cut off

In all of them: every task that was acknowledged comes to one end once it is calm: done, failed,
cancelled or expired; callers that asked for its result, or to cancel it, got that answer; and the
disk has nothing left of it but that and, where the queue asks for it, its history. No task runs
whose producer was told that nothing was added, none is done that no worker ran, and none has a
result that its handler did not return. What ran twice at a time did so because its lease was over.
In all but the storm no task begins while it runs, or after it was done. A node that stops in order,
while the disk works, leaves the whole histories on the disk.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maitred.settings import Forwarding, History, Limits, Node, Queue, Scaling
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.chaos import now_and_then
from maitred.simulation.scenarios.record import STAYED_BEHIND, until_nothing
from maitred.simulation.scenarios.simulated_node import SimulatedNode
from maitred.simulation.scenarios.tasks_end import TasksEnd
from maitred.simulation.scenarios.tasks_forger import Forger
from maitred.simulation.scenarios.tasks_people import PARTITIONS_MAX, Admin, Producer, WorkerHost
from maitred.simulation.scenarios.tasks_record import Promise, TasksRecord
from maitred.simulation.store import DiskFaults, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from maitred.simulation.world import World

STORM_SECONDS: Final = 6.0
"""Producers have added everything after some three seconds, unless they are in trouble."""
GAPS_SECONDS: Final = (0.25, 0.5, 1.5)
"""Mean times between two troubles, one of them for a run. A trouble meets what is under way at
that moment; what happens in between two troubles finds nothing."""
RECOVERY_SECONDS: Final = 400.0
"""The longest time from the end of the storm until every task is over. Clocks may have jumped, and
tasks that were due by the old one are due by the new one; leases end, and retries back off."""

LAST_WISH_SECONDS: Final = 5.0
"""Time for the last request of the admin, which may revive dead letters."""

LEASE_SECONDS: Final = 4.0
CLOCK_JUMP_SECONDS: Final = 60.0
SHARDS_MAX: Final = 3
DENSITY: Final = 2.0
"""Cuts and half-open links are this many times as probable as drawn: the storm is short."""
BUFFER_TASKS: Final = 10
"""The tasks that a partition keeps in memory: so few that backlogs overflow into the store."""


@dataclass(frozen=True, slots=True)
class TaskRunKind:
    """Which faults a run of the scenario has."""

    workers: int = 2
    slots: int = 4
    queues: int = 1
    """The number of queues that each worker serves, with slots that all of them share."""
    plain: bool = False
    producers_cut: bool = False
    shards_die: bool = False
    disk_fails: bool = False
    workers_die: bool = False
    ends_forged: bool = False
    network_fails: bool = False

    def promise(self, queue: Queue) -> Promise:
        """Return what this kind of run guarantees."""
        limits = queue.forwarding
        ordered = 1 + limits.children if limits.tasks else PARTITIONS_MAX
        return Promise(
            exactly_once=not (self.workers_die or self.network_fails),
            in_order=ordered if self.plain else 0,
            overlap_after_seconds=LEASE_SECONDS / 2,
            counts_runs=not (
                self.producers_cut
                or self.shards_die
                or self.disk_fails
                or self.workers_die
                or self.network_fails
            ),
        )


KINDS: Final[dict[str, TaskRunKind]] = {
    "calm": TaskRunKind(),
    "order": TaskRunKind(workers=1, slots=1, plain=True),
    "producers": TaskRunKind(producers_cut=True),
    "crashes": TaskRunKind(shards_die=True),
    "forgery": TaskRunKind(shards_die=True, ends_forged=True),
    "disk": TaskRunKind(disk_fails=True),
    "storm": TaskRunKind(
        producers_cut=True, shards_die=True, disk_fails=True, workers_die=True, network_fails=True
    ),
}


MANY_QUEUES: Final[dict[str, TaskRunKind]] = {
    "many": TaskRunKind(slots=3, queues=7),
    "many-crashes": TaskRunKind(slots=2, queues=7, shards_die=True),
    "many-storm": TaskRunKind(
        slots=2,
        queues=5,
        producers_cut=True,
        shards_die=True,
        disk_fails=True,
        workers_die=True,
        network_fails=True,
    ),
}
"""The same with workers that serve many queues. Their slots are on offer at all shards at once, so
that tasks are given back now and then."""


class Tasks:
    """One run of the scenario of tasks."""

    def __init__(self, world: World, kind: TaskRunKind) -> None:
        self.world = world
        self.kind = kind
        random = world.random("tasks")
        self._random = random
        settings = node_settings(random, world.random("idle"))
        self.record = TasksRecord(kind.promise(settings.queues["*"]))
        if kind.network_fails:
            world.network.faults = world.network.faults.denser(DENSITY)
        else:
            world.calm()
        self.disk = SimulatedDisk(
            world.random("disk"), DiskFaults.drawn(random) if kind.disk_fails else None
        )
        self.node = SimulatedNode(
            world.host("node"),
            settings,
            self.record.log(),
            shards=random.randint(1, SHARDS_MAX),
            random=random,
            disk=self.disk,
        )
        self.end = TasksEnd(self.record, self.disk, [self.node])
        node, record, queues = self.node.host, self.record, kind.queues
        self.workers = [
            WorkerHost(
                world.host(f"worker-{number}"), node, record, slots=kind.slots, queues=queues
            )
            for number in range(kind.workers)
        ]
        self.producers = [
            Producer(
                world.host(f"producer-{number}"), node, record, plain=kind.plain, queues=queues
            )
            for number in range(2)
        ]
        self.admin = Admin(world.host("admin"), node, record, queues=queues)
        self.forger: Forger | None = None
        if kind.ends_forged:
            self.forger = Forger(world.host("forger"), node, record, self._sessions)

    def _sessions(self) -> list[bytes]:
        return [worker.session for worker in self.workers if worker.session]

    async def run(self) -> None:
        """Run the scenario from the start to the last check."""
        kind = self.kind
        self.node.start()
        for worker in self.workers:
            if kind.workers_die:
                worker.cut_seconds = self._random.choice((None, 1.0))
            worker.start()
        producing = []
        for producer in self.producers:
            if kind.producers_cut:
                producer.cut_seconds = self._random.choice((None, 0.3, 1.0))
            producing.append(producer.host.spawn(producer.main(), name=producer.host.name))
        admin = self.admin.host.spawn(self.admin.main(), name="admin")
        forging = None
        if self.forger is not None:
            forging = self.forger.host.spawn(self.forger.main(), name="forger")
        await self._rage()
        self.world.calm()
        self.disk.calm()
        self.admin.is_calm = True
        for worker in self.workers:
            worker.cut_seconds = None
        if not self.node.host.up:  # its keepers are about to start it again
            await asyncio.sleep(2.0)
        for process in producing:
            await process.wait()
        await until_nothing(self.admin.paused, "Queues are still paused", RECOVERY_SECONDS)
        admin.kill()
        await asyncio.sleep(LAST_WISH_SECONDS)
        await self.end.until_over(RECOVERY_SECONDS)
        if forging is not None:
            forging.kill()
        for worker in self.workers:
            await worker.ended()
        await self.end.until_over(RECOVERY_SECONDS)
        # While the disk fails, what a worker has done is acknowledged, and its result is in memory
        # only.
        acknowledged = self.end.check_stories(lost=kind.disk_fails)
        if not acknowledged and not kind.disk_fails:
            raise Violation("Nothing was ever acknowledged.")
        await until_nothing(self.end.held, STAYED_BEHIND, 60.0)
        self.node.check_errors()
        await self._restart_in_order(1)

    # Trouble

    async def _rage(self) -> None:
        random, kind = self._random, self.kind
        actions: list[Callable[[], Awaitable[None]]] = [self._drain_worker]
        if kind.shards_die:
            actions += [self._kill_shard, self._kill_shard, self._power_loss, self._restart]
        if kind.disk_fails:
            actions += [self._disk_trouble] * 2
        if kind.workers_die:
            actions += [self._kill_worker, self._hang_worker, self._clock_jump]

        async def act() -> None:
            await random.choice(actions)()

        await now_and_then(random, random.choice(GAPS_SECONDS), STORM_SECONDS, act)

    async def _drain_worker(self) -> None:
        if (not self.kind.shards_die and not self.kind.disk_fails) or self.kind.workers_die:
            self._random.choice(self.workers).stop()

    async def _kill_worker(self) -> None:
        worker = self._random.choice(self.workers)
        if self._random.random() < 0.5:
            worker.kill()
        else:
            worker.host.crash()

    async def _hang_worker(self) -> None:
        worker = self._random.choice(self.workers)
        if self._random.random() < 0.5:
            self.world.network.partition(self.node.host, worker.host)
        else:
            ends = [self.node.host, worker.host]
            self._random.shuffle(ends)
            self.world.network.block(*ends)
        await asyncio.sleep(self._random.random() * 3.0 * LEASE_SECONDS)
        self.world.network.heal()

    async def _kill_shard(self) -> None:
        self.node.kill_one(self._random)

    async def _power_loss(self) -> None:
        if self.kind.network_fails:  # else workers would need long to notice
            self.node.crash()

    async def _restart(self) -> None:
        random = self._random
        shards, is_orderly = random.randint(1, SHARDS_MAX), random.random() < 0.5
        if is_orderly and not self.kind.disk_fails:
            await self._restart_in_order(shards)
        else:
            await self.node.restart(shards, orderly=is_orderly)

    async def _restart_in_order(self, shards: int) -> None:
        """Restart the node, and check that the store has the histories that it is to have."""
        history = self.end.history_in_memory()
        await self.node.restart(shards, orderly=True)
        self.end.check_history(history)

    async def _disk_trouble(self) -> None:
        random = self._random
        seconds = random.random() * 2.0
        what = random.randrange(3)
        if what == 0:
            self.disk.fail_for(seconds)
        elif what == 1:
            self.disk.fill_for(seconds)
        else:
            self.disk.slow_for(seconds, random.choice((10.0, 100.0)))

    async def _clock_jump(self) -> None:
        jump = self._random.uniform(-CLOCK_JUMP_SECONDS, CLOCK_JUMP_SECONDS)
        self.node.host.clock_skew_seconds = jump


def node_settings(random: Random, idle: Random) -> Node:
    """Draw the settings of the node; how soon queues are forgotten is drawn from `idle`, so that
    the other draws of a seed stay the same."""
    scaling = Scaling(adaptive=False, look_seconds=idle.choice((0.1, 5.0)))
    if random.random() < 0.25:
        scaling = Scaling(
            tasks_per_second=5.0, up_after_seconds=1.0, down_after_seconds=3.0, look_seconds=0.5
        )
    tasks_away = random.choice((0, 1, 16))
    queue = Queue(
        partitions=random.choice((1, 1, 2, 5)),
        lease_seconds=LEASE_SECONDS,
        # If tasks do not come to the offers, offers have to go round.
        offer_seconds=5.0 if tasks_away else 0.5,
        buffer_tasks=random.choice((BUFFER_TASKS, 2_000)),
        hold_seconds=random.choice((0.0, 0.02, 0.2)),
        finish_seconds=random.choice((0.0, 0.02, 0.2)),
        memory_seconds=0.0,
        # Rows of signatures would keep queues from being forgotten.
        signatures_seconds=0.0,
        # So short that queues are forgotten and made anew while they are used.
        idle_seconds=idle.choice((0.1, 1.0, 300.0)),
        forget_seconds=idle.choice((0.4, 1.0, 3600.0)),
        rate_per_second=random.choice((None, None, None, 40.0)),
        forwarding=Forwarding(children=random.choice((1, 2, 20)), tasks=tasks_away),
        scaling=scaling,
        history=History(stored=idle.random() < 0.5, seconds=idle.choice((1.0, 3600.0))),
    )
    return Node(
        queues={"*": queue},
        limits=Limits(handshake_seconds=4.0, frame_seconds=6.0, idle_seconds=8.0),
        drain_seconds=2.0,
    )


async def tasks_of(kind: str, world: World) -> None:
    """Run the scenario with that kind of trouble."""
    await Tasks(world, (KINDS | MANY_QUEUES)[kind]).run()


async def tasks(world: World) -> None:
    """Run the scenario of tasks with a random kind of trouble."""
    drawn = world.random("kind").choice([*KINDS, "storm", "storm", "crashes"])
    await tasks_of(drawn, world)


async def many_queues(world: World) -> None:
    """Run the scenario with workers that serve many queues."""
    await tasks_of(world.random("kind").choice([*MANY_QUEUES]), world)
