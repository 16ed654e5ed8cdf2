"""Heartbeats: the worker tells the node which tasks it still runs, and hears which ones to stop.

Only tasks that have run for a while are mentioned; a look once a second finds them. From then on
one HEARTBEAT, a long poll, waits at each partition that has such tasks; the node answers it when it
has news, or after a third of the lease. When a connection is lost, or partitions may have got other
owners, all running tasks are mentioned at once, however young: a node that was restarted, or a new
owner, learns from it which tasks not to give to others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from maitred.errors import Cancelled, DeadlineExceeded, MaitredError, UnknownQueue
from maitred.protocol.tasks import Heard, Heartbeat
from maitred.worker.slots import GIVEN_AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.client.long_poll import LongPoll
    from maitred.worker.context import WorkerContext
    from maitred.worker.execution import Execution, Origin
    from maitred.worker.slots import WorkerSlots

LEASE_SHARE: Final = 1 / 3
"""Share of the lease between two heartbeats: two of them may get lost."""

SHORTEST_SECONDS: Final = 0.05
"""Shortest time between two looks or heartbeats, however short a lease is."""


class HeartbeatSender:
    """Sends the heartbeats of all tasks that this worker runs, and stops those that the node
    revoked or gave to another worker."""

    def __init__(
        self,
        context: WorkerContext,
        slots: WorkerSlots,
        origins: Callable[[], Iterable[Origin]],
    ) -> None:
        self._context = context
        self._young_seconds = context.settings.young_seconds
        self._slots = slots
        self._outage = context.outage
        self._origins = origins
        self._loop = asyncio.get_running_loop()
        self._held: dict[Origin, tuple[LongPoll, frozenset[tuple[int, int]]]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(SHORTEST_SECONDS, self.look)

    def look(self) -> None:
        """Begin heartbeats where tasks have run for a while; sets its own timer for the next
        look."""
        now = self._loop.time()
        interval = self._young_seconds
        for origin in self._origins():
            old = self._old(origin)
            interval = min(interval, old)
            if not origin.running or now - _oldest(origin).begun_at < old:
                continue
            if not origin.beating:
                self._begin(origin)
                continue
            held = self._held.get(origin)
            if held is not None and any(
                key not in held[1] and now - one.begun_at >= old
                for key, one in origin.running.items()
            ):
                held[0].take_back()  # the next one follows at once and mentions all
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(interval, SHORTEST_SECONDS), self.look)

    def mention_all(self) -> None:
        """Mention all running tasks to all partitions, however young: a connection was lost, or
        partitions may have other owners."""
        for origin in self._origins():
            if origin.running and not origin.beating:
                self._begin(origin)

    def stop(self) -> None:
        """Send no more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()

    def _old(self, origin: Origin) -> float:
        """Return the age in seconds from which on a task is mentioned."""
        return min(self._young_seconds, origin.lease_seconds * LEASE_SHARE)

    def _begin(self, origin: Origin) -> None:
        origin.beating = True
        task = self._loop.create_task(self._beat(origin))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _beat(self, origin: Origin) -> None:
        queue, partition = origin.queue.queue, origin.partition
        tries = 0
        try:
            while origin.running:
                interval = max(origin.lease_seconds * LEASE_SHARE, SHORTEST_SECONDS)
                sent_at, reroutes = self._loop.time(), self._context.reroutes
                self._give_up_earlier(origin)
                mentioned = origin.running.copy()
                try:
                    heard = await self._ask(origin, mentioned, interval)
                except (Cancelled, DeadlineExceeded):
                    continue
                except UnknownQueue:  # it was deleted, with all its tasks
                    for execution in list(origin.running.values()):
                        self._slots.lost(execution, "a task was stopped: its queue was deleted")
                    return
                except MaitredError as problem:
                    tries += 1
                    pause = self._outage.failed(queue, partition, problem)
                    if tries > 1:  # the first failure is retried at once
                        await self._context.rest(min(pause, interval), reroutes)
                    continue
                self._outage.worked(queue, partition)
                tries = 0
                if not self._hear(origin, mentioned, heard):
                    # Usually the node answered after that time; if it was earlier, wait for it.
                    await asyncio.sleep(max(0.0, sent_at + interval - self._loop.time()))
                    now = self._loop.time()
                    if origin.running and now - _oldest(origin).begun_at < self._old(origin):
                        return  # only young tasks are left; the next look finds those that last
        finally:
            origin.beating = False

    def _give_up_earlier(self, origin: Origin) -> None:
        """Give up attempts at tasks of which another attempt began later, whatever their numbers:
        an owner that lost commits may give a lower one. The answer names tasks, so that of two
        attempts in one heartbeat both would be stopped."""
        latest = {key[0]: execution for key, execution in origin.running.items()}
        if len(latest) < len(origin.running):
            for key, execution in list(origin.running.items()):
                if latest[key[0]] is not execution:
                    self._slots.lost(execution, GIVEN_AGAIN)

    async def _ask(
        self, origin: Origin, mentioned: dict[tuple[int, int], Execution], seconds: float
    ) -> Heard:
        running = [(*key, execution.proof) for key, execution in mentioned.items()]
        context = self._context
        message = Heartbeat(
            *origin.queue, origin.partition, 0, context.session, context.name, running
        )
        lease_ends_at = self._slots.clock() + origin.lease_seconds
        # If this heartbeat is lost, the next one must still be in time.
        held = context.client.hold(message, seconds, grace_seconds=seconds / 2)
        self._held[origin] = (held, frozenset(mentioned))
        reached = False
        try:
            heard = cast("Heard", await held.answer())
            reached = True
        except Cancelled:  # taken back for one that mentions more tasks; the node may have had it
            reached = held.was_sent
            raise
        finally:
            del self._held[origin]
            if reached:
                for execution in mentioned.values():
                    execution.lease_ends_at = lease_ends_at
        return heard

    def _hear(
        self, origin: Origin, mentioned: dict[tuple[int, int], Execution], heard: Heard
    ) -> bool:
        """Stop those of the mentioned attempts that the node lists; return whether the answer was
        about any of them, so that the next heartbeat mentions others. The node names tasks: a next
        attempt at one, which this worker was given meanwhile, goes on."""
        news = False
        lost, revoked = frozenset(heard.lost), frozenset(heard.revoked)
        for key, execution in mentioned.items():
            sequence, _ = key
            if origin.running.get(key) is not execution:
                news = news or sequence in lost or sequence in revoked
                continue
            if sequence in lost:
                self._slots.lost(execution)
                news = True
            elif sequence in revoked:
                news = execution.revoke() or news
        return news


def _oldest(origin: Origin) -> Execution:
    return next(iter(origin.running.values()))
