"""A simulated node of a cluster: a host with a supervisor and its shards.

The supervisor is a process of its own: it is the node's member of the cluster, as the real one is,
hands views and leases to its shards as the control channel does, restarts shards that die, and
starts again as a new member when the others declared it dead.
"""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import structs

from maitred.errors import MaitredError
from maitred.node.control import TakeView
from maitred.node.node_membership import MemberDiedError, NodeMembership
from maitred.node.restarts import RestartPolicy
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.simulation.errors import ProcessKilled
from maitred.simulation.member_table import SimulatedMemberTable
from maitred.simulation.scenarios.simulated_node import PORT, SimulatedNode, free_partitions
from maitred.simulation.store import SimulatedStore
from maitred.store.interface import COMMAND_SECONDS

if TYPE_CHECKING:
    from random import Random

    from maitred.logs import Logger
    from maitred.membership.view import ClusterView
    from maitred.node.control import ClusterNews
    from maitred.settings import Node
    from maitred.simulation.hosts import Host
    from maitred.simulation.member_table import SimulatedMembers
    from maitred.simulation.process import Process
    from maitred.simulation.store import SimulatedDisk

START_AGAIN_SECONDS: Final = 1.0
"""Pause before a service manager starts a node again that could not join."""

INCARNATION_BYTES: Final = 8


class _ShardHandle:
    """One shard that serves, as its supervisor sees it."""

    def __init__(self, shard: Shard, store: SimulatedStore) -> None:
        self.shard = shard
        self.store = store
        self.stop = asyncio.Event()
        self._loop = shard.loop
        self._context = contextvars.copy_context()

    def tell(self, news: ClusterNews) -> None:
        """Pass news of the cluster to the shard, in the shard's own process."""
        if isinstance(news, TakeView):
            self._loop.call_soon(self.shard.adopt, news.view, context=self._context)
        else:
            given = news.until, news.clock_ahead_seconds
            self._loop.call_soon(self.shard.renew_lease, *given, context=self._context)


