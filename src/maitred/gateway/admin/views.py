"""All views of the admin API, by the handler that serves them over HTTP.

A view shows something and changes nothing. It takes the caller, the parameters of the request and
the names in the path, and returns the answer. So whatever else shows the same (a stream of events,
for example) has it computed by the same code, with the same restrictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.gateway.admin.node_views import NodeViews
from maitred.gateway.admin.overview_views import OverviewViews
from maitred.gateway.admin.query_views import QueryViews
from maitred.gateway.admin.queue_views import QueueViews
from maitred.gateway.admin.ring_views import RingViews
from maitred.gateway.admin.task_views import TaskViews
from maitred.gateway.admin.worker_views import WorkerViews

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from msgspec import Struct

    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway

    View = Callable[..., Coroutine[Any, Any, Struct]]


class AdminViews:
    """The views of a gateway."""

    def __init__(self, gateway: RequestingGateway) -> None:
        nodes, queries = NodeViews(gateway), QueryViews(gateway)
        queues, tasks = QueueViews(gateway), TaskViews(gateway)
        overview, workers = OverviewViews(gateway), WorkerViews(gateway)
        self.by_handler: dict[str, View] = {
            "me": nodes.me,
            "show_series": overview.series,
            "list_queues": overview.queues,
            "list_problems": overview.problems,
            "list_nodes": nodes.nodes,
            "show_nodes_series": nodes.series,
            "show_ring": RingViews(gateway).ring,
            "list_workers": workers.workers,
            "show_worker_series": workers.series,
            "list_queries": queries.queries,
            "describe_queue": queues.queue,
            "list_handlers": queues.handlers,
            "list_tasks": tasks.tasks,
            "task_history": tasks.history,
            "list_dead_groups": tasks.dead_groups,
        }
        """Each is called with the caller, the parameters, and the values in the path."""

    async def show(
        self, handler: str, caller: AdminCaller, params: Mapping[str, Any], values: tuple[Any, ...]
    ) -> Struct:
        """Return the answer of a view. The permission that its route names has been checked."""
        return await self.by_handler[handler](caller, params, *values)
