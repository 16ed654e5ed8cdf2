"""Real member agents of three to seven nodes, with one table: who is in the cluster?

Processes are killed, paused and restarted, hosts lose power, paths are cut in one direction or
both, the database is away, slow or out of reach for one node, commits have unknown outcomes,
notifications are lost, and wall clocks are hours apart. What must hold:

- every view that a member adopts is the table as it was at that version, and versions only rise;
- a dead member never returns, and no two active members have one address;
- a member that runs and whose calls of the table succeed is never declared dead;
- when a member that runs is declared dead, its lease, as it trusts it, has ended before;
- when it is calm, all views soon hold exactly the members that run, and all of them are active.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from maitred.errors import CannotStart, StoreUnavailable
from maitred.membership.view import ClusterMember, MemberState
from maitred.node.member_agent import MemberAgent
from maitred.settings import ClusterSettings
from maitred.simulation.errors import Violation
from maitred.simulation.member_table import SimulatedMembers, SimulatedMemberTable
from maitred.simulation.scenarios.chaos import now_and_then
from maitred.simulation.scenarios.record import ErrorLog, until_nothing
from maitred.simulation.store import DiskFaults, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from maitred.logs import Logger
    from maitred.membership.view import ClusterView
    from maitred.simulation.hosts import Host
    from maitred.simulation.member_table import SimulatedDeath
    from maitred.simulation.process import Process
    from maitred.simulation.world import World

SETTINGS: Final = ClusterSettings()
PORT: Final = 4_747
MEMBER_PORT: Final = 4_746
STORM_SECONDS: Final = 30.0
GAP_SECONDS: Final = 1.5
"""Mean time between two troubles."""
OUTAGE_SECONDS: Final = 12.0
"""Longest trouble: two leases, and some."""
CALM_SECONDS: Final = 60.0
"""The longest time from the end of the storm until all views are right: an attempt to join that
fails in the last moment takes 30 s, then members without a heartbeat delay the next one for 15."""
LOOK_SECONDS: Final = 0.25
"""Time between two looks at the views in the calm, at which draining nodes are put back, too."""
SKEW_SECONDS: Final = 7_200.0
EXCUSED_SECONDS: Final = 2 * SETTINGS.lease_seconds
"""A trouble of a member, or of its calls of the table, this long ago excuses its death: a lease,
and the time until the second vote came."""


class _RecordedTable(SimulatedMemberTable):
    """A table that notes when a call failed or takes long."""

    _failed_at = -inf
    _asked_at = inf

    async def _ask(self, action: Callable[[], Any], *, writes: bool) -> Any:  # noqa: ANN401
        self._asked_at = asyncio.get_running_loop().time()
        try:
            return await super()._ask(action, writes=writes)
        except BaseException:  # a call that was given up, too
            self._failed_at = asyncio.get_running_loop().time()
            raise
        finally:
            self._failed_at = self.troubled_at
            self._asked_at = inf

    @property
    def troubled_at(self) -> float:
        """When a call last failed, or took longer than a healthy table does."""
        now = asyncio.get_running_loop().time()
        return now if now - self._asked_at > SETTINGS.beat_seconds else self._failed_at


@dataclass(eq=False)
class Incarnation:
    """One member, as its node runs it."""

    me: ClusterMember
    process: Process
    table: _RecordedTable
    agent: MemberAgent | None = None
    running: bool = True
    lease_until: float = 0.0
    view: ClusterView | None = None


@dataclass(eq=False)
class MemberHost:
    """A host with its process, which starts a new member whenever the last one is over."""

    host: Host
    process: Process | None = None
    now: Incarnation | None = None
    order: str = ""
    ordered: asyncio.Event = field(default_factory=asyncio.Event)
    troubled_at: float = -inf
    """When the process was last killed, paused, or continued after a pause."""

    def tell(self, order: str) -> None:
        """Order the node to `drain`, `undrain` or `restart`."""
        self.order = order
        self.ordered.set()

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.halted and not self.process.dead


class MembershipStorm:
    """The cluster of one run, its troubles and its checks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random: Random = world.random("membership")
        random = self.random
        faults = DiskFaults.drawn(world.random("disk-faults"))
        self.disk = SimulatedDisk(world.random("disk"), faults)
        self.members = SimulatedMembers(SETTINGS.name, world.random("members"))
        self.members.on_change.append(self._table_changed)
        self.lost_notifications = random.choice((0.0, 0.0, 0.3, 1.0))
        self.hosts = [MemberHost(world.host(f"node-{n}")) for n in range(random.randint(3, 7))]
        """The nodes that run, or run again soon."""
        self.machines = tuple(self.hosts)
        for one in self.hosts:
            one.host.clock_skew_seconds = random.uniform(-SKEW_SECONDS, SKEW_SECONDS)
        self.incarnations: dict[str, Incarnation] = {}
        self.views: dict[int, tuple[ClusterMember, ...]] = {}
        self.complaints: list[str] = []
        self.found: list[Violation] = []
        self._deaths_checked = 0
        self._dead: set[str] = set()

    async def run(self) -> None:
        """Start the nodes, rage, and see whether all ends well."""
        for one in self.hosts:
            self._spawn(one)
        await asyncio.sleep(self.random.choice((0.0, 1.0, 5.0)))
        await self._rage()
        self._calm()
        await until_nothing(
            self._wrong, f"After {CALM_SECONDS} s of calm", CALM_SECONDS, every=LOOK_SECONDS
        )
        for _ in range(int(2 * SETTINGS.lease_seconds / LOOK_SECONDS)):
            await asyncio.sleep(LOOK_SECONDS)
            self._undrain()
        if left := self._wrong():
            raise Violation(f"It was calm, all was well, and then: {left}")
        if self.complaints:
            raise Violation(f"A process complained: {self.complaints[:3]}")

    # The nodes

    def _spawn(self, one: MemberHost) -> None:
        if one.process is None or one.process.dead:
            one.ordered = asyncio.Event()
            one.process = one.host.spawn(self._live(one), name=one.host.name)

    async def _live(self, one: MemberHost) -> None:
        """Run the supervisor of one node."""
        loop = asyncio.get_running_loop()
        for port in (PORT, PORT + 1, PORT + 2):
            await loop.create_server(asyncio.Protocol, one.host.address, port)
        while True:
            incarnation = self._incarnation(one)
            agent = incarnation.agent
            if agent is None:
                raise Violation("There is no agent.")
            try:
                await agent.join()
            except (CannotStart, StoreUnavailable):
                incarnation.running = False
                await asyncio.sleep(self.random.random())
                continue
            await self._until_over(one, incarnation, agent)

    async def _until_over(
        self, one: MemberHost, incarnation: Incarnation, agent: MemberAgent
    ) -> None:
        while True:
            waiting = [
                asyncio.ensure_future(agent.dead.wait()),
                asyncio.ensure_future(one.ordered.wait()),
            ]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            if agent.dead.is_set():
                incarnation.running = False
                await agent.close()
                return
            one.ordered.clear()
            if one.order == "undrain":
                await agent.undrain()
                continue
            await agent.leave()
            if one.order == "restart":
                await asyncio.sleep(self.random.random())
                incarnation.running = False
                await agent.gone()
                return

    def _incarnation(self, one: MemberHost) -> Incarnation:
        if one.process is None:
            raise Violation("A node runs without a process.")
        surroundings = one.host.surroundings
        me = ClusterMember(
            id=surroundings.random.randbytes(8).hex(),
            node=one.host.name,
            host=one.host.address,
            port=PORT,
            member_port=MEMBER_PORT,
            shards=2,
            shard_ports=(PORT + 1, PORT + 2),
            state=MemberState.JOINING,
            versions=(4,),
        )
        table = _RecordedTable(
            self.members, self.disk, lost_notification_probability=self.lost_notifications
        )
        incarnation = Incarnation(me, one.process, table)
        incarnation.agent = MemberAgent(
            table=table,
            me=me,
            settings=SETTINGS,
            surroundings=surroundings,
            log=self._log(),
            load=lambda: 0.5,
            spread_batch="0",
            placement="wrap",
            on_view=lambda view: self._adopted(incarnation, view),
            on_lease=lambda until: setattr(incarnation, "lease_until", until),
        )
        one.now = self.incarnations[me.id] = incarnation
        return incarnation

    def _log(self) -> Logger:
        return _MemberErrors(self.complaints)

    # Troubles

    async def _rage(self) -> None:
        troubles: list[Callable[[MemberHost], Awaitable[None]]] = [
            self._kill,
            self._kill,
            self._crash,
            self._partition,
            self._one_way,
            self._pause,
            self._pause,
            self._database,
            self._cut_off,
            self._drain,
            self._restart,
        ]
        allowed = [one for one in troubles if self.random.random() < 0.6] or troubles
        async with asyncio.TaskGroup() as group:

            async def act() -> None:
                group.create_task(
                    _awaited(self.random.choice(allowed)(self.random.choice(self.hosts)))
                )

            await now_and_then(self.random, GAP_SECONDS, STORM_SECONDS, act)

    async def _outage(self) -> None:
        await asyncio.sleep(self.random.random() ** 2 * OUTAGE_SECONDS)

    async def _kill(self, one: MemberHost) -> None:
        self._down(one)
        if one.process is not None:
            one.process.kill()
        await self._outage()
        self._spawn(one)

    async def _crash(self, one: MemberHost) -> None:
        self._down(one)
        one.host.crash()
        await self._outage()
        self._spawn(one)

    def _down(self, one: MemberHost) -> None:
        one.troubled_at = self.world.loop.time()
        if one.now is not None:
            one.now.running = False

    async def _partition(self, one: MemberHost) -> None:
        others = [other.host for other in self.hosts if other is not one]
        some = self.random.sample(others, self.random.randint(1, len(others)))
        self.world.network.partition(one.host, some)
        await self._outage()
        self.world.network.heal()

    async def _one_way(self, one: MemberHost) -> None:
        other = self.random.choice([other for other in self.hosts if other is not one])
        self.world.network.block(one.host, other.host)
        await self._outage()
        self.world.network.heal()

    async def _pause(self, one: MemberHost) -> None:
        process = one.process
        if process is None or process.dead:
            return
        one.troubled_at = self.world.loop.time()
        process.pause()
        await self._outage()
        process.resume()
        one.troubled_at = self.world.loop.time()

    async def _database(self, _: MemberHost) -> None:
        seconds = self.random.random() * OUTAGE_SECONDS
        if self.random.random() < 0.7:
            self.disk.fail_for(seconds)
        else:
            self.disk.slow_for(seconds, self.random.choice((10.0, 100.0)))

    async def _cut_off(self, one: MemberHost) -> None:
        if one.now is not None:
            one.now.table.cut_off(self.random.random() * OUTAGE_SECONDS)

    async def _drain(self, one: MemberHost) -> None:
        one.tell("drain")
        await self._outage()
        one.tell("undrain")

    async def _restart(self, one: MemberHost) -> None:
        one.tell("restart")

    def _calm(self) -> None:
        self.world.calm()
        self.disk.calm()
        lost = self.random.choice((0.0, 0.0, 0.2, 0.7))
        for one in list(self.hosts):
            if self.random.random() < lost and len(self.hosts) > 1:
                self._down(one)  # this machine never comes back
                one.host.crash()
                self.hosts.remove(one)
                continue
            if one.now is not None:
                one.now.table.reconnect()
            if one.process is not None:
                one.process.resume()
            self._spawn(one)
            if one.order == "drain":
                one.tell("undrain")

    # Checks

    def _adopted(self, incarnation: Incarnation, view: ClusterView) -> None:
        before = incarnation.view
        if before is not None and view.version <= before.version:
            self._violated(f"A view went from version {before.version} to {view.version}.")
        if view.members != self.views.get(view.version):
            self._violated(f"A view of version {view.version} is not the table at that version.")
        incarnation.view = view

    def _table_changed(self) -> None:
        members = self.members
        self.views[members.version] = tuple(members.living)
        active = [row.name for row in members.living if row.state is MemberState.ACTIVE]
        if len(set(active)) < len(active):
            self._violated(f"Two active members have one address: {sorted(active)}.")
        for row in members.living:
            if row.id in self._dead:
                self._violated(f"The dead member {row.id} is {row.state.value} again.")
        for death in members.deaths[self._deaths_checked :]:
            self._dead.add(death.member.id)
            if death.cause == "votes":
                self._check_death(death)
        self._deaths_checked = len(members.deaths)

    def _check_death(self, death: SimulatedDeath) -> None:
        """See whether a member that was voted dead may have been."""
        now = self.world.loop.time()
        found = self.incarnations[death.member.id]
        if found.process.dead or not found.running:
            return
        name = f"{death.member.node} ({death.member.state.value})"
        if found.lease_until > now:
            left = found.lease_until - now
            self._violated(f"{name} was declared dead {left:.3f} s before the end of its lease.")
        (host,) = [one for one in self.machines if one.host.name == death.member.node]
        troubled_at = max(host.troubled_at, found.table.troubled_at)
        if not host.paused and now - troubled_at > EXCUSED_SECONDS:
            self._violated(f"{name} was well, and was declared dead.")

    def _violated(self, what: str) -> None:
        self.found.append(Violation(f"{what} (at {self.world.loop.time():.3f} s)"))

    def _undrain(self) -> None:
        """Put draining nodes back, as an operator would: a change of state that was given up after
        its time may still be made, even after later ones."""
        for one in self.hosts:
            row = self.members.rows.get(one.now.me.id) if one.now is not None else None
            if row is not None and row.state is MemberState.DRAINING:
                one.tell("undrain")

    def _wrong(self) -> object:
        """Return what differs between the nodes and the views; nothing if all is well."""
        if self.found:
            raise self.found[0]
        self._undrain()
        running = sorted(
            (one.now.me.id if one.now is not None else "", "active") for one in self.hosts
        )
        for one in self.hosts:
            view = one.now.view if one.now is not None else None
            seen = [(member.id, member.state.value) for member in view.members] if view else []
            if seen != running:
                return f"{one.host.name} sees {seen}, and these run: {running}"
        return None


class _MemberErrors(ErrorLog):
    """Ignores the one error that an agent logs as it should."""

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        if event != "this member is dead and stops":
            super().error(event, **fields)


async def _awaited(trouble: Awaitable[None]) -> None:
    await trouble


async def membership(world: World) -> None:
    """Run the scenario of membership."""
    # A kernel refuses a connection only if no process listens.
    world.network.faults = replace(world.network.faults, refuse_probability=0.0)
    storm = MembershipStorm(world)
    await storm.run()
