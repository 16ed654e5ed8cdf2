"""One HTTP request, and the query or task of the event loop that works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.trace_context import from_headers, is_recorded

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError
    from maitred.gateway.http.formats import Format
    from maitred.gateway.query_interface import QueryInProgress
    from maitred.security.directory import Identity

TIMEOUT_MAX_SECONDS: Final = 86_400.0
"""The longest timeout of a request, a day: for longer work a caller should add a task."""

_NO_PARAMETERS: Final[dict[str, Any]] = {}
"""Shared by all requests without parameters, and never changed."""


class HttpRequest:
    """A request with its headers and its body."""

    __slots__ = (
        "began",
        "body",
        "csrf",
        "form",
        "headers",
        "held",
        "identity",
        "is_10",
        "keep_alive",
        "method",
        "query",
        "refusal",
        "route",
        "running",
        "target",
        "task",
        "trace",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        began: float,
        keep_alive: bool = True,
        is_10: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        """The path and the query string, as they came."""
        self.headers = headers
        """The headers by lower-case name."""
        self.body = body
        """The body; empty once its arguments were decoded, or if the request is refused."""
        self.held = len(body)
        """How many bytes are counted in a budget for the request until it is answered."""
        self.began = began
        self.keep_alive = keep_alive
        self.is_10 = is_10
        """Whether the caller uses HTTP/1.0, which has no chunks."""
        self.refusal: MaitredError | None = None
        """Why the request is refused, if that was known before it was complete; None otherwise."""
        self.route = "unknown"
        """The name of the route in the metrics."""
        self.query: dict[str, Any] = _NO_PARAMETERS
        """The values of the parameters in the query string and in headers."""
        self.identity: Identity | None = None
        self.csrf = ""
        """The mark of the session with whose cookie the request came; empty without one."""
        self.form: Format | None = None
        """The format of the answer; None until it is known."""
        self.running: QueryInProgress | None = None
        """The query that the request began; None if there is none."""
        self.task: asyncio.Task[Any] | None = None
        """The asyncio task that works on the answer; None if there is none."""
        self.trace = b""
        """The trace context of the gateway's span, which the answer names; empty if the gateway
        records none for this request."""

    def caller_trace(self) -> bytes:
        """Return the trace context that the caller sent; empty if it sent no valid one."""
        headers = self.headers
        parent = headers.get(b"traceparent")
        if parent is None:
            return b""
        state = headers.get(b"tracestate", b"")
        return from_headers(parent.decode("latin-1"), state.decode("latin-1"))

    def traced_as(self, context: bytes) -> None:
        """Name this context, of the gateway's own span, in the answer, if the span is recorded."""
        if is_recorded(context):
            self.trace = context

    def drop(self) -> None:
        """Cancel the query and the task: the caller has left."""
        if self.running is not None:
            self.running.cancel()
        if self.task is not None:
            self.task.cancel()
