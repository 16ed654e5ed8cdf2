"""Queries over HTTP: the hot route, its streams, and the query table.

The path of a query through here is short: one lookup of the route, the body decoded and encoded
once, one write for the answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import quote

from maitred.client.asked_query import Rows, Whole
from maitred.dispatch.ask import Ask
from maitred.errors import InternalError, MaitredError, UnknownQuery
from maitred.gateway.admin.caller import AdminCaller
from maitred.gateway.admin.query_views import restrict_to_own
from maitred.gateway.http.answers import CancelledQuery
from maitred.gateway.http.audited_queries import AuditedQueries
from maitred.gateway.http.formats import (
    AS_EVENTS,
    AS_JSON,
    AS_MSGPACK,
    JSON,
    accepted,
    arguments,
    is_msgpack,
)
from maitred.gateway.http.statuses import behind_us, told
from maitred.protocol.queries import QueryFilter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from maitred.gateway.gateway import Gateway
    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.formats import Format
    from maitred.gateway.http.request import HttpRequest
    from maitred.gateway.query_interface import QueryInProgress, QueryRunner
    from maitred.logs import Logger
    from maitred.settings import GatewaySettings

NAMES_MAX: Final = 1_024
"""How many workers' names are cached in the form that headers need."""


class StreamingListener(Protocol):
    """The listener whose queries are answered, perhaps as streams of rows."""

    gateway: Gateway
    """Dispatches the queries of HTTP callers to workers."""
    settings: GatewaySettings
    """The settings of the gateway, with the default timeout of queries."""
    log: Logger
    """The log that failures are written to."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task until it ends or the listener closes."""

    def fail(
        self, connection: HttpConnection, request: HttpRequest, problem: BaseException
    ) -> None:
        """Answer with an error."""


