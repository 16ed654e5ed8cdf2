"""Generate the OpenAPI document from the table of routes, so that it cannot differ from what is
served."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec.json import schema_components

from maitred import __version__
from maitred.errors import RequestOutcome
from maitred.gateway.admin.answers import (
    ActedTasks,
    CallerState,
    ChangedControls,
    DeadGroups,
    DroppedQueue,
    ListedQueues,
    ListedTasks,
    ListedWorkers,
    NodesState,
    PartitionNumbers,
    PurgedQueue,
    QueueHandlers,
    QueueState,
    SeriesState,
    TaskHistory,
    ToldWorkers,
)
from maitred.gateway.http.admin import BODIES
from maitred.gateway.http.answers import (
    AddedTask,
    CancelledQuery,
    GatewayState,
    ListedQueries,
    PendingTask,
    QueueScaling,
    RevokedTask,
)
from maitred.gateway.http.parameters import PREFIX, parameter
from maitred.gateway.http.routes import ROUTES, SEQUENCE_MAX, WORKER_LETTERS, HttpRoute
from maitred.gateway.http.statuses import REASONS
from maitred.routing.keys import PARTITIONS_MAX

if TYPE_CHECKING:
    from msgspec import Struct

Json = dict[str, Any]

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"

NAME: Final[Json] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": "^[!-9;-~]([ -9;-~]*[!-9;-~])?$",
}
"""The schema of names. Names may have letters of any script; the pattern shows those of ASCII,
which every keyboard has."""

IN_PATHS: Final[dict[str, tuple[str, Json]]] = {
    "namespace": ("The namespace of the queue", NAME),
    "queue": ("The queue", NAME),
    "partition": (
        "The partition in which the task is",
        {"type": "integer", "minimum": 0, "maximum": PARTITIONS_MAX - 1},
    ),
    "sequence": ("Its number", {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX}),
    "worker": (
        "The name of the worker, or the first digits of its session",
        {"type": "string", "minLength": 1, "maxLength": WORKER_LETTERS, "pattern": "^[!-~]+$"},
    ),
}

_TEXT: Final[Json] = {"type": "string"}
_UNICODE: Final[Json] = {"type": "string", "pattern": "^[^\\uD800-\\uDFFF]*$"}
"""The schema of text: JSON can hold half of a surrogate pair; UTF-8, and so msgpack, cannot."""

ANSWERS: Final[dict[str, dict[int, tuple[str, type[Struct] | None]]]] = {
    "query": {200: ("The answer, or its rows as they come", None)},
    "add_task": {202: ("It is written down, and will be run", AddedTask)},
    "task_result": {
        200: ("What the handler returned", None),
        202: ("It is not over yet", PendingTask),
    },
    "cancel_task": {200: ("What that came to", RevokedTask)},
    "me": {200: ("The user and the permissions", CallerState)},
    "list_queues": {200: ("Queues", ListedQueues)},
    "show_series": {200: ("Numbers by step", SeriesState)},
    "describe_queue": {200: ("How it is", QueueState)},
    "delete_queue": {200: ("What was deleted", DroppedQueue)},
    "list_tasks": {200: ("Tasks", ListedTasks)},
    "task_history": {200: ("What is known", TaskHistory)},
    "act_on_tasks": {200: ("What came of it", ActedTasks)},
    "list_dead_groups": {200: ("Groups", DeadGroups)},
    "pause_queue": {200: ("The controls of the queue", ChangedControls)},
    "resume_queue": {200: ("The controls of the queue", ChangedControls)},
    "set_queue": {200: ("The controls of the queue", ChangedControls)},
    "resize_queue": {200: ("How many there are from now on", PartitionNumbers)},
    "purge_queue": {200: ("How many were dropped, or counted", PurgedQueue)},
    "list_handlers": {200: ("The functions", QueueHandlers)},
    "worker_offline": {200: ("The workers that were told", ToldWorkers)},
    "worker_online": {200: ("The workers that were told", ToldWorkers)},
    "list_workers": {200: ("Workers", ListedWorkers)},
    "list_nodes": {200: ("The nodes and their shards", NodesState)},
    "queue_scaling": {200: ("What it wants", QueueScaling)},
    "list_queries": {200: ("Rows of the table", ListedQueries)},
    "cancel_query": {200: ("What that came to", CancelledQuery)},
    "health": {200: ("It is", GatewayState)},
    "ready": {200: ("It can", GatewayState)},
    "document": {200: ("OpenAPI 3.1", None)},
}
"""The successful answers of each route in JSON or msgpack; None: what the handler returned."""


TRACED: Final = frozenset(("query", "add_task"))
"""The routes whose requests belong to the traces of their callers."""


def _fields(required: Json, **others: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": {**required, **others}}


def _components() -> Json:
    classes = {kind for found in ANSWERS.values() for _, kind in found.values() if kind is not None}
    classes |= {*BODIES.values()}
    ordered = sorted(classes, key=lambda kind: kind.__name__)
    _, schemas = schema_components(ordered, ref_template="#/components/schemas/{name}")
    return schemas


SCHEMAS: Final[Json] = {
    "Error": _fields(
        {
            "error": _fields(
                {
                    "code": _TEXT,
                    "message": _TEXT,
                    "remedy": {"type": ["string", "null"]},
                    "outcome": {"enum": [one.value for one in RequestOutcome]},
                },
                kind=_TEXT,
                traceback=_TEXT,
            )
        }
    ),
    "Arguments": {
        "description": "An array: the handler's arguments in order. An object: by name. Anything "
        "else: the only one. Nothing: none. Values are nested some hundred deep at most.",
        "$ref": "#/components/schemas/Value",
    },
    "Value": {
        "description": "JSON as RFC 7493 restricts it: text and names are Unicode, without single "
        "surrogates such as \\ud800, and a whole number that is written as one has 64 bits.",
        "anyOf": [
            {"type": ["null", "boolean", "number"]},
            _UNICODE,
            {"type": "array", "items": {"$ref": "#/components/schemas/Value"}},
            {
                "type": "object",
                "propertyNames": _UNICODE,
                "additionalProperties": {"$ref": "#/components/schemas/Value"},
            },
        ],
    },
    "Result": {"description": "Whatever the handler returned."},
    **_components(),
}

_ALWAYS: Final = (400, 403, 405, 406, 408, 413, 415, 417, 429, 431, 500, 502, 503, 504, 505)
_NAMED: Final = (401, 404, 409, 410, 422)


def document(*, with_users: bool, closed: frozenset[str] = frozenset()) -> Json:
    """Return the document; `closed` names the handlers of open routes that need a user here."""
    paths: Json = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, with_users, is_open=route.is_open and route.handler not in closed
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "maitred",
            "version": __version__,
            "description": "Queries for workers that are free, and tasks that are never lost.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {str(status): _error(status) for status in (*_NAMED, *_ALWAYS)},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`user:secret`, plain or in base64.",
                },
            },
        },
    }


def _operation(route: HttpRoute, with_users: bool, *, is_open: bool) -> Json:
    operation: Json = {
        "operationId": route.handler,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route, is_open=is_open),
    }
    if route.body:
        own = BODIES.get(route.handler)
        name = "Arguments" if own is None else own.__name__
        schema = {"$ref": f"#/components/schemas/{name}"}
        operation["requestBody"] = {
            "required": False,
            "content": {JSON: {"schema": schema}, MSGPACK: {"schema": schema}},
        }
    if with_users:
        operation["security"] = [] if is_open else [{"basic": []}, {"bearer": []}]
    return operation


def _parameters(route: HttpRoute) -> list[Json]:
    found = []
    for name in re.findall(r"{(\w+)}", route.path):
        text, schema = IN_PATHS[name]
        where = {"name": name, "in": "path", "required": True}
        found.append(where | {"description": text, "schema": schema})
    for name in route.parameters:
        one = parameter(route.handler, name)
        where = {"name": name, "in": "header" if name.startswith(PREFIX) else "query"}
        found.append(where | {"description": one.text, "schema": one.schema()})
    if route.handler in TRACED:
        for name in ("traceparent", "tracestate"):
            text = "W3C Trace Context of the caller; ignored if it is not valid"
            where = {"name": name, "in": "header", "description": text}
            found.append(where | {"schema": {"type": "string"}})
    return found


def _responses(route: HttpRoute, *, is_open: bool) -> Json:
    responses: Json = {}
    if route.handler == "metrics_page":
        responses["200"] = {
            "description": "Counters",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    for status, (text, answer) in ANSWERS.get(route.handler, {}).items():
        name = "Result" if answer is None else answer.__name__
        reference = {"schema": {"$ref": f"#/components/schemas/{name}"}}
        content: Json = {JSON: reference}
        if not route.is_open:
            content[MSGPACK] = {"schema": {}}
        if route.handler == "query":
            content["application/x-ndjson"] = {"schema": {}}
            content["text/event-stream"] = {"schema": {}}
        responses[str(status)] = {"description": text, "content": content}
        if route.handler == "query":
            responses[str(status)]["headers"] = {
                "Maitred-Query": _header("The number of the query at this gateway", "integer"),
                "Maitred-Worker": _header("The worker that answered", "string"),
                "Maitred-Stream": _header("`true`: rows, one after the other", "string"),
            }
        if route.handler in TRACED:
            own = responses[str(status)].setdefault("headers", {})
            own["traceresponse"] = _header("The gateway's span, if it is recorded", "string")
    for status in (*_NAMED, *_ALWAYS) if not is_open else _ALWAYS:
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _header(text: str, kind: str) -> Json:
    return {"description": text, "schema": {"type": kind}}


def _error(status: int) -> Json:
    schema = {"schema": {"$ref": "#/components/schemas/Error"}}
    error: Json = {
        "description": REASONS[status].decode(),
        "content": {JSON: schema, MSGPACK: {"schema": {}}},
    }
    if status in {429, 503}:
        error["headers"] = {"Retry-After": _header("Seconds", "integer")}
    if status == 401:
        error["headers"] = {"WWW-Authenticate": _header("Basic", "string")}
    if status == 405:
        error["headers"] = {"Allow": _header("The methods that there are", "string")}
    return error
