"""Changes queues for callers of the gateway: pause, settings, partitions, purge, deletion, workers.

The caller's permission was checked with the route. Each request names the caller and its address,
for the controls of the queue and for the audit log of the node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, cast

from msgspec import Struct

from maitred.client.answers import ROOT, Silent, described
from maitred.client.cursors import read_cursor, write_cursor
from maitred.errors import InvalidArgument, MaitredError, UnknownQueue, UnknownWorker
from maitred.gateway.admin.answers import (
    ChangedControls,
    DroppedQueue,
    PartitionNumbers,
    PurgedQueue,
    ToldWorkers,
)
from maitred.gateway.admin.page_cursors import read_page, write_page
from maitred.gateway.admin.told_errors import unreachable
from maitred.gateway.admin.worker_views import worker_of
from maitred.protocol.queries import Workers, WorkersFound
from maitred.protocol.requests import Natural  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.tasks import (
    ControlQueue,
    DeletedQueue,
    DeleteQueue,
    Purged,
    PurgeTasks,
    QueueControlled,
    Resize,
    Resized,
)
from maitred.routing.names import TASKS, QueueId

if TYPE_CHECKING:
    from maitred.gateway.admin.bodies import (
        NoBody,
        PartitionsBody,
        PauseBody,
        PurgeBody,
        PurgedState,
        SettingsBody,
    )
    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway

PURGE_SECONDS: Final = 1.0
"""How long one request purges, apart from what is in flight at its end: callers see progress, and
proxies do not give up."""


class PurgePlace(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where a purge goes on."""

    state: Natural
    """Index among the states of the request."""
    partition: Natural
    until: Natural = 0
    after: tuple[Natural, Natural] = (0, 0)


