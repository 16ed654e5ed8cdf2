"""One HTTP request, and what is under way for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio

    from maitred.errors import MaitredError
    from maitred.gateway.asking import QueryInProgress
    from maitred.gateway.http.formats import Format
    from maitred.security.directory import Identity

TIMEOUT_MAX_SECONDS: Final = 86_400.0
"""A day, as everywhere: who waits longer wants a task."""

NUMBER_LETTERS: Final = 30
"""Longest number in a header or a parameter; nobody counts further."""


class HttpRequest:
    """Complete: headers and body are there."""

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
        """Path and query, as they came."""
        self.headers = headers
        """By name in small letters."""
        self.body = body
        """Empty once its arguments were read, or if the request is refused."""
        self.held = len(body)
        """Bytes that are counted for the request until it is answered."""
        self.began = began
        self.keep_alive = keep_alive
        self.is_10 = is_10
        """HTTP/1.0: no chunks."""
        self.refusal: MaitredError | None = None
        """Why it is refused, if that was known before it was complete."""
        self.route = "unknown"
        """For the metrics."""
        self.query: dict[str, str] | None = None
        """The parameters behind the question mark, if there are any."""
        self.identity: Identity | None = None
        self.form: Format | None = None
        """How the answer is written, when that is known."""
        self.running: QueryInProgress | None = None
        """The query that it asks."""
        self.task: asyncio.Task[Any] | None = None
        """What works on the answer, if something does."""

    def drop(self) -> None:
        """Nobody waits for the answer."""
        if self.running is not None:
            self.running.cancel()
        if self.task is not None:
            self.task.cancel()


def seconds(name: str, text: str, least: float, most: float) -> float:
    """A time from a header or a parameter, or `InvalidArgument`."""
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
    """A whole number from one, or `InvalidArgument`."""
    plain = text.isascii() and text.isdecimal() and len(text) <= NUMBER_LETTERS
    value = int(text) if plain else -1
    if not least <= value <= most:
        raise InvalidArgument(
            f"{name} is {text[:60]!r}; it has to be a whole number from {least} to {most}."
        )
    return value


def truth(name: str, text: str) -> bool:
    """`true` or `false`, or `InvalidArgument`."""
    if text not in {"true", "false"}:
        raise InvalidArgument(f"{name} is {text[:60]!r}; it has to be true or false.")
    return text == "true"
