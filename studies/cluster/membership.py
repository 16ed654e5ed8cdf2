"""Runs the real member agents of all nodes of a cluster on simulated hosts, with one simulated
membership table, and counts.

The members of a run are in the table from the beginning, as active ones: joining one after another
would take hundreds of virtual seconds, and is measured with one node. The agents begin at random
moments within a second, so that their heartbeats are spread over the second. Then nodes are
killed, frozen, drained and started again, each when the view of the change before is everywhere.

The table takes 0.1 to 2 ms each way, however many calls there are at once: a real database is
slower under load. Rows are counted as the statements of `store/sql/postgres` touch them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import process_time
from typing import TYPE_CHECKING, Final

from msgspec import json

from maitred.errors import MaitredError
from maitred.membership.view import ClusterMember, MemberState
from maitred.node.member_agent import MemberAgent
from maitred.settings import ClusterSettings
from maitred.simulation.errors import Violation
from maitred.simulation.member_table import SimulatedMembers, SimulatedMemberTable
from maitred.simulation.scenarios.record import ErrorLog
from maitred.simulation.store import SimulatedDisk
from maitred.simulation.trace import Trace
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.membership.table import Beats, TableState
    from maitred.membership.view import ClusterView
    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process
    from studies.cluster.settings import ClusterStudySettings

PORT: Final = 4_747
MEMBER_PORT: Final = 4_746
CLUSTER: Final = ClusterSettings()
SETTLE_SECONDS: Final = 1.5
"""Until all agents have begun and all links are open."""
CHANGE_SECONDS: Final = 40.0
"""The longest time for which a change is waited for."""
LOOK_SECONDS: Final = 0.01
"""Interval at which the study looks whether a view is everywhere. The times themselves come from
the agents."""


class Violated(Violation):
    """A change of the study did not reach all nodes, or an agent complained."""


@dataclass(slots=True)
class TableLoad:
    """What membership asks of the database."""

    beats: int = 0
    reads: int = 0
    votes: int = 0
    changes: int = 0
    """Statements of each kind."""
    rows_read: int = 0
    rows_written: int = 0

    @property
    def statements(self) -> int:
        return self.beats + self.reads + self.votes + self.changes

    def since(self, earlier: TableLoad) -> TableLoad:
        """Return the difference."""
        return TableLoad(*(getattr(self, name) - getattr(earlier, name) for name in self.__slots__))

    def copy(self) -> TableLoad:
        return self.since(TableLoad())


class _CountedTable(SimulatedMemberTable):
    """Counts statements and rows."""

    def __init__(
        self, members: SimulatedMembers, disk: SimulatedDisk, load: TableLoad, join_at: float
    ) -> None:
        super().__init__(members, disk)
        self._load = load
        self._join_at = join_at

    async def join(self, member: ClusterMember, spread_batch: str, placement: str) -> TableState:
        await asyncio.sleep(self._join_at - asyncio.get_running_loop().time())
        return self._changed(await super().join(member, spread_batch, placement))

    async def beat(self, id_: str, load: float, clock_ahead_seconds: float | None = None) -> Beats:
        beats = await super().beat(id_, load, clock_ahead_seconds)
        self._load.beats += 1
        self._load.rows_written += 1
        self._load.rows_read += len(beats.beats)
        return beats

    async def read(self) -> TableState:
        state = await super().read()
        self._load.reads += 1
        self._load.rows_read += len(state.beats) + len(state.votes)
        return state

    async def change(self, id_: str, before: MemberState, after: MemberState) -> TableState:
        return self._changed(await super().change(id_, before, after))

    async def accuse(
        self, accuser: str, accused: str, *, beat: int, version: int, needed: int
    ) -> TableState:
        deaths = len(self.members.deaths)
        state = await super().accuse(accuser, accused, beat=beat, version=version, needed=needed)
        self._load.votes += 1
        self._load.rows_read += len(state.beats) + len(state.votes)
        # The vote; if it was the last one, the member and the version too.
        self._load.rows_written += 3 if len(self.members.deaths) > deaths else 1
        return state

    def _changed(self, state: TableState) -> TableState:
        self._load.changes += 1
        self._load.rows_written += 2  # the member and the version
        self._load.rows_read += len(state.beats) + len(state.votes)
        return state


class _CountingTrace(Trace):
    """Counts the messages and bytes between supervisors; a message is a line."""

    __slots__ = ("bytes", "messages")

    def __init__(self, world: World) -> None:
        super().__init__(world.loop)
        self.messages = self.bytes = 0

    def note(self, what: bytes, number: int, extra: int = 0) -> None:
        lines = what.count(b"\n")
        if lines:
            self.messages += lines
            self.bytes += len(what)
        super().note(what, number, extra)


@dataclass(eq=False)
class _Node:
    host: Host
    me: ClusterMember
    process: Process | None = None
    agent: MemberAgent | None = None
    drain: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[tuple[float, ClusterView]] = field(default_factory=list)
    """The views that it adopted, with their times."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one node."""

    kind: str
    """`killed`, `joined`, `frozen` or `drained`."""
    decided_seconds: float
    """From the event to the change in the table."""
    everywhere_seconds: float
    """From the event until the last node has the view."""
    votes: int
    """Votes that were sent to the table."""
    statements: int
    rows_read: int
    """What the table was asked from the event until the view was everywhere."""
    messages: int
    """Messages between supervisors in the same time."""

    @property
    def spread_seconds(self) -> float:
        """From the change in the table until the last node has the view."""
        return self.everywhere_seconds - self.decided_seconds


