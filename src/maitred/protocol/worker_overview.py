"""Messages about the workers of many queues at once, and the tasks that they run.

A shard answers for itself alone, from its memory. Callers ask every shard of every node, and add
the answers up (`client/worker_lists.py`): a worker attends at the roots of all its queues, which
may be anywhere, and runs tasks of any partition.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from maitred.protocol.frames import Opcode
from maitred.protocol.queries import WorkerRow  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.requests import Answer, Exchanges, ShardRequest
from maitred.protocol.tasks import Session, WorkerName  # noqa: TC001 - likewise

WORKERS_MAX: Final = 500
"""Most workers of one answer: some 150 kilobytes."""

QUEUES_MAX: Final = 100
"""Most queues that are named of one worker; a worker may serve thousands."""

TASKS_MAX: Final = 200
"""Most tasks that are told of one worker: as many as people see at once."""

NamePart = Annotated[str, Meta(max_length=500)]


class ListWorkers(ShardRequest, array_like=True, gc=False):
    """Ask a shard for the workers that attend at it, in the order of their names and sessions."""

    opcode = Opcode.LIST_WORKERS
    permission = "read"
    anywhere = True
    repeatable = True

    namespace: NamePart = ""
    """Empty: all."""
    queue: NamePart = ""
    """Empty: all of the namespace. Refused without a namespace."""
    match: NamePart = ""
    """A part of the name; upper and lower case are alike."""
    after: tuple[WorkerName, Annotated[bytes, Meta(max_length=16)]] = ("", b"")
    """Name and session of the last worker of the page before."""
    most: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] = 100
    within: list[str] | None = None
    """Namespaces that the user may read; None: all. The node fills it in."""


class AttendingWorker(Struct, array_like=True, gc=False):
    """A worker, with its queues whose roots are at this shard."""

    row: WorkerRow
    """As the root tells it that heard from the worker last."""
    queues: list[tuple[str, str]]
    """Namespace and name, at most `QUEUES_MAX`."""
    queue_count: int
    """How many there are."""


class WorkersListed(Answer, array_like=True, gc=False):
    """Some of the workers, in order."""

    workers: list[AttendingWorker]
    more: bool
    """Whether there are more after the last one."""


class ShowWorkerTasks(ShardRequest, array_like=True, gc=False):
    """Ask a shard which of its tasks these workers run."""

    opcode = Opcode.WORKER_TASKS
    permission = "read"
    anywhere = True
    repeatable = True

    sessions: Annotated[list[Session], Meta(max_length=WORKERS_MAX)]
    namespace: NamePart = ""
    within: list[str] | None = None
    """Namespaces that the user may read; None: all. The node fills it in."""


class WorkerTask(Struct, array_like=True, gc=False):
    """A task that a worker runs."""

    namespace: str
    queue: str
    partition: int
    sequence: int
    attempt: int
    since: float
    """When the worker was given it, in unix time."""


class WorkerTasksShown(Answer, array_like=True, gc=False):
    """The tasks of each worker that has any at this shard, by session; at most `TASKS_MAX` of
    each."""

    tasks: dict[bytes, list[WorkerTask]]


WORKER_OVERVIEW_EXCHANGES: Final[Exchanges] = (
    (ListWorkers, WorkersListed),
    (ShowWorkerTasks, WorkerTasksShown),
)
"""Class of each request and of its answer."""
