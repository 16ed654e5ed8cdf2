"""The answers of the admin API; the OpenAPI document has the schemas of these classes.

Moments are unix times in seconds; 0 means never, or not known. Every list names the parts of the
system that did not answer, so that a short list is not taken for a complete one.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from maitred.client.dead_groups import DeadGroup  # noqa: TC001 - msgspec reads the annotations
from maitred.client.queue_problems import QueueProblem  # noqa: TC001 - likewise
from maitred.matching.controls import Pause, QueueControls  # noqa: TC001 - likewise
from maitred.protocol.inspection import EventKind, TaskState, Withheld  # noqa: TC001 - likewise
from maitred.protocol.messages import ShardStatus  # noqa: TC001 - likewise
from maitred.protocol.tasks import EffectiveSetting, StoredAmount  # noqa: TC001 - likewise
from maitred.settings import Permission  # noqa: TC001 - likewise


class ToldError(Struct):
    """An error, as everywhere in the API."""

    code: str
    message: str
    remedy: str | None
    outcome: str


class UnreachablePart(Struct, kw_only=True, omit_defaults=True):
    """A part of the system that did not answer: a partition, a queue, a shard or a node."""

    error: ToldError
    partition: int | None = None
    queue: str = ""
    """`namespace/queue`, if the list is about several queues."""
    shard: int | None = None
    node: str = ""


class CallerState(Struct):
    """The user who sent the request, and what that user may do."""

    user: str | None
    permissions: dict[str, list[Permission]]
    """By namespace; `*` stands for all others."""
    release: str
    node: str
    """The address of the node that the gateway uses."""
    with_users: bool
    csrf: str
    """What requests with a session's cookie that change something have to carry in the header
    Maitred-Csrf; empty: the request had no such cookie."""


# Queues


class QueueRow(Struct, kw_only=True):
    """A queue in a list: sums over its partitions."""

    namespace: str
    queue: str
    backlog: int
    oldest_seconds: float
    """Seconds since the first waiting task was ready to run; 0 if none waits."""
    running: int
    slots_free: int
    added_per_second: float
    finished_per_second: float
    failed: int
    """Attempts that failed, since the shards began."""
    died: int
    """Tasks that became dead letters, since the shards began."""
    dead: int
    """Dead letters that there are."""
    paused: Pause | None
    partitions: int
    """0: not known, because no shard has loaded one."""
    workers: int
    queries_waiting: int
    delayed: int
    """Tasks of the backlog that wait for their time: delays and retries."""
    recent_ended: int
    """Attempts that ended in the last five to ten minutes."""
    recent_failed: int
    """Attempts of these minutes that failed."""
    run_p50: float | None
    """Seconds that the median of these attempts took; null: none has ended."""
    run_p99: float | None
    """The 99th percentile."""


class ListedQueues(Struct):
    """A page of queues."""

    queues: list[QueueRow]
    namespaces: dict[str, int]
    """How many queues each namespace has that the user may see, whatever the filter."""
    cursor: str | None
    unreachable: list[UnreachablePart]


class QueueProblems(Struct):
    """What is wrong with queues, the most urgent first."""

    problems: list[QueueProblem]
    looked_at: int
    """How many queues were looked at: all, or those with the most to do."""
    total: int
    unreachable: list[UnreachablePart]


class QueueState(Struct):
    """The sums over the partitions of a queue, and each partition."""

    namespace: str
    queue: str
    backlog: int
    running: int
    later: int
    dead: int
    offers: int
    stored: StoredAmount
    namespace_stored: StoredAmount
    workers: list[str]
    served_seconds_ago: float | None
    controls: QueueControls
    settings: dict[str, EffectiveSetting]
    """The settings that can be set live, and where each value comes from."""
    partitions: list[dict[str, Any]]


class ChangedControls(Struct):
    """The controls of a queue after a request to change them."""

    controls: QueueControls
    changed: bool
    """Whether this request has changed them."""
    partitions: int
    told: int
    """How many partitions have the controls; the others learn of them within seconds."""


class PartitionNumbers(Struct):
    """The numbers of partitions of a queue from now on."""

    read: int
    write: int
    version: int


class PurgedQueue(Struct):
    """How many tasks this request has dropped or counted."""

    tasks: dict[str, int]
    """The number of tasks by their state."""
    cursor: str | None
    """Send the request again with it, until it is null."""
    unreachable: list[UnreachablePart]


class DroppedQueue(Struct):
    """What was deleted with a queue."""

    partitions: int
    """0: the queue did not exist."""
    tasks: int
    dead: int
    workers: int
    """Workers that serve the queue; while they stay, they create it anew."""


class HandlerParameter(Struct):
    """A parameter of a handler."""

    name: str
    type: Any
    """A word such as `int`, or an array such as `["list", "str"]`; `docs/http.md` has them all."""
    required: bool
    hidden: bool


class HandlerFunction(Struct):
    """A function that serves a queue."""

    function: str
    parameters: list[HandlerParameter]


class QueueHandlers(Struct):
    """The functions that serve a queue, or did in the last day; the last one first."""

    functions: list[HandlerFunction]
    takes_anything: bool
    """Whether no worker has told parameters, or one takes any arguments."""
    served_seconds_ago: float | None
    """None: no worker has served the queue in the last day."""


class SeriesState(Struct, rename={"start": "from"}):
    """The last hour of a queue, of a namespace, or of everything that the user may read."""

    step_seconds: int
    start: float
    """When the first step began."""
    points: dict[str, list[float | None]]
    """One number a step, null where nothing is known. Counted within the step: `added`, `ended`,
    `failed`, `dead`, `retried`. At its end: `backlog`, `running`, `slots_free`. In seconds:
    `wait_p50`, `wait_p99`."""
    unreachable: list[UnreachablePart]


# Tasks


class TaskRow(Struct, kw_only=True):
    """A task in a list."""

    id: str
    """`namespace/queue/partition/sequence`."""
    namespace: str
    queue: str
    partition: int
    sequence: int
    state: TaskState
    priority: int
    added_at: float
    by: str
    """User who added it and the address from which it came."""
    attempts: int
    retries: int
    """Attempts that may still follow."""
    due_at: float
    expires_at: float
    worker: str
    started_at: float
    ended_at: float
    kept_until: float
    cancelling: bool
    reason: str
    """Why a dead letter died."""
    error: str
    message: str
    """The message of that error. Private."""
    payload_bytes: int
    withheld: Withheld
    """Why there are no arguments although they were asked for."""
    arguments: Any = None
    """An object or an array; null if they were not asked for, or are withheld. Private."""


class ListedTasks(Struct):
    """A page of tasks."""

    tasks: list[TaskRow]
    cursor: str | None
    more: bool
    """Whether the page ended before it was full, because it had looked at so many tasks: the next
    page goes on."""
    unreachable: list[UnreachablePart]


class HistoryRow(Struct, kw_only=True):
    """Something that happened to a task, or is planned."""

    at: float
    what: EventKind
    attempt: int
    worker: str
    by: str
    error: str
    message: str
    """The message of that error. Private."""
    forwarded: bool
    omitted: int
    """So many events before this one are no longer known."""


class TaskHistory(Struct, kw_only=True):
    """Everything that is known of a task."""

    task: TaskRow
    events: list[HistoryRow]
    node: str
    shard: int
    retention: float
    timeout: float
    lease_until: float
    traceback: str
    """The traceback of the last failure. Private."""
    result: Any
    """What the handler returned. Private."""
    result_withheld: Withheld
    function: str


class ActedTasks(Struct):
    """What came of an action on tasks."""

    done: int
    left: dict[str, str]
    """Why it was not done, by task."""
    added: dict[str, str]
    """For `again`: the new task, by the old one."""
    matched: int
    """How many tasks passed the filter, or were named."""
    cursor: str | None
    """Send the request again with it, until it is null."""
    unreachable: list[UnreachablePart]


class DeadGroups(Struct):
    """Groups among the dead letters that this request has looked at, the largest first."""

    groups: list[DeadGroup]
    looked_at: int
    more: bool
    cursor: str | None
    """With it, the next request looks at further ones; a caller adds the groups up."""
    unreachable: list[UnreachablePart]


# Workers and nodes


class RunningItem(Struct, kw_only=True, omit_defaults=True):
    """A task or a query that a worker runs."""

    queue: str
    """`namespace/queue`."""
    since: float
    task: str = ""
    """Partition and sequence number."""
    query: int | None = None
    """Number of the query at this gateway."""
    attempt: int = 0


class ListedWorker(Struct, kw_only=True):
    """A worker, with the queues of it that the user may see."""

    worker: str
    session: str
    address: str
    queues: list[str]
    """`namespace/queue`; at most a hundred."""
    queue_count: int
    """How many there are."""
    slots: int
    busy: int
    limit: int | None
    limit_reason: str
    state: Literal["online", "draining", "offline"]
    online: bool
    heard_seconds: float
    suspected: bool
    good: float
    blocked: int
    running: list[RunningItem] = field(default_factory=list)
    """As far as it is known here: tasks, and the queries of this gateway."""


class ListedWorkers(Struct):
    """A page of workers."""

    workers: list[ListedWorker]
    cursor: str | None
    unreachable: list[UnreachablePart]


class ToldWorkers(Struct):
    """The workers that were told to go offline, or online."""

    workers: list[ListedWorker]


class NodeRow(Struct, kw_only=True):
    """A node of the cluster, or the only one."""

    id: str
    node: str
    address: str
    state: str
    release: str
    protocol: int
    shards: int
    since: float
    load: float | None
    beat_seconds_ago: float | None
    partitions: int | None
    held: int | None
    clock_ahead_seconds: float | None


class NodesState(Struct):
    """The nodes, and the state of each shard."""

    cluster: str | None
    """The name of the cluster; null for a node that belongs to none."""
    version: int
    protocol: int
    lease_seconds: float
    problem: str
    """Why the membership table cannot be read; empty if it can be read, or without a cluster."""
    nodes: list[NodeRow]
    shards: list[ShardStatus]
    unreachable: list[UnreachablePart]


class ShardPast(Struct):
    """The last hour of one shard."""

    node: str
    """The identity of the node."""
    shard: int
    points: dict[str, list[float | None]]
    """One number a step, null where nothing was measured. Within the step: `load` (1 is a full
    core), `loop_lag` (the longest delay of the event loop, in seconds), `requests`, `commits` and
    `failed_commits` of the store, `commit_p50` and `commit_p99` (seconds), `commit_rows` (rows of
    one commit on average). At its end: `memory` (bytes)."""


class NodesPast(Struct, rename={"start": "from"}):
    """The last hour of each shard."""

    step_seconds: int
    start: float
    """When the first step began."""
    shards: list[ShardPast]
    unreachable: list[UnreachablePart]


class WorkerPast(Struct, rename={"start": "from"}):
    """The last hour of one worker, since it was started."""

    step_seconds: int
    start: float
    """When the first step began."""
    points: dict[str, list[float | None]]
    """One number a step, null where nothing was measured: at its end `limit` (how many tasks and
    queries the worker took at a time), `busy` and `slots`. Empty: nothing is known of it."""
    unreachable: list[UnreachablePart]


class RingMember(Struct, kw_only=True):
    """An active member of the cluster, and its part of the hash ring."""

    id: str
    address: str
    shards: int
    share: float
    """Its share of the circle, from 0 to 1."""
    heirs: dict[str, float]
    """The shares of the circle that other members get if it leaves, by their ids."""


class RingArcRow(Struct, array_like=True):
    """A part of the circle that belongs to one member."""

    end: float
    """Where it ends, from 0 to 1; it begins where the arc before ends."""
    member: int
    """The place of the member in `members`."""


class RingPartition(Struct, kw_only=True, omit_defaults=True):
    """A partition of the queue, and its owner."""

    partition: int
    member: str
    """Id of the member."""
    shard: int
    heir: str = ""
    """Id of the member that has it after the one in `leaving` has left, if that is another one."""
    heir_shard: int = 0


class RingState(Struct):
    """The hash ring of the cluster, and where the partitions of a queue are."""

    cluster: str | None
    """Null for a node that belongs to no cluster: it has no ring."""
    version: int
    """Version of the view that the gateway has."""
    members: list[RingMember]
    arcs: list[RingArcRow]
    """All around the circle; empty if there are more than 10,000."""
    partitions: list[RingPartition]
    """The partitions of the queue that the request names; empty if it names none."""