class QueryRoutes:
    """The handlers of queries and of the query table."""

    def __init__(self, listener: StreamingListener) -> None:
        self._listener = listener
        self._gateway = listener.gateway
        self._default_seconds = listener.settings.querying.timeout_seconds
        self._names: dict[str, bytes] = {}
        self._traces = listener.gateway.surroundings.tracing is not None
        audit = listener.gateway.guard.audit
        self._audited: AuditedQueries | None = None
        """Records queries; None if the audit log does not."""
        if audit is not None and audit.queries != "none":
            self._audited = AuditedQueries(audit, listener.gateway, listener.spawn)

    def query(
        self, connection: HttpConnection, request: HttpRequest, namespace: str, queue: str
    ) -> None:
        """Begin a query; `_came` answers when its outcome is known."""
        headers = request.headers
        kind = headers.get(b"content-type")
        packed = kind != JSON and is_msgpack(kind, request.body)
        if b"accept" in headers:
            form = accepted(headers[b"accept"], packed=packed)
        else:
            form = AS_MSGPACK if packed else AS_JSON
        request.form = form
        identity = request.identity
        limit, priority, idempotent, do_not_queue = self._default_seconds, 2, False, False
        given = request.query
        if given:  # most queries have no parameters
            limit = given.get("Maitred-Timeout", limit)
            priority = given.get("Maitred-Priority", priority)
            idempotent = given.get("Maitred-Idempotent", idempotent)
            do_not_queue = given.get("Maitred-Do-Not-Queue", do_not_queue)
        payload = arguments(request.body, packed=packed)
        request.body = b""
        user = identity.name if identity is not None else ""
        if self._audited is not None:
            source = connection.source
            self._audited.tell(namespace, queue, payload, user=user, source=source)
        ask = Ask(
            namespace=namespace,
            queue=queue,
            payload=payload,
            deadline=request.began + limit,
            priority=priority,
            idempotent=idempotent,
            do_not_queue=do_not_queue,
            rows=not form.gather,
            user=user,
            connection=connection.name,
        )
        if b"traceparent" in headers:
            ask.trace = request.caller_trace()
        runner = self._gateway.ask()
        running = _begin_traced(runner, ask, request) if self._traces else runner.begin(ask)
        request.running = running
        running.then(partial(self._came, connection, request, running, form))

    def close(self) -> None:
        """Record the queries whose records wait: the listener closes."""
        if self._audited is not None:
            self._audited.close()

    def _came(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        running: QueryInProgress,
        form: Format,
        outcome: Whole | Rows | MaitredError,
    ) -> None:
        """Answer with the outcome of a query; raise nothing, because the caller of this method has
        other outcomes to deliver."""
        try:
            if isinstance(outcome, Whole):
                body = form.whole(outcome.body)
                connection.answer(request, 200, form.content_type, body, self._extra(running))
            elif isinstance(outcome, Rows):
                streaming = self._stream(connection, request, outcome, form, self._extra(running))
                request.task = self._listener.spawn(streaming)
            else:
                connection.answer_error(request, behind_us(outcome), self._extra(running))
        except Exception as problem:  # noqa: BLE001 - the caller gets an answer to every error
            self._listener.fail(connection, request, problem)

    async def _stream(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        rows: Rows,
        form: Format,
        extra: bytes,
    ) -> None:
        """Send rows as they come, and no faster than the caller reads them."""
        extra += b"Maitred-Stream: true\r\n"
        connection.begin_stream(request, form.row_type, extra)
        try:
            async for chunk in rows:
                await connection.send_piece(request, form.rows(chunk))
            await connection.send_piece(request, form.end())
            connection.end_stream(request)
        except MaitredError as problem:
            of_caller = behind_us(problem)
            said = told(of_caller, tracebacks=self._listener.settings.tracebacks)
            connection.break_off(request, of_caller.code, form.error(said))
        except Exception:
            self._listener.log.exception("http stream failed")
            connection.break_off(request, InternalError.code, b"")
        finally:
            request.running = None
            await rows.aclose()

    def _extra(self, running: QueryInProgress) -> bytes:
        """Return the headers that name the query and the worker that answered it."""
        worker = running.worker
        if not worker:
            return b"Maitred-Query: %d\r\n" % running.sequence
        name = self._names.get(worker)
        if name is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            name = self._names[worker] = quote(worker, safe=" :@.,;/+-_()[]").encode()
        return b"Maitred-Query: %d\r\nMaitred-Worker: %b\r\n" % (running.sequence, name)

    # The table; `QueryViews` lists it

    def cancel_query(
        self, connection: HttpConnection, request: HttpRequest, namespace: str, sequence: int
    ) -> None:
        """Cancel a query; without the permission `operate`, only the user's own."""
        request.form = form = plain_form(request)
        wanted = QueryFilter(namespace=namespace, sequence=sequence, most=1)
        restrict_to_own(AdminCaller(request.identity), wanted, "operate")
        asking = self._gateway.ask()
        rows = asking.table.rows(wanted)
        if not rows:
            raise UnknownQuery(
                f"This gateway knows no query {sequence} in the namespace {namespace!r}.",
                remedy=f"GET /v1/{quote(namespace, safe='')}/queries has those that it knows.",
            )
        state: Literal["cancelling", "over"] = "cancelling" if asking.cancel(sequence) else "over"
        audit = self._gateway.guard.audit
        if audit is not None:
            audit.record(
                "http cancel query",
                user=request.identity.name if request.identity is not None else "",
                source=connection.source,
                target=f"{namespace}/{rows[0].queue}",
                details={"sequence": sequence, "of_user": rows[0].user, "state": state},
            )
        body = form.value(CancelledQuery(sequence, state))
        connection.answer(request, 200, form.content_type, body)


def _begin_traced(runner: QueryRunner, ask: Ask, request: HttpRequest) -> QueryInProgress:
    """Begin a query at a gateway that traces; its answer names its span, even if it is refused."""
    of_caller = ask.trace
    try:
        return runner.begin(ask)
    finally:
        if ask.trace != of_caller:
            request.traced_as(ask.trace)


def plain_form(request: HttpRequest) -> Format:
    """Return the format of an answer in one piece; JSON in place of events."""
    form = accepted(request.headers.get(b"accept"), packed=False)
    return AS_JSON if form is AS_EVENTS else form
