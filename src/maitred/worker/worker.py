"""A worker: offers its free slots, runs the tasks and queries that it gets, and reports their ends.

Its free slots are always on offer, and it never runs more than it has slots; slots that become free
in one turn of the loop are offered again at the end of the turn. A worker that is told to stop
takes its offers back, returns tasks that arrive all the same, finishes what runs, and ends when the
node has confirmed all ends: no task is lost, and none is repeated.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from maitred.client.queues import QueueView
from maitred.errors import (
    Cancelled,
    ConnectionLost,
    CutOff,
    DeadlineExceeded,
    MaitredError,
    ProtocolViolation,
)
from maitred.protocol.sessions import SESSION_BYTES
from maitred.protocol.tasks import Offer, Offered
from maitred.wire.alarm import Alarm
from maitred.worker.attendance import AttendanceSender
from maitred.worker.block_reports import BlockReports
from maitred.worker.capacity import Capacity
from maitred.worker.completions import CompletionReports
from maitred.worker.context import WorkerContext
from maitred.worker.heartbeats import HeartbeatSender
from maitred.worker.lifecycle import OFFLINE, STOPPED, WorkerEvent
from maitred.worker.pulse import Pulse
from maitred.worker.query_listener import QueryListener
from maitred.worker.served import Served
from maitred.worker.shared_offers import SharedOffers
from maitred.worker.slots import WorkerSlots
from maitred.worker.standby import StandbyHeartbeats
from maitred.worker.supply import spread, to_offer, worth_it
from maitred.worker.worker_queries import WorkerQueries

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from maitred.app.handler import Handler
    from maitred.client.call import CallConnection
    from maitred.client.client import AsyncClient
    from maitred.client.long_poll import LongPoll
    from maitred.logs import Logger
    from maitred.settings import WorkerSettings
    from maitred.surroundings import Surroundings
    from maitred.worker.execution import Execution, Origin
    from maitred.worker.query import Query
    from maitred.worker.standby import Connecting

LAST_WORDS_SECONDS: Final = 5.0
"""Least time that a drain leaves for reporting the last ends to the node."""

HASTY_SECONDS: Final = 0.1
"""Least time between two offers that the node answers without a task. Usually such an offer waits
there for longer; a node that is stopping answers at once."""


class Worker:
    """Serves handlers through one client. Make it on the running loop, then await `run`."""

    def __init__(
        self,
        client: AsyncClient,
        handlers: Sequence[Handler[Any, Any, Any]],
        settings: WorkerSettings,
        name: str,
        surroundings: Surroundings,
        log: Logger,
        secret: bytes | None = None,
        connecting: Connecting | None = None,
        monitor_url: str = "",
    ) -> None:
        """`connecting` opens another connection to the node, from another thread; with it, leases
        are renewed while a handler blocks the loop. Simulated workers have none. `monitor_url` is
        where the process that the worker runs in is monitored, for the log."""
        self._monitor_url = monitor_url
        self._loop = asyncio.get_running_loop()
        self._pulse = Pulse(self._loop, monotonic if connecting else None)
        self._context = context = WorkerContext(
            client=client,
            settings=settings,
            name=name,
            secret=secret or os.urandom(SESSION_BYTES),
            random=surroundings.random,
            log=log,
            tracing=surroundings.tracing,
        )
        self._client = client
        self._settings = settings
        self._name = name
        self._log = log
        self._session = context.session
        self._outage = context.outage
        self.statistics = context.statistics
        self.lifecycle = context.lifecycle
        self._completions = CompletionReports(context)
        self.capacity = Capacity(
            settings, self.statistics, self._slot_freed, log, surroundings.cpu_times
        )
        sizes = (node.payload_bytes for node in client.nodes() if node.node)
        self._slots = WorkerSlots(
            context,
            self._completions,
            self.capacity,
            most_bytes=min(sizes, default=2**31),
            freed=self._slot_freed,
            clock=self._pulse.time,
        )
        self._served = [
            Served(
                handler,
                QueueView(handler.id, handler.selection, surroundings.random),
                self._slots.most_bytes,
            )
            for handler in handlers
        ]
        self._heartbeats = HeartbeatSender(context, self._slots, self._origins)
        self.querying = WorkerQueries(
            context,
            self._slots,
            self._pulse,
            surroundings.secret,
            judged=self._judged,
            freed=self._slot_freed,
        )
        self._attending = AttendanceSender(
            context,
            self.capacity,
            ordered=self._supply,
            passes=self.querying.passes,
            welcomed=self._welcomed,
            compared=self._judged,
            counts_changed=self._counts_changed,
        )
        self._shared: SharedOffers | None = None
        """None for a worker with one queue: its slots need not be shared."""
        self._held_back: list[Served] = []
        """Queues that are offered few slots of their own, and no shared ones."""
        if len(self._served) > 1:
            self._shared = SharedOffers(
                context,
                self._served,
                free=lambda: self._slots.free,
                take=self._take,
                freed=self._slot_freed,
                spawn=self._spawn,
                rest=self._rest,
                connection_lost=self._connection_lost,
            )
        self._pauses = Alarm(self._loop, self._pause_is_over)
        self._listener = QueryListener(
            context, self.querying, surroundings.secret, self._certificate_read
        )
        self._standby: StandbyHeartbeats | None = None
        if connecting is not None:
            self._standby = StandbyHeartbeats(
                context=context,
                connecting=connecting,
                pulse=self._pulse,
                origins=self._origins,
                lost=self._slots.lost,
                reports=BlockReports(self.statistics, log, self._attempts, self._pulse.time),
            )
        self.ready = asyncio.Event()
        """Set once the root of every queue knows the worker."""
        self._offering: dict[asyncio.Task[None], None] = {}
        """The tasks of all offers, in order: a simulated run must replay."""
        self._stopping = asyncio.Event()
        """Set when the worker is told to stop, for coroutines that wait for that."""
        self._rests_end = asyncio.Event()
        """Set when the worker is told to stop, and when partitions may have other owners: offers
        that failed are made again."""
        self._unfollow: Callable[[], None] | None = None
        self._unfollow_losses: Callable[[], None] | None = None
        self._quiet: asyncio.Event = asyncio.Event()
        """Set whenever a slot becomes free, for the drain, which waits for all of them."""

    def __repr__(self) -> str:
        counts = self.statistics
        phase = self.lifecycle.phase.value
        return f"<Worker {self._name} {phase}, {counts.busy} of {counts.slots} slots busy>"

    @property
    def address(self) -> str:
        """Where gateways reach the worker, as it is announced; empty: nowhere, or not yet."""
        return self._context.address

    @property
    def served(self) -> list[Served]:
        """The queues that the worker serves."""
        return self._served

    @property
    def is_connected(self) -> bool:
        """Whether the worker has a connection to any node; may be asked from another thread."""
        return self._client.is_connected

    def _certificate_read(self, problem: MaitredError | None) -> None:
        """Announce the listener's new certificate, or log why the old one stays."""
        if problem is not None:
            self._log.error("certificate not read again; the old state stays", error=problem)
            return
        self._log.info("certificate read again")
        self._context.address = self._listener.address
        self._attending.tell_all()

    async def run(self) -> bool:
        """Serve until `stop` is called, then drain; return False if handlers had to be left running
        or ends unreported. Cancelling the call stops the worker at once, without a drain."""
        self.lifecycle.happen(WorkerEvent.START)
        try:
            await self._listener.open(encrypted=self._client.encrypted)
            self._start()
            await self._stopping.wait()
            return await self._drain()
        finally:
            self.lifecycle.happen(WorkerEvent.END)
            await self._close()

    async def _close(self) -> None:
        """Stop all parts, and the handlers that still run: `run` has ended, with or without a
        drain."""
        if self._unfollow is not None:
            self._unfollow()
        if self._unfollow_losses is not None:
            self._unfollow_losses()
        for offer in self._offering:
            offer.cancel()
        for origin in self._origins():
            for execution in list(origin.running.values()):
                execution.lose()
        self._completions.stop()
        if self._standby is not None:
            await self._standby.stop()
        if self._shared is not None:
            self._shared.stop()
        for part in (
            self._pulse,
            self._heartbeats,
            self._attending,
            self._pauses,
            self.querying,
            self.capacity,
        ):
            part.stop()
        self._slots.threads.shutdown(wait=False, cancel_futures=True)
        await self._listener.close()
        await asyncio.gather(*self._offering, return_exceptions=True)

    def _start(self) -> None:
        self._context.address = self._listener.address
        if self._standby is not None:
            self._pulse.start()
            self._standby.start()
        self._unfollow = self._client.follow_routes(self._rerouted)
        self._unfollow_losses = self._client.follow_losses(self.querying.link_lost)
        self._attending.start(self._served)
        self._supply()

    def stop(self) -> None:
        """Begin to drain; a second call has no effect."""
        if self.lifecycle.phase is not STOPPED:
            self.lifecycle.happen(WorkerEvent.STOP)
            self._stopping.set()
            self._rests_end.set()

    def _welcomed(self) -> None:
        self.ready.set()
        self._log.info(
            "worker is ready",
            worker=self._name,
            namespace=self._served[0].view.id.namespace,
            queues=[served.name for served in self._served],
            slots=self._settings.slots,
            node=str(self._client.address),
            listen=self._settings.host,
            **({"monitor": self._monitor_url} if self._monitor_url else {}),
        )

    # Supply

    def _slot_freed(self) -> None:
        if not self._slots.supply_soon:
            self._slots.supply_soon = True
            self._loop.call_soon(self._supply)

    def _supply(self) -> None:
        self._slots.supply_soon = False
        self._quiet.set()
        if self.lifecycle.phase is OFFLINE:
            self._attending.changed()
        free = self._slots.free
        one_by_one: Sequence[Served] = self._served
        shared = self._shared
        if shared is not None and shared.available:
            shared.supply(free)
            one_by_one = self._held_back
            self._slots.strict = len(shared.posts) + len(one_by_one) > 1
        if not one_by_one:
            return
        if not free:
            for served in one_by_one:
                self._take_back(served)
            return
        wanted = to_offer(free, [served.on_offer for served in one_by_one])
        for served, share_of_free in zip(one_by_one, wanted, strict=True):
            partitions = served.view.counts.read
            sick = served.health.sick
            slots = self._at_most(served, share_of_free) if sick else share_of_free
            if slots and worth_it(slots, served.on_offer, served.asking, partitions):
                served.on_offer += slots
                for share in spread(slots, partitions):
                    served.asking += 1
                    self._spawn(self._offer(served, share))

    def _spawn(self, offering: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(offering)
        self._offering[task] = None
        task.add_done_callback(self._offering.pop)

    def _at_most(self, served: Served, slots: int) -> int:
        """Return how many of these slots may be offered to a queue whose queries fail here."""
        now, health = self._loop.time(), served.health
        if now < health.paused_until:
            self._pauses.by(health.paused_until)
        room = int(health.room(self.querying.under_way(served), now))
        if served.on_offer > room:
            self._take_back(served)
            return 0
        return min(slots, room - served.on_offer)

    def _pause_is_over(self, _: float) -> None:
        self._slot_freed()

    def _take_offers_back(self) -> None:
        if self._shared is not None:
            self._shared.take_back()
        for served in self._served:
            self._take_back(served)

    def _take_back(self, served: Served) -> None:
        for held in list(served.offers):
            held.take_back()

    async def _offer(self, served: Served, slots: int) -> None:
        try:
            if not self._slots.free:  # all were used, or the worker stopped, before this first turn
                return
            answer = await self._ask(served, slots)
            if answer is None:
                return
            self._begin_given(served, *answer, self._loop.time())
        finally:
            served.on_offer -= slots
            served.asking -= 1
            self._slot_freed()

    def _begin_given(
        self, served: Served, offered: Offered, link: CallConnection | None, now: float
    ) -> None:
        """Begin the tasks and accept the reservations that an offer was answered with, over that
        connection."""
        lease_ends_at = now + offered.lease_seconds - self._pulse.behind(now)
        begin = self._slots.begin
        origin: Origin | None = None
        for given in offered.tasks:
            if origin is None or origin.partition != given.partition:
                origin = served.origin(given.partition)
                origin.lease_seconds = offered.lease_seconds
            begin(served, given, origin, now, lease_ends_at)
        for reserved in offered.reserved:
            self.querying.reserved(served, reserved, now, link)

    def _take(
        self, served: Served, offered: Offered, link: CallConnection | None, now: float
    ) -> None:
        """Begin the tasks and reservations that a shared offer got for one of its queues."""
        with suppress(ProtocolViolation):  # the tasks are valid all the same
            served.view.learn(offered.counts)
        if served.view.counts.read != served.grouped:
            self._counts_changed()
        self._begin_given(served, offered, link, now)

    def _counts_changed(self) -> None:
        if self._shared is not None:
            self._shared.changed()

    def _connection_lost(self) -> None:
        """Try shared offers again, and mention all running tasks: the node may be another one."""
        if self._shared is not None:
            self._shared.available = True
        self._heartbeats.mention_all()

    def _rerouted(self) -> None:
        """Make offers where the partitions are now, and tell their owners what runs."""
        self._context.rerouted()
        self._rests_end.set()
        if not self._stopping.is_set():
            self._rests_end = asyncio.Event()
        if self._shared is not None:
            self._shared.rerouted()
        self._heartbeats.mention_all()
        self._slot_freed()

    async def _ask(
        self, served: Served, slots: int
    ) -> tuple[Offered, CallConnection | None] | None:
        """Offer slots to a partition; return the answer, and the connection over which it came."""
        view = served.view
        asked_at, reroutes = self._loop.time(), self._context.reroutes
        with view.to_read(asked_at) as poll:
            message = Offer(
                *view.id,
                poll.partition,
                0,
                view.counts.version,
                self._session,
                self._name,
                slots,
                0,
                self.address,
            )
            self.statistics.offers += 1
            held: LongPoll | None = None
            try:
                held = self._client.hold(message, self._settings.offer_seconds)
                served.offers[held] = None
                offered = cast("Offered", await held.answer())
                view.heard(poll, offered, self._loop.time())
            except (Cancelled, DeadlineExceeded):
                return None
            except MaitredError as problem:
                if isinstance(problem, ConnectionLost | CutOff):
                    self._connection_lost()
                seconds = self._outage.failed(served.name, poll.partition, problem)
                await self._rest(seconds, reroutes)
                return None
            finally:
                if held is not None:
                    served.offers.pop(held, None)
            self._outage.worked(served.name, poll.partition)
            self._outage.forget(served.name, served.view.counts.read)
        nothing = not offered.tasks and not offered.reserved
        if nothing and self._loop.time() - asked_at < HASTY_SECONDS:
            await self._rest(HASTY_SECONDS, reroutes)
        return offered, held.connection

    async def _rest(self, seconds: float, since: int) -> None:
        """Wait before the slots of this offer are offered again; a stop ends the wait, and a change
        of the partitions' owners. There is no wait if that was after the offer, when the context's
        `reroutes` were `since`."""
        if self._context.reroutes != since:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rests_end.wait()

    def _judged(self, served: Served) -> None:
        """Look again at how the queue's queries end, here and elsewhere, and log a change."""
        self._attending.judged(served)
        health = served.health
        if health.sick == served.held_back:
            return
        served.held_back = health.sick
        self._held_back = [one for one in self._served if one.held_back]
        self._counts_changed()
        facts = {"queue": served.name, "good": round(health.good, 2), "others": health.best}
        if health.sick:
            self.statistics.held_back += 1
            self._log.warning(
                "this worker fails more queries of a queue than other workers do; it offers few "
                "slots to that queue until they succeed",
                **facts,
            )
        else:
            self._log.info("this worker answers queries as well as other workers again", **facts)
        self._slot_freed()

    def _origins(self) -> Iterator[Origin]:
        for served in self._served:
            yield from served.origins.copy().values()

    def _attempts(self) -> Iterator[Execution | Query]:
        """Yield all attempts whose handlers may run; any thread may call it."""
        for served in self._served:
            for origin in served.origins.copy().values():
                yield from origin.running.copy().values()
        yield from self.querying.running.copy()

    # The end

    async def _drain(self) -> bool:
        self._attending.changed()
        self._take_offers_back()
        busy = self.statistics.busy
        self._log.info(
            "stopping: takes no more work, and waits for running handlers",
            running=busy,
            drain_seconds=self._settings.drain_seconds,
        )
        end = self._loop.time() + self._settings.drain_seconds
        finished = await self._within(end, self._all_ended())
        end = max(end, self._loop.time() + LAST_WORDS_SECONDS)
        told = await self._within(end, self._completions.settled())
        if not finished or not told:
            self._log.warning(
                "stopped with unfinished work; the node gives these tasks to other workers",
                running=self.statistics.busy,
                unreported=self._completions.unanswered,
            )
        return finished and told

    async def _all_ended(self) -> None:
        # The end of an offer sets `_quiet` before its task is done, so that wake-up could be lost.
        while self._offering:
            await asyncio.wait(self._offering)
        while self.statistics.busy or self.querying.relayed.under_way:
            self._quiet.clear()
            await self._quiet.wait()

    async def _within(self, end: float, work: Any) -> bool:  # noqa: ANN401 - a coroutine
        try:
            async with asyncio.timeout_at(end if end != inf else None):
                await work
        except TimeoutError:
            return False
        return True
