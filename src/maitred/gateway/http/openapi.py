"""Generate the OpenAPI document from the table of routes, so that it cannot differ from what is
served."""

from __future__ import annotations

import re
from typing import Any, Final

from maitred import __version__
from maitred.app.options import RETRIES_MAX
from maitred.dispatch.query_states import FOLLOWS
from maitred.errors import RequestOutcome
from maitred.gateway.http.routes import ROUTES, SEQUENCE_MAX, HttpRoute
from maitred.gateway.http.statuses import REASONS
from maitred.matching.records import PRIORITIES
from maitred.protocol.tasks import NEVER
from maitred.routing.keys import PARTITIONS_MAX

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
which everybody can type."""

_PRIORITY: Final[Json] = {"type": "integer", "minimum": 0, "maximum": PRIORITIES - 1}
_TIME: Final[Json] = {"type": "number", "minimum": 0, "maximum": NEVER}

PARAMETERS: Final[dict[str, tuple[str, str, Json]]] = {
    "namespace": ("path", "The namespace of the queue", NAME),
    "queue": ("path", "The queue", NAME),
    "partition": (
        "path",
        "The partition in which the task is",
        {"type": "integer", "minimum": 0, "maximum": PARTITIONS_MAX - 1},
    ),
    "sequence": (
        "path",
        "Its number",
        {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX},
    ),
    "Maitred-Timeout": (
        "header",
        "Seconds until the caller stops waiting; 30 unless told",
        {"type": "number", "minimum": 0.001, "maximum": 86_400},
    ),
    "Maitred-Priority": ("header", "From 0, served first, to 4; 2 unless told", _PRIORITY),
    "Maitred-Idempotent": (
        "header",
        "Whether it may run again elsewhere if its worker is lost",
        {"type": "boolean"},
    ),
    "Maitred-Do-Not-Queue": (
        "header",
        "Whether it is refused, with 429, if no worker has room for it now",
        {"type": "boolean"},
    ),
    "delay": ("query", "Not before so many seconds from now", _TIME),
    "priority": ("query", "From 0, served first, to 4; 2 unless told", _PRIORITY),
    "expires": ("query", "Not begun after so many seconds, it never is; 0: no limit", _TIME),
    "retries": (
        "query",
        "Further attempts after one that failed; 3 unless told",
        {"type": "integer", "minimum": 0, "maximum": RETRIES_MAX},
    ),
    "timeout": ("query", "Seconds for one attempt; 0: no limit", _TIME),
    "retention": ("query", "How many seconds the result is kept; 60 unless told", _TIME),
    "require_worker": (
        "query",
        "1: refuse the task if no worker serves the queue, or did in the last day",
        {"type": "integer", "enum": [0, 1]},
    ),
    "wait": (
        "query",
        "How many seconds to wait for the result",
        {"type": "number", "minimum": 0, "maximum": 8},
    ),
    "user": ("query", "Only this user's", {"type": "string"}),
    "status": ("query", "Only those in this state", {"type": "string", "enum": list(FOLLOWS)}),
    "worker": ("query", "Only those of this worker", {"type": "string"}),
    "most": (
        "query",
        "How many, at most; 100 unless told",
        {"type": "integer", "minimum": 1, "maximum": 10_000},
    ),
}

_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_TEXT: Final[Json] = {"type": "string"}
_UNICODE: Final[Json] = {"type": "string", "pattern": "^[^\\uD800-\\uDFFF]*$"}
"""The schema of text: JSON can hold half of a surrogate pair; UTF-8, and so msgpack, cannot."""


def _fields(required: Json, **others: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": {**required, **others}}


_STORED: Final = _fields(
    {
        "tasks": _COUNT,
        "bytes": _COUNT,
        "most_tasks": {"type": ["integer", "null"]},
        "most_bytes": {"type": ["integer", "null"]},
    }
)

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
    "Added": _fields(
        {"id": _TEXT, "partition": _COUNT, "sequence": _COUNT, "location": _TEXT},
    ),
    "Pending": _fields({"status": {"const": "pending"}}),
    "Revoked": _fields({"state": {"enum": ["cancelled", "cancelling", "over"]}}),
    "Queue": _fields(
        {
            "namespace": _TEXT,
            "queue": _TEXT,
            "backlog": _COUNT,
            "running": _COUNT,
            "later": _COUNT,
            "dead": _COUNT,
            "offers": _COUNT,
            "stored": _STORED,
            "namespace_stored": _STORED,
            "workers": {"type": "array", "items": _TEXT},
            "served_seconds_ago": {"type": ["number", "null"]},
            "partitions": {"type": "array", "items": {"type": "object"}},
        }
    ),
    "Queries": _fields(
        {
            "queries": {
                "type": "array",
                "items": _fields(
                    {
                        "gateway": _TEXT,
                        "sequence": _COUNT,
                        "user": _TEXT,
                        "connection": _TEXT,
                        "namespace": _TEXT,
                        "queue": _TEXT,
                        "query": _TEXT,
                        "priority": _PRIORITY,
                        "status": {"enum": list(FOLLOWS)},
                        "received_at": {"type": "number"},
                        "sent_at": {"type": "number"},
                        "returned_at": {"type": "number"},
                        "worker": _TEXT,
                        "error": _TEXT,
                        "bytes_in": _COUNT,
                        "bytes_out": _COUNT,
                        "attempts": _COUNT,
                        "relayed": {"type": "boolean"},
                    }
                ),
            }
        }
    ),
    "QueryCancelled": _fields({"sequence": _COUNT, "state": {"enum": ["cancelling", "over"]}}),
    "State": _fields({"status": _TEXT}),
    "Anything": {"type": "object"},
}

ANSWERS: Final[dict[str, dict[int, tuple[str, str]]]] = {
    "query": {200: ("The answer, or its rows as they come", "Result")},
    "add_task": {202: ("It is written down, and will be run", "Added")},
    "task_result": {
        200: ("What the handler returned", "Result"),
        202: ("It is not over yet", "Pending"),
    },
    "cancel_task": {200: ("What that came to", "Revoked")},
    "describe_queue": {200: ("How it is", "Queue")},
    "list_queries": {200: ("Rows of the table", "Queries")},
    "cancel_query": {200: ("What that came to", "QueryCancelled")},
    "health": {200: ("It is", "State")},
    "ready": {200: ("It can", "State")},
    "document": {200: ("OpenAPI 3.1", "Anything")},
}
"""The successful answers of each route that answers in JSON or msgpack."""

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
        schema = {"$ref": "#/components/schemas/Arguments"}
        operation["requestBody"] = {
            "required": False,
            "content": {JSON: {"schema": schema}, MSGPACK: {"schema": schema}},
        }
    if with_users:
        operation["security"] = [] if is_open else [{"basic": []}, {"bearer": []}]
    return operation


def _parameters(route: HttpRoute) -> list[Json]:
    found = []
    for name in (*re.findall(r"{(\w+)}", route.path), *route.parameters):
        where, text, schema = PARAMETERS[name]
        if name == "queue" and name in route.parameters:
            where, text = "query", "Only those of this queue"
            schema = {"type": "string"}
        one = {"name": name, "in": where, "description": text, "schema": schema}
        found.append(one | {"required": True} if where == "path" else one)
    return found


def _responses(route: HttpRoute, *, is_open: bool) -> Json:
    responses: Json = {}
    if route.handler == "metrics_page":
        responses["200"] = {
            "description": "Counters",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    for status, (text, schema) in ANSWERS.get(route.handler, {}).items():
        reference = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
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
                "Maitred-Worker": _header("Who has answered", "string"),
                "Maitred-Stream": _header("`true`: rows, one after the other", "string"),
            }
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
