"""The users of simulated nodes: a host, its processes, and the app of each process.

Each process has an app of its own, since processes share nothing.
"""

from __future__ import annotations

import asyncio
import traceback
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from maitred.app.app import App
from maitred.errors import MaitredError
from maitred.simulation.errors import ProcessKilled, Violation
from maitred.simulation.hosts import Host
from maitred.simulation.process import current_process
from maitred.simulation.scenarios.simulated_node import PORT
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from maitred.client.client import AsyncClient
    from maitred.settings import WorkerSettings
    from maitred.simulation.process import Process
    from maitred.simulation.scenarios.record import ScenarioRecord

NodeHosts: TypeAlias = "Host | Sequence[Host]"
"""The host of the node that users are given the address of, or the hosts of several nodes."""

CLIENT: Final = (
    "connect_seconds=1&heartbeat_seconds=2&heartbeat_timeout_seconds=2&timeout_seconds=4"
    "&backoff_longest_seconds=0.5&port_blocked_seconds=2"
)


class Guest:
    """A host whose processes have apps."""

    cut_seconds: float | None = None
    """Mean time between two resets of one of its connections; None for no resets."""

    def __init__(self, host: Host, node: NodeHosts) -> None:
        self.host = host
        self.random = host.surroundings.random
        self.nodes = [node] if isinstance(node, Host) else list(node)
        """The hosts of the nodes that new processes are given the addresses of."""

    def app_of(self, namespace: str) -> App:
        """Return a new app for a new process."""
        addresses = ",".join(f"{node.address}:{PORT}" for node in self.nodes)
        url = f"maitred://{addresses}?{CLIENT}"
        return App(namespace, node=url, surroundings=self.host.surroundings)

    async def connected(self, app: App) -> AsyncClient:
        """Return the app's client as soon as it has connected to a node."""
        while True:
            with suppress(MaitredError):
                return (await app.session()).client
            await asyncio.sleep(0.2)

    async def leave(self, app: App) -> None:
        """Close the app; raise `Violation` if its client met an answer that made no sense."""
        client = (await app.session()).client
        violations = client.statistics().violations
        await app.close()
        if violations:
            raise Violation(f"{self.host.name} met {violations} answers that made no sense.")

    @asynccontextmanager
    async def cut_now_and_then(self) -> AsyncIterator[None]:
        """Reset connections of the current process at random for as long as the block runs, unless
        `cut_seconds` is None."""
        cutting = None
        if self.cut_seconds is not None:
            cutting = asyncio.ensure_future(self._cut())
        yield
        if cutting is not None:
            cutting.cancel()

    async def _cut(self) -> None:
        while (seconds := self.cut_seconds) is not None:
            await asyncio.sleep(self.random.expovariate(1 / seconds))
            transports = list(current_process().transports)
            if transports and self.cut_seconds is not None:
                self.random.choice(transports).abort()


class KeptGuest(Guest):
    """A host with one process, which is started again whenever it ends."""

    skew_seconds = 0.0
    """The most that the host's clock is wrong, either way; drawn anew for each life."""

    def __init__(self, host: Host, node: NodeHosts, record: ScenarioRecord) -> None:
        super().__init__(host, node)
        self.lives = 0
        self.wanted = True
        self._record = record
        self._clocks = host.network.random(f"clock/{host.name}")
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the process, and start it again whenever it ends."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        if self._process is not None:
            self._process.kill()

    async def ended(self) -> None:
        """Stop the process for good, and wait until it has ended."""
        self.wanted = False
        self.stop()
        if self._keeper is not None:
            await self._keeper

    def stop(self) -> None:
        """Stop the process in order, as SIGTERM does."""
        raise NotImplementedError

    def gone(self, name: str) -> None:
        """Record that the process with that name has ended."""
        raise NotImplementedError

    async def main(self, name: str) -> None:
        """Run the process; a subclass implements it."""
        raise NotImplementedError

    async def _keep(self) -> None:
        while self.wanted:
            self.lives += 1
            if self.skew_seconds:
                skew = self._clocks.uniform(-self.skew_seconds, self.skew_seconds)
                self.host.clock_skew_seconds = skew
            name = f"{self.host.name} life {self.lives}"
            self._process = self.host.spawn(self.main(name), name=name)
            try:
                await self._process.wait()
            except ProcessKilled:
                pass
            except Exception as problem:  # noqa: BLE001 - the keeper is awaited only at the end
                text = "".join(traceback.format_exception(problem))
                self._record.complaints.append(f"{name} failed: {text}")
                return
            self.gone(name)
            if self.wanted:
                await asyncio.sleep(self.random.random())


class WorkerGuest(KeptGuest):
    """A host that runs a worker."""

    def __init__(self, host: Host, node: NodeHosts, record: ScenarioRecord, *, slots: int) -> None:
        super().__init__(host, node, record)
        self.slots = slots
        self.worker: Worker | None = None

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()

    def gone(self, name: str) -> None:  # noqa: ARG002 - subclasses record it
        self.worker = None

    async def serve(
        self,
        app: App,
        client: AsyncClient,
        settings: WorkerSettings,
        *,
        name: str,
        secret: bytes,
    ) -> None:
        """Run a worker for the app's handlers until it is stopped, then close the app."""
        worker = Worker(
            client,
            list(app.handlers.values()),
            settings,
            name,
            self.host.surroundings,
            self._record.log(),
            secret=secret,
        )
        async with self.cut_now_and_then():
            self.worker = worker
            if not self.wanted:
                worker.stop()
            await worker.run()
        await self.leave(app)