@dataclass(frozen=True, slots=True)
class MembershipRun:
    """What one run measured; rates are per virtual second, of the whole cluster."""

    nodes: int
    seed: int
    statements: float
    commits: float
    rows_read: float
    rows_written: float
    messages: float
    message_bytes: float
    links: float
    """Links that a node opened, mean over the nodes."""
    beat_bytes: int
    """The counters in the answer to one heartbeat."""
    changes: tuple[Change, ...]
    cpu_share: float
    """Processor seconds of this program for one virtual second of one node: the agent and its share
    of the simulation. Measured on the machine that ran the study."""


def membership_run(settings: ClusterStudySettings, nodes: int, seed: int) -> MembershipRun:
    """Simulate one cluster."""
    with World(seed) as world:
        return world.run(_Simulated(world, settings, nodes).run())


class _Simulated:
    """One cluster in its world."""

    def __init__(self, world: World, settings: ClusterStudySettings, nodes: int) -> None:
        self.world = world
        self.settings = settings
        self.trace = _CountingTrace(world)
        world.network.trace = self.trace
        self.load = TableLoad()
        self.disk = SimulatedDisk(world.random("disk"))
        self.members = SimulatedMembers(CLUSTER.name, world.random("members"))
        self.members.version = 1
        self.complaints: list[str] = []
        self.changed_at: dict[int, float] = {}
        """When the table got each version."""
        self.members.on_change.append(self._changed)
        self.random = world.random("study")
        hosts = [world.host(f"node-{number}") for number in range(nodes)]
        self.nodes = [_Node(host, self._member(host)) for host in hosts]
        for one in self.nodes:
            self.members.rows[one.me.id] = one.me
            self.members.beats[one.me.id] = 0

    async def run(self) -> MembershipRun:
        for one in self.nodes:
            self._spawn(one, 0.1 + self.random.random() * CLUSTER.beat_seconds)
        await asyncio.sleep(SETTLE_SECONDS)
        before, messages, sent = self.load.copy(), self.trace.messages, self.trace.bytes
        cpu = process_time()
        seconds = self.settings.steady_seconds
        await asyncio.sleep(seconds)
        cpu = process_time() - cpu
        steady = self.load.since(before)
        messages, sent = self.trace.messages - messages, self.trace.bytes - sent
        links = len(self.world.network.connections)
        changes = await self._changes()
        if self.complaints:
            raise Violated(f"An agent complained: {self.complaints[:3]}")
        count = len(self.nodes)
        return MembershipRun(
            nodes=count,
            seed=self.world.seed,
            statements=steady.statements / seconds,
            commits=steady.beats / seconds,
            rows_read=steady.rows_read / seconds,
            rows_written=steady.rows_written / seconds,
            messages=messages / seconds,
            message_bytes=sent / seconds,
            links=links / count,
            beat_bytes=len(json.encode({one.me.id: 1_000_000 for one in self.nodes})),
            changes=changes,
            cpu_share=cpu / seconds / count,
        )

    # Changes

    async def _changes(self) -> tuple[Change, ...]:
        acts = {"killed": self._kill, "frozen": self._freeze, "drained": self._drain}
        others = self.random.sample(self.nodes, len(self.nodes))
        node = others[0]
        found = []
        for kind in self.settings.changes:
            if kind == "joined":
                found.append(await self._change(kind, node, self._start_again))
            else:
                node = others.pop()
                found.append(await self._change(kind, node, acts[kind]))
        return tuple(found)

    async def _change(self, kind: str, node: _Node, act: Callable[[_Node], None]) -> Change:
        """Make the change, and wait until its view is everywhere."""
        loop = self.world.loop
        began, load, messages = loop.time(), self.load.copy(), self.trace.messages
        act(node)
        wanted = MemberState.ACTIVE if kind == "joined" else None
        version, everywhere = 0, 0.0
        while not everywhere:
            if loop.time() > began + CHANGE_SECONDS:
                raise Violated(f"{node.host.name} was {kind}, and the view is not everywhere.")
            await asyncio.sleep(LOOK_SECONDS)
            version = version or self._version(node, wanted)
            if version:
                everywhere = self._everywhere(version)
        during = self.load.since(load)
        return Change(
            kind=kind,
            decided_seconds=self.changed_at[version] - began,
            everywhere_seconds=everywhere - began,
            votes=during.votes,
            statements=during.statements,
            rows_read=during.rows_read,
            messages=self.trace.messages - messages,
        )

    def _version(self, node: _Node, wanted: MemberState | None) -> int:
        """Return the version at which the member has the wanted state, or is no longer active; 0 if
        the table is not there yet. It is looked at often enough to find the version that did it."""
        state = self.members.rows.get(node.me.id, node.me).state
        if wanted is None:
            return self.members.version if state is not MemberState.ACTIVE else 0
        is_there = node.me.id in self.members.rows and state is wanted
        return self.members.version if is_there else 0

    def _everywhere(self, version: int) -> float:
        """Return when the last node that runs got the version or a later one; 0 if one has not."""
        last = 0.0
        for one in self.nodes:
            if one.process is None or one.process.halted:
                continue
            at = next((at for at, view in one.seen if view.version >= version), None)
            if at is None:
                return 0.0
            last = max(last, at)
        return last

    def _kill(self, node: _Node) -> None:
        if node.process is not None:
            node.process.kill()

    def _freeze(self, node: _Node) -> None:
        if node.process is not None:
            node.process.pause()

    def _drain(self, node: _Node) -> None:
        node.drain.set()

    def _start_again(self, node: _Node) -> None:
        self._kill(node)
        node.me = self._member(node.host)
        node.seen = []
        self._spawn(node, 0.0)

    def _changed(self) -> None:
        self.changed_at[self.members.version] = self.world.loop.time()

    # Nodes

    def _member(self, host: Host) -> ClusterMember:
        random, shards = host.surroundings.random, self.settings.shards
        return ClusterMember(
            id=random.randbytes(8).hex(),
            node=host.name,
            host=host.address,
            port=PORT,
            member_port=MEMBER_PORT,
            shards=shards,
            shard_ports=tuple(PORT + 1 + number for number in range(shards)),
            state=MemberState.ACTIVE,
            versions=(4,),
        )

    def _spawn(self, node: _Node, join_at: float) -> None:
        node.drain = asyncio.Event()
        node.process = node.host.spawn(self._live(node, join_at), name=node.host.name)

    async def _live(self, node: _Node, join_at: float) -> None:
        """Run the supervisor of one node, as far as membership is concerned."""
        loop = asyncio.get_running_loop()
        for port in (PORT, *node.me.shard_ports):
            await loop.create_server(asyncio.Protocol, node.host.address, port)

        def adopted(view: ClusterView) -> None:
            node.seen.append((loop.time(), view))

        agent = MemberAgent(
            table=_CountedTable(self.members, self.disk, self.load, join_at),
            me=node.me,
            settings=CLUSTER,
            surroundings=node.host.surroundings,
            log=ErrorLog(self.complaints),
            load=_half_loaded,
            spread_batch="0",
            placement="wrap",
            on_view=adopted,
            on_lease=_ignore_lease,
        )
        try:
            await agent.join()
        except MaitredError as problem:
            self.complaints.append(str(problem))
            raise
        await node.drain.wait()
        await agent.leave()
        await asyncio.Event().wait()


def _half_loaded() -> float:
    return 0.5


def _ignore_lease(_until: float) -> None:
    """Ignore the lease: the nodes of the study have no shards."""
