"""One run: a real node, real workers and a real client in the simulated world.

Time passes on the network, in the store and in the handlers; computing takes none. So waits are
those of the queue and of every message, and not those of a node that has too few cores.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from maitred.app.app import App
from maitred.errors import MaitredError
from maitred.settings import Node, QuerySettings, Queue, Scaling, WorkerSettings
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.record import ErrorLog
from maitred.simulation.scenarios.simulated_node import PORT, SimulatedNode
from maitred.simulation.store import SimulatedDisk
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.app.handler import Handler
    from maitred.simulation.capacity.settings import CapacitySettings, PlannedWorker
    from maitred.simulation.hosts import Host
    from maitred.simulation.process import Process
    from maitred.simulation.world import World

NAMESPACE: Final = "planning"
QUEUE: Final = "work"
START_SECONDS: Final = 5.0
"""Time for the node to start, and for every worker to connect and to offer its slots."""
LOOK_SECONDS: Final = 1.0
"""How often a run that is about to end looks whether all work is done."""
PATIENCE_SECONDS: Final = 120.0
"""Longest time without any work begun or done before a run gives up what is left: longer than a
lease, and than every retry of the client."""
TOLD_EVERY: Final = 100
"""Arrivals between two reports of progress."""


@dataclass(slots=True)
class Job:
    """One task or query; all times are in seconds since arrivals began."""

    arrived_at: float
    service_seconds: float
    started_at: float | None = None
    """When its handler began for the first time."""
    ended_at: float | None = None
    """When its handler returned; for a query, when the caller had the answer."""
    refusal: str | None = None
    """The code of the error that its caller got."""


@dataclass(slots=True)
class Service:
    """One execution of the handler, which occupies a slot."""

    worker: int
    began_at: float
    ended_at: float | None = None


class CapacityRun:
    """Build it in a world, `run` it there once, and read `jobs` and `services`."""

    def __init__(
        self, world: World, settings: CapacitySettings, progress: Callable[[int], None]
    ) -> None:
        self.settings = settings
        self.jobs: list[Job] = []
        self.services: list[Service] = []
        self._progress = progress
        self._complaints: list[str] = []
        self._log = ErrorLog(self._complaints)
        self._arrivals = world.random("arrivals")
        self._services = world.random("services")
        self._began_at = 0.0
        self._changed_at = 0.0
        self._client_host = world.host("client")
        self._worker_hosts = [
            world.host(f"worker-{number}") for number in range(1, len(settings.workers) + 1)
        ]
        self._processes: list[Process] = []
        self._node = SimulatedNode(
            world.host("node"),
            Node(
                queues={
                    "*": Queue(
                        partitions=settings.partitions,
                        queries=QuerySettings(policy=cast("Any", settings.policy)),
                        scaling=Scaling(adaptive=False),
                    )
                }
            ),
            self._log,
            shards=1,
            random=world.random("node"),
            disk=SimulatedDisk(world.random("disk")),
        )

    async def run(self) -> None:
        """Start node and workers, make every call, and return when the last call has ended."""
        self._node.start()
        self._processes = [
            host.spawn(self._serve(number, host, self.settings.workers[number]))
            for number, host in enumerate(self._worker_hosts)
        ]
        await asyncio.sleep(START_SECONDS)
        await self._client_host.spawn(self._call_all()).wait()
        while self._is_progressing():  # noqa: ASYNC110 - no event tells that it ended
            await asyncio.sleep(LOOK_SECONDS)
        if self._complaints:
            raise Violation(f"A run that should be calm logged: {self._complaints[0]}")

    # The callers

    async def _call_all(self) -> None:
        handler = self._handler(self._client_host, self._unused)
        await handler.app.session()
        loop, settings = asyncio.get_running_loop(), self.settings
        if settings.work == "queries":
            handler = handler.options(timeout=settings.deadline_seconds)
        self._began_at = self._changed_at = loop.time()
        for number, worker in enumerate(settings.workers):
            if worker.lost_after_seconds is not None:
                loop.call_later(worker.lost_after_seconds, self._lose, number)
        calls: dict[asyncio.Task[None], None] = {}
        at = 0.0
        for number in range(settings.count):
            at += self._arrivals.expovariate(settings.rate_per_second)
            job = Job(at, settings.service.draw(self._services))
            self.jobs.append(job)
            await asyncio.sleep(self._began_at + at - loop.time())
            call = loop.create_task(self._call(handler, number, job))
            calls[call] = None
            call.add_done_callback(calls.pop)
            if number % TOLD_EVERY == 0:
                self._progress(number)
        for call in list(calls):
            await call

    async def _call(self, handler: Handler[..., int, object], number: int, job: Job) -> None:
        try:
            if self.settings.work == "tasks":
                await handler.enqueue(number)
            else:
                await handler.query(number)
                job.ended_at = self._now()
        except MaitredError as problem:
            job.refusal = problem.code

    async def _unused(self, number: int) -> int:
        raise NotImplementedError

    # The workers

    async def _serve(self, worker: int, host: Host, planned: PlannedWorker) -> None:
        async def handle(number: int) -> int:
            job = self.jobs[number]
            service = Service(worker, self._now())
            self.services.append(service)
            if job.started_at is None:
                job.started_at = service.began_at
            await asyncio.sleep(job.service_seconds * planned.slowness)
            service.ended_at = self._now()
            if self.settings.work == "tasks":
                job.ended_at = service.ended_at
            return number

        handler = self._handler(host, handle)
        session = await handler.app.session()
        settings = WorkerSettings(
            slots=self.settings.slots, host=host.address, public_without_tls=True
        )
        await Worker(
            session.client,
            [handler],
            settings,
            host.name,
            host.surroundings,
            self._log,
            secret=host.surroundings.random.randbytes(16),
        ).run()

    def _lose(self, number: int) -> None:
        self._processes[number].kill()
        for service in self.services:
            if service.worker == number and service.ended_at is None:
                service.ended_at = self._now()

    def _handler(self, host: Host, handle: Callable[[int], Any]) -> Handler[..., int, object]:
        url = f"maitred://{self._node.host.address}:{PORT}"
        app = App(NAMESPACE, node=url, surroundings=host.surroundings)
        handler: Handler[..., int, object] = app.handler(QUEUE)(handle)
        return handler

    # Time

    def _now(self) -> float:
        self._changed_at = asyncio.get_running_loop().time()
        return self._changed_at - self._began_at

    def _is_progressing(self) -> bool:
        """Whether a task or query has not ended, and one was begun or ended a short time ago."""
        if all(job.ended_at is not None or job.refusal is not None for job in self.jobs):
            return False
        running = any(service.ended_at is None for service in self.services)
        idle_seconds = asyncio.get_running_loop().time() - self._changed_at
        return running or idle_seconds < PATIENCE_SECONDS
