"""The admin API over HTTP: reads the body of a request, has it served, and writes the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.gateway.admin.bodies import (
    NoBody,
    PartitionsBody,
    PauseBody,
    PurgeBody,
    SettingsBody,
    TaskActionBody,
    read_body,
)
from maitred.gateway.admin.caller import AdminCaller
from maitred.gateway.admin.queue_actions import QueueActions
from maitred.gateway.admin.task_actions import TaskActions
from maitred.gateway.admin.views import AdminViews
from maitred.gateway.http.formats import is_msgpack
from maitred.gateway.http.queries import plain_form

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from msgspec import Struct

    from maitred.gateway.gateway import Gateway
    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.request import HttpRequest

    HttpHandler = Callable[..., Coroutine[Any, Any, None]]
    Action = Callable[..., Coroutine[Any, Any, Struct]]

BODIES: dict[str, type[Struct]] = {
    "act_on_tasks": TaskActionBody,
    "pause_queue": PauseBody,
    "resume_queue": PauseBody,
    "set_queue": SettingsBody,
    "resize_queue": PartitionsBody,
    "purge_queue": PurgeBody,
    "worker_offline": NoBody,
    "worker_online": NoBody,
}
"""The body of each request that has one, by handler."""


class AdminRoutes:
    """The handlers of the admin API."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.views = AdminViews(gateway)
        queues, tasks = QueueActions(gateway), TaskActions(gateway)
        actions: dict[str, Action] = {
            "act_on_tasks": tasks.act,
            "pause_queue": queues.pause,
            "resume_queue": queues.resume,
            "set_queue": queues.settings,
            "resize_queue": queues.partitions,
            "purge_queue": queues.purge,
            "worker_offline": queues.worker_offline,
            "worker_online": queues.worker_online,
        }
        self.handlers: dict[str, HttpHandler] = {
            **{name: self._showing(name) for name in self.views.by_handler},
            **{name: self._acting(name, action) for name, action in actions.items()},
            "delete_queue": self._delete_queue,
        }
        self._delete = queues.delete

    def _showing(self, name: str) -> HttpHandler:
        """Return the handler of a view."""

        async def show(connection: HttpConnection, request: HttpRequest, *values: Any) -> None:  # noqa: ANN401
            request.form = form = plain_form(request)
            caller = caller_of(connection, request)
            answer = await self.views.show(name, caller, request.query, values)
            connection.answer(request, 200, form.content_type, form.value(answer))

        return show

    def _acting(self, name: str, action: Action) -> HttpHandler:
        """Return the handler of an action with a body."""
        kind = BODIES[name]

        async def act(connection: HttpConnection, request: HttpRequest, *values: Any) -> None:  # noqa: ANN401
            request.form = form = plain_form(request)
            packed = is_msgpack(request.headers.get(b"content-type"), request.body)
            body = read_body(kind, request.body, packed=packed)
            request.body = b""
            caller = caller_of(connection, request)
            self._record(name, caller, values, body)
            answer = await action(caller, body, *values)
            connection.answer(request, 200, form.content_type, form.value(answer))

        return act

    async def _delete_queue(
        self, connection: HttpConnection, request: HttpRequest, namespace: str, queue: str
    ) -> None:
        request.form = form = plain_form(request)
        caller = caller_of(connection, request)
        force = request.query.get("force", False)
        self._record("delete_queue", caller, (namespace, queue), NoBody())
        answer = await self._delete(caller, namespace, queue, force=force)
        connection.answer(request, 200, form.content_type, form.value(answer))

    def _record(
        self, name: str, caller: AdminCaller, values: tuple[Any, ...], body: Struct
    ) -> None:
        """Record in the gateway's audit log who does this; the node records what was done."""
        audit = self._gateway.guard.audit
        if audit is not None and not getattr(body, "dry_run", False):
            namespace, queue, *worker = values
            # Never a filter: it may have the value of an argument.
            details = {one: getattr(body, one, "") for one in ("reason", "action")}
            if worker:
                details["worker"] = worker[0]
            audit.record(
                f"http {name.replace('_', ' ')}",
                user=caller.user,
                source=caller.source,
                target=f"{namespace}/{queue}",
                details=details,
            )


def caller_of(connection: HttpConnection, request: HttpRequest) -> AdminCaller:
    """Return who sent a request."""
    return AdminCaller(request.identity, str(connection.source), request.csrf)
