"""The table of routes, used for serving, for the OpenAPI document and for the metrics.

A path that was found before, with checked names, is found again by one lookup in a dictionary:
programs use the same queue over and over.
"""

from __future__ import annotations

from string import hexdigits
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from maitred.errors import InvalidArgument, MethodNotAllowed, UnknownRoute
from maitred.protocol.sessions import SESSION_BYTES
from maitred.routing.keys import check_partition
from maitred.routing.names import check_name, check_shown_name

if TYPE_CHECKING:
    from maitred.settings import Permission

REMEMBERED_MAX: Final = 4_096
"""The most paths in the cache; a full cache is cleared, and the paths in use are added again."""

SEQUENCE_MAX: Final = 2**63 - 1

SESSION_LETTERS: Final = 2 * SESSION_BYTES
"""How many hexadecimal digits name the session of a worker."""

WORKER_LETTERS: Final = 200
"""The longest name of a worker."""


class HttpRoute(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    handler: str
    """The handler that serves it, and its name in the metrics and in the OpenAPI document."""
    summary: str
    parameters: tuple[str, ...] = ()
    """The parameters besides those of the path; `openapi.py` describes them."""
    body: bool = False
    permission: Permission | None = None
    """The permission that a user needs in the namespace of the path, or in every namespace if the
    path has none; None if the user needs none, or the handler decides."""
    is_open: bool = False
    """Whether the route needs no authentication, unless a setting requires it."""


QUEUE: Final = "/v1/{namespace}/queues/{queue}"
TASK: Final = QUEUE + "/tasks/{partition}/{sequence}"

FILTERS: Final = ("worker", "error", "by", "added_after", "added_before", "argument")
"""The parameters that restrict a list of tasks."""

PAGE: Final = ("most", "cursor")
"""The parameters of a list that comes in pages."""

ROUTES: Final = (
    HttpRoute(
        "POST",
        f"{QUEUE}/query",
        "query",
        "Ask a query, and get its answer",
        ("Maitred-Timeout", "Maitred-Priority", "Maitred-Idempotent", "Maitred-Do-Not-Queue"),
        body=True,
        permission="query",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/tasks",
        "add_task",
        "Add a task, which is run at least once from now on",
        ("delay", "priority", "expires", "retries", "timeout", "retention", "require_worker"),
        body=True,
        permission="produce",
    ),
    HttpRoute("GET", TASK, "task_result", "What became of a task", ("wait",), permission="produce"),
    HttpRoute(
        "DELETE",
        TASK,
        "cancel_task",
        "Do not run a task; stop it if it runs",
        permission="produce",
    ),
    HttpRoute("GET", "/v1/me", "me", "Who asks, and what that user may do"),
    HttpRoute(
        "GET",
        "/v1/queues",
        "list_queues",
        "The queues, and what each has now",
        ("namespace", "match", "sort", "only", *PAGE),
    ),
    HttpRoute(
        "GET", "/v1/problems", "list_problems", "What is wrong with queues, and why", ("namespace",)
    ),
    HttpRoute(
        "GET",
        "/v1/series",
        "show_series",
        "The last hour of a queue, a namespace, or everything",
        ("namespace", "queue", "seconds"),
    ),
    HttpRoute("GET", QUEUE, "describe_queue", "How a queue is", permission="read"),
    HttpRoute(
        "DELETE",
        QUEUE,
        "delete_queue",
        "Delete a queue, with all that it has",
        ("force",),
        permission="operate",
    ),
    HttpRoute(
        "GET",
        f"{QUEUE}/tasks",
        "list_tasks",
        "Tasks of a queue, a page at a time",
        ("state", *FILTERS, "reveal", *PAGE),
        permission="read",
    ),
    HttpRoute(
        "GET",
        f"{TASK}/history",
        "task_history",
        "Everything that is known of a task",
        ("reveal",),
        permission="read",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/tasks/actions",
        "act_on_tasks",
        "Cancel, retry, run now, drop or repeat tasks",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "GET",
        f"{QUEUE}/dead-groups",
        "list_dead_groups",
        "Dead letters by error",
        ("cursor",),
        permission="read",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/pause",
        "pause_queue",
        "Pause a queue: it accepts tasks, and runs none",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/resume",
        "resume_queue",
        "Resume a queue that was paused",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "PATCH",
        f"{QUEUE}/settings",
        "set_queue",
        "Set settings of a queue live",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/partitions",
        "resize_queue",
        "Change the number of partitions",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/purge",
        "purge_queue",
        "Drop tasks that wait, or count them",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "GET",
        f"{QUEUE}/handlers",
        "list_handlers",
        "The functions that serve a queue, with their parameters",
        permission="read",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/workers/{{worker}}/offline",
        "worker_offline",
        "Give a worker no more work of a queue",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "POST",
        f"{QUEUE}/workers/{{worker}}/online",
        "worker_online",
        "Give a worker work of a queue again",
        body=True,
        permission="operate",
    ),
    HttpRoute(
        "GET",
        "/v1/workers",
        "list_workers",
        "The workers, and what they run",
        ("namespace", "queue", "match", *PAGE),
    ),
    HttpRoute(
        "GET",
        "/v1/workers/{session}/series",
        "show_worker_series",
        "The last hour of a worker: its measured limit, and its busy slots",
        ("seconds",),
    ),
    HttpRoute("GET", "/v1/nodes", "list_nodes", "The nodes and their shards", permission="read"),
    HttpRoute(
        "GET",
        "/v1/nodes/series",
        "show_nodes_series",
        "The last hour of each shard: load, loop lag, memory and commits",
        ("seconds",),
        permission="read",
    ),
    HttpRoute(
        "GET",
        "/v1/ring",
        "show_ring",
        "The hash ring, where the partitions of a queue are, and what moves if a member leaves",
        ("namespace", "queue", "leaving"),
        permission="read",
    ),
    HttpRoute(
        "GET",
        f"{QUEUE}/scaling",
        "queue_scaling",
        "How many slots a queue wants, for autoscalers",
        permission="observe",
    ),
    HttpRoute(
        "GET",
        "/v1/{namespace}/queries",
        "list_queries",
        "The query table of this gateway, the newest last",
        ("queue", "user", "status", "worker", "most"),
    ),
    HttpRoute(
        "DELETE",
        "/v1/{namespace}/queries/{sequence}",
        "cancel_query",
        "Cancel a query that waits or runs",
    ),
    HttpRoute("GET", "/health", "health", "Is this gateway alive?", is_open=True),
    HttpRoute("GET", "/ready", "ready", "Can it reach its node?", is_open=True),
    HttpRoute(
        "GET",
        "/metrics",
        "metrics_page",
        "Counters in the format of Prometheus",
        permission="observe",
        is_open=True,
    ),
    HttpRoute(
        "GET",
        "/openapi.json",
        "document",
        "This document",
        permission="observe",
        is_open=True,
    ),
)


CONSOLE_ROUTES: Final = (
    HttpRoute("GET", "/console", "console", "Leads to the console", is_open=True),
    HttpRoute("GET", "/console/{file}", "console_file", "A file of the console", is_open=True),
    HttpRoute("POST", "/v1/session", "open_session", "Log in", body=True, is_open=True),
    HttpRoute("DELETE", "/v1/session", "close_session", "Log out"),
    HttpRoute("GET", "/v1/live", "live", "Views that stay up to date", ("view", "interval")),
)
"""The routes that only the web console uses: they are left out of the OpenAPI document, because
they may change with the console, and are not served where a setting turns it off."""

EVERY_ROUTE: Final = (*ROUTES, *CONSOLE_ROUTES)


class Found(NamedTuple):
    """A route, with the values in the requested path."""

    route: HttpRoute
    values: tuple[Any, ...]
    """The names and numbers in the path; the namespace comes first."""


class Routes:
    """Finds the route of a request, with a cache."""

    def __init__(self, table: tuple[HttpRoute, ...] = ROUTES) -> None:
        self._by_length: dict[int, list[tuple[list[str], HttpRoute]]] = {}
        for route in table:
            parts = route.path.split("/")
            self._by_length.setdefault(len(parts), []).append((parts, route))
        self.remembered: dict[tuple[bytes, bytes], Found] = {}
        """Maps method and path to the routes that were found."""

    def find(self, method: bytes, path: bytes) -> Found:
        """Return the route; raise `UnknownRoute`, `MethodNotAllowed` or `InvalidArgument`."""
        key = (method, path)
        found = self.remembered.get(key)
        if found is None:
            found = self._look(method.decode("latin-1"), path)
            if len(self.remembered) >= REMEMBERED_MAX:
                self.remembered.clear()
            self.remembered[key] = found
        return found

    def _look(self, method: str, path: bytes) -> Found:
        try:
            parts = [unquote_to_bytes(part).decode() for part in path.split(b"/")]
        except UnicodeDecodeError:
            raise InvalidArgument("The path is not UTF-8 when it is decoded.") from None
        fits = [
            (pattern, route)
            for pattern, route in self._by_length.get(len(parts), ())
            if all(
                part == given or part.startswith("{")
                for part, given in zip(pattern, parts, strict=True)
            )
        ]
        if not fits:
            raise UnknownRoute(
                f"Nothing is at {path[:120].decode('latin-1')!r}.",
                remedy="GET /openapi.json has all paths.",
            )
        wanted = "GET" if method == "HEAD" else method
        for pattern, route in fits:
            if route.method == wanted:
                values = [
                    _value(part[1:-1], given)
                    for part, given in zip(pattern, parts, strict=True)
                    if part.startswith("{")
                ]
                return Found(route, tuple(values))
        raise NotAllowed(
            f"{method} is not one of the methods of this path.", [route.method for _, route in fits]
        )


class NotAllowed(MethodNotAllowed):
    """The path does not have the method; holds the methods that it has, for the header Allow."""

    def __init__(self, sentence: str, methods: list[str]) -> None:
        allowed = [*methods, "HEAD"] if "GET" in methods else methods
        self.allow = ", ".join(allowed)
        super().__init__(sentence, remedy=f"There are: {self.allow}.")


def _value(name: str, given: str) -> str | int:
    if name in {"namespace", "queue"}:
        return check_name(name, given)
    if name == "file":
        return given
    if name == "session":
        if len(given) != SESSION_LETTERS or not set(given) <= set(hexdigits):
            raise InvalidArgument(
                f"The session of a worker has {SESSION_LETTERS} hexadecimal digits.",
                remedy="GET /v1/workers lists the workers with their sessions.",
            )
        return given.lower()
    if name == "worker":
        if not 0 < len(given) <= WORKER_LETTERS:
            raise InvalidArgument(f"The name of a worker has 1 to {WORKER_LETTERS} letters.")
        return check_shown_name(name, given)
    plain = given.isascii() and given.isdecimal() and len(given) <= 19
    number = int(given) if plain else -1
    if name == "partition" and plain:
        return check_partition(number)
    if not 0 <= number <= SEQUENCE_MAX:
        raise InvalidArgument(f"The {name} {given[:60]!r} is not a valid number.")
    return number
