"""Shows many queues at once, as far as the caller may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.client.series import gather_series
from maitred.errors import InvalidArgument
from maitred.gateway.admin.answers import SeriesState
from maitred.gateway.admin.told_errors import unreachable_shards
from maitred.metrics.points import STEP_SECONDS, STEPS
from maitred.routing.names import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway


class OverviewViews:
    """The views of many queues."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def series(self, caller: AdminCaller, params: Mapping[str, Any]) -> SeriesState:
        """Return the last hour of a queue, of a namespace, or of all that the caller may see."""
        namespace, queue = named_queue(params)
        found = await gather_series(
            self._gateway.requester(),
            namespace=namespace,
            queue=queue,
            seconds=params.get("seconds", STEPS * STEP_SECONDS),
            within=caller.namespaces("read", namespace),
        )
        return SeriesState(
            found.step_seconds, found.start, found.points, unreachable_shards(found.unreachable)
        )


def named_queue(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the namespace and the queue that the parameters name, or empty texts; raise
    `InvalidArgument` for a queue without its namespace."""
    namespace, queue = params.get("namespace", ""), params.get("queue", "")
    if namespace:
        check_name("namespace", namespace)
    if queue:
        check_name("queue", queue)
        if not namespace:
            raise InvalidArgument(
                "The parameter 'queue' goes with 'namespace'.", remedy="Give both."
            )
    return namespace, queue
