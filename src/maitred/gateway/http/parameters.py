"""The parameters of requests: one table for parsing them and for the OpenAPI document.

A parameter stands in the query string or in the header of the same name: `delay=5` is
`Maitred-Delay: 5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args
from urllib.parse import unquote_to_bytes

from maitred.app.options import RETRIES_MAX
from maitred.client.cursors import CURSOR_LETTERS_MAX
from maitred.client.task_lists import STATES
from maitred.dispatch.query_states import FOLLOWS
from maitred.errors import InvalidArgument, UnknownChoice
from maitred.gateway.admin.overview_views import ONLY
from maitred.gateway.http.request import TIMEOUT_MAX_SECONDS
from maitred.gateway.http.routes import EVERY_ROUTE
from maitred.matching.controls import NAME_CHARACTERS
from maitred.matching.records import PRIORITIES
from maitred.metrics.points import STEP_SECONDS, STEPS
from maitred.protocol.inspection import LISTED_MAX
from maitred.protocol.queue_overview import STATES_MAX, QueueSort
from maitred.protocol.tasks import NEVER
from maitred.protocol.worker_overview import WORKERS_MAX
from maitred.routing.names import NAME_MAX_BYTES

if TYPE_CHECKING:
    from maitred.gateway.http.request import HttpRequest
    from maitred.gateway.http.routes import HttpRoute

PARAMETERS_MAX: Final = 32
"""The most parameters of one request; no route has as many."""

PREFIX: Final = "Maitred-"

NUMBER_LETTERS: Final = 30
"""The most characters of a number in a header or a parameter."""

WAIT_MAX_SECONDS: Final = 8.0
"""The longest long poll for a result: many programs and proxies give up after ten seconds. A caller
that wants to wait longer asks again."""

ROWS_MAX: Final = 10_000
"""The most rows of the query table in one answer."""


UNIX_MAX: Final = 1e11
"""The latest moment, in unix time: some three thousand years from now."""

INTERVAL_LEAST_SECONDS: Final = 0.5
"""The shortest pause between two looks of a stream of views; people do not read faster."""

INTERVAL_MOST_SECONDS: Final = 60.0

VIEW_LETTERS: Final = 16 * 1024
"""The most letters of the paths that a stream follows: a few, each with a filter."""

ARGUMENT_LETTERS: Final = 4_096
"""The longest filter by argument."""


class Parameter(NamedTuple):
    """The meaning of a parameter, for the document, and the values that it may have."""

    text: str
    kind: type[float | int | bool | str]
    """`float`: a time in seconds; `int`: a whole number."""
    least: float = 0.0
    most: float = 0.0
    """The largest number; the most characters of a `str`, 0: no limit."""
    choices: tuple[str, ...] = ()
    """The texts that a `str` may have; empty: any text."""

    def parse(self, name: str, text: str) -> Any:  # noqa: ANN401 - a value of `kind`
        """Return the value of a text; raise `InvalidArgument` unless it is allowed."""
        if self.kind is bool:
            if text not in {"true", "false"}:
                raise InvalidArgument(f"{name} is {text[:60]!r}; it has to be true or false.")
            return text == "true"
        if self.kind is str:
            if self.choices and text not in self.choices:
                raise InvalidArgument(
                    f"There is no {name} {text[:60]!r}.",
                    remedy=f"There are {', '.join(self.choices)}.",
                )
            if self.most and len(text) > self.most:
                raise InvalidArgument(f"{name} has more than {self.most:,.0f} characters.")
            return text
        value = self._number(text) if len(text) <= NUMBER_LETTERS else None
        if value is None or not self.least <= value <= self.most:
            what = "number of seconds" if self.kind is float else "whole number"
            raise InvalidArgument(
                f"{name} is {text[:60]!r}; it has to be a {what} from {self.least:g} to "
                f"{self.most:.10g}."
            )
        return value

    def _number(self, text: str) -> float | None:
        if self.kind is int:
            return int(text) if text.isascii() and text.isdecimal() else None
        try:
            return float(text) if "_" not in text else None
        except ValueError:
            return None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the values."""
        if self.kind is bool:
            return {"type": "boolean"}
        if self.kind is str:
            longest = {"maxLength": int(self.most)} if self.most else {}
            choices = {"enum": list(self.choices)} if self.choices else {}
            return {"type": "string"} | longest | choices
        kind = "integer" if self.kind is int else "number"
        return {"type": kind, "minimum": self.kind(self.least), "maximum": self.kind(self.most)}


