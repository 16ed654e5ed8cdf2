"""Tasks over HTTP: add, cancel, get the result; and how many slots their queue wants."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from maitred.app.options import conditions
from maitred.app.task import error_of
from maitred.client.enqueue_batches import added_within
from maitred.errors import MaitredError
from maitred.gateway.http.answers import (
    AddedTask,
    PendingTask,
    QueueScaling,
    RevokedTask,
)
from maitred.gateway.http.formats import arguments, is_msgpack
from maitred.gateway.http.queries import plain_form
from maitred.metrics.slots_wanted import mean_service_seconds, slots_wanted, whole_slots

if TYPE_CHECKING:
    from maitred.gateway.gateway import Gateway
    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.request import HttpRequest
    from maitred.telemetry.tracing import OpenSpan

REQUIRE_WORKER: Final = "require_worker"


class TaskRoutes:
    """The handlers of tasks and queues."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tracing = gateway.surroundings.tracing

    async def add_task(
        self, connection: HttpConnection, request: HttpRequest, namespace: str, queue: str
    ) -> None:
        """Add a task, and answer once it is durable."""
        request.form = form = plain_form(request)
        packed = is_msgpack(request.headers.get(b"content-type"), request.body)
        payload = arguments(request.body, packed=packed)
        request.body = b""
        options = dict(request.query)
        required = options.pop(REQUIRE_WORKER, 0)
        wanted = conditions(options)
        user = request.identity.name if request.identity is not None else ""
        name = f"{namespace}/{queue}"
        trace, span = self._begin_span(request, name)
        add = partial(
            self._gateway.add,
            namespace,
            queue,
            wanted,
            payload,
            user,
            require_worker=bool(required),
            trace=trace,
        )
        place = await (add() if span is None else added_within(span, add, name))
        path = _path(namespace, queue, place.partition, place.sequence)
        number = f"{name}/{place.partition}/{place.sequence}"
        body = form.value(AddedTask(number, place.partition, place.sequence, path))
        connection.answer(
            request, 202, form.content_type, body, b"Location: %b\r\n" % path.encode()
        )

    def _begin_span(self, request: HttpRequest, queue: str) -> tuple[bytes, OpenSpan | None]:
        """Begin the span of a task that a request adds; return the task's trace context, and None
        for the span if there is none, because this gateway does not trace or skips this task."""
        trace, tracing = request.caller_trace(), self._tracing
        if tracing is None:
            return trace, None
        skipped = None if trace else tracing.skipped()
        if skipped is not None:
            return skipped, None
        span = tracing.sends(queue, 1, trace)
        request.traced_as(span.context)
        return span.context, span

    async def task_result(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        namespace: str,
        queue: str,
        partition: int,
        sequence: int,
    ) -> None:
        """Answer with the result of a task; 202 if it is not over yet."""
        request.form = form = plain_form(request)
        wait = request.query.get("wait", 0.0)
        outcome = await self._gateway.outcome(namespace, queue, partition, sequence, wait)
        if outcome is None:
            body = form.value(PendingTask())
            connection.answer(request, 202, form.content_type, body, b"Retry-After: 1\r\n")
            return
        if outcome.status != "done":
            raise error_of(f"{namespace}/{queue}/{partition}/{sequence}", outcome)
        connection.answer(request, 200, form.content_type, form.whole(outcome.body))

    async def cancel_task(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        namespace: str,
        queue: str,
        partition: int,
        sequence: int,
    ) -> None:
        """Cancel a task, or stop it if it runs."""
        request.form = form = plain_form(request)
        state = await self._gateway.revoke(namespace, queue, partition, sequence)
        connection.answer(request, 200, form.content_type, form.value(RevokedTask(state)))

    async def queue_scaling(
        self, connection: HttpConnection, request: HttpRequest, namespace: str, queue: str
    ) -> None:
        """Answer how many slots a queue wants. If a partition does not answer there is no number:
        an autoscaler must not take workers away because part of the backlog cannot be seen."""
        request.form = form = plain_form(request)
        answered = []
        for one in await self._gateway.describe(namespace, queue):
            if isinstance(one, MaitredError):
                raise one
            answered.append(one)
        rates = [(one.finished_per_second, one.service_seconds) for one in answered]
        added = sum(one.added_per_second for one in answered)
        backlog = sum(max(0, one.backlog - one.later) for one in answered)
        running = sum(one.running for one in answered)
        service_seconds = mean_service_seconds(rates)
        wanted = slots_wanted(
            added_per_second=added,
            service_seconds=service_seconds,
            backlog=backlog,
            running=running,
            most_per_second=answered[0].rate_limit_per_second,
            is_paused=answered[0].controls.pause is not None,
        )
        scaling = QueueScaling(
            namespace=namespace,
            queue=queue,
            slots_wanted=whole_slots(wanted),
            added_per_second=added,
            service_seconds=service_seconds,
            backlog=backlog,
            running=running,
        )
        connection.answer(request, 200, form.content_type, form.value(scaling))


def _path(namespace: str, queue: str, partition: int, sequence: int) -> str:
    names = (quote(name, safe="") for name in (namespace, queue))
    return "/v1/{}/queues/{}/tasks/{}/{}".format(*names, partition, sequence)
