"""The troubles of a simulated cluster: what goes wrong, for how long, and how it is undone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maitred.simulation.scenarios.record import until_nothing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from maitred.simulation.hosts import Host
    from maitred.simulation.member_table import SimulatedMembers
    from maitred.simulation.scenarios.cluster_node import ClusterNode
    from maitred.simulation.scenarios.people import Guest, WorkerGuest
    from maitred.simulation.store import SimulatedDisk
    from maitred.simulation.world import World

SHARDS_MAX: Final = 3
LONG_SECONDS: Final = 12.0
"""The longest trouble: over two leases, so that some of those who come back were declared dead."""
STRANDED_SECONDS: Final = (10.0, 16.0)
"""How long a node is left alone: its lease ends, the others declare it dead, and its successors
have waited for its workers and give out its tasks."""
FAILOVER_SECONDS: Final = 6.0
STANDBY_SECONDS: Final = 0.5
"""The most that an asynchronous standby is behind."""
CLOCK_JUMP_SECONDS: Final = 60.0
JOIN_SECONDS: Final = 60.0
"""The longest time that a node takes to join a cluster in which nothing goes wrong."""


@dataclass(frozen=True, slots=True)
class Troubles:
    """The kinds of trouble of a run."""

    nodes_leave: bool = False
    """Nodes are stopped in order and started again, as in an upgrade; some later than others."""
    nodes_die: bool = False
    nodes_freeze: bool = False
    paths_close: bool = False
    nodes_strand: bool = False
    """A node is left alone with some workers for longer than its lease."""
    database_fails: bool = False
    database_forgets: bool = False
    """An asynchronous standby takes over, without the last commits."""
    users_die: bool = False
    network_fails: bool = False
    """Connections are cut, split, delayed or go silent at random."""


class ClusterTrouble:
    """Injects faults into a cluster, and undoes them."""

    def __init__(
        self,
        *,
        world: World,
        troubles: Troubles,
        nodes: Sequence[ClusterNode],
        workers: Sequence[WorkerGuest],
        users: Sequence[Guest],
        disk: SimulatedDisk,
        members: SimulatedMembers,
    ) -> None:
        self._world = world
        self._troubles = troubles
        self._nodes = nodes
        self._workers = workers
        self._users = users
        self._disk = disk
        self._members = members
        self._random = world.random("trouble")
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._actions = self._possible()

    def _possible(self) -> list[Callable[[], Awaitable[None]]]:
        troubles = self._troubles
        actions: list[Callable[[], Awaitable[None]]] = []
        if troubles.nodes_leave:
            actions += [self._restart_node, self._restart_node, self._add_node, self._drain_worker]
        if troubles.nodes_die:
            actions += [self._kill_shard, self._kill_node, self._kill_supervisor]
            if troubles.paths_close:  # else users would need long to notice
                actions.append(self._power_loss)
        if troubles.nodes_freeze:
            actions += [self._freeze_node, self._freeze_supervisor, self._freeze_process]
        if troubles.paths_close:
            actions += [self._close_paths, self._cut_from_database, self._cut_supervisor]
        if troubles.nodes_strand:
            actions.append(self._strand_node)
        if troubles.database_fails:
            actions += [self._trouble_database, self._trouble_database]
        if troubles.database_forgets:
            actions += [self._fail_over]
        if troubles.users_die:
            actions += [self._kill_worker, self._jump_clock]
        return actions

    async def act(self) -> None:
        """Cause one trouble, which may go on for a while; nodes that leave in order do so one after
        another."""
        action = self._random.choice(self._actions)
        if not self._is_orderly:
            task = asyncio.ensure_future(action())
            self._under_way[task] = None
            task.add_done_callback(lambda done: self._under_way.pop(done, None))
        else:
            await action()

    @property
    def _is_orderly(self) -> bool:
        """Whether nodes only come and go in order, one at a time."""
        return self._troubles == Troubles(nodes_leave=True)

    async def over(self) -> None:
        """Wait for the end of the troubles that are under way, and end all faults."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))
        self._world.calm()
        self._disk.calm()
        for node in self._nodes:
            node.host.resume()
            node.reconnect()

    # What operators do

    async def _restart_node(self) -> None:
        """Stop a node in order, and start it again, perhaps with another number of shards."""
        up = [node for node in self._nodes if node.active and node.alive and node.wanted]
        if len(up) < 2:
            return
        node = self._random.choice(up)
        await node.stop()
        if self._random.random() < 0.3:
            await asyncio.sleep(self._random.random() * 3.0)
        if self._random.random() < 0.3:
            node.wanted_shards = self._random.randint(1, SHARDS_MAX)
        node.start()
        await self._until_joined(node)

    async def _add_node(self) -> None:
        away = [node for node in self._nodes if not node.wanted and not node.alive]
        if away:
            node = self._random.choice(away)
            node.start()
            await self._until_joined(node)

    async def _until_joined(self, node: ClusterNode) -> None:
        if self._is_orderly:
            await until_nothing(
                lambda: not node.active, f"{node.host.name} does not join", JOIN_SECONDS, every=0.1
            )

    async def _drain_worker(self) -> None:
        self._random.choice(self._workers).stop()

    # What happens to nodes

    def _any(self) -> ClusterNode:
        return self._random.choice(self._nodes)

    async def _later(self) -> None:
        least, most = self._random.choice(((0.0, 0.5), (0.5, 4.0), (4.0, LONG_SECONDS)))
        await asyncio.sleep(self._random.uniform(least, most))

    async def _kill_shard(self) -> None:
        self._any().kill_one(self._random)

    async def _kill_node(self) -> None:
        node = self._any()
        await node.kill()
        await self._later()
        node.start()

    async def _kill_supervisor(self) -> None:
        node = self._any()
        node.kill_supervisor()
        await self._later()
        node.start()

    async def _power_loss(self) -> None:
        node = self._any()
        node.crash()
        await self._later()
        node.start()

    async def _freeze_node(self) -> None:
        node = self._any()
        node.host.pause()
        await self._later()
        node.host.resume()

    async def _freeze_supervisor(self) -> None:
        """Freeze a supervisor alone: the others declare the node dead while its shards serve."""
        node = self._any()
        node.pause_supervisor()
        await asyncio.sleep(self._random.uniform(2.0, LONG_SECONDS))
        node.resume_supervisor()

    async def _cut_supervisor(self) -> None:
        """Cut a supervisor off from the database, while its shards reach it."""
        self._any().cut_from_database(self._random.uniform(2.0, LONG_SECONDS), shards=False)

    async def _freeze_process(self) -> None:
        processes = [one for one in self._any().host.processes if not one.dead]
        if processes:
            process = self._random.choice(processes)
            process.pause()
            await self._later()
            process.resume()

    # The network

    async def _close_paths(self) -> None:
        """Close the paths between two groups of nodes; some users are on either side, and others
        reach both. The database may be on one side only."""
        random, network = self._random, self._world.network
        nodes = [node.host for node in self._nodes]
        cut = random.sample(nodes, random.randint(1, len(nodes) - 1))
        others: list[Host] = [host for host in nodes if host not in cut]
        away = random.choice(("", "supervisors", "all"))
        for node in self._nodes:
            if node.host in cut and away:
                seconds = random.uniform(2.0, LONG_SECONDS)
                node.cut_from_database(seconds, shards=away == "all")
        for user in (*self._workers, *self._users):
            random.choice((cut, others, [])).append(user.host)
        if random.random() < 0.5:
            network.partition(cut, others)
        else:
            groups = [cut, others]
            random.shuffle(groups)
            network.block(*groups)
        await self._later()
        network.heal()

    async def _strand_node(self) -> None:
        """Leave a node and some workers alone, without the others and the database. The workers do
        not learn that the node is dead, and would take all that it gives out, while the next
        owners give out the same tasks."""
        random, network = self._random, self._world.network
        if len(self._under_way) > 1:
            return  # of two nodes that are alone at a time, neither has a successor soon
        node = self._any()
        workers = random.sample(self._workers, random.randint(1, len(self._workers) - 1))
        alone = [node.host, *(worker.host for worker in workers)]
        hosts = [one.host for one in self._nodes]
        hosts += [one.host for one in (*self._workers, *self._users)]
        seconds = random.uniform(*STRANDED_SECONDS)
        node.cut_from_database(seconds)
        network.partition(alone, [host for host in hosts if host not in alone])
        await asyncio.sleep(seconds)
        network.heal()

    async def _cut_from_database(self) -> None:
        self._any().cut_from_database(self._random.random() * LONG_SECONDS)

    # The database

    async def _trouble_database(self) -> None:
        random, disk = self._random, self._disk
        seconds = random.random() * random.choice((0.5, FAILOVER_SECONDS))
        what = random.randrange(4)
        if what < 2:
            disk.fail_for(seconds)
        elif what == 2:
            disk.fill_for(seconds)
        else:
            disk.slow_for(seconds, random.choice((10.0, 100.0)))

    async def _fail_over(self) -> None:
        """Let a standby take over that has not received the last commits."""
        random, disk, members = self._random, self._disk, self._members
        standby, standby_members = disk.contents.copy(), members.copy()
        await asyncio.sleep(random.random() * STANDBY_SECONDS)
        disk.fail_over(standby, random.random() * FAILOVER_SECONDS)
        members.restore(standby_members)

    # Users

    async def _kill_worker(self) -> None:
        worker = self._random.choice(self._workers)
        if self._random.random() < 0.5:
            worker.kill()
        else:
            worker.host.crash()

    async def _jump_clock(self) -> None:
        host = self._any().host
        host.clock_skew_seconds = self._random.uniform(-CLOCK_JUMP_SECONDS, CLOCK_JUMP_SECONDS)