_PRIORITY: Final = Parameter("From 0, served first, to 4; 2 unless told", int, 0, PRIORITIES - 1)

PARAMETERS: Final = {
    "Maitred-Timeout": Parameter(
        "Seconds until the caller stops waiting; 30 unless told",
        float,
        0.001,
        TIMEOUT_MAX_SECONDS,
    ),
    "Maitred-Priority": _PRIORITY,
    "Maitred-Idempotent": Parameter(
        "Whether it may run again elsewhere if its worker is lost", bool
    ),
    "Maitred-Do-Not-Queue": Parameter(
        "Whether it is refused, with 429, if no worker has room for it now", bool
    ),
    "delay": Parameter("Not before so many seconds from now", float, 0.0, NEVER),
    "priority": _PRIORITY,
    "expires": Parameter(
        "Not begun after so many seconds, it never is; 0: no limit", float, 0.0, NEVER
    ),
    "retries": Parameter(
        "Further attempts after one that failed; 3 unless told", int, 0, RETRIES_MAX
    ),
    "timeout": Parameter("Seconds for one attempt; 0: no limit", float, 0.0, NEVER),
    "retention": Parameter(
        "How many seconds the result is kept; 60 unless told", float, 0.0, NEVER
    ),
    "require_worker": Parameter(
        "1: refuse the task if no worker serves the queue, or did in the last day", int, 0, 1
    ),
    "wait": Parameter("How many seconds to wait for the result", float, 0.0, WAIT_MAX_SECONDS),
    "queue": Parameter("Only those of this queue", str),
    "user": Parameter("Only this user's", str),
    "status": Parameter("Only those in this state", str, choices=tuple(FOLLOWS)),
    "worker": Parameter("Only those of this worker", str),
    "most": Parameter("How many, at most; 100 unless told", int, 1, ROWS_MAX),
    "cursor": Parameter("`cursor` of the page before", str, most=CURSOR_LETTERS_MAX),
    "reveal": Parameter(
        "Whether to show private data (arguments, results, messages of errors, tracebacks), which "
        "needs the permission `reveal`; otherwise they are withheld",
        bool,
    ),
    "state": Parameter(
        "Only those in this state; `ended` stands for `done`, `cancelled` and `expired`",
        str,
        choices=STATES,
    ),
    "error": Parameter(
        "Only those whose last error has this in its class or code, or in its message for users "
        "with the permission `reveal`",
        str,
        most=NAME_CHARACTERS,
    ),
    "by": Parameter("Only those that this user added", str, most=NAME_CHARACTERS),
    "added_after": Parameter("Only those added since, in unix time", float, 0.0, UNIX_MAX),
    "added_before": Parameter("Only those added before, in unix time", float, 0.0, UNIX_MAX),
    "argument": Parameter(
        "Only those with this argument: `NAME=JSON`; needs the permission `reveal`",
        str,
        most=ARGUMENT_LETTERS,
    ),
    "view": Parameter("The paths of GET requests to follow, one a line", str, most=VIEW_LETTERS),
    "interval": Parameter(
        "Seconds between two looks; 2 unless told",
        float,
        INTERVAL_LEAST_SECONDS,
        INTERVAL_MOST_SECONDS,
    ),
    "namespace": Parameter("Only what is in this namespace", str, most=NAME_MAX_BYTES),
    "sort": Parameter(
        "The order: by name, or by a number, the highest first", str, choices=get_args(QueueSort)
    ),
    "only": Parameter(
        "Only those that are paused, that have a backlog and no worker, or that have dead letters",
        str,
        choices=ONLY,
    ),
    "match": Parameter(
        "Only those whose name has this in it; upper and lower case are alike",
        str,
        most=NAME_CHARACTERS,
    ),
    "seconds": Parameter(
        "How many of the last seconds; an hour unless told", float, 1.0, STEPS * STEP_SECONDS
    ),
    "leaving": Parameter(
        "Also where the partitions are after this member has left: its id, or its address",
        str,
        most=NAME_CHARACTERS,
    ),
    "force": Parameter("Whether to delete it even if it is in use", bool),
}
"""The parameters besides those in paths."""

