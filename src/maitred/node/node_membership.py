"""The node as a member of its cluster, for as long as its supervisor runs.

A node that was declared dead by the others, because it was frozen or cut off, may not go on: its
partitions have other owners. The supervisor then kills its shards and starts again as a new member.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maitred import __version__
from maitred.errors import CannotStart, MaitredError
from maitred.membership.view import ClusterMember, MemberState
from maitred.node.control import TakeView, TrustLease
from maitred.node.member_agent import MemberAgent
from maitred.node.shard import spread_batch_text
from maitred.protocol.description import VERSIONS
from maitred.security.announced_address import announced
from maitred.security.tls import DiallerTls, ListenerTls, client_context
from maitred.store.engines import open_membership

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.logs import Logger
    from maitred.membership.table import MembershipTable
    from maitred.membership.view import ClusterView
    from maitred.node.control import ClusterNews
    from maitred.node.shard_place import ShardPlace
    from maitred.settings import Node
    from maitred.surroundings import Surroundings

ID_BYTES: Final = 8
ALIVE_SECONDS: Final = 60.0
"""A member whose last heartbeat is older than this does not use the database any more."""

FILES_SECONDS: Final = 1.0
"""Interval at which the supervisor looks whether its certificate has changed."""

LEAVE_SECONDS: Final = 5.0
"""How long a stopping node tries to tell the others that it leaves. If the database is away, the
others notice the closed port instead."""


def is_clustered(settings: Node) -> bool:
    """Return whether the node belongs to the cluster of its database."""
    return settings.store is not None and settings.cluster.enabled


async def refuse_foreign_cluster(location: str, settings: Node, log: Logger) -> None:
    """Raise `CannotStart` if nodes of a cluster use the database of a node that belongs to none:
    they would take each other's partitions."""
    table = await open_membership(location, settings.cluster.name, log)
    try:
        members = await table.describe()
    finally:
        await table.close()
    alive = [
        one.address
        for one in members
        if one.state is not MemberState.DEAD and one.silent_seconds < ALIVE_SECONDS
    ]
    if alive:
        raise CannotStart(
            f"The nodes {', '.join(alive)} of the cluster {settings.cluster.name} use this "
            "database, and cluster.enabled is false for this node.",
            remedy="Remove cluster.enabled = false to join them, or give this node a database of "
            "its own.",
        )


class MemberDiedError(Exception):
    """The others declared this node dead; the supervisor starts it again as a new member."""