class QueueActions:
    """The actions on one queue."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def pause(
        self, caller: AdminCaller, body: PauseBody, namespace: str, queue: str
    ) -> ChangedControls:
        """Pause the queue."""
        return await self._set_paused(caller, body, "pause", QueueId(namespace, queue, TASKS))

    async def resume(
        self, caller: AdminCaller, body: PauseBody, namespace: str, queue: str
    ) -> ChangedControls:
        """Resume the queue."""
        return await self._set_paused(caller, body, "resume", QueueId(namespace, queue, TASKS))

    async def _set_paused(
        self,
        caller: AdminCaller,
        body: PauseBody,
        action: Literal["pause", "resume"],
        queue: QueueId,
    ) -> ChangedControls:
        return await self._control(
            ControlQueue(
                *queue,
                ROOT,
                0,
                action,
                body.reason,
                body.expect_version,
                user=caller.user,
                source=caller.source,
            )
        )

    async def settings(
        self, caller: AdminCaller, body: SettingsBody, namespace: str, queue: str
    ) -> ChangedControls:
        """Set settings of the queue live, or give them back to the settings file."""
        if not body.set and not body.unset:
            raise InvalidArgument(
                "The body names no setting.", remedy="Give 'set', 'unset', or both."
            )
        return await self._control(
            ControlQueue(
                *QueueId(namespace, queue, TASKS),
                ROOT,
                0,
                "set",
                body.reason,
                body.expect_version,
                body.set,
                body.unset,
                user=caller.user,
                source=caller.source,
            )
        )

    async def _control(self, message: ControlQueue) -> ChangedControls:
        answer = cast("QueueControlled", await self._gateway.requester().request(message))
        return ChangedControls(answer.controls, answer.changed, answer.partitions, answer.told)

    async def partitions(
        self, caller: AdminCaller, body: PartitionsBody, namespace: str, queue: str
    ) -> PartitionNumbers:
        """Change the number of partitions of a queue that exists."""
        client, id_ = self._gateway.requester(), QueueId(namespace, queue, TASKS)
        await described(client, id_, ROOT)  # RESIZE would create it
        message = Resize(
            *id_, ROOT, 0, body.read, body.write, body.force, caller.user, caller.source
        )
        counts = cast("Resized", await client.request(message)).counts
        return PartitionNumbers(counts.read, counts.write, counts.version)

    async def delete(
        self, caller: AdminCaller, namespace: str, queue: str, *, force: bool
    ) -> DroppedQueue:
        """Delete the queue with all that it has."""
        message = DeleteQueue(namespace, queue, TASKS, ROOT, 0, force, caller.user, caller.source)
        client = self._gateway.requester()
        deleted = cast("DeletedQueue", await client.request(message))
        if not deleted.partitions:
            # The answer names the most similar queue.
            await described(client, QueueId(namespace, queue, TASKS), ROOT)
        return DroppedQueue(deleted.partitions, deleted.tasks, deleted.dead, deleted.workers)

    async def purge(
        self, caller: AdminCaller, body: PurgeBody, namespace: str, queue: str
    ) -> PurgedQueue:
        """Drop tasks of the queue, or count them, for about a second."""
        states = _states(body)
        page_of = ("purge", namespace, queue, states, body.older_than, body.dry_run)
        place = _resumed(read_page(body.cursor, *page_of), states)
        client, id_ = self._gateway.requester(), QueueId(namespace, queue, TASKS)
        known = (await described(client, id_, ROOT)).counts.read
        tasks: dict[str, int] = dict.fromkeys(states, 0)
        silent: dict[int, Silent] = {}
        loop = asyncio.get_running_loop()
        until = loop.time() + PURGE_SECONDS
        following: PurgePlace | None = place
        while following is not None:
            place = following
            message = PurgeTasks(
                *id_,
                place.partition,
                0,
                states[place.state],
                body.older_than,
                body.dry_run,
                place.until,
                place.after,
                body.reason,
                caller.user,
                caller.source,
            )
            try:
                answer = cast("Purged", await client.request(message))
            except MaitredError as problem:
                # Removed partitions may have dead letters: their numbers end where one is unknown.
                if not isinstance(problem, UnknownQueue):
                    silent[place.partition] = Silent(problem)
                following = _next(place, states, is_last=place.partition >= known)
            else:
                tasks[states[place.state]] += answer.tasks
                following = (
                    _next(place, states)
                    if answer.is_complete
                    else PurgePlace(place.state, place.partition, answer.until, answer.cursor)
                )
            if loop.time() >= until:
                break
        at = None if following is None else write_cursor(following)
        return PurgedQueue(tasks, write_page(at, *page_of), unreachable("partition", silent))

    async def worker_offline(
        self, caller: AdminCaller, _body: NoBody, namespace: str, queue: str, worker: str
    ) -> ToldWorkers:
        """Take a worker offline for this queue: it gets no more tasks and queries of it."""
        return await self._order(caller, "offline", namespace, queue, worker)

    async def worker_online(
        self, caller: AdminCaller, _body: NoBody, namespace: str, queue: str, worker: str
    ) -> ToldWorkers:
        """Put a worker back online for this queue."""
        return await self._order(caller, "online", namespace, queue, worker)

    async def _order(
        self,
        caller: AdminCaller,
        action: Literal["offline", "online"],
        namespace: str,
        queue: str,
        worker: str,
    ) -> ToldWorkers:
        id_ = QueueId(namespace, queue, TASKS)
        message = Workers(*id_, ROOT, 0, action, worker, caller.user, caller.source)
        answer = await self._gateway.requester().request(message)
        rows = cast("WorkersFound", answer).workers
        if not rows:
            raise UnknownWorker(
                f"No worker of the queue {namespace}/{queue} is called {worker!r}.",
                remedy="GET /v1/workers has the workers.",
            )
        return ToldWorkers([worker_of(row, [(namespace, queue)]) for row in rows])


def _states(body: PurgeBody) -> list[PurgedState]:
    if body.states is None:
        return ["waiting"] if body.older_than else ["waiting", "delayed"]
    if body.older_than and "delayed" in body.states:
        raise InvalidArgument(
            "'older_than' does not go with delayed tasks.",
            remedy="Purge them without it, or leave them out.",
        )
    return list(dict.fromkeys(body.states))


def _resumed(text: str | None, states: list[PurgedState]) -> PurgePlace:
    if text is None:
        return PurgePlace(0, ROOT)
    place = read_cursor(text, PurgePlace)
    if place.state >= len(states):
        raise InvalidArgument("The cursor belongs to another purge.")
    return place


def _next(
    place: PurgePlace, states: list[PurgedState], *, is_last: bool = False
) -> PurgePlace | None:
    """Return where the purge goes on behind a partition; None: it has ended."""
    if not is_last:
        return PurgePlace(place.state, place.partition + 1)
    return PurgePlace(place.state + 1, ROOT) if place.state + 1 < len(states) else None
