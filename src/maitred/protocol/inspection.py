"""Messages with which operators look at single tasks and change them.

A partition answers for its own tasks, wherever they are: in memory, in the store, or over. Each
request does a bounded amount of work, whatever the size of the backlog. The answer to a list says
where to go on, also if nothing of what was looked at passed the filter.

Arguments, results, the messages of errors, and tracebacks are *private*: an answer has them only if
the request asks to `reveal` them, and the shard that the caller is connected to takes that back
unless the user has the permission `reveal`. Arguments that the handler hides are in no answer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from maitred.matching.controls import ShortText  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Natural, PartitionRequest
from maitred.protocol.tasks import Reason  # noqa: TC001 - msgspec reads the annotations

LISTED_MAX = 1_000
"""Most tasks of one answer: some hundred kilobytes, and some milliseconds of the shard."""

CHANGED_MAX = 1_000
"""Most tasks that one request changes: some ten milliseconds of the shard."""

TaskState = Literal[
    "running", "waiting", "delayed", "dead", "done", "cancelled", "expired", "failed"
]
"""The state of a task as operators see it. `running`: a worker has it. `waiting`: it is ready to
run. `delayed`: it is not due yet, for a delay or the backoff of a retry. `dead`: its attempts are
used up, and it is a dead letter. The others: how it ended. `failed`: it failed, and its dead letter
is gone."""

ListedState = Literal[
    "running", "waiting", "delayed", "dead", "ended", "done", "cancelled", "expired"
]
"""What a list may be about; `ended` stands for `done`, `cancelled` and `expired` together."""

TaskAction = Literal["cancel", "retry", "run-now", "drop", "again"]
"""What an operator does to a task. `cancel`: it is not run, or it is stopped. `retry`: a dead
letter is tried again with all its attempts. `run-now`: a delayed task is due at once. `drop`: a
dead letter is deleted. `again`: a new task is added with the arguments and options of one that is
over or dead.
"""

Withheld = Literal["", "permission", "size", "unknown", "unreadable", "forgotten"]
"""Why an answer has no arguments, or no result, although they were asked for. Empty: it has them,
or was not asked. `permission`: the user may not see them. `size`: too large for a list, or
for a result that has to be searched for hidden values. `unknown`: no handler has said which of them
are hidden. `unreadable`: they are not msgpack. `forgotten`: they
are no longer kept."""


class ArgumentFilter(Struct, array_like=True, frozen=True):
    """Tasks whose handler is given this argument. Finding them needs the permission `reveal`."""

    name: ShortText
    """Name of the parameter, or its place in the call as a decimal number."""
    value: bytes
    """The value, as msgpack."""


class TaskFilter(Struct, array_like=True, frozen=True):
    """Which tasks of a state are meant; empty fields mean all."""

    worker: ShortText = ""
    """Name of the worker that has the task, or had it last."""
    error: ShortText = ""
    """Class or code of the last failure, or a part of it; of its message, too, for users who may
    see private data. Upper and lower case are alike."""
    by: ShortText = ""
    """User who added the task."""
    added_after: float = 0.0
    """Unix time in seconds; 0: no limit."""
    added_before: float = 0.0
    argument: ArgumentFilter | None = None


EVERY_TASK = TaskFilter()


class ListTasks(PartitionRequest, array_like=True, gc=False):
    """List tasks of one state of a partition.

    Running tasks come in the order in which they were given out; delayed ones in that of their due
    times; ended ones the last first; waiting ones by priority and number; dead letters by number. A
    list is no snapshot: a task that changes its state meanwhile may be missed, or be listed twice.
    """

    opcode = Opcode.LIST_TASKS
    permission = "read"
    repeatable = True

    state: ListedState
    filter: TaskFilter = EVERY_TASK
    after: tuple[float, Natural] = (0.0, 0)
    """Where to go on: `cursor` of the last answer. (0, 0): at the beginning. For running and
    delayed tasks a unix time and a number, for ended ones likewise but counted down, for waiting
    tasks a priority and a number, for dead letters 0 and a number: so a caller that merges the
    lists of several partitions knows where to go on in each (see `client/task_lists.py`)."""
    most: Annotated[int, Meta(ge=1, le=LISTED_MAX)] = 100
    reveal: bool = False
    """Whether to answer with arguments and messages; the shard takes it back unless the user has
    the permission `reveal`."""


class ListedTask(Struct, kw_only=True, omit_defaults=True):
    """A task as operators see it. A map, for people. Moments are unix times in seconds; 0 means
    never, or not known."""

    partition: int
    sequence: int
    state: TaskState
    priority: int = 2
    added_at: float = 0.0
    by: str = ""
    """User who added it and the address from which it came, as in `alice@10.0.0.7`."""
    attempts: int = 0
    """Attempts that began, with the present one."""
    retries: int = 0
    """Attempts that may follow the present one, or the next one of a task that waits."""
    due_at: float = 0.0
    """When a delayed task is due; when a waiting one became ready to run."""
    expires_at: float = 0.0
    worker: str = ""
    """Name of the worker that has it, or had it last."""
    started_at: float = 0.0
    """When that worker was given it."""
    ended_at: float = 0.0
    """When it ended or became a dead letter."""
    kept_until: float = 0.0
    """Until when the result is kept."""
    cancelling: bool = False
    """Whether its worker has been told, or will be, to stop."""
    reason: str = ""
    """Why a dead letter died: `failed`, `timed-out`, `lost`."""
    error: str = ""
    """Class of the exception of the last failed attempt, or its code."""
    message: str = ""
    """The message of that error. Private."""
    payload_bytes: int = 0
    arguments: bytes | None = None
    """The arguments as msgpack: a map by name if the names are known, else an array. Hidden ones
    are the text `[hidden]`. Private."""
    withheld: Withheld = ""
    """Why there are no arguments, if they were asked for."""
    at: tuple[float, int] = (0.0, 0)
    """Its place in the list: a list that goes on `after` it begins with the next task."""


class TasksListed(Answer, array_like=True, gc=False):
    """Tasks that passed the filter, and where to go on."""

    tasks: list[ListedTask]
    cursor: tuple[float, int] | None
    """None: there are no more. Otherwise there may be, also if `tasks` is empty."""
    looked_at: int
    """How many tasks were compared with the filter for this answer."""
    now: float = 0.0
    """The shard's clock when it answered, as a unix time: by it a caller can tell tasks that were
    added or have changed since."""


class ShowTask(PartitionRequest, array_like=True, gc=False):
    """Ask for everything that is known of one task."""

    opcode = Opcode.SHOW_TASK
    permission = "read"
    repeatable = True

    sequence: Natural
    reveal: bool = False
    """Whether to answer with what is private; as for `ListTasks`."""


EventKind = Literal[
    "added",
    "started",
    "failed",
    "timed-out",
    "lost",
    "returned",
    "stopped",
    "retry",
    "due",
    "done",
    "cancelled",
    "expired",
    "dead",
    "forgotten",
]


class HistoryEvent(Struct, kw_only=True, omit_defaults=True):
    """Something that happened to a task. A map, for people."""

    at: float
    """Unix time in seconds. A later moment than now is one that is planned."""
    what: EventKind
    """`started`: a worker was given it. `returned`: the worker gave it back without having begun.
    `retry`: the next attempt is due. `due`: its delay ends. `dead`: it became a dead letter.
    `forgotten`: its result is no longer kept."""
    attempt: int = 0
    worker: str = ""
    by: str = ""
    error: str = ""
    message: str = ""
    """The message of that error. Private."""
    forwarded: bool = False
    """Whether the worker waited at a parent partition."""
    omitted: int = 0
    """So many events before this one are no longer known: long histories keep the last attempts."""


class TaskShown(Answer, array_like=True, kw_only=True):
    """Everything that is known of one task."""

    task: ListedTask
    events: list[HistoryEvent]
    """In their order; those that are planned come last."""
    node: str = ""
    shard: int = 0
    retention: float = 60.0
    timeout: float = 0.0
    lease_until: float = 0.0
    traceback: str = ""
    """Of the last failure. Private."""
    result: bytes | None = None
    """What the handler returned, as msgpack. Private."""
    result_withheld: Withheld = ""
    function: str = ""
    """Name of the function that serves the queue; empty: unknown."""


class ChangeTasks(PartitionRequest, array_like=True, gc=False):
    """Do something to tasks of a partition. Answered when it is on disk."""

    opcode = Opcode.CHANGE_TASKS
    permission = "operate"

    action: TaskAction
    sequences: Annotated[list[Natural], Meta(min_length=1, max_length=CHANGED_MAX)]
    reason: Reason = ""
    """Why, for the audit log."""
    user: ShortText = ""
    """User who asks; the shard that the client is connected to fills it in."""
    source: ShortText = ""
    """Address that the request comes from; the shard that the client is connected to fills it in.
    """


class TasksChanged(Answer, array_like=True, gc=False):
    """What came of each task."""

    done: list[int]
    """Sequence numbers of the tasks to which it was done, those that are being stopped included."""
    left: dict[int, str] = field(default_factory=dict)
    """Why it was not done to the others: `over`, `running`, `waiting`, `delayed`, `not-delayed`,
    `not-dead`, `forgotten`, `unknown`, `read-only` (the partition accepts no tasks), or the code of
    an error."""
    added: dict[int, int] = field(default_factory=dict)
    """For `again`: the number of the new task, by that of the old one."""


INSPECTION_EXCHANGES: tuple[tuple[type[PartitionRequest], type[Answer]], ...] = (
    (ListTasks, TasksListed),
    (ShowTask, TaskShown),
    (ChangeTasks, TasksChanged),
)
"""Class of each request and of its answer."""
