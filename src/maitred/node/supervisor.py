"""The supervisor of a node: reserves directory and ports, and starts, keeps and stops processes.

No request passes through the supervisor. It holds the lock and the ports, which have to outlive a
shard, so that a shard can die and come back at the same ports while the others continue. If the
supervisor itself dies, the shards see the end of their control channels, drain, and end.

The first signal drains; a second one kills every process.
"""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import shutil
import signal
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from maitred.errors import CannotStart, ShardsKeepDying, StoreUnavailable
from maitred.node import exits
from maitred.node.control import done_before
from maitred.node.gateway_keeper import GatewayKeeper, hold_port
from maitred.node.held_ports import HeldPorts, resolve
from maitred.node.identity import data_directory
from maitred.node.keeper import Keeper
from maitred.node.node_membership import (
    MemberDiedError,
    NodeLoad,
    NodeMembership,
    is_clustered,
    refuse_foreign_cluster,
)
from maitred.node.node_monitor import NodeMonitor, monitor_port
from maitred.node.node_reload import NodeReload, SettingsFile
from maitred.node.shard_place import SERVICE, ShardPlace
from maitred.node.source_ports import open_source_port
from maitred.security.exposed_files import warn_of_exposed_files
from maitred.store.sqlite_recovery import prepare
from maitred.surroundings import StopSignals, Surroundings
from maitred.telemetry.start import check as check_telemetry
from maitred.telemetry.start import end_telemetry, export_metrics

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from uuid import UUID

    from maitred.logs import Logger
    from maitred.membership.view import ClusterView
    from maitred.node.control import ClusterNews
    from maitred.node.identity import DataDirectory
    from maitred.node.node_reload import SettingsSource
    from maitred.settings import Node
    from maitred.telemetry.metric_export import MetricExport

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

FILES_BESIDES: Final = 64
"""Generous bound of the files that a shard has open besides its connections."""

REJOIN_SECONDS: Final = 1.0
"""Pause before a node that was declared dead tries again to join while the database is away."""

UNIX_PATH_BYTES: Final = 100
"""Longest path of a Unix socket: 108 on Linux, 104 on macOS, with the zero at its end."""


@dataclass(frozen=True, slots=True)
class StartedNode:
    """A node that is up, as it is announced to the person who started it."""

    node: UUID
    host: str
    port: int
    own_ports: tuple[int, ...]
    source_port: int
    pids: tuple[int, ...]
    data: Path
    http_host: str = ""
    http_port: int = 0
    """Port of the HTTP API; 0 if the node has none, or if its gateway does not reach the node."""
    gateway_pid: int = 0
    monitor_host: str = ""
    monitor_port: int = 0
    """Port of the pages for monitoring; 0 if the node has none."""
    view: ClusterView | None = None
    """The cluster that the node has joined; None without one."""


class TakenPlace(NamedTuple):
    """The directory and the ports that a supervisor holds while its node runs."""

    place: ShardPlace
    data: Path
    lock: int
    """The file descriptor of the directory's lock, which shards inherit."""
    member_port: int
    """The port at which other nodes of the cluster probe this one; 0 without a cluster."""


class Companion(Protocol):
    """Something that runs beside a node while the node is up, such as example workers."""

    async def start(self, running: StartedNode) -> None:
        """Start when the node is up, before the node is announced."""

    async def stop(self) -> None:
        """Stop, before the node does."""

    async def kill(self) -> None:
        """End at once, and wait for the end; `stop` returns, too."""


