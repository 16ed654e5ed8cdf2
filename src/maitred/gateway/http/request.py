"""One HTTP request, and the query or task of the event loop that works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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

    def drop(self) -> None:
        """Cancel the query and the task: the caller has left."""
        if self.running is not None:
            self.running.cancel()
        if self.task is not None:
            self.task.cancel()
