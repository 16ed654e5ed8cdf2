"""One HTTP request, and the query or task of the event loop that works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError
    from maitred.gateway.http.formats import Format
    from maitred.gateway.query_interface import QueryInProgress
    from maitred.security.directory import Identity

TIMEOUT_MAX_SECONDS: Final = 86_400.0
"""The longest timeout of a request, a day: for longer work a caller should add a task."""

NUMBER_LETTERS: Final = 30
"""The most characters of a number in a header or a parameter."""


class HttpRequest:
    """A request with its headers and its body."""

    __slots__ = (
        "began",
        "body",
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
        self.query: dict[str, str] | None = None
        """The parameters of the query string and of headers; None if there are none."""
        self.identity: Identity | None = None
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


def seconds(name: str, text: str, least: float, most: float) -> float:
    """Parse a time in seconds of a header or parameter; raise `InvalidArgument` if invalid."""
    try:
        value = float(text) if len(text) <= NUMBER_LETTERS and "_" not in text else -1.0
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise InvalidArgument(
            f"{name} is {text[:60]!r}; it has to be a number of seconds from {least:g} to {most:g}."
        )
    return value


def whole(name: str, text: str, least: int, most: int) -> int:
    """Parse a whole number of a header or parameter; raise `InvalidArgument` if invalid."""
    plain = text.isascii() and text.isdecimal() and len(text) <= NUMBER_LETTERS
    value = int(text) if plain else -1
    if not least <= value <= most:
        raise InvalidArgument(
            f"{name} is {text[:60]!r}; it has to be a whole number from {least} to {most}."
        )
    return value


def truth(name: str, text: str) -> bool:
    """Parse `true` or `false`; raise `InvalidArgument` for any other text."""
    if text not in {"true", "false"}:
        raise InvalidArgument(f"{name} is {text[:60]!r}; it has to be true or false.")
    return text == "true"