OWN_PARAMETERS: Final = {
    ("show_series", "queue"): Parameter(
        "Only this queue of the namespace", str, most=NAME_MAX_BYTES
    ),
    ("show_ring", "namespace"): Parameter("The namespace of the queue", str, most=NAME_MAX_BYTES),
    ("show_ring", "queue"): Parameter(
        "The queue whose partitions are told", str, most=NAME_MAX_BYTES
    ),
    ("list_tasks", "worker"): Parameter(
        "Only those that this worker has, or had last", str, most=NAME_CHARACTERS
    ),
    ("list_queues", "most"): Parameter("How many, at most; 100 unless told", int, 1, STATES_MAX),
    ("list_workers", "queue"): Parameter(
        "Only those that serve this queue of the namespace", str, most=NAME_MAX_BYTES
    ),
    ("list_workers", "most"): Parameter("How many, at most; 100 unless told", int, 1, WORKERS_MAX),
    ("list_tasks", "most"): Parameter("How many, at most; 100 unless told", int, 1, LISTED_MAX),
}
"""Parameters that mean something else for one handler."""


def parameter(handler: str, name: str) -> Parameter:
    """Return the meaning of a parameter for a handler."""
    return OWN_PARAMETERS.get((handler, name)) or PARAMETERS[name]


def _headers(route: HttpRoute) -> list[tuple[str, bytes]]:
    named = [name for name in route.parameters if route.body or name.startswith(PREFIX)]
    return [
        (name, (PREFIX + name.removeprefix(PREFIX)).lower().replace("_", "-").encode())
        for name in named
    ]


HEADERS: Final = {route.handler: _headers(route) for route in EVERY_ROUTE}
"""The parameters of each route that may come as headers, and the header of each."""

HEADER_NAMES: Final = {
    name: frozenset(header for _, header in found) for name, found in HEADERS.items()
}


def parsed(request: HttpRequest, route: HttpRoute, query: bytes) -> None:
    """Fill `request.query`; raise for a parameter that the route does not know, and for a value
    that it must not have."""
    found: dict[str, str] = {}
    parts = query.split(b"&", PARAMETERS_MAX) if query else []
    if len(parts) > PARAMETERS_MAX:
        raise InvalidArgument(f"The request has more than {PARAMETERS_MAX} parameters.")
    for part in filter(None, parts):
        key, _, text = part.partition(b"=")
        name = _decoded(key)
        if name not in route.parameters or name.startswith(PREFIX):
            known = [one for one in route.parameters if not one.startswith(PREFIX)]
            if not known:
                raise InvalidArgument("This path takes no parameters behind a question mark.")
            raise UnknownChoice.named("parameter", name[:60], known)
        if name in found:
            raise InvalidArgument(f"The parameter {name!r} is given twice.")
        found[name] = _decoded(text)
    headers = request.headers
    for name, header in HEADERS[route.handler]:
        if header in headers:
            if name in found:
                raise InvalidArgument(f"{name!r} is given twice: as a parameter and as a header.")
            found[name] = headers[header].decode("latin-1")
    request.query = {
        name: parameter(route.handler, name).parse(name, text) for name, text in found.items()
    }


def may_have(headers: dict[bytes, bytes], route: HttpRoute) -> bool:
    """Return whether a header may be a parameter; quick, as most requests have few headers."""
    return not HEADER_NAMES[route.handler].isdisjoint(headers)


def _decoded(text: bytes) -> str:
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidArgument("A parameter is not UTF-8 when it is decoded.") from None