class NodeMembership:
    """Joins the cluster, follows its views, and leaves."""

    def __init__(
        self,
        *,
        open_table: Callable[[], Awaitable[MembershipTable]],
        secret: bytes,
        settings: Node,
        announced: tuple[str, int],
        member_port: int,
        surroundings: Surroundings,
        log: Logger,
        tell: Callable[[ClusterNews], None],
        load: Callable[[], float],
    ) -> None:
        """`open_table` opens the membership table for each member that the node becomes. `tell` is
        called with news for the shards."""
        self._open_table = open_table
        self._secret = secret
        self._settings = settings
        self._announced = announced
        self._member_port = member_port
        self._surroundings = surroundings
        self._log = log
        self._tell = tell
        self._load = load
        self._agent: MemberAgent | None = None
        self.view: ClusterView | None = None
        """The newest view; None before the node has joined."""
        tls = settings.tls
        self._listening = None if tls is None else ListenerTls(tls)
        self._dialling = None if tls is None else node_tls(settings, log)

    @classmethod
    async def open(
        cls,
        location: str,
        settings: Node,
        *,
        port: int,
        member_port: int,
        surroundings: Surroundings,
        log: Logger,
        tell: Callable[[ClusterNews], None],
        load: Callable[[], float],
    ) -> NodeMembership:
        """Connect to the database and read the cluster's secret; raise why it cannot be done."""

        async def open_table() -> MembershipTable:
            return await open_membership(location, settings.cluster.name, log)

        table = await open_table()
        try:
            secret = await table.secret()
        finally:
            await table.close()
        return cls(
            open_table=open_table,
            secret=secret,
            settings=settings,
            announced=announced(settings, port),
            member_port=member_port,
            surroundings=surroundings,
            log=log,
            tell=tell,
            load=load,
        )

    def member_of(self, place: ShardPlace) -> ShardPlace:
        """Return the place with a new member id, as which the node joins next."""
        member = self._surroundings.secret(ID_BYTES).hex()
        return replace(place, member=member, cluster_secret=self._secret.hex())

    async def join(self, place: ShardPlace) -> ClusterView:
        """Join the cluster as the member of this place; raise `CannotStart` if it is refused."""
        host, port = self._announced
        me = ClusterMember(
            id=place.member,
            node=str(place.node),
            host=host,
            port=port,
            member_port=self._member_port,
            shards=place.shards,
            shard_ports=place.own_ports,
            state=MemberState.JOINING,
            release=__version__,
            versions=VERSIONS,
        )
        settings = self._settings
        self._agent = MemberAgent(
            table=await self._open_table(),
            me=me,
            listen_host=settings.host,
            settings=settings.cluster,
            surroundings=self._surroundings,
            log=self._log,
            load=self._load,
            spread_batch=spread_batch_text(settings.spread_batch),
            placement=settings.placement,
            on_view=self._has_view,
            on_lease=self._has_lease,
            listen_tls=None if self._listening is None else self._listening.listening,
            dial_tls=self._dialling,
        )
        return await self._agent.join()

    def _has_view(self, view: ClusterView) -> None:
        self.view = view
        self._tell(TakeView(view))

    def _has_lease(self, until: float) -> None:
        ahead = 0.0 if self._agent is None else self._agent.clock.ahead_seconds
        self._tell(TrustLease(until, ahead))

    async def watch(self) -> None:
        """Wait until the others declare this node dead; then raise `MemberDiedError`. Use the new
        certificate meanwhile when its files change."""
        if self._agent is None:
            return
        while not self._agent.dead.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FILES_SECONDS):
                    await self._agent.dead.wait()
            self._look_at_certificate()
        await self._agent.close()
        raise MemberDiedError

    def _look_at_certificate(self) -> None:
        listening = self._listening
        if listening is None or not listening.has_changed():
            return
        try:
            listening.reload()
        except MaitredError as problem:
            self._log.error("certificate not read again; the old state stays", error=problem)
        else:
            self._log.info("certificate for other nodes read again")

    @property
    def is_alone(self) -> bool:
        """Whether no other member could take over the node's partitions."""
        return self.view is None or len(self.view.active) <= 1

    async def leave(self) -> None:
        """Leave the ring, and give the others time to take over the node's partitions; late
        requests are forwarded meanwhile."""
        if self._agent is None or self.is_alone:
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._agent.leave()
        except (MaitredError, TimeoutError) as problem:
            self._log.warning("the cluster could not be told that this node leaves", error=problem)
            return
        await asyncio.sleep(self._settings.cluster.forward_seconds)

    async def close(self) -> None:
        """Tell the others that this node is gone, if they can be told, and disconnect."""
        if self._agent is not None:
            await self._agent.gone()


def node_tls(settings: Node, log: Logger) -> DiallerTls | None:
    """Return the TLS of connections to other nodes, which verifies them by the authorities of the
    cluster; None without TLS. On loopback there may be no authorities: the certificates are not
    verified then, and both ends prove that they know the cluster's secret, as everywhere."""
    tls, authorities = settings.tls, settings.cluster.authorities
    if tls is None:
        return None

    def make() -> ssl.SSLContext:
        context = client_context(authorities or tls.certificate, tls.certificate, tls.key)
        if authorities is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def tell(problem: MaitredError) -> None:
        log.error("certificate not read again; the old state stays", error=problem)

    files = (authorities, tls.certificate, tls.key)
    return DiallerTls(make, files, tell)


class NodeLoad:
    """The CPU time of a node's processes, as a share of one core."""

    def __init__(self, pids: Callable[[], list[int]], clock: Callable[[], float]) -> None:
        self._pids = pids
        self._clock = clock
        self._seen_at = clock()
        self._seen: dict[int, float] = {}

    def __call__(self) -> float:
        """Return the load since the last call: 1 is a full core; 0 where the system does not
        tell."""
        now = self._clock()
        seconds, self._seen_at = now - self._seen_at, now
        before, self._seen = self._seen, {pid: _cpu_seconds(pid) for pid in self._pids()}
        used = sum(cpu - before[pid] for pid, cpu in self._seen.items() if pid in before)
        return round(max(0.0, used) / seconds, 3) if seconds > 0 else 0.0


TICKS_PER_SECOND: Final = 100
"""The unit of CPU times in /proc on every Linux of today."""


def _cpu_seconds(pid: int) -> float:
    try:
        # The process's name, in parentheses, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    except (OSError, IndexError, ValueError):
        return 0.0
