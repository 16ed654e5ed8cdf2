"""The bodies of successful answers; the OpenAPI document has the schemas of these classes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from maitred.protocol.queries import QueryRow  # noqa: TC001 - msgspec reads the annotations


class AddedTask(Struct):
    """The id of a task, and the path under which its result can be had."""

    id: str
    partition: int
    sequence: int
    location: str


class PendingTask(Struct):
    """The task has not ended."""

    status: Literal["pending"] = "pending"


class RevokedTask(Struct):
    """The state of the task since it was cancelled."""

    state: str


class QueueScaling(Struct):
    """How many slots a queue wants, and the measurements that this was computed from."""

    namespace: str
    queue: str
    slots_wanted: int
    added_per_second: float
    service_seconds: float
    """Mean time from giving a task to a worker until its end; 0: unknown."""
    backlog: int
    """Tasks that could be run, without delayed ones."""
    running: int


class ListedQueries(Struct):
    """Rows of the query table."""

    queries: list[QueryRow]


class CancelledQuery(Struct):
    """The query is being cancelled, or was over before."""

    sequence: int
    state: Literal["cancelling", "over"]


class GatewayState(Struct):
    """Whether the gateway is alive, stopping or ready."""

    status: Literal["alive", "stopping", "ready"]
