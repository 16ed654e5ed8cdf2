"""Shows one queue: its partitions, and the handlers that serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import to_builtins

from maitred.client.plain_values import plain
from maitred.errors import MaitredError, printable
from maitred.gateway.admin.answers import (
    HandlerFunction,
    HandlerParameter,
    QueueHandlers,
    QueueState,
)
from maitred.gateway.admin.told_errors import told_error
from maitred.protocol.handler_shapes import known_shapes
from maitred.protocol.tasks import PartitionDescription, Signatures, SignaturesFound
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway


class QueueViews:
    """The views of one queue."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def queue(
        self, _caller: AdminCaller, _params: Mapping[str, Any], namespace: str, queue: str
    ) -> QueueState:
        """Return the description of all partitions of a queue, and their sums."""
        return queue_state(namespace, queue, await self._gateway.describe(namespace, queue))

    async def handlers(
        self, _caller: AdminCaller, _params: Mapping[str, Any], namespace: str, queue: str
    ) -> QueueHandlers:
        """Return the functions that serve a queue, for forms."""
        message = Signatures(namespace, queue, TASKS, 0, 0, must_exist=True)
        answer = cast("SignaturesFound", await self._gateway.requester().request(message))
        shapes = known_shapes(answer.signatures)
        return QueueHandlers(
            functions=[
                HandlerFunction(
                    printable(shape.function),
                    [
                        HandlerParameter(name, plain(kind), required, name in shape.hidden)
                        for name, kind, required in shape.parameters
                    ],
                )
                for shape in shapes
            ],
            takes_anything=len(shapes) < len(answer.signatures) or not shapes,
            served_seconds_ago=answer.served_seconds_ago,
        )


def queue_state(
    namespace: str, queue: str, found: Sequence[PartitionDescription | MaitredError]
) -> QueueState:
    """Return the sums over the partitions that answered, and what the root tells of the queue; the
    root is the first."""
    answered = [one for one in found if isinstance(one, PartitionDescription)]
    root = answered[0]
    return QueueState(
        namespace=namespace,
        queue=queue,
        backlog=sum(one.backlog for one in answered),
        running=sum(one.running for one in answered),
        later=sum(one.later for one in answered),
        dead=sum(one.dead for one in answered),
        offers=sum(one.offers for one in answered),
        stored=root.queue_stored,
        namespace_stored=root.namespace_stored,
        workers=sorted({worker for one in answered for worker in one.workers}),
        served_seconds_ago=root.served_seconds_ago,
        controls=root.controls,
        settings=root.all_settings,
        partitions=[_told(number, one) for number, one in enumerate(found)],
    )


def _told(number: int, one: PartitionDescription | MaitredError) -> dict[str, Any]:
    if isinstance(one, MaitredError):
        error = to_builtins(told_error(one))
        return {"partition": number, "state": "unreachable", "error": error}
    plain: dict[str, Any] = to_builtins(one)
    counts = one.counts
    plain["counts"] = {"read": counts.read, "write": counts.write, "version": counts.version}
    return plain