class ClusterNode(SimulatedNode):
    """Runs a supervisor with the real membership and real shards on one host."""

    def __init__(
        self,
        host: Host,
        settings: Node,
        log: Logger,
        *,
        shards: int,
        random: Random,
        disk: SimulatedDisk,
        members: SimulatedMembers,
    ) -> None:
        settings = structs.replace(settings, host=host.address, port=PORT)
        super().__init__(host, settings, log, shards=shards, random=random, disk=disk)
        self.random = random
        self.members = members
        self.database = disk
        self.wanted = False
        """Whether the node is meant to be up."""
        self.wanted_shards = shards
        """The number of shards with which the supervisor is started next."""
        self.deaths = 0
        """How often the others declared the node dead while it ran."""
        self.member = ""
        """The id of the member that the node is, or was last."""
        self._supervisor: Process | None = None
        self._manager: asyncio.Task[None] | None = None
        self._table: SimulatedMemberTable | None = None
        self._handles: dict[int, _ShardHandle] = {}
        self._news: dict[type[ClusterNews], ClusterNews] = {}
        self._stop = asyncio.Event()
        self._cut_until = 0.0

    @property
    def alive(self) -> bool:
        """Whether the supervisor runs."""
        return self._supervisor is not None and not self._supervisor.dead

    @property
    def active(self) -> bool:
        """Whether the table has the node's present member in the ring."""
        return any(one.id == self.member for one in self.members.read(0.0).view.active)

    @property
    def view(self) -> ClusterView | None:
        """The newest view that the supervisor was told; None before it has joined."""
        news = self._news.get(TakeView)
        return news.view if isinstance(news, TakeView) else None

    # What an operator does

    def start(self) -> None:
        """Start the supervisor, unless it runs; a service manager starts it again if it fails."""
        self.wanted = True
        if self._manager is None or self._manager.done():
            self._manager = asyncio.get_running_loop().create_task(self._manage())

    async def _manage(self) -> None:
        while self.wanted:
            self._stop = asyncio.Event()
            self._supervisor = self.host.spawn(
                self._supervise(), name=f"{self.host.name} supervisor"
            )
            with suppress(ProcessKilled, MaitredError):
                await self._supervisor.wait()
            if self.wanted:
                await asyncio.sleep(START_AGAIN_SECONDS)

    async def stop(self) -> None:
        """Stop in order, as SIGTERM does, and wait for the end."""
        self.wanted = False
        self._stop.set()
        if self._supervisor is not None:
            with suppress(ProcessKilled, MaitredError):
                await self._supervisor.wait()

    async def kill(self) -> None:
        """SIGKILL for the supervisor and every shard: the node stays away until it is started."""
        self.wanted = False
        self.crashes += self.alive
        for process in list(self.host.processes):
            process.kill()
        self._forget_processes()

    def kill_supervisor(self) -> None:
        """SIGKILL for the supervisor only: its shards see the end of their channels, and drain."""
        if self.alive and self._supervisor is not None:
            self.wanted = False
            self.crashes += 1
            self._supervisor.kill()
            for handle in self._handles.values():
                handle.stop.set()

    def kill_one(self, random: Random) -> None:
        """SIGKILL for one of the shards that run."""
        shards = [
            process
            for process in self.host.processes
            if not process.dead and process is not self._supervisor
        ]
        if shards:
            self.crashes += 1
            random.choice(shards).kill()

    def crash(self) -> None:
        """Let the host lose power; the node stays away until it is started."""
        super().crash()
        self.wanted = False
        self._forget_processes()

    def pause_supervisor(self) -> None:
        """SIGSTOP for the supervisor only."""
        if self._supervisor is not None:
            self._supervisor.pause()

    def resume_supervisor(self) -> None:
        """SIGCONT for the supervisor."""
        if self._supervisor is not None:
            self._supervisor.resume()

    def cut_from_database(self, seconds: float, *, shards: bool = True) -> None:
        """Let the supervisor, and the shards if so wished, not reach the database for this time."""
        if self._table is not None:
            self._table.cut_off(seconds)
        if shards:
            self._cut_until = asyncio.get_running_loop().time() + seconds
            for handle in self._handles.values():
                handle.store.cut_off(seconds)

    def reconnect(self) -> None:
        """End a `cut_from_database`."""
        self._cut_until = 0.0
        if self._table is not None:
            self._table.reconnect()
        for handle in self._handles.values():
            handle.store.reconnect()

    def _forget_processes(self) -> None:
        self.running.clear()
        self._handles.clear()
        self._news.clear()

    # The supervisor's process

    async def _supervise(self) -> None:
        self.shards = self.wanted_shards
        try:
            table = await self._open_table()
            secret = await table.secret()
            await table.close()
            membership = NodeMembership(
                open_table=self._open_table,
                secret=secret,
                settings=self._settings,
                announced=(self.host.address, PORT),
                member_port=PORT + self.shards + 2,
                surroundings=self.host.surroundings,
                log=self._log,
                tell=self._tell,
                load=lambda: 0.0,
            )
            while not self._stop.is_set():
                await self._run(membership)
        except MaitredError:
            self._kill_shards()
            raise

    async def _open_table(self) -> SimulatedMemberTable:
        table = self._table = SimulatedMemberTable(self.members, self.database)
        if (left := self._cut_until - asyncio.get_running_loop().time()) > 0:
            table.cut_off(left)
        return table

    async def _run(self, membership: NodeMembership) -> None:
        """Run the node as one member, until it is stopped or was declared dead."""
        stopping = asyncio.ensure_future(self._stop.wait())
        keeping = asyncio.ensure_future(self._keep_member(membership))
        await asyncio.wait((keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if keeping.done():
            keeping.result()
            return
        keeping.cancel()
        await asyncio.wait((keeping,))
        await membership.leave()
        await self._stop_shards()
        await membership.close()

    async def _keep_member(self, membership: NodeMembership) -> None:
        """Start shards, join, and keep both until the member is declared dead."""
        place = membership.member_of(self._place())
        self.member = place.member
        self._forget_processes()
        ready = [asyncio.Event() for _ in range(self.shards)]
        keepers = [
            asyncio.ensure_future(self._keep_shard(place, number, ready[number]))
            for number in range(self.shards)
        ]
        try:
            for one in ready:
                await one.wait()
            await membership.join(place)
            with suppress(MemberDiedError):
                await membership.watch()
            self.deaths += 1
            self._kill_shards()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep_shard(self, place: ShardPlace, number: int, ready: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        policy = RestartPolicy(self._restarts, loop.time())
        restarts = 0
        while True:
            mine = replace(place, number=number, restarts=restarts)
            process = self.host.spawn(
                self._shard_main(mine, ready), name=f"{self.host.name} shard-{number}"
            )
            with suppress(ProcessKilled):
                await process.wait()
            self.running.pop(number, None)
            self._handles.pop(number, None)
            decision = policy.died(loop.time())
            assert isinstance(decision, float)  # noqa: S101 - the policy never gives up
            await asyncio.sleep(decision - loop.time())
            restarts += 1

    def _place(self) -> ShardPlace:
        return ShardPlace(
            node=self._identity,
            number=0,
            shards=self.shards,
            host=self.host.address,
            port=PORT,
            own_ports=tuple(PORT + 1 + shard for shard in range(self.shards)),
            peer_paths=tuple(f"/run/shard-{shard}" for shard in range(self.shards)),
        )

    def _tell(self, news: ClusterNews) -> None:
        self._news[type(news)] = news
        for handle in self._handles.values():
            handle.tell(news)

    def _kill_shards(self) -> None:
        for process in list(self.host.processes):
            if process is not self._supervisor:
                process.kill()
        self._forget_processes()

    async def _stop_shards(self) -> None:
        for handle in self._handles.values():
            handle.stop.set()
        for process in list(self.host.processes):
            if process is not self._supervisor and not process.dead:
                with suppress(ProcessKilled):
                    await process.wait()
        self._forget_processes()

    # A shard's process

    async def _shard_main(self, place: ShardPlace, ready: asyncio.Event) -> None:
        host = self.host
        shard = Shard(place, self._settings, host.surroundings, self._log, vitals=Vitals.none())
        incarnation = host.surroundings.secret(INCARNATION_BYTES).hex()
        store = SimulatedStore(
            self.database,
            owner=f"{place.member}/{incarnation}",
            answer_seconds=COMMAND_SECONDS,
        )
        if (left := self._cut_until - asyncio.get_running_loop().time()) > 0:
            store.cut_off(left)
        host.at_end.append(partial(free_partitions, shard.keep_tasks(store)))
        await shard.start()
        handle = self._handles[place.number] = _ShardHandle(shard, store)
        self.running[place.number] = shard
        for news in self._news.values():
            handle.tell(news)
        ready.set()
        await handle.stop.wait()
        await shard.drain()
        await store.close()