class Supervisor:
    """One node, from start to stop."""

    def __init__(
        self,
        settings: Node,
        shards: int,
        log: Logger,
        companion: Companion | None = None,
        source: SettingsSource | None = None,
        accepted_losses: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._shards = shards
        self._log = log
        self._companion = companion
        self._accepted_losses = accepted_losses
        self._keepers: list[Keeper] = []
        self._gateway: GatewayKeeper | None = None
        self._membership: NodeMembership | None = None
        self._monitor: NodeMonitor | None = None
        self._exporting: MetricExport | None = None
        file = None if source is None else SettingsFile(settings, source)
        self._settings_path = None if source is None else source.file
        self._reloading = NodeReload(file, self._kept, log)
        self._source_port_sockets: list[socket.socket] = []
        self._signals = StopSignals()
        self._first_signal = asyncio.Event()
        self._second_signal = asyncio.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(map(repr, self._kept()))}>"

    async def run(self, announce: Callable[[StartedNode], None]) -> int:
        """Run the node until it stops; return the exit status, or raise a typed error."""
        check_telemetry(self._settings.telemetry)
        self._handle_signals()
        self._look_at_file_limit()
        try:
            return await self._run(announce)
        finally:
            if self._monitor is not None:
                await self._monitor.close()

    async def _run(self, announce: Callable[[StartedNode], None]) -> int:
        with ExitStack() as held:
            taken = self._take(held)
            await self._open_monitor(taken)
            if not await self._before_signal(self._open_membership(taken)):
                return exits.FINISHED
            place = self._make_keepers(taken)
            if self._settings.gateway.enabled:
                http_port = hold_port(self._settings, self._shards, held)
                self._gateway = GatewayKeeper(
                    place, self._settings, self._log, http_port, self._reloading.wanted
                )
            try:
                if await self._before_signal(self._start(place)):
                    running = self._running(place, taken.data)
                    if self._monitor is not None:
                        self._monitor.phase = "serving"
                    self._log.info("node is up", node=str(place.node), port=place.port)
                    if await self._accompanied(running):
                        announce(running)
                        await self._before_signal(self._keep(taken))
            except ShardsKeepDying:
                await self._stop()
                raise
            except BaseException:
                await self._kill()
                await self._close_membership()
                raise
            return await self._stop()

    # Directory and ports

    def _take(self, held: ExitStack) -> TakenPlace:
        settings, shards = self._settings, self._shards
        data = held.enter_context(data_directory(settings.data))
        self._look_at_files(data)
        if settings.store is None:
            prepare(data.path, self._accepted_losses, self._log)
        endpoints = resolve(settings.host)
        reservation = held.enter_context(HeldPorts(endpoints))
        clustered = is_clustered(settings)
        spare = 2 if clustered else 1 if shards > 1 else 0
        port = reservation.block(settings.port, shards, spare=spare)
        source_port = port + shards + 1
        member_port = source_port + 1 if clustered else 0
        if clustered:
            _hold_member_port(reservation, member_port, settings.host)
        self._source_port_sockets = open_source_port(
            reservation, endpoints, source_port, shards, self._log
        )
        held.callback(self._close_source_port)
        place = ShardPlace(
            node=data.node,
            number=0,
            shards=shards,
            host=settings.host,
            port=port,
            own_ports=tuple(range(port + 1, port + 1 + shards)),
            peer_paths=held.enter_context(peer_paths(shards)),
            source_port=source_port if self._source_port_sockets else 0,
            gateway_secret=secrets.token_hex(32),
        )
        return TakenPlace(place, data.path, data.lock, member_port)

    def _look_at_files(self, data: DataDirectory) -> None:
        """Warn of files that other users of this machine could read or change."""
        for name, mode, done in data.tightened:
            said = "others could use a file; now they cannot" if done else "others can use a file"
            self._log.warning(said, file=str(data.path / name), mode=f"{mode:04o}")
        if data.shared:
            self._log.warning("others can write to the data directory", directory=str(data.path))
        warn_of_exposed_files(self._settings, self._settings_path, self._log)

    def _look_at_file_limit(self) -> None:
        """Warn if the hard limit of open files, to which shards raise theirs, is too low."""
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        connections = self._settings.limits.connections
        if files != resource.RLIM_INFINITY and files < connections + FILES_BESIDES:
            self._log.warning(
                "the system allows a process fewer files than limits.connections needs",
                files=files,
                connections=connections,
            )

    def _close_source_port(self) -> None:
        for one in self._source_port_sockets:
            one.close()
        self._source_port_sockets = []

    def _make_keepers(self, taken: TakenPlace) -> ShardPlace:
        """Make the keepers of the shards, and return the place that their shards share: in a
        cluster that of a new member."""
        sockets = self._source_port_sockets
        place = taken.place
        if self._membership is not None:
            place = self._membership.member_of(place)
        self._keepers = [
            Keeper(
                replace(place, number=number),
                self._settings,
                self._log,
                source_port_socket=sockets[number].fileno() if sockets else None,
                inherited=(taken.lock,),
                reload_wanted=self._reloading.wanted,
            )
            for number in range(self._shards)
        ]
        return place

    def _running(self, place: ShardPlace, data: Path) -> StartedNode:
        gateway = self._gateway
        return StartedNode(
            node=place.node,
            host=place.host,
            port=place.port,
            own_ports=place.own_ports,
            source_port=place.source_port,
            pids=tuple(keeper.pid for keeper in self._keepers),
            data=data,
            http_host=self._settings.gateway.host,
            http_port=gateway.port if gateway is not None and gateway.serves else 0,
            gateway_pid=gateway.pid if gateway is not None else 0,
            monitor_host=self._settings.monitor.host,
            monitor_port=self._monitor.port if self._monitor is not None else 0,
            view=self._membership.view if self._membership is not None else None,
        )

    async def _open_monitor(self, taken: TakenPlace) -> None:
        """Listen for monitoring, from before the shards start until they have stopped, and export
        the same metrics if the settings say so."""
        settings = self._settings
        if not (settings.monitor.enabled or settings.telemetry.metrics):
            return
        node = str(taken.place.node)
        self._monitor = NodeMonitor(
            settings,
            node,
            self._log,
            kept=self._kept,
            shards=lambda: self._keepers,
            view=lambda: None if self._membership is None else self._membership.view,
        )
        if settings.monitor.enabled:
            await self._monitor.open(monitor_port(settings, self._shards))
        self._exporting = export_metrics(
            settings.telemetry, self._log, self._monitor.metrics, service=SERVICE, node=node
        )

    # The cluster

    async def _open_membership(self, taken: TakenPlace) -> None:
        """Connect to the database of the cluster; does nothing for a node without one."""
        settings = self._settings
        if settings.store is None:
            return
        if not is_clustered(settings):
            await refuse_foreign_cluster(settings.store, settings, self._log)
            return
        self._membership = await NodeMembership.open(
            settings.store,
            settings,
            port=taken.place.port,
            member_port=taken.member_port,
            surroundings=Surroundings.real(),
            log=self._log,
            tell=self._tell_shards,
            load=NodeLoad(self._pids, asyncio.get_running_loop().time),
        )

    def _tell_shards(self, news: ClusterNews) -> None:
        for keeper in self._keepers:
            keeper.tell(news)

    def _pids(self) -> list[int]:
        return [keeper.pid for keeper in self._kept() if keeper.pid]

    async def _start_anew(self, taken: TakenPlace) -> None:
        """Kill the shards of a node that was declared dead, and start others as a new member."""
        self._log.error("the other nodes declared this node dead; starting again as a new member")
        await asyncio.gather(*(keeper.kill() for keeper in self._keepers))
        while True:
            place = self._make_keepers(taken)
            try:
                await self._start_shards(place)
            except StoreUnavailable as problem:
                self._log.warning("not in the cluster yet; trying again", error=problem)
                await asyncio.gather(*(keeper.kill() for keeper in self._keepers))
                await asyncio.sleep(REJOIN_SECONDS)
            else:
                self._log.info("node is up again", member=place.member)
                return

    async def _close_membership(self) -> None:
        if self._membership is not None:
            await self._membership.close()

    # Start, keep, stop

    async def _start(self, place: ShardPlace) -> None:
        # The gateway starts at the same time, and finds the shards when they listen.
        gateway = [] if self._gateway is None else [self._gateway.start()]
        await _all(iter((self._start_shards(place), *gateway)))

    async def _start_shards(self, place: ShardPlace) -> None:
        """Start the shards, and join the cluster when all of them listen."""
        # A few at a time: a thousand processes that start together would all be late.
        gate = asyncio.Semaphore(2 * (os.cpu_count() or 1))

        async def start(keeper: Keeper) -> None:
            async with gate:
                await keeper.start()

        await _all(start(keeper) for keeper in self._keepers)
        if self._membership is not None:
            await self._membership.join(place)

    def _kept(self) -> list[Keeper]:
        """The keepers of all processes."""
        return [*self._keepers, *([] if self._gateway is None else [self._gateway])]

    async def _keep(self, taken: TakenPlace) -> None:
        watching = asyncio.create_task(self._reloading.watch())
        gateway = [] if self._gateway is None else [self._gateway.keep()]
        try:
            await _all(iter((self._keep_shards(taken), *gateway)))
        finally:
            watching.cancel()

    async def _keep_shards(self, taken: TakenPlace) -> None:
        while True:
            membership = [] if self._membership is None else [self._membership.watch()]
            try:
                return await _all(iter((*(keeper.keep() for keeper in self._keepers), *membership)))
            except MemberDiedError:
                await self._start_anew(taken)

    async def _accompanied(self, running: StartedNode) -> bool:
        if self._companion is None:
            return True
        return await self._before_signal(self._companion.start(running))

    async def _stop_all(self) -> list[bool]:
        """Export the metrics while all processes are there to tell theirs. Leave the cluster, then
        stop the gateway, then the companion, then the shards that both need."""
        await end_telemetry(None, self._exporting)
        if self._membership is not None:
            await self._membership.leave()
        done = [] if self._gateway is None else [await self._gateway.stop()]
        if self._companion is not None:
            await self._companion.stop()
        return done + await asyncio.gather(*(keeper.stop() for keeper in self._keepers))

    async def _stop(self) -> int:
        bound = self._settings.drain_seconds
        if self._monitor is not None:
            self._monitor.phase = "stopping"
        self._log.info("stopping; finishing requests in flight", drain_seconds=bound)
        # Shards stop listening; open copies of their sockets would let connections wait in vain.
        self._close_source_port()
        stopping = asyncio.create_task(self._stop_all())
        if not await done_before(stopping, self._second_signal):
            self._log.warning("forced to stop at once")
            await self._kill()
            stopping.cancel()
            await asyncio.wait((stopping,))
            await self._close_membership()
            return exits.FORCED + self._signals.counted[1]
        await self._close_membership()
        if not all(stopping.result()):
            self._log.warning("stopped; some work was cut off")
            return exits.CUT_OFF
        self._log.info("stopped; everything is finished")
        return exits.FINISHED

    async def _kill(self) -> None:
        killed = [keeper.kill() for keeper in self._kept()]
        if self._companion is not None:
            killed.append(self._companion.kill())
        await asyncio.gather(*killed)

    # Signals

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            # nohup ignores SIGHUP: such a node survives its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        counted = self._signals.count(number, asyncio.get_running_loop().time())
        if counted:
            (self._first_signal if counted == 1 else self._second_signal).set()

    async def _before_signal(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run this until it ends, and return True; cancel it at the first signal, and return
        False."""
        working = asyncio.create_task(work)
        if await done_before(working, self._first_signal):
            working.result()
            return True
        working.cancel()
        await asyncio.wait((working,))
        return False


async def _all(works: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Run all concurrently; the first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None


def _hold_member_port(reservation: HeldPorts, port: int, host: str) -> None:
    try:
        reservation.hold(port)
    except OSError as problem:
        raise CannotStart(
            f"Port {port} on {host}, at which other nodes of the cluster find this one, cannot be "
            f"used: {problem.strerror or problem}.",
            remedy="Stop the process that has it, or name another port with --port.",
        ) from None


@contextmanager
def peer_paths(shards: int) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the shards' Unix sockets, in a directory that only this user may enter."""
    if shards == 1:
        yield ()
        return
    directory = _private_directory(len(f"/{shards}"))
    try:
        yield tuple(str(directory / str(number)) for number in range(shards))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _private_directory(name_bytes: int) -> Path:
    problem: OSError | None = None
    for parent in (None, "/tmp"):  # noqa: S108 - a TMPDIR may be too long; mkdtemp is safe in both
        try:
            directory = Path(tempfile.mkdtemp(prefix="maitred-", dir=parent))
        except OSError as refused:
            problem = refused
            continue
        if len(os.fsencode(directory)) + name_bytes <= UNIX_PATH_BYTES:
            return directory
        directory.rmdir()
    raise CannotStart(
        "No directory can be made for the sockets through which shards talk"
        + (f": {problem.strerror}." if problem else "."),
        remedy="Set TMPDIR to a directory with a short name in which this user may write.",
    )
